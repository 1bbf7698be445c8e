#include "tf/variables.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tf/replica_resource.h"

namespace keras_strom {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

absl::Status ToStatus(int code, const char* words) {
  if (code == STROM_OK) return absl::OkStatus();
  // The mark lets Python raise the matching exception (keras_strom/_native/ops.py, `translate`).
  const std::string message = absl::StrCat("[keras-strom ", code, "] ", words);
  switch (code) {
    case STROM_INVALID_ARGUMENT:
    case STROM_NOT_FINITE:
      return absl::InvalidArgumentError(message);
    case STROM_TIMEOUT:
      return absl::DeadlineExceededError(message);
    case STROM_REFUSED:
    case STROM_REJECTED_SECRET:
      return absl::PermissionDeniedError(message);
    case STROM_UNREACHABLE:
    case STROM_MASTER_LOST:
    case STROM_ADDRESS:
      return absl::UnavailableError(message);
    case STROM_CLOSED:
      return absl::AbortedError(message);
    case STROM_CORRUPT:
      return absl::DataLossError(message);
    case STROM_BACK_PRESSURE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status FirstInput(const tensorflow::OpKernel& op, const char* name, int* first) {
  int end = 0;
  return op.InputRange(name, first, &end);
}

absl::Status ReplicaAttributes::Read(OpKernelConstruction* context, const char* replica_name) {
  TF_RETURN_IF_ERROR(context->GetAttr("N", &variables));
  TF_RETURN_IF_ERROR(context->GetAttr(replica_name, &replica));
  TF_RETURN_IF_ERROR(context->GetAttr("offsets", &offsets));
  if (static_cast<int>(offsets.size()) != variables) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets has ", offsets.size(), " entries for ", variables, " variables"));
  }
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    return absl::InvalidArgumentError("offsets must ascend");
  }
  return absl::OkStatus();
}

std::vector<bool> BufferWatch::FindAssigned(const std::vector<int64_t>& offsets,
                                            const std::vector<const void*>& found) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<bool> assigned(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    const auto known = buffers_.find(offsets[i]);
    assigned[i] = known != buffers_.end() && found[i] != nullptr && known->second != found[i];
  }
  return assigned;
}

void BufferWatch::Remember(const std::vector<int64_t>& offsets,
                           const std::vector<const void*>& left) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < offsets.size(); ++i) buffers_[offsets[i]] = left[i];
}

namespace {

absl::Status CheckUsable(Var& variable, const std::string& what) {
  if (!variable.is_initialized) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has no value yet: initialise it before strategy.run"));
  }
  if (variable.tensor()->dtype() != tensorflow::DT_FLOAT) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not float32"));
  }
  return absl::OkStatus();
}

}  // namespace

LockedVariables::LockedVariables(OpKernelContext* context) : context_(context), copies_(context) {}

LockedVariables::~LockedVariables() {
  for (auto variable = locked_.rbegin(); variable != locked_.rend(); ++variable) {
    (*variable)->mu()->unlock();
  }
}

absl::Status LockedVariables::Lock(const ReplicaAttributes& attributes, int first_other,
                                   int others) {
  attributes_ = &attributes;
  std::vector<Var*> in_order;
  const auto look_up = [&](int input, std::vector<Locked>* found) {
    RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        context_, tensorflow::HandleFromInput(context_, input), &variable));
    in_order.push_back(variable.get());
    found->emplace_back().variable = std::move(variable);
    return absl::OkStatus();
  };
  for (int i = 0; i < attributes.variables; ++i) TF_RETURN_IF_ERROR(look_up(i, &variables_));
  for (int i = 0; i < others; ++i) TF_RETURN_IF_ERROR(look_up(first_other + i, &others_));
  std::sort(in_order.begin(), in_order.end());
  in_order.erase(std::unique(in_order.begin(), in_order.end()), in_order.end());
  for (Var* variable : in_order) {
    variable->mu()->lock();
    locked_.push_back(variable);
  }
  for (size_t i = 0; i < variables_.size(); ++i) {
    TF_RETURN_IF_ERROR(
        CheckUsable(*variables_[i].variable,
                    absl::StrCat("the variable at flat offset ", attributes.offsets[i])));
  }
  for (const Locked& other : others_) {
    TF_RETURN_IF_ERROR(CheckUsable(*other.variable, "a variable of the optimizer"));
  }
  if (!copies_.on_device()) return absl::OkStatus();
  return HostMirrors::Find(context_, attributes.replica, &mirrors_);
}

void LockedVariables::PutBack(size_t i, const Tensor& value) {
  *variables_[i].variable->tensor() = value;
}

absl::Status LockedVariables::MakePlacedWritable(size_t i) {
  Tensor* const placed = variables_[i].variable->tensor();
  if (placed->RefCountIsOne()) return absl::OkStatus();
  Tensor fresh;
  TF_RETURN_IF_ERROR(context_->allocate_temp(placed->dtype(), placed->shape(), &fresh));
  TF_RETURN_IF_ERROR(CopyWithinDevice(context_, *placed, &fresh));
  *placed = std::move(fresh);
  return absl::OkStatus();
}

Tensor* LockedVariables::HostTensor(Locked* locked) {
  return copies_.on_device() ? &locked->copy : locked->variable->tensor();
}

absl::Status LockedVariables::Fetch(size_t i) {
  return Fetch(&variables_[i], &attributes_->offsets[i]);
}

absl::Status LockedVariables::FetchOther(size_t i) { return Fetch(&others_[i], nullptr); }

absl::Status LockedVariables::FetchAll() {
  for (size_t i = 0; i < size(); ++i) TF_RETURN_IF_ERROR(Fetch(i));
  return AwaitFetched();
}

absl::Status LockedVariables::Fetch(Locked* locked, const int64_t* offset) {
  if (!copies_.on_device() || locked->is_fetched) return absl::OkStatus();
  if (offset != nullptr) locked->mirror = mirrors_->Take(*offset);
  const Tensor& placed = *locked->variable->tensor();
  if (locked->mirror.placed.data() == placed.data() &&
      !locked->variable->copy_on_read_mode.load()) {
    locked->copy = locked->mirror.copy;
  } else {
    TF_RETURN_IF_ERROR(copies_.Fetch(placed, &locked->copy));
  }
  locked->fetched = locked->copy.data();
  locked->is_fetched = true;
  return absl::OkStatus();
}

absl::Status LockedVariables::FetchEarlier(size_t i, const Tensor& placed, Tensor* copy) {
  Locked& locked = variables_[i];
  TF_RETURN_IF_ERROR(Fetch(i));
  if (placed.data() == locked.variable->tensor()->data()) {
    *copy = locked.copy;
    return absl::OkStatus();
  }
  if (placed.data() == locked.mirror.placed.data()) {
    *copy = locked.mirror.copy;
    return absl::OkStatus();
  }
  return copies_.Fetch(placed, copy);
}

absl::Status LockedVariables::AwaitFetched() {
  for (Locked& locked : variables_) locked.mirror = {};
  return copies_.Await();
}

absl::Status LockedVariables::Store(const std::vector<bool>& written, bool written_others) {
  if (!copies_.on_device()) return absl::OkStatus();
  for (size_t i = 0; i < size(); ++i) TF_RETURN_IF_ERROR(Store(&variables_[i], written[i]));
  for (Locked& other : others_) TF_RETURN_IF_ERROR(Store(&other, written_others));
  TF_RETURN_IF_ERROR(copies_.Await());
  for (size_t i = 0; i < size(); ++i) {
    if (!variables_[i].is_fetched || copies_on_read(i)) continue;
    mirrors_->Put(attributes_->offsets[i], {placed(i), variables_[i].copy});
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::Store(Locked* locked, bool written) {
  if (!locked->is_fetched || (!written && locked->copy.data() == locked->fetched)) {
    return absl::OkStatus();
  }
  Tensor* const placed = locked->variable->tensor();
  if (!placed->RefCountIsOne()) {
    Tensor fresh;
    TF_RETURN_IF_ERROR(context_->allocate_temp(placed->dtype(), placed->shape(), &fresh));
    *placed = std::move(fresh);
  }
  return copies_.Store(locked->copy, placed);
}

absl::Status LockedVariables::FindChanged(const std::vector<Earlier>& earlier,
                                          bool compare_contents, std::vector<bool>* changed,
                                          std::vector<Tensor>* fetched) {
  changed->assign(earlier.size(), false);
  fetched->assign(earlier.size(), Tensor());
  std::vector<bool> by_contents(earlier.size());
  for (size_t k = 0; k < earlier.size(); ++k) {
    const auto [i, before] = earlier[k];
    const Tensor& now = placed(i);
    if (before->NumElements() != now.NumElements()) {
      return absl::InvalidArgumentError("a variable changed its shape within strategy.run");
    }
    (*changed)[k] = before->data() != now.data();
    by_contents[k] = (*changed)[k] && (compare_contents || copies_on_read(i));
    if (!by_contents[k] || !copies_.on_device()) continue;
    TF_RETURN_IF_ERROR(FetchEarlier(i, *before, &(*fetched)[k]));
  }
  TF_RETURN_IF_ERROR(AwaitFetched());
  for (size_t k = 0; k < earlier.size(); ++k) {
    if (!by_contents[k]) continue;
    const Tensor& before = copies_.on_device() ? (*fetched)[k] : *earlier[k].before;
    const Tensor& now = *tensor(earlier[k].variable);
    (*changed)[k] = std::memcmp(before.data(), now.data(), now.TotalBytes()) != 0;
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::InPlaceSegments(std::vector<strom_segment>* segments) {
  for (size_t i = 0; i < size(); ++i) {
    TF_RETURN_IF_ERROR(MakeWritable(copies_, tensor(i)));
    float* value = static_cast<float*>(tensor(i)->data());
    segments->push_back(
        {attributes_->offsets[i], tensor(i)->NumElements(), value, value, value, nullptr});
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::RememberBuffers() {
  std::vector<const void*> left;
  for (size_t i = 0; i < size(); ++i) left.push_back(placed(i).data());
  RefCountPtr<BufferWatch> watch;
  TF_RETURN_IF_ERROR(Watch(&watch));
  watch->Remember(attributes_->offsets, left);
  return absl::OkStatus();
}

absl::Status LockedVariables::FindAssigned(const std::vector<const void*>& found,
                                           std::vector<bool>* assigned) {
  RefCountPtr<BufferWatch> watch;
  TF_RETURN_IF_ERROR(Watch(&watch));
  *assigned = watch->FindAssigned(attributes_->offsets, found);
  return absl::OkStatus();
}

void LockedVariables::KeepMirrors() {
  if (mirrors_ != nullptr) mirrors_->Begin();
}

void LockedVariables::ForgetMirrors() {
  if (mirrors_ != nullptr) mirrors_->End();
}

absl::Status LockedVariables::Watch(RefCountPtr<BufferWatch>* watch) {
  return FindOfReplica(context_, "buffers", attributes_->replica, watch);
}

absl::Status OutputStatistics(OpKernelContext* context, const strom_step_result& result,
                              bool stepped, int64_t assigned_outside) {
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({kStatistics}), &output));
  const double values[kStatistics] = {stepped ? 1.0 : 0.0,
                                      static_cast<double>(result.count),
                                      static_cast<double>(result.elements),
                                      static_cast<double>(result.message_bytes),
                                      static_cast<double>(result.received),
                                      static_cast<double>(result.max_residual),
                                      static_cast<double>(result.threshold),
                                      result.sum_residual,
                                      result.clipped_mass,
                                      static_cast<double>(result.clipped_count),
                                      static_cast<double>(assigned_outside),
                                      static_cast<double>(result.staleness),
                                      result.update_norm,
                                      result.limited_mass,
                                      static_cast<double>(result.stepped),
                                      static_cast<double>(result.value)};
  std::memcpy(output->data(), values, sizeof(values));
  return absl::OkStatus();
}

}  // namespace keras_strom
