// StromGiveEarly and StromMeanGradient: the exchange of gradients before the optimizer, inside
// `strategy.run`. The first gives some of them while others are still being computed.
//
// They run on the CPU: gradients of a device come there, and their means go back, as any
// tensor does.
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/joint_exchange.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// An op with gradients, its first inputs, to be given to the others.
template <typename Kernel>
class GradientOp : public OfJointModel<Kernel> {
 public:
  explicit GradientOp(OpKernelConstruction* context) : OfJointModel<Kernel>(context) {
    OP_REQUIRES_OK(context, FirstInput(*this, "rate", &rate_input_));
  }

 protected:
  absl::Status Give(OpKernelContext* context,
                    decltype(&strom_local_model_give_gradient) give) const {
    TF_RETURN_IF_ERROR(this->CheckJoint(context));
    std::vector<strom_segment> segments = Segments();
    for (size_t i = 0; i < segments.size(); ++i) {
      const Tensor& gradient = context->input(static_cast<int>(i));
      segments[i].size = gradient.NumElements();
      segments[i].before = static_cast<const float*>(gradient.data());
    }
    const strom_thread_pool threads = LendThreads(context);
    const int code = give(
        this->attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        context->input(rate_input_).template scalar<float>()(), this->Iteration(context), &threads);
    return ToStatus(code, strom_last_error());
  }

  std::vector<strom_segment> Segments() const {
    std::vector<strom_segment> segments(this->attributes_.offsets.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i].offset = this->attributes_.offsets[i];
      segments[i].name = this->names_[i].c_str();
    }
    return segments;
  }

 private:
  int rate_input_ = 0;
};

class GiveEarlyOp : public GradientOp<OpKernel> {
 public:
  using GradientOp::GradientOp;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Give(context, strom_local_model_give_early));
  }
};

class MeanGradientOp : public GradientOp<AsyncOpKernel> {
 public:
  explicit MeanGradientOp(OpKernelConstruction* context) : GradientOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("may_overflow", &may_overflow_));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ns", &timeout_ns_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(context, Give(context, strom_local_model_give_gradient), done);
    AwaitJoint(context, attributes_.replica, timeout_ns_, std::move(done),
               [this, context] { return Take(context); });
  }

 private:
  absl::Status Take(OpKernelContext* context) const {
    std::vector<strom_segment> segments = Segments();
    for (size_t i = 0; i < segments.size(); ++i) {
      const int input = static_cast<int>(i);
      Tensor* mean = nullptr;
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(
          {input}, input, context->input(input).shape(), &mean));
      segments[i].size = mean->NumElements();
      segments[i].value = static_cast<float*>(mean->data());
    }
    Tensor* rate = nullptr;
    const int rate_output = static_cast<int>(segments.size());
    TF_RETURN_IF_ERROR(context->allocate_output(rate_output, TensorShape({}), &rate));
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_take_gradient(
        attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        may_overflow_ ? 1 : 0, &threads, rate->scalar<float>().data());
    return ToStatus(code, strom_last_error());
  }

  bool may_overflow_ = false;
  int64_t timeout_ns_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromGiveEarly").Device(tensorflow::DEVICE_CPU), GiveEarlyOp);
REGISTER_KERNEL_BUILDER(Name("StromMeanGradient").Device(tensorflow::DEVICE_CPU), MeanGradientOp);

}  // namespace keras_strom
