// The joint model's and the pull's functions of capi/strom.h.
#include "core/joint/joint_model.h"

#include <span>

#include "capi/handles.h"
#include "capi/lent_threads.h"
#include "core/base/subnormals.h"
#include "core/joint/pull.h"

namespace strom {
namespace {

// One thread's at a time.
struct SharedJointModel {
  SharedJointModel(const strom_method& method, std::vector<float> start)
      : model(method, std::move(start)) {}
  std::mutex mutex;
  JointModel model;
};

HandleTable<SharedJointModel>& JointModels() {
  static auto* const table = new HandleTable<SharedJointModel>;  // outlives every thread
  return *table;
}

// Runs body(JointModel&) alone with the model behind `handle`.
template <typename Body>
int WithJointModel(const char* function, strom_handle handle, Body body) {
  return Guard([&]() -> Status {
    const std::shared_ptr<SharedJointModel> shared = JointModels().Find(handle);
    if (!shared) return ClosedHandle(function, "joint model", handle);
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const KeepSubnormals keep;
    return body(shared->model);
  });
}

Status CheckRange(const JointModel& model, int64_t offset, int64_t size) {
  if (offset >= 0 && size >= 0 && size <= model.size() - offset) return {};
  return {Code::kInvalidArgument, "elements " + std::to_string(offset) + " and " +
                                      std::to_string(size) +
                                      " from there on do not lie within the " +
                                      std::to_string(model.size()) + " of the joint model"};
}

Status CheckShard(const JointModel& model, int32_t shard) {
  if (shard >= 0 && shard < model.shards()) return {};
  return {Code::kInvalidArgument,
          "there is no shard " + std::to_string(shard) + " of " + std::to_string(model.shards())};
}

std::span<const float> Values(const float* values, int64_t size) {
  return {values, static_cast<size_t>(size)};
}

}  // namespace
}  // namespace strom

using namespace strom;  // the functions below are declared outside any namespace

int strom_joint_model_create(const strom_method* method, const float* start, int64_t size,
                             strom_handle* model) {
  return Guard([&]() -> Status {
    const JointPlan plan{*method, {{0, size}}};
    if (!plan.IsJoint()) return {Code::kInvalidArgument, "update sharing has no joint model"};
    Status valid = CheckPlan(plan, size);
    if (!valid.ok()) return valid;
    *model = JointModels().Add(
        std::make_shared<SharedJointModel>(*method, std::vector<float>(start, start + size)));
    return {};
  });
}

int strom_joint_model_close(strom_handle model) {
  return Guard([&]() -> Status {
    if (JointModels().Remove(model)) return {};
    return ClosedHandle("strom_joint_model_close", "joint model", model);
  });
}

int strom_joint_model_shard(strom_handle model, int32_t shard, strom_range* range) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    Status found = CheckShard(m, shard);
    if (found.ok()) *range = {m.shard(shard).offset, m.shard(shard).size};
    return found;
  });
}

int strom_joint_model_add(strom_handle model, int64_t offset, const float* values, int64_t size,
                          int64_t steps) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    Status within = CheckRange(m, offset, size);
    if (within.ok()) m.Add(offset, Values(values, size), steps);
    return within;
  });
}

int strom_joint_model_move(strom_handle model, int64_t offset, const float* difference,
                           int64_t size) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    Status within = CheckRange(m, offset, size);
    if (within.ok()) m.Move(offset, Values(difference, size));
    return within;
  });
}

int strom_joint_model_update(strom_handle model, int32_t shard) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    Status found = CheckShard(m, shard);
    if (found.ok()) m.Update(shard);
    return found;
  });
}

int strom_joint_model_read(strom_handle model, float* joint, float* trajectory, float* target) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    if (joint != nullptr) std::copy(m.joint().begin(), m.joint().end(), joint);
    if (trajectory != nullptr) {
      std::fill(trajectory, trajectory + m.size(), 0.0f);
      std::copy(m.trajectory().begin(), m.trajectory().end(), trajectory);
    }
    for (int32_t shard = 0; target != nullptr && shard < m.shards(); ++shard) {
      m.ReadTarget(m.shard(shard), target + m.shard(shard).offset);
    }
    return {};
  });
}

int strom_joint_model_alpha(strom_handle model, double* alpha, int64_t* cycles) {
  return WithJointModel(__func__, model, [&](JointModel& m) -> Status {
    *alpha = m.alpha();
    *cycles = m.cycles();
    return {};
  });
}

int strom_pull(float* x, const float* target, int64_t size, float alpha,
               const strom_thread_pool* threads) {
  return Guard([&]() -> Status {
    if (size < 0) return {Code::kInvalidArgument, "strom_pull: size is negative"};
    constexpr int64_t kTask = int64_t{1} << 16;
    const KeepSubnormals keep;
    LentThreads(threads).parallel().For((size + kTask - 1) / kTask, [&](int64_t task) {
      const int64_t at = task * kTask, some = std::min(kTask, size - at);
      Pull({x + at, static_cast<size_t>(some)}, Values(target + at, some), alpha);
    });
    return {};
  });
}
