#include "tf/host_copies.h"

#include <condition_variable>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device.h"
#include "tf/replica_resource.h"

namespace keras_strom {

using tensorflow::AllocatorAttributes;
using tensorflow::DataType;
using tensorflow::Device;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The copies under way. TensorFlow's threads announce each one's end here, also to an op that has
// failed meanwhile.
struct HostCopies::Pending {
  std::mutex mutex;
  std::condition_variable none_left;
  int64_t left = 0;     // guarded by mutex
  absl::Status failed;  // the first failure; guarded by mutex

  void Begin() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++left;
  }

  void End(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failed.ok()) failed = status;
    if (--left == 0) none_left.notify_all();
  }

  absl::Status Await() {
    std::unique_lock<std::mutex> lock(mutex);
    none_left.wait(lock, [this] { return left == 0; });
    return std::exchange(failed, absl::OkStatus());
  }
};

HostCopies::HostCopies(OpKernelContext* context)
    : context_(context),
      on_device_(context->op_device_context() != nullptr),
      pending_(on_device_ ? std::make_shared<Pending>() : nullptr) {}

HostCopies::~HostCopies() {
  if (on_device_) pending_->Await().IgnoreError();
}

absl::Status HostCopies::NewTensor(DataType type, const TensorShape& shape, Tensor* tensor) const {
  Tensor fresh;
  AllocatorAttributes attributes;
  if (on_device_) {
    attributes.set_on_host(true);
    attributes.set_gpu_compatible(true);
  }
  TF_RETURN_IF_ERROR(context_->allocate_temp(type, shape, &fresh, attributes));
  *tensor = std::move(fresh);
  return absl::OkStatus();
}

absl::Status HostCopies::Fetch(const Tensor& tensor, Tensor* copy) {
  if (!on_device_) {
    *copy = tensor;
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(NewTensor(tensor.dtype(), tensor.shape(), copy));
  if (tensor.NumElements() == 0) return absl::OkStatus();
  struct Copied {
    Tensor from, to;
  };
  const auto copied = std::make_shared<Copied>(Copied{tensor, *copy});
  pending_->Begin();
  context_->op_device_context()->CopyDeviceTensorToCPU(
      &copied->from, "keras-strom", static_cast<Device*>(context_->device()), &copied->to,
      [pending = pending_, copied](const absl::Status& status) mutable {
        copied->from = copied->to = Tensor();  // The op may ask whether it is their last holder.
        pending->End(status);
      });
  return absl::OkStatus();
}

absl::Status HostCopies::Store(const Tensor& copy, Tensor* tensor) {
  if (!on_device_) {
    *tensor = copy;
    return absl::OkStatus();
  }
  if (copy.NumElements() != tensor->NumElements()) {
    return absl::InternalError(absl::StrCat("a tensor of ", tensor->NumElements(),
                                            " elements was to be stored from a copy of ",
                                            copy.NumElements()));
  }
  if (copy.NumElements() == 0) return absl::OkStatus();
  struct Copied {
    Tensor from, to;
  };
  const auto copied = std::make_shared<Copied>(Copied{copy, *tensor});
  pending_->Begin();
  context_->op_device_context()->CopyCPUTensorToDevice(
      &copied->from, static_cast<Device*>(context_->device()), &copied->to,
      [pending = pending_, copied](const absl::Status& status) mutable {
        copied->from = copied->to = Tensor();
        pending->End(status);
      });
  return absl::OkStatus();
}

absl::Status HostCopies::Await() {
  if (!on_device_) return absl::OkStatus();
  const absl::Status status = pending_->Await();
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("copying between ", context_->device()->name(),
                                   " and the host's memory has failed: ", status.message()));
}

absl::Status CopyWithinDevice(OpKernelContext* context, const Tensor& from, Tensor* to) {
  std::promise<absl::Status> queued;
  static_cast<Device*>(context->device())
      ->CopyTensorInSameDevice(&from, to, context->op_device_context(),
                               [&queued](const absl::Status& status) { queued.set_value(status); });
  return queued.get_future().get();
}

absl::Status MakeWritable(const HostCopies& copies, Tensor* tensor) {
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(copies.NewTensor(tensor->dtype(), tensor->shape(), &copy));
  std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
}

HostMirrors::Mirror HostMirrors::Take(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = mirrors_.extract(offset);
  return found.empty() ? Mirror() : std::move(found.mapped());
}

void HostMirrors::Put(int64_t offset, Mirror mirror) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (keeps_) mirrors_[offset] = std::move(mirror);
}

void HostMirrors::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  keeps_ = true;
}

void HostMirrors::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  keeps_ = false;
  mirrors_.clear();
}

absl::Status HostMirrors::Find(OpKernelContext* context, strom_handle replica,
                               tensorflow::core::RefCountPtr<HostMirrors>* mirrors) {
  return FindOfReplica(context, "host_mirrors", replica, mirrors);
}

}  // namespace keras_strom
