// What the codec's ops check and read alike on every device.
#ifndef KERAS_STROM_TF_CODEC_OPS_H_
#define KERAS_STROM_TF_CODEC_OPS_H_

#include <cstdint>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

// StromThresholdEncode's attributes, as STROM_CODING_* and STROM_PREFER_*.
struct CodingAttributes {
  int32_t coding = 0;
  int32_t prefer = 0;

  absl::Status Read(tensorflow::OpKernelConstruction* context);

  // With the inputs that are scalars, which have passed CheckEncodeInputs.
  strom_codec_options Options(tensorflow::OpKernelContext* context) const;
};

// The shapes of StromThresholdEncode's and of StromApplyMessage's inputs.
absl::Status CheckEncodeInputs(tensorflow::OpKernelContext* context);
absl::Status CheckApplyInputs(tensorflow::OpKernelContext* context);

// What StromThresholdEncode does, with tensors in the host's memory; `after` may be `residual`.
// Makes the outputs 0 and 2, message and count, where nothing is refused.
absl::Status EncodeOnHost(tensorflow::OpKernelContext* context, const strom_codec_options& options,
                          const tensorflow::Tensor& update, const tensorflow::Tensor& residual,
                          tensorflow::Tensor* after);

// parameters += what the message says, both in the host's memory.
absl::Status ApplyOnHost(tensorflow::OpKernelContext* context, const tensorflow::Tensor& message,
                         tensorflow::Tensor* parameters);

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_CODEC_OPS_H_
