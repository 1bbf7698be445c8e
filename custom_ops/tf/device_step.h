// Steps that stay on the device: variables, what they were before and the residual lie there, and
// only messages and numbers go between it and the host.
//
// It does what libstrom_cuda.so's kernels do: the default step, and in synchronous and bounded
// modes adding what was received. Everything else is done on the host (tf/host_copies.h); the core
// asks for the residual where it is needed (core/step/device_residual.h), so that a step may be
// either.
#ifndef KERAS_STROM_TF_DEVICE_STEP_H_
#define KERAS_STROM_TF_DEVICE_STEP_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "capi/strom.h"
#include "capi/strom_cuda.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tf/device_codec.h"

namespace keras_strom {

// One replica's, from its first step on the device to Forget, or as long as its residual is held.
class DeviceStep : public tensorflow::ResourceBase {
 public:
  ~DeviceStep() override;

  std::string DebugString() const override { return "keras-strom's residual on a device"; }

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<DeviceStep>* step);

  // Training has ended: its memory on the device is given back, or once the residual is not held.
  static void Forget(tensorflow::OpKernelContext* context, strom_handle replica);

  // Whether steps over such segments can be done on the op's device: the library is there, and
  // memory for the residual. Where not it says why, once (tf/step_warnings.h). Fails where
  // KERAS_STROM_GPU_STEP is neither "on" nor "off"; off means never.
  absl::Status Prepare(tensorflow::OpKernelContext* context, strom_handle replica,
                       const std::vector<strom_cuda_segment>& segments, bool* ready);

  // Tells the user, once, why the op's steps are done on the host, unless they are to be.
  static void WarnOfHost(tensorflow::OpKernelContext* context, absl::string_view why);

  // Once it is prepared: whether what is in each segment's `after` is another than in `before`.
  absl::Status Compare(const std::vector<strom_cuda_segment>& segments,
                       std::vector<int32_t>* differ);

  // strom_replica_step_on_device. The segments are those of Prepare; their residual is filled in.
  // Where nothing has been done the values are what they were before. Where the device's memory had
  // too little left for what is to be sent, that waits in the residual; where it had too little for
  // what others have sent, that waits in the core. Later steps are the host's then.
  absl::Status Step(tensorflow::OpKernelContext* context, strom_handle replica,
                    std::vector<strom_cuda_segment> segments, const strom_step_options& options,
                    strom_step_result* result);

  // Whether the last step was one here, and its residual lies on the device.
  bool is_held() const { return held_; }

  // strom_replica_apply_on_device. `shared`: of each segment what all workers share, on the host,
  // or null. Where the device's memory had too little left *complete is false, and what has not
  // been added is the host's to be.
  absl::Status Apply(tensorflow::OpKernelContext* context, strom_handle replica,
                     std::vector<strom_cuda_segment> segments, const std::vector<float*>& shared,
                     strom_step_result* result, bool* complete);

 private:
  // Where the residual of each segment lies in the tensor.
  struct Residual {
    struct Part {
      int64_t offset;  // in the flat space
      int64_t size;
      int64_t start;  // in the tensor, a multiple of 16 bytes

      friend bool operator==(const Part& a, const Part& b) {
        return a.offset == b.offset && a.size == b.size && a.start == b.start;
      }
    };

    tensorflow::Tensor tensor;
    std::vector<Part> parts;  // ascending

    // Where flat element `offset` lies.
    float* At(int64_t offset) const;
  };

  // What is done next is done behind what the op's stream was given.
  absl::Status FollowStream(tensorflow::OpKernelContext* context);
  absl::Status Allocate(tensorflow::OpKernelContext* context, strom_handle replica,
                        const std::vector<strom_cuda_segment>& segments);

  // Of the op's device, as LendMemory, noting what it has not.
  strom_cuda_memory LendWatched(tensorflow::OpKernelContext* context);

  // Later steps are the host's, because memory is missing for `what`.
  void LeaveToHost(tensorflow::OpKernelContext* context, int64_t bytes, absl::string_view what);
  void PutBackValues();
  void GiveBackMemory();

  // strom_step_device's functions, which the core calls.
  strom_step_device Functions();
  int ReadResidual(int64_t offset, int64_t size, float* out);
  int WriteResidual(int64_t offset, int64_t size, const float* in);
  int WriteValues(int64_t offset, int64_t size, const float* in);
  int Copy(float* to, const float* from, int64_t count);
  int Noted(int code);

  bool refused_ = false;  // and told so
  strom_cuda_memory lent_{};
  int64_t lacked_bytes_ = 0;         // that the device's memory did not have for the step under way
  int64_t lacked_for_received_ = 0;  // the same for what others have sent
  bool adds_received_ = false;       // which is under way
  const DeviceLibrary* library_ = nullptr;
  strom_handle codec_ = 0;
  std::atomic<void*> stream_ = nullptr;       // Somebody may read the residual meanwhile.
  std::atomic<bool> held_ = false;            // the core has the residual there
  Residual residual_;                         // where it lies then
  Residual next_;                             // where it is to lie from the next step on
  std::vector<strom_cuda_segment> segments_;  // of the step that is under way
  std::string words_;                         // of the last failure
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_DEVICE_STEP_H_
