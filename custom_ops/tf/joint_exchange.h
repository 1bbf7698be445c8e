// What the ops that exchange with a joint model share: StromPull and StromMeanGradient.
#ifndef KERAS_STROM_TF_JOINT_EXCHANGE_H_
#define KERAS_STROM_TF_JOINT_EXCHANGE_H_

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/variables.h"
#include "tf/wait.h"

namespace keras_strom {

// Refuses a step of another training than that for which it was traced.
inline absl::Status CheckJoint(int64_t joint_now, int64_t joint) {
  if (joint_now == joint) return absl::OkStatus();
  return ToStatus(STROM_INVALID_ARGUMENT,
                  "this step was traced for a training of other variables than the joint model "
                  "has now: after layers were frozen or thawed compile the model again, and give "
                  "a custom loop a tf.function of its own for each strategy.begin");
}

// Gradients of variables, as the core wants them.
inline std::vector<strom_segment> GradientSegments(tensorflow::OpKernelContext* context,
                                                   const std::vector<int64_t>& offsets,
                                                   const std::vector<std::string>& names) {
  std::vector<strom_segment> segments(offsets.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const tensorflow::Tensor& gradient = context->input(static_cast<int>(i));
    segments[i].offset = offsets[i];
    segments[i].size = gradient.NumElements();
    segments[i].before = static_cast<const float*>(gradient.data());
    segments[i].name = names[i].c_str();
  }
  return segments;
}

class JointExchangeOp : public tensorflow::AsyncOpKernel {
 public:
  explicit JointExchangeOp(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context, "model"));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("joint", &joint_));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ns", &timeout_ns_));
    OP_REQUIRES_OK(context, FirstInput(*this, "iteration", &iteration_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "joint_now", &joint_now_input_));
    OP_REQUIRES(context, names_.size() == attributes_.offsets.size(),
                absl::InvalidArgumentError("names must have one entry a variable"));
  }

 protected:
  absl::Status CheckJoint(tensorflow::OpKernelContext* context) const {
    return keras_strom::CheckJoint(context->input(joint_now_input_).scalar<int64_t>()(), joint_);
  }

  int64_t Iteration(tensorflow::OpKernelContext* context) const {
    return context->input(iteration_input_).scalar<int64_t>()();
  }

  // Returns at once; `then` runs when what the local model waits for is here.
  void Await(tensorflow::OpKernelContext* context, DoneCallback done, Wait::Then then) const {
    Wait::Start(
        context, std::move(done),
        [this](strom_callback here, void* owner) {
          return strom_local_model_await(attributes_.replica, timeout_ns_, here, owner);
        },
        std::move(then));
  }

  ReplicaAttributes attributes_;
  std::vector<std::string> names_;

 private:
  int64_t joint_ = 0;
  int64_t timeout_ns_ = 0;
  int iteration_input_ = 0;
  int joint_now_input_ = 0;
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_JOINT_EXCHANGE_H_
