// What workers and master agree on before they train on a joint model: the method, and of which
// ranges of the flat space the joint model consists, one behind the other.
#ifndef KERAS_STROM_CORE_JOINT_JOINT_PLAN_H_
#define KERAS_STROM_CORE_JOINT_JOINT_PLAN_H_

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/joint/joint_values.h"

namespace strom {

// [offset, offset + size)
struct ElementRange {
  int64_t offset = 0;
  int64_t size = 0;
  int64_t end() const { return offset + size; }
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(offset, size);
  }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

inline std::span<const float> Of(std::span<const float> values, const ElementRange& range) {
  return values.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size));
}

// All workers exchange at once, and wait for each other.
inline bool HasRounds(const strom_method& method) {
  return method.kind == STROM_SPARKNET || method.kind == STROM_EASGD_SYNCHRONOUS;
}

struct JointPlan {
  strom_method method{};             // STROM_UPDATE_SHARING: there is no joint model
  std::vector<ElementRange> ranges;  // that are trained; ascending and apart

  bool IsJoint() const { return method.kind != STROM_UPDATE_SHARING; }
  bool IsMpca() const { return method.kind == STROM_MPCA; }
  bool HasRounds() const { return strom::HasRounds(method); }
  // ... and what they exchange is no model, but a gradient, before each step of the optimizer.
  bool IsOfGradients() const { return method.gradients != 0; }
  int64_t size() const;  // elements of the joint model

  template <typename Archive>
  void Fields(Archive& archive) {
    archive(method.kind, method.phases, method.weighted, method.alpha, method.beta, method.gamma,
            method.delta, method.start_alpha, method.free_cycles, method.start_cycles,
            method.ramp_cycles, method.min_steps, method.steps, method.bfloat16, method.gradients,
            ranges);
  }
};

bool operator==(const JointPlan& a, const JointPlan& b);

// kInvalidArgument with what is wrong: a number out of its range, ranges that do not ascend within
// `layout_size`, or a joint model too small to be cut. No range lies within a negative size.
Status CheckPlan(const JointPlan& plan, int64_t layout_size);

// What a worker gives is named by a mark: the number of the tick or round that has asked for it, or
// of its own exchange; the last snapshot of each shard comes after all others. The mean of a round
// that others lack has that round's number on the first mean mark.
inline constexpr uint64_t kFirstMeanMark = uint64_t{1} << 62;
inline constexpr uint64_t kFirstLastMark = uint64_t{1} << 63;
inline constexpr uint64_t LastMark(int32_t shard) {
  return kFirstLastMark + static_cast<uint64_t>(shard);
}

// A round of gradients says one number more, in each chunk's `count`, as its bits: the learning
// rate of the sender, and what the master hands out is that of the lowest rank. So all step with
// the same.
inline uint32_t RateBits(float rate) { return std::bit_cast<uint32_t>(rate); }
inline float RateOf(uint32_t bits) { return std::bit_cast<float>(bits); }

// Copies the ranges out of the flat space, and back.
void Gather(const JointPlan& plan, std::span<const float> flat, std::vector<float>* joint);
void Scatter(const JointPlan& plan, std::span<const float> joint, std::vector<float>* flat);

}  // namespace strom

#endif  // KERAS_STROM_CORE_JOINT_JOINT_PLAN_H_
