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

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_CODEC_OPS_H_
