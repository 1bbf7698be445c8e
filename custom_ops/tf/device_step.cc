#include "tf/device_step.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tf/replica_resource.h"
#include "tf/step_warnings.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr const char* kName = "device_step";
constexpr const char* kSwitch = "KERAS_STROM_GPU_STEP";

absl::Status IsSwitchedOff(bool* off) {
  const char* const set = std::getenv(kSwitch);
  const std::string value = set == nullptr ? "on" : set;
  *off = value == "off";
  if (*off || value == "on") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kSwitch,
                   " is \"on\" (steps stay on a GPU where they can) or \"off\" (they are "
                   "done on the host), not \"",
                   value, "\""));
}

// What a status of ours says to its user.
absl::string_view WithoutMark(absl::string_view words) {
  const size_t end = words.find("] ");
  const bool is_marked = absl::StartsWith(words, "[keras-strom ") && end != words.npos;
  return is_marked ? words.substr(end + 2) : words;
}

// The last of them, which ascend, that starts at flat element `offset` or before.
template <typename Part>
const Part& Containing(const std::vector<Part>& parts, int64_t offset) {
  const auto after =
      std::upper_bound(parts.begin(), parts.end(), offset,
                       [](int64_t place, const Part& part) { return place < part.offset; });
  return *std::prev(after);
}

}  // namespace

DeviceStep::~DeviceStep() { GiveBackMemory(); }

absl::Status DeviceStep::Find(OpKernelContext* context, strom_handle replica,
                              tensorflow::core::RefCountPtr<DeviceStep>* step) {
  return FindOfReplica(context, kName, replica, step);
}

void DeviceStep::Forget(OpKernelContext* context, strom_handle replica) {
  ForgetOfReplica<DeviceStep>(context, kName, replica);
}

absl::Status DeviceStep::Prepare(OpKernelContext* context, strom_handle replica,
                                 const std::vector<strom_cuda_segment>& segments, bool* ready) {
  *ready = false;
  bool off = false;
  TF_RETURN_IF_ERROR(IsSwitchedOff(&off));
  if (off || refused_) return absl::OkStatus();
  const absl::Status allocated = Allocate(context, replica, segments);
  *ready = allocated.ok();
  if (*ready) return absl::OkStatus();
  refused_ = true;
  if (!held_) GiveBackMemory();
  WarnOfHost(context, allocated.message());
  return absl::OkStatus();
}

void DeviceStep::WarnOfHost(OpKernelContext* context, absl::string_view why) {
  bool off = false;
  if (!IsSwitchedOff(&off).ok() || off) return;
  WarnOnce(absl::StrCat("each step on ", context->device()->name(),
                        " copies what the optimizer wrote to the host and is shared from there, "
                        "which costs time but changes no result: ",
                        WithoutMark(why)));
}

absl::Status DeviceStep::FollowStream(OpKernelContext* context) {
  void* stream = nullptr;
  TF_RETURN_IF_ERROR(StreamOf(context, &stream));
  stream_ = stream;
  return absl::OkStatus();
}

absl::Status DeviceStep::Allocate(OpKernelContext* context, strom_handle replica,
                                  const std::vector<strom_cuda_segment>& segments) {
  TF_RETURN_IF_ERROR(FollowStream(context));
  TF_RETURN_IF_ERROR(DeviceLibrary::Open(&library_));
  if (codec_ == 0) {
    int64_t max_message = 0;
    TF_RETURN_IF_ERROR(
        ToStatus(strom_replica_max_message(replica, &max_message), strom_last_error()));
    const strom_cuda_memory memory = LendWatched(context);
    const int code = library_->codec_create(max_message, &memory, &codec_);
    if (code != STROM_OK) return ToStatus(code, library_->last_error());
  }
  Residual wanted;
  int64_t elements = 0;
  for (const strom_cuda_segment& segment : segments) {
    wanted.parts.push_back({segment.offset, segment.size, elements});
    elements += (segment.size + 3) / 4 * 4;
  }
  if (held_ && residual_.parts == wanted.parts) {
    next_ = {};  // of a step over other segments, which was refused
    return absl::OkStatus();
  }
  const Residual& latest = next_.parts.empty() ? residual_ : next_;
  if (latest.parts == wanted.parts) return absl::OkStatus();
  const absl::Status allocated =
      context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({elements}), &wanted.tensor);
  if (!allocated.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("its memory has no ", elements * sizeof(float),
                                                     " bytes left for the residual"));
  }
  const int code =
      library_->reserve(codec_, segments.data(), static_cast<int64_t>(segments.size()));
  if (code != STROM_OK) return ToStatus(code, library_->last_error());
  next_ = std::move(wanted);
  return absl::OkStatus();
}

absl::Status DeviceStep::Compare(const std::vector<strom_cuda_segment>& segments,
                                 std::vector<int32_t>* differ) {
  differ->resize(segments.size());
  const int code = library_->compare(codec_, segments.data(), static_cast<int64_t>(segments.size()),
                                     stream_, differ->data());
  return code == STROM_OK ? absl::OkStatus() : ToStatus(code, library_->last_error());
}

strom_cuda_memory DeviceStep::LendWatched(OpKernelContext* context) {
  lent_ = LendMemory(context);
  const auto allocate = [](void* step, int64_t bytes) {
    auto* const self = static_cast<DeviceStep*>(step);
    void* const memory = self->lent_.allocate(self->lent_.context, bytes);
    if (memory == nullptr) {
      (self->adds_received_ ? self->lacked_for_received_ : self->lacked_bytes_) = bytes;
    }
    return memory;
  };
  const auto release = [](void* step, void* memory) {
    const auto* const self = static_cast<DeviceStep*>(step);
    self->lent_.release(self->lent_.context, memory);
  };
  return {this, allocate, release};
}

absl::Status DeviceStep::Step(OpKernelContext* context, strom_handle replica,
                              std::vector<strom_cuda_segment> segments,
                              const strom_step_options& options, strom_step_result* result) {
  const Residual& home = next_.parts.empty() ? residual_ : next_;
  std::vector<strom_segment> places;
  for (strom_cuda_segment& segment : segments) {
    segment.residual = home.At(segment.offset);
    places.push_back({segment.offset, segment.size, nullptr, nullptr, nullptr, segment.name});
  }
  segments_ = std::move(segments);
  lacked_bytes_ = lacked_for_received_ = 0;
  const strom_step_device device = Functions();
  const int code = strom_replica_step_on_device(
      replica, &device, places.data(), static_cast<int64_t>(places.size()), &options, result);
  if (code != STROM_OK && result->stepped == 0) PutBackValues();
  segments_.clear();
  if (lacked_for_received_ > 0) {  // All else has been done.
    LeaveToHost(context, lacked_for_received_, "what others have sent");
    return absl::OkStatus();
  }
  if (lacked_bytes_ > 0 && code == STROM_OK) {
    LeaveToHost(context, lacked_bytes_, "what a step is to send");
  }
  return ToStatus(code, strom_last_error());
}

void DeviceStep::LeaveToHost(OpKernelContext* context, int64_t bytes, absl::string_view what) {
  refused_ = true;
  WarnOfHost(context, absl::StrCat("its memory has no ", bytes, " bytes left for ", what));
}

absl::Status DeviceStep::Apply(OpKernelContext* context, strom_handle replica,
                               std::vector<strom_cuda_segment> segments,
                               const std::vector<float*>& shared, strom_step_result* result,
                               bool* complete) {
  TF_RETURN_IF_ERROR(FollowStream(context));
  std::vector<strom_segment> places;
  for (size_t k = 0; k < segments.size(); ++k) {
    places.push_back({segments[k].offset, segments[k].size, nullptr, nullptr, shared[k], nullptr});
  }
  segments_ = std::move(segments);
  lacked_for_received_ = 0;
  const strom_step_device device = Functions();
  const strom_thread_pool threads = LendThreads(context);
  const int code = strom_replica_apply_on_device(
      replica, &device, places.data(), static_cast<int64_t>(places.size()), &threads, result);
  segments_.clear();
  *complete = lacked_for_received_ == 0;
  if (*complete) return ToStatus(code, strom_last_error());
  LeaveToHost(context, lacked_for_received_, "what others have sent");
  return absl::OkStatus();
}

// The optimizer's update is in the values alone then, and would be nobody's.
void DeviceStep::PutBackValues() {
  for (const strom_cuda_segment& segment : segments_) {
    if (segment.before == segment.value) continue;
    // Of a device that is lost nothing can be put right.
    library_->copy(codec_, segment.value, segment.before,
                   segment.size * static_cast<int64_t>(sizeof(float)), stream_);
  }
}

void DeviceStep::GiveBackMemory() {
  if (codec_ != 0) library_->codec_close(codec_);
  codec_ = 0;
  residual_ = next_ = {};
}

strom_step_device DeviceStep::Functions() {
  strom_step_device device{};
  device.context = this;
  device.hold = [](void* context) {
    auto* const self = static_cast<DeviceStep*>(context);
    self->Ref();
    self->held_ = true;
  };
  device.release = [](void* context) {
    auto* const self = static_cast<DeviceStep*>(context);
    self->held_ = false;
    if (self->refused_) self->GiveBackMemory();  // No step will be here any more.
    self->Unref();
  };
  device.read_residual = [](void* context, int64_t offset, int64_t size, float* out) {
    return static_cast<DeviceStep*>(context)->ReadResidual(offset, size, out);
  };
  device.write_residual = [](void* context, int64_t offset, int64_t size, const float* in) {
    return static_cast<DeviceStep*>(context)->WriteResidual(offset, size, in);
  };
  device.step = [](void* context, int64_t elements, const strom_step_options* options,
                   strom_step_result* result) {
    auto* const self = static_cast<DeviceStep*>(context);
    const std::vector<strom_cuda_segment>& segments = self->segments_;
    return self->Noted(self->library_->step(self->codec_, elements, segments.data(),
                                            static_cast<int64_t>(segments.size()), options,
                                            self->stream_, result));
  };
  device.message = [](void* context, int64_t index, uint8_t* out, int64_t capacity, int64_t* size) {
    auto* const self = static_cast<DeviceStep*>(context);
    return self->Noted(self->library_->message(self->codec_, index, out, capacity, size));
  };
  device.take_back = [](void* context) {
    auto* const self = static_cast<DeviceStep*>(context);
    return self->Noted(self->library_->take_back(self->codec_, self->stream_));
  };
  device.apply = [](void* context, const uint8_t* message, int64_t bytes, int64_t elements,
                    int64_t* skipped) {
    auto* const self = static_cast<DeviceStep*>(context);
    const std::vector<strom_cuda_segment>& segments = self->segments_;
    self->adds_received_ = true;
    const int code =
        self->library_->apply(self->codec_, message, bytes, elements, segments.data(),
                              static_cast<int64_t>(segments.size()), self->stream_, skipped);
    self->adds_received_ = false;
    return self->Noted(code);
  };
  device.write_values = [](void* context, int64_t offset, int64_t size, const float* in) {
    return static_cast<DeviceStep*>(context)->WriteValues(offset, size, in);
  };
  device.last_error = [](void* context) {
    return static_cast<const DeviceStep*>(context)->words_.c_str();
  };
  return device;
}

int DeviceStep::ReadResidual(int64_t offset, int64_t size, float* out) {
  return Copy(out, residual_.At(offset), size);
}

int DeviceStep::WriteResidual(int64_t offset, int64_t size, const float* in) {
  // What was held is with the core again.
  if (!held_ && !next_.parts.empty()) residual_ = std::exchange(next_, Residual());
  return Copy(residual_.At(offset), in, size);
}

int DeviceStep::WriteValues(int64_t offset, int64_t size, const float* in) {
  const strom_cuda_segment& segment = Containing(segments_, offset);
  return Copy(segment.value + (offset - segment.offset), in, size);
}

int DeviceStep::Copy(float* to, const float* from, int64_t count) {
  return Noted(
      library_->copy(codec_, to, from, count * static_cast<int64_t>(sizeof(float)), stream_));
}

int DeviceStep::Noted(int code) {
  if (code != STROM_OK) words_ = library_->last_error();
  return code;
}

float* DeviceStep::Residual::At(int64_t offset) const {
  const Part& part = Containing(parts, offset);
  return static_cast<float*>(tensor.data()) + part.start + (offset - part.offset);
}

}  // namespace keras_strom
