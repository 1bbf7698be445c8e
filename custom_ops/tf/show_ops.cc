// StromShowShared and StromShowOwn: what variables hold outside of training steps, and in them,
// where a worker trains on its full progress (tf/own_models.h).
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/device_step.h"
#include "tf/held_values.h"
#include "tf/own_models.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::core::RefCountPtr;
using State = OwnModel::State;

namespace {

absl::Status NewBuffer(const HostCopies& copies, const Tensor& like, Tensor* tensor) {
  return copies.NewTensor(like.dtype(), like.shape(), tensor);
}

// Which variables were assigned outside of training since an op of ours has left them as they are
// while they include the residual, or show what all workers share. Those it fetches.
absl::Status FindAssigned(const OwnModels& models, const ReplicaAttributes& attributes,
                          LockedVariables& variables, std::vector<bool>* assigned) {
  std::vector<const void*> found;
  for (size_t i = 0; i < variables.size(); ++i) {
    const bool is_own = models.Get(attributes.offsets[i]).state == State::kOwn;
    found.push_back(is_own ? variables.placed(i).data() : nullptr);
  }
  TF_RETURN_IF_ERROR(variables.FindAssigned(found, assigned));
  for (size_t i = 0; i < variables.size(); ++i) {
    if (models.Get(attributes.offsets[i]).state == State::kShared) continue;
    TF_RETURN_IF_ERROR(variables.Fetch(i));
  }
  TF_RETURN_IF_ERROR(variables.AwaitFetched());
  for (size_t i = 0; i < variables.size(); ++i) {
    if (found[i] != nullptr) continue;
    (*assigned)[i] = models.Get(attributes.offsets[i]).WasAssigned(*variables.tensor(i));
  }
  return absl::OkStatus();
}

absl::Status AddResidual(OpKernelContext* context, const ReplicaAttributes& attributes,
                         const std::vector<strom_segment>& segments, int sign) {
  const strom_thread_pool threads = LendThreads(context);
  const int code = strom_replica_add_residual(
      attributes.replica, segments.data(), static_cast<int64_t>(segments.size()), sign, &threads);
  return ToStatus(code, strom_last_error());
}

strom_segment Segment(int64_t offset, const Tensor& before, Tensor* value) {
  strom_segment segment{};
  segment.offset = offset;
  segment.size = before.NumElements();
  segment.before = static_cast<const float*>(before.data());
  segment.value = static_cast<float*>(value->data());
  return segment;
}

absl::Status OutputCount(OpKernelContext* context, const std::vector<bool>& assigned) {
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
  output->scalar<int64_t>()() = std::count(assigned.begin(), assigned.end(), true);
  return absl::OkStatus();
}

}  // namespace

class ShowSharedOp : public OpKernel {
 public:
  explicit ShowSharedOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("forget", &forget_));
  }

  // On a GPU, too, it works on the host, where others should not have to queue behind it.
  bool IsExpensive() override { return true; }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(context);
    OP_REQUIRES_OK(context, variables.Lock(attributes_));
    RefCountPtr<OwnModels> models;
    OP_REQUIRES_OK(context, OwnModels::Find(context, attributes_.replica, &models));
    std::vector<bool> assigned;
    OP_REQUIRES_OK(context, FindAssigned(*models, attributes_, variables, &assigned));
    std::vector<Tensor> shared(variables.size());  // G, of those that have x
    std::vector<strom_segment> segments;
    for (size_t i = 0; i < variables.size(); ++i) {
      const int64_t offset = attributes_.offsets[i];
      const OwnModel model = models->Get(offset);
      if (model.state != State::kOwn || assigned[i]) continue;
      shared[i] = model.other;
      if (shared[i].NumElements() > 0) continue;
      const Tensor& own = *variables.tensor(i);
      OP_REQUIRES_OK(context, NewBuffer(variables.copies(), own, &shared[i]));
      segments.push_back(Segment(offset, own, &shared[i]));
    }
    OP_REQUIRES_OK(context, AddResidual(context, attributes_, segments, -1));
    for (size_t i = 0; i < variables.size(); ++i) {
      const int64_t offset = attributes_.offsets[i];
      OwnModel model = models->Take(offset);
      Tensor* tensor = variables.tensor(i);
      if (assigned[i]) {  // That is what is shown, and where training goes on.
        model = {State::kShown, Tensor(), *tensor};
      } else if (model.state == State::kOwn) {
        model = {State::kShown, std::exchange(*tensor, shared[i]), shared[i]};
      }
      if (!forget_) models->Put(offset, std::move(model));
    }
    if (forget_) {
      RefCountPtr<HeldValues> starts;
      OP_REQUIRES_OK(context, HeldValues::Find(context, attributes_.replica, &starts));
      starts->Clear();
      variables.ForgetMirrors();
      DeviceStep::Forget(context, attributes_.replica);
    }
    OP_REQUIRES_OK(context, variables.StoreNone());
    OP_REQUIRES_OK(context, variables.RememberBuffers());
    OP_REQUIRES_OK(context, OutputCount(context, assigned));
  }

 private:
  ReplicaAttributes attributes_;
  bool forget_ = false;
};

class ShowOwnOp : public OpKernel {
 public:
  explicit ShowOwnOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("keep_shared", &keep_shared_));
    OP_REQUIRES_OK(context, context->GetAttr("begins", &begins_));
    OP_REQUIRES(context, begins_.size() == attributes_.offsets.size(),
                absl::InvalidArgumentError("begins must have one entry a variable"));
  }

  // On a GPU, too, it works on the host, where others should not have to queue behind it.
  bool IsExpensive() override { return true; }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(context);
    OP_REQUIRES_OK(context, variables.Lock(attributes_));
    RefCountPtr<OwnModels> models;
    OP_REQUIRES_OK(context, OwnModels::Find(context, attributes_.replica, &models));
    std::vector<bool> assigned;
    OP_REQUIRES_OK(context, FindAssigned(*models, attributes_, variables, &assigned));
    for (size_t i = 0; i < variables.size(); ++i) {
      if (begins_[i]) OP_REQUIRES_OK(context, variables.Fetch(i));
    }
    OP_REQUIRES_OK(context, variables.AwaitFetched());
    variables.KeepMirrors();
    std::vector<bool> written(variables.size());
    std::vector<strom_segment> segments;
    for (size_t i = 0; i < variables.size(); ++i) {
      const int64_t offset = attributes_.offsets[i];
      OwnModel model = models->Get(offset);
      if (model.state == State::kOwn || (model.state == State::kShared && !begins_[i])) continue;
      Tensor* tensor = variables.tensor(i);
      const bool goes_on = model.other.NumElements() > 0 && !assigned[i];
      model.shown = Tensor();
      models->Take(offset);
      if (goes_on) {
        std::swap(*tensor, model.other);
        if (!keep_shared_) model.other = Tensor();
      } else {
        model.other = Tensor();
        if (keep_shared_) {
          OP_REQUIRES_OK(context, NewBuffer(variables.copies(), *tensor, &model.other));
          std::memcpy(model.other.data(), tensor->data(), tensor->TotalBytes());
        }
        OP_REQUIRES_OK(context, MakeWritable(variables.copies(), tensor));
        segments.push_back(Segment(offset, *tensor, tensor));
        written[i] = true;
      }
      model.state = State::kOwn;
      models->Put(offset, std::move(model));
    }
    OP_REQUIRES_OK(context, AddResidual(context, attributes_, segments, 1));
    OP_REQUIRES_OK(context, variables.Store(written));
    OP_REQUIRES_OK(context, variables.RememberBuffers());
    OP_REQUIRES_OK(context, OutputCount(context, assigned));
  }

 private:
  ReplicaAttributes attributes_;
  bool keep_shared_ = false;
  std::vector<bool> begins_;
};

REGISTER_KERNEL_BUILDER(Name("StromShowShared").Device(tensorflow::DEVICE_CPU), ShowSharedOp);
REGISTER_KERNEL_BUILDER(Name("StromShowOwn").Device(tensorflow::DEVICE_CPU), ShowOwnOp);
REGISTER_KERNEL_BUILDER(Name("StromShowShared")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("assigned"),
                        ShowSharedOp);
REGISTER_KERNEL_BUILDER(Name("StromShowOwn")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("assigned"),
                        ShowOwnOp);

}  // namespace keras_strom
