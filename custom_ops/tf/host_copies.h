// The host's copies of tensors that lie on a device, where the core cannot get at them.
//
// On the CPU a tensor is its own copy and nothing is copied. On any other device copies go through
// TensorFlow's device context: they are queued behind what the op's stream was given before, on the
// streams that TensorFlow has for copies, into memory that the device reaches by itself. An op
// waits for its own copies, on its own thread, because that thread holds the locks of the variables
// and has the core's work to do next; the device goes on meanwhile.
#ifndef KERAS_STROM_TF_HOST_COPIES_H_
#define KERAS_STROM_TF_HOST_COPIES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"

namespace keras_strom {

// Of one run of an op.
class HostCopies {
 public:
  explicit HostCopies(tensorflow::OpKernelContext* context);
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;
  // Waits for copies that are under way.
  ~HostCopies();

  // Whether tensors lie elsewhere than in the host's memory.
  bool on_device() const { return on_device_; }

  // An uninitialised tensor in the host's memory.
  absl::Status NewTensor(tensorflow::DataType type, const tensorflow::TensorShape& shape,
                         tensorflow::Tensor* tensor) const;

  // Begins to copy to the host: `copy` has the values after Await. On the CPU it is the tensor.
  absl::Status Fetch(const tensorflow::Tensor& tensor, tensorflow::Tensor* copy);
  // Begins to copy to the device, into `tensor`, which nobody else may read: done after Await. On
  // the CPU it becomes the copy.
  absl::Status Store(const tensorflow::Tensor& copy, tensorflow::Tensor* tensor);
  absl::Status Await();

 private:
  struct Pending;

  tensorflow::OpKernelContext* context_;
  bool on_device_;
  std::shared_ptr<Pending> pending_;
};

// Queues a copy on the op's stream, between tensors of its device.
absl::Status CopyWithinDevice(tensorflow::OpKernelContext* context, const tensorflow::Tensor& from,
                              tensorflow::Tensor* to);

// Copies `tensor`, which the host reaches, first where somebody else still reads it.
absl::Status MakeWritable(const HostCopies& copies, tensorflow::Tensor* tensor);

// What variables on a device held when an op of ours left them, in the host's memory too, so that
// the next one need not copy it again. The tensor on the device is held: whoever assigns the
// variable meanwhile has to write elsewhere, so one that still lies there has the same values.
//
// Variables go by their flat offset; lives as long as the replica's ops.
class HostMirrors : public tensorflow::ResourceBase {
 public:
  struct Mirror {
    tensorflow::Tensor placed;  // on the device
    tensorflow::Tensor copy;    // the same values in the host's memory
  };

  std::string DebugString() const override { return "keras-strom's host mirrors of variables"; }

  // Gives the variable's mirror away; empty tensors if it has none.
  Mirror Take(int64_t offset);
  // Ignored but for Begin.
  void Put(int64_t offset, Mirror mirror);
  // From now on mirrors are kept, until End, which lets go of all.
  void Begin();
  void End();

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<HostMirrors>* mirrors);

 private:
  std::mutex mutex_;
  bool keeps_ = false;                 // guarded by mutex_
  std::map<int64_t, Mirror> mirrors_;  // guarded by mutex_
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_HOST_COPIES_H_
