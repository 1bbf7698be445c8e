#include "tf/own_models.h"

#include <utility>

#include "tf/replica_resource.h"

namespace keras_strom {

OwnModel OwnModels::Get(int64_t offset) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = models_.find(offset);
  return found == models_.end() ? OwnModel() : found->second;
}

OwnModel OwnModels::Take(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = models_.extract(offset);
  return found.empty() ? OwnModel() : std::move(found.mapped());
}

void OwnModels::Put(int64_t offset, OwnModel model) {
  if (model.state == OwnModel::State::kShared) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  models_[offset] = std::move(model);
}

absl::Status OwnModels::Find(tensorflow::OpKernelContext* context, strom_handle replica,
                             tensorflow::core::RefCountPtr<OwnModels>* models) {
  return FindOfReplica(context, "own_models", replica, models);
}

}  // namespace keras_strom
