// StromThresholdEncode and StromApplyMessage on a GPU: update, residual and parameters stay on the
// device, messages are on the host, and the work is queued on the stream that TensorFlow runs the
// op on. What the device's kernels do not have, and all where libstrom_cuda.so is missing or cannot
// use the device, is done on the host, on copies. StromDecode has no kernel here: its input and its
// size are the host's.
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

// Output `output` with the values of `copy`, where input `input` lies if nobody else reads that.
absl::Status PutBack(OpKernelContext* context, int input, int output, HostCopies* copies,
                     const Tensor& copy) {
  Tensor* result = nullptr;
  TF_RETURN_IF_ERROR(
      context->forward_input_or_allocate_output({input}, output, copy.shape(), &result));
  TF_RETURN_IF_ERROR(copies->Store(copy, result));
  return copies->Await();
}

}  // namespace

class ThresholdEncodeOpOnGpu : public OpKernel {
 public:
  explicit ThresholdEncodeOpOnGpu(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckEncodeInputs(context));
    const bool has_coding = attributes_.coding != STROM_CODING_BITMAP4;
    OP_REQUIRES_OK(context,
                   has_coding && codec_.IsReady(context) ? Encode(context) : EncodeByHost(context));
  }

 private:
  absl::Status Encode(OpKernelContext* context) {
    Tensor* after = nullptr;
    TF_RETURN_IF_ERROR(TakeOver(context, 1, 1, &after));
    int64_t count = 0;
    const absl::Status encoded =
        codec_.Encode(context, context->input(0), after, attributes_.Options(context), 0, &count);
    if (absl::IsInvalidArgument(encoded)) return WhyRefused(context, *after, encoded);
    TF_RETURN_IF_ERROR(encoded);
    Tensor* count_output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &count_output));
    count_output->scalar<int64_t>()() = count;
    return absl::OkStatus();
  }

  // What the host says of it, which finds the argument that is to blame: where the sum is not
  // finite `after` is the residual still.
  absl::Status WhyRefused(OpKernelContext* context, const Tensor& after,
                          const absl::Status& refused) const {
    HostCopies copies(context);
    Tensor residual;
    const absl::Status status = EncodeCopies(context, after, &copies, &residual);
    return status.ok() ? refused : status;
  }

  absl::Status EncodeByHost(OpKernelContext* context) const {
    HostCopies copies(context);
    Tensor residual;
    TF_RETURN_IF_ERROR(EncodeCopies(context, context->input(1), &copies, &residual));
    return PutBack(context, 1, 1, &copies, residual);
  }

  // With a residual on the device; `copy` becomes what is left of it.
  absl::Status EncodeCopies(OpKernelContext* context, const Tensor& residual, HostCopies* copies,
                            Tensor* copy) const {
    Tensor update;
    TF_RETURN_IF_ERROR(copies->Fetch(context->input(0), &update));
    TF_RETURN_IF_ERROR(copies->Fetch(residual, copy));
    TF_RETURN_IF_ERROR(copies->Await());
    return EncodeOnHost(context, attributes_.Options(context), update, *copy, copy);
  }

  CodingAttributes attributes_;
  DeviceCodec codec_;
};

class ApplyMessageOpOnGpu : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckApplyInputs(context));
    OP_REQUIRES_OK(context, codec_.IsReady(context) ? Apply(context) : ApplyByHost(context));
  }

 private:
  absl::Status Apply(OpKernelContext* context) {
    Tensor* after = nullptr;
    TF_RETURN_IF_ERROR(TakeOver(context, 1, 0, &after));
    return codec_.Apply(context, context->input(0), after);
  }

  static absl::Status ApplyByHost(OpKernelContext* context) {
    HostCopies copies(context);
    Tensor parameters;
    TF_RETURN_IF_ERROR(copies.Fetch(context->input(1), &parameters));
    TF_RETURN_IF_ERROR(copies.Await());
    TF_RETURN_IF_ERROR(ApplyOnHost(context, context->input(0), &parameters));
    return PutBack(context, 1, 0, &copies, parameters);
  }

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
