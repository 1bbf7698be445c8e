// StromStep where TensorFlow has put the variables on a GPU: refused, in words.
//
// Without this registration such a step fails in TensorFlow's placer, in terms of colocation
// groups. libstrom_cuda.so (capi/strom_cuda.h) has the codec for it; what is missing between the
// two is in docs/internals/cuda.md.
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

class StepOpOnGpu : public tensorflow::OpKernel {
 public:
  explicit StepOpOnGpu(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    context->CtxFailure(absl::UnimplementedError(
        "StromStrategy does not train variables on a GPU yet: make the model and fit it under "
        "tf.device('CPU:0'), or hide the GPUs with CUDA_VISIBLE_DEVICES=-1"));
  }

  void Compute(tensorflow::OpKernelContext*) override {}  // never made, so never run
};

REGISTER_KERNEL_BUILDER(Name("StromStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("threshold")
                            .HostMemory("scale")
                            .HostMemory("clip_multiple")
                            .HostMemory("norm_limit")
                            .HostMemory("iteration")
                            .HostMemory("sends")
                            .HostMemory("momenta")
                            .HostMemory("statistics"),
                        StepOpOnGpu);

}  // namespace keras_strom
