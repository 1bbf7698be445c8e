// StromApply and StromApplyStep: what was received changes the parameters outside a training step.
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/device_step.h"
#include "tf/held_values.h"
#include "tf/own_models.h"
#include "tf/threads.h"
#include "tf/variables.h"
#include "tf/wait.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::core::RefCountPtr;

namespace {

float* Floats(Tensor* tensor) { return static_cast<float*>(tensor->data()); }

// Whether the step before was done on the op's device, with what all workers share kept beside each
// model of the worker's own.
bool StaysOnDevice(const ReplicaAttributes& attributes, const OwnModels& models,
                   const DeviceStep& step, LockedVariables& variables) {
  if (!step.is_held()) return false;
  for (size_t i = 0; i < variables.size(); ++i) {
    const OwnModel model = models.Get(attributes.offsets[i]);
    const bool is_beside = model.state == OwnModel::State::kOwn && model.other.NumElements() > 0;
    const bool is_alone = model.state == OwnModel::State::kShared;
    const bool is_empty = variables.placed(i).NumElements() == 0;
    if (!is_beside && !is_alone && !is_empty) return false;
    if (variables.copies_on_read(i)) return false;
  }
  return true;
}

// Variables are added to where they lie; what all workers share is on the host. Messages alone go
// to the device. Where that has no memory for them *complete is false, and the rest is the host's.
absl::Status ApplyOnDevice(OpKernelContext* context, const ReplicaAttributes& attributes,
                           LockedVariables& variables, OwnModels* models, DeviceStep* step,
                           strom_step_result* result, bool* complete) {
  variables.ForgetMirrors();
  std::vector<OwnModel> held(variables.size());
  std::vector<strom_cuda_segment> segments;
  std::vector<float*> shared;
  absl::Status status;
  for (size_t i = 0; i < held.size(); ++i) {
    held[i] = models->Take(attributes.offsets[i]);
    const int64_t size = variables.placed(i).NumElements();
    if (size == 0 || !status.ok()) continue;
    const bool has_shared = held[i].other.NumElements() > 0;
    status = variables.MakePlacedWritable(i);
    if (status.ok() && has_shared) status = MakeWritable(variables.copies(), &held[i].other);
    auto* const value = static_cast<float*>(variables.placed(i).data());
    segments.push_back({attributes.offsets[i], size, value, value, value, nullptr, nullptr});
    shared.push_back(has_shared ? Floats(&held[i].other) : nullptr);
  }
  if (status.ok()) {
    status =
        step->Apply(context, attributes.replica, std::move(segments), shared, result, complete);
  }
  for (size_t i = 0; i < held.size(); ++i) {
    models->Put(attributes.offsets[i], std::move(held[i]));
  }
  TF_RETURN_IF_ERROR(variables.RememberBuffers());
  return status;
}

// Where a variable and its own model are two buffers, one holds what all workers share.
absl::Status ApplyReceived(OpKernelContext* context, const ReplicaAttributes& attributes) {
  LockedVariables variables(context);
  TF_RETURN_IF_ERROR(variables.Lock(attributes));
  RefCountPtr<OwnModels> models;
  TF_RETURN_IF_ERROR(OwnModels::Find(context, attributes.replica, &models));
  strom_step_result on_device{};
  if (variables.copies().on_device()) {
    RefCountPtr<DeviceStep> step;
    TF_RETURN_IF_ERROR(DeviceStep::Find(context, attributes.replica, &step));
    if (StaysOnDevice(attributes, *models, *step, variables)) {
      bool complete = false;
      TF_RETURN_IF_ERROR(ApplyOnDevice(context, attributes, variables, models.get(), step.get(),
                                       &on_device, &complete));
      if (complete) return OutputStatistics(context, on_device);
    }
  }
  TF_RETURN_IF_ERROR(variables.FetchAll());
  std::vector<OwnModel> held(variables.size());
  int64_t assigned = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    held[i] = models->Take(attributes.offsets[i]);
    if (held[i].WasAssigned(*variables.tensor(i))) {
      held[i].other = Tensor();  // Training goes on from what was assigned.
      ++assigned;
    }
    held[i].shown = Tensor();
  }
  std::vector<strom_segment> segments;
  absl::Status status = variables.InPlaceSegments(&segments);
  std::vector<float*> own_models(variables.size());
  for (size_t i = 0; i < variables.size() && status.ok(); ++i) {
    if (held[i].other.NumElements() == 0) continue;
    status = MakeWritable(variables.copies(), &held[i].other);
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
    if (held[i].state == OwnModel::State::kShown) held[i].shown = *variables.tensor(i);
    models->Put(attributes.offsets[i], std::move(held[i]));
  }
  const bool written = !status.ok() || result.values_written != 0;
  const absl::Status stored = variables.Store(std::vector<bool>(variables.size(), written));
  TF_RETURN_IF_ERROR(status);
  TF_RETURN_IF_ERROR(stored);
  TF_RETURN_IF_ERROR(variables.RememberBuffers());
  result.received += on_device.received;
  result.staleness += on_device.staleness;
  return OutputStatistics(context, result, false, assigned);
}

}  // namespace

class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

  // On a GPU, too, it works on the host, where others should not have to queue behind it.
  bool IsExpensive() override { return true; }

  void Compute(OpKernelContext* context) override {
    RefCountPtr<HeldValues> starts;
    OP_REQUIRES_OK(context, HeldValues::Find(context, attributes_.replica, &starts));
    starts->Clear();
    OP_REQUIRES_OK(context, ApplyReceived(context, attributes_));
  }

 private:
  ReplicaAttributes attributes_;
};

// Waits for a STEP, then applies what it has released.
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
    Wait::Start(
        context, std::move(done),
        [this, contribution](strom_callback released, void* owner) {
          return strom_replica_await_step(attributes_.replica, contribution, timeout_ns_, released,
                                          owner);
        },
        [this, context] { return ApplyReceived(context, attributes_); });
  }

 private:
  ReplicaAttributes attributes_;
  int64_t timeout_ns_ = 0;
  int stepped_input_ = 0;
  int contribution_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromApply").Device(tensorflow::DEVICE_CPU), ApplyOp);
REGISTER_KERNEL_BUILDER(Name("StromApplyStep").Device(tensorflow::DEVICE_CPU), ApplyStepOp);
REGISTER_KERNEL_BUILDER(Name("StromApply")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("statistics"),
                        ApplyOp);
REGISTER_KERNEL_BUILDER(Name("StromApplyStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("stepped")
                            .HostMemory("contribution")
                            .HostMemory("statistics"),
                        ApplyStepOp);

}  // namespace keras_strom
