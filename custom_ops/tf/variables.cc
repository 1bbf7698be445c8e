#include "tf/variables.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"

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

absl::Status HasChanged(const Tensor& before, Var& now, bool compare_contents, bool* changed) {
  const Tensor& after = *now.tensor();
  if (before.NumElements() != after.NumElements()) {
    return absl::InvalidArgumentError("a variable changed its shape within strategy.run");
  }
  *changed = before.data() != after.data();
  if (*changed && (compare_contents || now.copy_on_read_mode.load())) {
    *changed = std::memcmp(before.data(), after.data(), after.TotalBytes()) != 0;
  }
  return absl::OkStatus();
}

absl::Status MakeWritable(OpKernelContext* context, Tensor* tensor) {
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
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

LockedVariables::~LockedVariables() {
  for (auto variable = locked_.rbegin(); variable != locked_.rend(); ++variable) {
    (*variable)->mu()->unlock();
  }
}

absl::Status LockedVariables::Lock(OpKernelContext* context, const ReplicaAttributes& attributes,
                                   int first_other, int others) {
  attributes_ = &attributes;
  std::vector<Var*> in_order;
  const auto look_up = [&](int input, std::vector<RefCountPtr<Var>>* found) {
    RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        context, tensorflow::HandleFromInput(context, input), &variable));
    in_order.push_back(variable.get());
    found->push_back(std::move(variable));
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
    TF_RETURN_IF_ERROR(CheckUsable(
        *variables_[i], absl::StrCat("the variable at flat offset ", attributes.offsets[i])));
  }
  for (const auto& variable : others_) {
    TF_RETURN_IF_ERROR(CheckUsable(*variable, "a variable of the optimizer"));
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::InPlaceSegments(OpKernelContext* context,
                                              std::vector<strom_segment>* segments) {
  for (size_t i = 0; i < variables_.size(); ++i) {
    Tensor* tensor = variables_[i]->tensor();
    TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
    float* value = static_cast<float*>(tensor->data());
    segments->push_back(
        {attributes_->offsets[i], tensor->NumElements(), value, value, value, nullptr});
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::RememberBuffers(OpKernelContext* context) {
  std::vector<const void*> left;
  for (const auto& variable : variables_) left.push_back(variable->tensor()->data());
  RefCountPtr<BufferWatch> watch;
  TF_RETURN_IF_ERROR(Watch(context, &watch));
  watch->Remember(attributes_->offsets, left);
  return absl::OkStatus();
}

absl::Status LockedVariables::FindAssigned(OpKernelContext* context,
                                           const std::vector<const void*>& found,
                                           std::vector<bool>* assigned) {
  RefCountPtr<BufferWatch> watch;
  TF_RETURN_IF_ERROR(Watch(context, &watch));
  *assigned = watch->FindAssigned(attributes_->offsets, found);
  return absl::OkStatus();
}

absl::Status LockedVariables::Watch(OpKernelContext* context, RefCountPtr<BufferWatch>* watch) {
  BufferWatch* found = nullptr;
  TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<BufferWatch>(
      "keras_strom", absl::StrCat("buffers_of_replica_", attributes_->replica), &found,
      [](BufferWatch** created) {
        *created = new BufferWatch;
        return absl::OkStatus();
      }));
  watch->reset(found);
  return absl::OkStatus();
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
