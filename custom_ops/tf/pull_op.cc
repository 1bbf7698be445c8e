// StromPull: the end of a training step beside a joint model, inside `strategy.run`.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/joint_exchange.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class PullOp : public OfJointModel<AsyncOpKernel> {
 public:
  explicit PullOp(OpKernelConstruction* context) : OfJointModel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ns", &timeout_ns_));
    OP_REQUIRES_OK(context, context->GetAttr("watched", &watched_));
    OP_REQUIRES_OK(context, context->GetAttr("compare_contents", &compare_contents_));
    OP_REQUIRES_OK(context, FirstInput(*this, "before", &before_input_));
    int watched = 0;
    OP_REQUIRES_OK(context, context->GetAttr("W", &watched));
    OP_REQUIRES(context, static_cast<int>(watched_.size()) == watched,
                absl::InvalidArgumentError("watched must have one entry for each of `before`"));
    for (const int64_t variable : watched_) {
      OP_REQUIRES(context, variable >= 0 && variable < attributes_.variables,
                  absl::InvalidArgumentError("watched must name variables by their index"));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    strom_pull_result result{};
    bool stepped = false;
    OP_REQUIRES_OK_ASYNC(context, Step(context, &stepped, &result), done);
    if (!result.waits) {
      OP_REQUIRES_OK_ASYNC(context, Output(context, stepped, false, result), done);
      done();
      return;
    }
    AwaitJoint(context, attributes_.replica, timeout_ns_, std::move(done),
               [this, context] { return Install(context); });
  }

 private:
  // Where the optimizer has stepped: the snapshot, the targets that have come, and the pull.
  absl::Status Step(OpKernelContext* context, bool* stepped, strom_pull_result* result) const {
    LockedVariables variables(context);
    TF_RETURN_IF_ERROR(variables.Lock(attributes_));
    TF_RETURN_IF_ERROR(FindStep(context, variables, stepped));
    if (!*stepped) return absl::OkStatus();
    TF_RETURN_IF_ERROR(CheckJoint(context));
    std::vector<strom_segment> segments;
    TF_RETURN_IF_ERROR(NamedSegments(variables, &segments));
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_step(attributes_.replica, segments.data(),
                                            static_cast<int64_t>(segments.size()),
                                            Iteration(context), &threads, result);
    return Stored(variables, ToStatus(code, strom_last_error()));
  }

  // What the step had to wait for is here. The variables were not locked meanwhile.
  absl::Status Install(OpKernelContext* context) const {
    LockedVariables variables(context);
    TF_RETURN_IF_ERROR(variables.Lock(attributes_));
    std::vector<strom_segment> segments;
    TF_RETURN_IF_ERROR(NamedSegments(variables, &segments));
    strom_pull_result result{};
    const strom_thread_pool threads = LendThreads(context);
    const int code =
        strom_local_model_install(attributes_.replica, segments.data(),
                                  static_cast<int64_t>(segments.size()), &threads, &result);
    TF_RETURN_IF_ERROR(Stored(variables, ToStatus(code, strom_last_error())));
    return Output(context, true, true, result);
  }

  absl::Status FindStep(OpKernelContext* context, LockedVariables& variables, bool* stepped) const {
    std::vector<LockedVariables::Earlier> earlier;
    for (size_t i = 0; i < watched_.size(); ++i) {
      earlier.push_back(
          {static_cast<size_t>(watched_[i]), &context->input(before_input_ + static_cast<int>(i))});
    }
    std::vector<bool> changed;
    std::vector<Tensor> fetched;
    TF_RETURN_IF_ERROR(variables.FindChanged(earlier, compare_contents_, &changed, &fetched));
    *stepped = std::find(changed.begin(), changed.end(), true) != changed.end();
    return absl::OkStatus();
  }

  // The core may have pulled the variables; where it has failed, too.
  static absl::Status Stored(LockedVariables& variables, const absl::Status& done) {
    const absl::Status stored = variables.StoreAll();
    return done.ok() ? stored : done;
  }

  absl::Status NamedSegments(LockedVariables& variables,
                             std::vector<strom_segment>* segments) const {
    TF_RETURN_IF_ERROR(variables.FetchAll());
    TF_RETURN_IF_ERROR(variables.InPlaceSegments(segments));
    for (size_t i = 0; i < segments->size(); ++i) (*segments)[i].name = names_[i].c_str();
    return absl::OkStatus();
  }

  static absl::Status Output(OpKernelContext* context, bool stepped, bool waited,
                             const strom_pull_result& result) {
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({kPullStatistics}), &output));
    const double values[kPullStatistics] = {stepped ? 1.0 : 0.0,
                                            waited ? 1.0 : 0.0,
                                            static_cast<double>(result.shards),
                                            static_cast<double>(result.exchanges),
                                            result.alpha,
                                            result.distance,
                                            result.target,
                                            static_cast<double>(result.cycle_steps),
                                            result.cycle_seconds,
                                            result.waited_seconds};
    std::memcpy(output->data(), values, sizeof(values));
    return absl::OkStatus();
  }

  std::vector<int64_t> watched_;
  int64_t timeout_ns_ = 0;
  bool compare_contents_ = false;
  int before_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromPull").Device(tensorflow::DEVICE_CPU), PullOp);
REGISTER_KERNEL_BUILDER(Name("StromPull")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("iteration")
                            .HostMemory("joint_now")
                            .HostMemory("statistics"),
                        PullOp);

}  // namespace keras_strom
