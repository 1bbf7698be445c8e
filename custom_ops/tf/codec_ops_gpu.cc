// StromThresholdEncode and StromApplyMessage on a GPU: update, residual and parameters stay on the
// device, messages are on the host, and the work is queued on the stream that TensorFlow runs the
// op on. StromDecode has no kernel here: its input and its size are the host's.
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/codec_ops.h"
#include "tf/device_codec.h"
#include "tf/host_copies.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Output `output` with the values of input `input`, in its buffer where nobody else reads that.
absl::Status TakeOver(OpKernelContext* context, int input, int output, Tensor** result) {
  const Tensor& given = context->input(input);
  TF_RETURN_IF_ERROR(
      context->forward_input_or_allocate_output({input}, output, given.shape(), result));
  if ((*result)->data() == given.data()) return absl::OkStatus();
  return CopyWithinDevice(context, given, *result);
}

}  // namespace

class ThresholdEncodeOpOnGpu : public OpKernel {
 public:
  explicit ThresholdEncodeOpOnGpu(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
    OP_REQUIRES(context, attributes_.coding != STROM_CODING_BITMAP4,
                absl::InvalidArgumentError(
                    "coding 'bitmap4' is encoded on the CPU only: put the op there (with "
                    "tf.device('CPU:0')), or take coding 'bitmap'"));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckEncodeInputs(context));
    Tensor* after = nullptr;
    OP_REQUIRES_OK(context, TakeOver(context, 1, 1, &after));
    Tensor* count = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &count));
    OP_REQUIRES_OK(context,
                   codec_.Encode(context, context->input(0), after, attributes_.Options(context), 0,
                                 &count->scalar<int64_t>()()));
  }

 private:
  CodingAttributes attributes_;
  DeviceCodec codec_;
};

class ApplyMessageOpOnGpu : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckApplyInputs(context));
    Tensor* after = nullptr;
    OP_REQUIRES_OK(context, TakeOver(context, 1, 0, &after));
    OP_REQUIRES_OK(context, codec_.Apply(context, context->input(0), after));
  }

 private:
  DeviceCodec codec_;
};

REGISTER_KERNEL_BUILDER(Name("StromThresholdEncode")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("threshold")
                            .HostMemory("iteration")
                            .HostMemory("message")
                            .HostMemory("count"),
                        ThresholdEncodeOpOnGpu);
REGISTER_KERNEL_BUILDER(
    Name("StromApplyMessage").Device(tensorflow::DEVICE_GPU).HostMemory("message"),
    ApplyMessageOpOnGpu);

}  // namespace keras_strom
