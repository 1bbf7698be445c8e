// StromMeanGradient: the exchange of gradients before the optimizer, inside `strategy.run`.
//
// It runs on the CPU: gradients of a device come to it, and their means go back, as any tensor
// does.
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/joint_exchange.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

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
    std::vector<strom_segment> segments = Segments();
    for (size_t i = 0; i < segments.size(); ++i) {
      const Tensor& gradient = context->input(static_cast<int>(i));
      segments[i].size = gradient.NumElements();
      segments[i].before = static_cast<const float*>(gradient.data());
    }
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_give_gradient(
        attributes_.replica, segments.data(), static_cast<int64_t>(segments.size()),
        context->input(rate_input_).scalar<float>()(), Iteration(context), &threads);
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

  bool may_overflow_ = false;
  int rate_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromMeanGradient").Device(tensorflow::DEVICE_CPU), MeanGradientOp);

}  // namespace keras_strom
