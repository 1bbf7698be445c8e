// StromApply and StromApplyStep: what was received changes the parameters outside a training step.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/held_values.h"
#include "tf/own_models.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::core::RefCountPtr;

namespace {

float* Floats(Tensor* tensor) { return static_cast<float*>(tensor->data()); }

// Where a variable and its own model are two buffers, one holds what all workers share.
absl::Status ApplyReceived(OpKernelContext* context, const ReplicaAttributes& attributes) {
  LockedVariables variables;
  TF_RETURN_IF_ERROR(variables.Lock(context, attributes));
  RefCountPtr<OwnModels> models;
  TF_RETURN_IF_ERROR(OwnModels::Find(context, attributes.replica, &models));
  std::vector<OwnModel> held(variables.size());
  int64_t assigned = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    held[i] = models->Take(attributes.offsets[i]);
    if (held[i].WasAssigned(*variables[i].tensor())) {
      held[i].other = Tensor();  // Training goes on from what was assigned.
      ++assigned;
    }
    held[i].shown = Tensor();
  }
  std::vector<strom_segment> segments;
  absl::Status status = variables.InPlaceSegments(context, &segments);
  std::vector<float*> own_models(variables.size());
  for (size_t i = 0; i < variables.size() && status.ok(); ++i) {
    if (held[i].other.NumElements() == 0) continue;
    status = MakeWritable(context, &held[i].other);
    own_models[i] = Floats(&held[i].other);
    if (held[i].state == OwnModel::State::kOwn) std::swap(own_models[i], segments[i].value);
  }
  strom_step_result result{};
  if (status.ok()) {
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_replica_apply(attributes.replica, segments.data(),
                                         static_cast<int64_t>(segments.size()), own_models.data(),
                                         &threads, &result);
    status = ToStatus(code, strom_last_error());
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].state == OwnModel::State::kShown) held[i].shown = *variables[i].tensor();
    models->Put(attributes.offsets[i], std::move(held[i]));
  }
  TF_RETURN_IF_ERROR(status);
  TF_RETURN_IF_ERROR(variables.RememberBuffers(context));
  return OutputStatistics(context, result, false, assigned);
}

}  // namespace

class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  void Compute(OpKernelContext* context) override {
    RefCountPtr<HeldValues> starts;
    OP_REQUIRES_OK(context, HeldValues::Find(context, attributes_.replica, &starts));
    starts->Clear();
    OP_REQUIRES_OK(context, ApplyReceived(context, attributes_));
  }

 private:
  ReplicaAttributes attributes_;
};

// Waits off the executor's threads: the network's thread announces the STEP, or TensorFlow cancels
// the step (another op failed, the session ends); whichever comes first finishes the op.
class ApplyStepOp : public AsyncOpKernel {
 public:
  explicit ApplyStepOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_ns", &timeout_ns_));
    OP_REQUIRES_OK(context, FirstInput(*this, "stepped", &stepped_input_));
    OP_REQUIRES_OK(context, FirstInput(*this, "contribution", &contribution_input_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const bool stepped = context->input(stepped_input_).scalar<bool>()();
    const int64_t contribution = context->input(contribution_input_).scalar<int64_t>()();
    if (!stepped) {
      OP_REQUIRES_OK_ASYNC(context, OutputStatistics(context, strom_step_result{}), done);
      done();
      return;
    }
    if (contribution < 0) {
      OP_REQUIRES_OK_ASYNC(context, ApplyReceived(context, attributes_), done);
      done();
      return;
    }
    auto wait = std::make_shared<Wait>(this, context, std::move(done));
    if (!wait->RegisterCancellation()) return;
    auto* owner = new std::shared_ptr<Wait>(wait);
    const int code = strom_replica_await_step(attributes_.replica, contribution, timeout_ns_,
                                              &ApplyStepOp::Released, owner);
    if (code != STROM_OK) {
      delete owner;  // The callback was not taken over.
      wait->Finish(code, strom_last_error());
    }
  }

 private:
  class Wait : public std::enable_shared_from_this<Wait> {
   public:
    Wait(ApplyStepOp* op, OpKernelContext* context, DoneCallback done)
        : op_(op), context_(context), done_(std::move(done)) {}

    // False: already cancelled, and the op is done.
    bool RegisterCancellation() {
      cancellation_ = context_->cancellation_manager();
      if (cancellation_ == nullptr) return true;
      token_ = cancellation_->get_cancellation_token();
      auto self = shared_from_this();
      if (cancellation_->RegisterCallback(token_, [self] { self->Cancel(); })) return true;
      Cancel();
      return false;
    }

    void Cancel() {
      if (finished_.exchange(true)) return;
      context_->SetStatus(absl::CancelledError("the training step was cancelled"));
      done_();
    }

    // Runs on the network's thread: hands the work to TensorFlow's and returns.
    void Finish(int code, const char* message) {
      if (finished_.exchange(true)) return;
      if (cancellation_ != nullptr) cancellation_->DeregisterCallback(token_);
      auto self = shared_from_this();
      (*context_->runner())([self, status = ToStatus(code, message)] {
        const absl::Status applied =
            status.ok() ? ApplyReceived(self->context_, self->op_->attributes_) : status;
        if (!applied.ok()) self->context_->SetStatus(applied);
        self->done_();
      });
    }

   private:
    ApplyStepOp* op_;
    OpKernelContext* context_;
    DoneCallback done_;
    CancellationManager* cancellation_ = nullptr;
    CancellationToken token_ = CancellationManager::kInvalidToken;
    std::atomic<bool> finished_{false};
  };

  static void Released(void* context, int code, const char* message) {
    auto* owner = static_cast<std::shared_ptr<Wait>*>(context);
    (*owner)->Finish(code, message == nullptr ? "" : message);
    delete owner;
  }

  ReplicaAttributes attributes_;
  int64_t timeout_ns_ = 0;
  int stepped_input_ = 0;
  int contribution_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromApply").Device(tensorflow::DEVICE_CPU), ApplyOp);
REGISTER_KERNEL_BUILDER(Name("StromApplyStep").Device(tensorflow::DEVICE_CPU), ApplyStepOp);

}  // namespace keras_strom
