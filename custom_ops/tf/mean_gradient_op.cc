// StromGiveEarly and StromMeanGradient: the exchange of gradients before the optimizer, inside
// `strategy.run`. The first gives some of them while others are still being computed.
//
// They run on the CPU: gradients of a device come there, and their means go back, as any
// tensor does.
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/joint_exchange.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class GiveEarlyOp : public OpKernel {
 public:
  explicit GiveEarlyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context, "model"));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("joint", &joint_));
    OP_REQUIRES_OK(context, FirstInput(*this, "rate", &rate_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "iteration", &iteration_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "joint_now", &joint_now_input_));
    OP_REQUIRES(context, names_.size() == attributes_.offsets.size(),
                absl::InvalidArgumentError("names must have one entry a variable"));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context,
                   CheckJoint(context->input(joint_now_input_).scalar<int64_t>()(), joint_));
    const std::vector<strom_segment> segments =
        GradientSegments(context, attributes_.offsets, names_);
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_give_early(
        attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        context->input(rate_input_).scalar<float>()(),
        context->input(iteration_input_).scalar<int64_t>()(), &threads);
    OP_REQUIRES_OK(context, ToStatus(code, strom_last_error()));
  }

 private:
  ReplicaAttributes attributes_;
  std::vector<std::string> names_;
  int64_t joint_ = 0;
  int rate_input_ = 0;
  int iteration_input_ = 0;
  int joint_now_input_ = 0;
};

class MeanGradientOp : public JointExchangeOp {
 public:
  explicit MeanGradientOp(OpKernelConstruction* context) : JointExchangeOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("may_overflow", &may_overflow_));
    OP_REQUIRES_OK(context, FirstInput(*this, "rate", &rate_input_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(context, Give(context), done);
    Await(context, std::move(done), [this, context] { return Take(context); });
  }

 private:
  absl::Status Give(OpKernelContext* context) const {
    TF_RETURN_IF_ERROR(CheckJoint(context));
    const std::vector<strom_segment> segments =
        GradientSegments(context, attributes_.offsets, names_);
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_give_gradient(
        attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        context->input(rate_input_).scalar<float>()(), Iteration(context), &threads);
    return ToStatus(code, strom_last_error());
  }

  absl::Status Take(OpKernelContext* context) const {
    std::vector<strom_segment> segments = GradientSegments(context, attributes_.offsets, names_);
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
  int rate_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromGiveEarly").Device(tensorflow::DEVICE_CPU), GiveEarlyOp);
REGISTER_KERNEL_BUILDER(Name("StromMeanGradient").Device(tensorflow::DEVICE_CPU), MeanGradientOp);

}  // namespace keras_strom
