// libstrom_cuda.so as the ops on a GPU see it: opened beside the ops' library when the first such
// op runs. A machine without a device neither has nor needs it, and wheels are without it.
#ifndef KERAS_STROM_TF_DEVICE_CODEC_H_
#define KERAS_STROM_TF_DEVICE_CODEC_H_

#include <cstdint>
#include <mutex>

#include "capi/strom_cuda.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

// The functions of strom_cuda.h that the ops call.
struct DeviceLibrary {
  decltype(&strom_cuda_last_error) last_error = nullptr;
  decltype(&strom_cuda_codec_create) codec_create = nullptr;
  decltype(&strom_cuda_codec_close) codec_close = nullptr;
  decltype(&strom_cuda_reserve) reserve = nullptr;
  decltype(&strom_cuda_step) step = nullptr;
  decltype(&strom_cuda_take_back) take_back = nullptr;
  decltype(&strom_cuda_compare) compare = nullptr;
  decltype(&strom_cuda_copy) copy = nullptr;
  decltype(&strom_cuda_find_entries) find_entries = nullptr;
  decltype(&strom_cuda_write_messages) write_messages = nullptr;
  decltype(&strom_cuda_messages) messages = nullptr;
  decltype(&strom_cuda_message) message = nullptr;
  decltype(&strom_cuda_apply) apply = nullptr;

  // Opens the library once; says what is missing where it cannot. A process that has these
  // functions already, as tests have with an emulated GPU, keeps to them.
  static absl::Status Open(const DeviceLibrary** library);
};

// The stream on which TensorFlow runs this op, as the library wants it.
absl::Status StreamOf(tensorflow::OpKernelContext* context, void** stream);

// Memory of the op's device, TensorFlow's own: it leaves nothing to others by default. Valid as
// long as the device.
strom_cuda_memory LendMemory(tensorflow::OpKernelContext* context);

// One op's working memory on its device. Its calls queue their work on the op's own stream; IsReady
// comes before them.
class DeviceCodec {
 public:
  DeviceCodec() = default;
  DeviceCodec(const DeviceCodec&) = delete;
  DeviceCodec& operator=(const DeviceCodec&) = delete;
  ~DeviceCodec();

  // Whether the library is there and can use the op's device. Where not it says why, once for all
  // ops (tf/step_warnings.h).
  bool IsReady(tensorflow::OpKernelContext* context);

  // `residual`, on the device, is updated in place; output `output` of the op becomes the message,
  // on the host.
  absl::Status Encode(tensorflow::OpKernelContext* context, const tensorflow::Tensor& update,
                      tensorflow::Tensor* residual, const strom_codec_options& options, int output,
                      int64_t* count);
  // `parameters`, on the device, += what `message`, on the host, says.
  absl::Status Apply(tensorflow::OpKernelContext* context, const tensorflow::Tensor& message,
                     tensorflow::Tensor* parameters);

 private:
  // What is missing, in words.
  absl::Status Create(tensorflow::OpKernelContext* context);
  absl::Status ToStatus(int code) const;

  std::mutex mutex_;  // calls on one codec come one after another
  const DeviceLibrary* library_ = nullptr;
  strom_handle codec_ = 0;
  bool refused_ = false;  // and told so
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_DEVICE_CODEC_H_
