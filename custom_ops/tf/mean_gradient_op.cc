// StromMeanGradient: the exchange of gradients before the optimizer, inside `strategy.run`.
//
// It runs on the CPU: gradients of a device come to it, and their means go back, as any tensor
// does.
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/threads.h"
#include "tf/variables.h"
#include "tf/wait.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class MeanGradientOp : public AsyncOpKernel {
 public:
  explicit MeanGradientOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context, "model"));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("joint", &joint_));
    OP_REQUIRES_OK(context, context->GetAttr("may_overflow", &may_overflow_));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ns", &timeout_ns_));
    OP_REQUIRES_OK(context, FirstInput(*this, "rate", &rate_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "iteration", &iteration_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "joint_now", &joint_now_input_));
    OP_REQUIRES(context, names_.size() == attributes_.offsets.size(),
                absl::InvalidArgumentError("names must have one entry a gradient"));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(context, Give(context), done);
    Wait::Start(
        context, std::move(done),
        [this](strom_callback here, void* owner) {
          return strom_local_model_await(attributes_.replica, timeout_ns_, here, owner);
        },
        [this, context] { return Take(context); });
  }

 private:
  absl::Status Give(OpKernelContext* context) const {
    if (context->input(joint_now_input_).scalar<int64_t>()() != joint_) {
      return ToStatus(STROM_INVALID_ARGUMENT, kOtherJointModel);
    }
    std::vector<strom_segment> segments = Segments();
    for (size_t i = 0; i < segments.size(); ++i) {
      const Tensor& gradient = context->input(static_cast<int>(i));
      segments[i].size = gradient.NumElements();
      segments[i].before = static_cast<const float*>(gradient.data());
    }
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_give_gradient(
        attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        context->input(rate_input_).scalar<float>()(),
        context->input(iteration_input_).scalar<int64_t>()(), &threads);
    return ToStatus(code, strom_last_error());
  }

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

  std::vector<strom_segment> Segments() const {
    std::vector<strom_segment> segments(attributes_.offsets.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i].offset = attributes_.offsets[i];
      segments[i].name = names_[i].c_str();
    }
    return segments;
  }

  ReplicaAttributes attributes_;
  std::vector<std::string> names_;
  int64_t joint_ = 0;
  bool may_overflow_ = false;
  int64_t timeout_ns_ = 0;
  int rate_input_ = 0;
  int iteration_input_ = 0;
  int joint_now_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromMeanGradient").Device(tensorflow::DEVICE_CPU), MeanGradientOp);

}  // namespace keras_strom
