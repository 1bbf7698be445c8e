// The codec by itself on tensors: StromThresholdEncode, StromDecode and StromApplyMessage, with
// their declarations. They keep no state; keras_strom/ops.py calls them in Python. What runs on a
// GPU is in codec_ops_gpu.cc.
#include "tf/codec_ops.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "capi/strom.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// residual_after = residual + update - what leaves as +-threshold into `message`, `count` entries.
// `iteration` stands in the message and decides which halves bitmap4 sends.
REGISTER_OP("StromThresholdEncode")
    .Attr("coding: {'auto', 'sparse', 'bitmap', 'bitmap4'} = 'auto'")
    .Attr("prefer: {'size', 'speed'} = 'size'")
    .Input("update: float")
    .Input("residual: float")
    .Input("threshold: float")
    .Input("iteration: int64")
    .Output("message: uint8")
    .Output("residual_after: float")
    .Output("count: int64")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle merged, scalar;
      TF_RETURN_IF_ERROR(context->Merge(context->input(0), context->input(1), &merged));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 0, &scalar));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(3), 0, &scalar));
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, merged);
      context->set_output(2, context->Scalar());
      return absl::OkStatus();
    });

// What a message adds to `size` parameters.
REGISTER_OP("StromDecode")
    .Input("message: uint8")
    .Input("size: int64")
    .Output("values: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle message, scalar;
      DimensionHandle size;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &message));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &scalar));
      TF_RETURN_IF_ERROR(context->MakeDimForScalarInput(1, &size));
      context->set_output(0, context->Vector(size));
      return absl::OkStatus();
    });

// parameters_after = parameters + what the message says.
REGISTER_OP("StromApplyMessage")
    .Input("message: uint8")
    .Input("parameters: float")
    .Output("parameters_after: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle message;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &message));
      context->set_output(0, context->input(1));
      return absl::OkStatus();
    });

namespace {

absl::Status RequireVector(const Tensor& message) {
  if (message.dims() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("message must be a uint8 vector, its shape is ", message.shape().DebugString()));
}

absl::Status RequireNotEmpty(const char* name, const Tensor& tensor) {
  if (tensor.NumElements() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is empty, its shape is ", tensor.shape().DebugString(), "; there is nothing to do"));
}

const uint8_t* BytesOf(const Tensor& message) {
  return static_cast<const uint8_t*>(message.data());
}

float* FloatsOf(Tensor* tensor) { return static_cast<float*>(tensor->data()); }
const float* FloatsOf(const Tensor& tensor) { return static_cast<const float*>(tensor.data()); }

// The message is written straight into output 0, whose size is known only then.
struct MessageOutput {
  OpKernelContext* context;
  absl::Status status;

  static uint8_t* Allocate(void* output, int64_t bytes) {
    auto* self = static_cast<MessageOutput*>(output);
    Tensor* message = nullptr;
    self->status = self->context->allocate_output(0, TensorShape({bytes}), &message);
    return self->status.ok() ? static_cast<uint8_t*>(message->data()) : nullptr;
  }
};

}  // namespace

absl::Status EncodeOnHost(OpKernelContext* context, const strom_codec_options& options,
                          const Tensor& update, const Tensor& residual, Tensor* after) {
  MessageOutput message{context, absl::OkStatus()};
  const strom_thread_pool threads = LendThreads(context);
  int64_t count = 0;
  const int code = strom_codec_encode(FloatsOf(update), FloatsOf(residual), FloatsOf(after),
                                      update.NumElements(), &options, &threads,
                                      &MessageOutput::Allocate, &message, &count);
  TF_RETURN_IF_ERROR(message.status);
  TF_RETURN_IF_ERROR(ToStatus(code, strom_last_error()));
  Tensor* count_output = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &count_output));
  count_output->scalar<int64_t>()() = count;
  return absl::OkStatus();
}

absl::Status ApplyOnHost(OpKernelContext* context, const Tensor& message, Tensor* parameters) {
  const strom_thread_pool threads = LendThreads(context);
  const int code = strom_codec_apply(BytesOf(message), message.NumElements(), FloatsOf(parameters),
                                     parameters->NumElements(), &threads);
  return ToStatus(code, strom_last_error());
}

absl::Status CodingAttributes::Read(OpKernelConstruction* context) {
  std::string coding_name, prefer_name;
  TF_RETURN_IF_ERROR(context->GetAttr("coding", &coding_name));
  TF_RETURN_IF_ERROR(context->GetAttr("prefer", &prefer_name));
  coding = coding_name == "sparse"    ? STROM_CODING_SPARSE
           : coding_name == "bitmap"  ? STROM_CODING_BITMAP
           : coding_name == "bitmap4" ? STROM_CODING_BITMAP4
                                      : STROM_CODING_AUTO;
  prefer = prefer_name == "speed" ? STROM_PREFER_SPEED : STROM_PREFER_SIZE;
  return absl::OkStatus();
}

strom_codec_options CodingAttributes::Options(OpKernelContext* context) const {
  return {context->input(2).scalar<float>()(), coding, prefer, -1,
          context->input(3).scalar<int64_t>()()};
}

absl::Status CheckEncodeInputs(OpKernelContext* context) {
  const Tensor& update = context->input(0);
  const Tensor& residual = context->input(1);
  const Tensor& threshold = context->input(2);
  const Tensor& iteration = context->input(3);
  if (update.shape() != residual.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("update has shape ", update.shape().DebugString(), " and residual ",
                     residual.shape().DebugString(), "; both need the same"));
  }
  if (threshold.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("threshold must be a scalar, its shape is ", threshold.shape().DebugString()));
  }
  if (iteration.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("iteration must be a scalar, its shape is ", iteration.shape().DebugString()));
  }
  return RequireNotEmpty("update", update);
}

absl::Status CheckApplyInputs(OpKernelContext* context) {
  TF_RETURN_IF_ERROR(RequireVector(context->input(0)));
  return RequireNotEmpty("parameters", context->input(1));
}

class ThresholdEncodeOp : public OpKernel {
 public:
  explicit ThresholdEncodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckEncodeInputs(context));
    const Tensor& update = context->input(0);
    const Tensor& residual = context->input(1);
    // The residual's own buffer where nobody else reads it: then it is updated in place.
    Tensor* after = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({1}, 1, residual.shape(), &after));
    OP_REQUIRES_OK(context,
                   EncodeOnHost(context, attributes_.Options(context), update, residual, after));
  }

 private:
  CodingAttributes attributes_;
};

class DecodeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& message = context->input(0);
    const Tensor& size = context->input(1);
    OP_REQUIRES_OK(context, RequireVector(message));
    OP_REQUIRES(context, size.dims() == 0 && size.scalar<int64_t>()() > 0,
                absl::InvalidArgumentError("size must be a scalar, 1 or more"));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({size.scalar<int64_t>()()}), &values));
    values->flat<float>().setZero();
    OP_REQUIRES_OK(context, ApplyOnHost(context, message, values));
  }
};

class ApplyMessageOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckApplyInputs(context));
    const Tensor& message = context->input(0);
    const Tensor& parameters = context->input(1);
    Tensor* after = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({1}, 0, parameters.shape(), &after));
    if (after->data() != parameters.data()) after->flat<float>() = parameters.flat<float>();
    OP_REQUIRES_OK(context, ApplyOnHost(context, message, after));
  }
};

REGISTER_KERNEL_BUILDER(Name("StromThresholdEncode").Device(tensorflow::DEVICE_CPU),
                        ThresholdEncodeOp);
REGISTER_KERNEL_BUILDER(Name("StromDecode").Device(tensorflow::DEVICE_CPU), DecodeOp);
REGISTER_KERNEL_BUILDER(Name("StromApplyMessage").Device(tensorflow::DEVICE_CPU), ApplyMessageOp);

}  // namespace keras_strom
