// What the ops that exchange with a joint model share: StromPull, StromMeanGradient and
// StromGiveEarly.
#ifndef KERAS_STROM_TF_JOINT_EXCHANGE_H_
#define KERAS_STROM_TF_JOINT_EXCHANGE_H_

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/variables.h"
#include "tf/wait.h"

namespace keras_strom {

// `Kernel`: OpKernel or AsyncOpKernel.
template <typename Kernel>
class OfJointModel : public Kernel {
 public:
  explicit OfJointModel(tensorflow::OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context, "model"));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("joint", &joint_));
    OP_REQUIRES_OK(context, FirstInput(*this, "iteration", &iteration_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "joint_now", &joint_now_input_));
    OP_REQUIRES(context, names_.size() == attributes_.offsets.size(),
                absl::InvalidArgumentError("names must have one entry a variable"));
  }

 protected:
  // Refuses a step of another training.
  absl::Status CheckJoint(tensorflow::OpKernelContext* context) const {
    const int64_t now = context->input(joint_now_input_).scalar<int64_t>()();
    if (now == joint_) return absl::OkStatus();
    if (now < 0) {
      return ToStatus(STROM_INVALID_ARGUMENT,
                      "a step outside of training: with several workers call strategy.begin() "
                      "before a custom loop and strategy.synchronize() after it");
    }
    return ToStatus(STROM_INVALID_ARGUMENT,
                    "this step was traced for a training of other variables than the joint model "
                    "has now: after layers were frozen or thawed compile the model again, and give "
                    "a custom loop a tf.function of its own for each strategy.begin");
  }

  int64_t Iteration(tensorflow::OpKernelContext* context) const {
    return context->input(iteration_input_).scalar<int64_t>()();
  }

  ReplicaAttributes attributes_;
  std::vector<std::string> names_;

 private:
  int64_t joint_ = 0;
  int iteration_input_ = 0;
  int joint_now_input_ = 0;
};

// Returns at once; `then` runs when what the local model waits for is here.
inline void AwaitJoint(tensorflow::OpKernelContext* context, strom_handle model, int64_t timeout_ns,
                       tensorflow::AsyncOpKernel::DoneCallback done, Wait::Then then) {
  Wait::Start(
      context, std::move(done),
      [model, timeout_ns](strom_callback here, void* owner) {
        return strom_local_model_await(model, timeout_ns, here, owner);
      },
      std::move(then));
}

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_JOINT_EXCHANGE_H_
