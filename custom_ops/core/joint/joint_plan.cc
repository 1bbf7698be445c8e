#include "core/joint/joint_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace strom {

namespace {

// Shards are cut at multiples of 16 elements, and none is empty.
constexpr int64_t kLeastOfShard = 16;
constexpr int64_t kMostCycles = int64_t{1} << 40;

bool IsWithin(double value, double least, double most) { return value >= least && value <= most; }

Status Refuse(const char* what, double value, const char* allowed) {
  return {Code::kInvalidArgument,
          std::string(what) + " is " + std::to_string(value) + "; it must be " + allowed};
}

Status CheckMethod(const strom_method& method) {
  if (method.kind < STROM_UPDATE_SHARING || method.kind > STROM_EASGD_SYNCHRONOUS) {
    return Refuse("the kind of the method", method.kind, "0 to 4");
  }
  const bool is_mpca = method.kind == STROM_MPCA;
  if (!IsWithin(method.phases, 1, is_mpca ? 3 : 1)) {
    return Refuse("phases", method.phases, is_mpca ? "1, 2 or 3" : "1");
  }
  if (!IsWithin(method.alpha, 0, 1)) return Refuse("alpha", method.alpha, "within 0 to 1");
  if (!IsWithin(method.start_alpha, 0, 1)) {
    return Refuse("the start's alpha", method.start_alpha, "within 0 to 1");
  }
  const bool has_beta = is_mpca || method.kind == STROM_EASGD_SYNCHRONOUS;
  if (has_beta && !(method.beta > 0 && method.beta <= 1)) {
    return Refuse("beta", method.beta, "over 0 and at most 1");
  }
  if (!IsWithin(method.gamma, 0, 2)) return Refuse("gamma", method.gamma, "within 0 to 2");
  if (!(method.delta >= 0 && method.delta < 1)) {
    return Refuse("delta", method.delta, "at least 0 and under 1");
  }
  if (!IsWithin(method.bfloat16, 0, method.kind == STROM_SPARKNET ? 1 : 0)) {
    return Refuse("bfloat16", method.bfloat16,
                  method.kind == STROM_SPARKNET ? "0 or 1" : "0 with this method");
  }
  const bool may_be_of_gradients = method.kind == STROM_SPARKNET && method.steps == 1;
  if (!IsWithin(method.gradients, 0, may_be_of_gradients ? 1 : 0)) {
    return Refuse("gradients", method.gradients,
                  may_be_of_gradients ? "0 or 1" : "0 with this method");
  }
  for (const int64_t count : {method.free_cycles, method.start_cycles, method.ramp_cycles,
                              method.min_steps, method.steps}) {
    if (count < 0 || count > kMostCycles) {
      return Refuse("a number of cycles or steps", static_cast<double>(count), "0 to 2^40");
    }
  }
  return {};
}

}  // namespace

int64_t JointPlan::size() const {
  int64_t elements = 0;
  for (const ElementRange& range : ranges) elements += range.size;
  return elements;
}

bool operator==(const JointPlan& a, const JointPlan& b) {
  const strom_method& m = a.method;
  const strom_method& n = b.method;
  return m.kind == n.kind && m.phases == n.phases && m.weighted == n.weighted &&
         m.alpha == n.alpha && m.beta == n.beta && m.gamma == n.gamma && m.delta == n.delta &&
         m.start_alpha == n.start_alpha && m.free_cycles == n.free_cycles &&
         m.start_cycles == n.start_cycles && m.ramp_cycles == n.ramp_cycles &&
         m.min_steps == n.min_steps && m.steps == n.steps && m.bfloat16 == n.bfloat16 &&
         m.gradients == n.gradients && a.ranges == b.ranges;
}

Status CheckPlan(const JointPlan& plan, int64_t layout_size) {
  if (!plan.IsJoint()) return {};
  Status method = CheckMethod(plan.method);
  if (!method.ok()) return method;
  int64_t end = 0;
  for (const ElementRange& range : plan.ranges) {
    if (range.size <= 0 || range.offset < end || range.offset > layout_size ||
        range.size > layout_size - range.offset) {
      return {Code::kInvalidArgument,
              "the ranges of the joint model must ascend, apart, within the " +
                  std::to_string(layout_size) + " elements of the flat space"};
    }
    end = range.end();
  }
  const bool is_cut = plan.method.kind == STROM_MPCA;
  const int64_t least = is_cut ? kLeastOfShard * plan.method.phases : 1;
  if (plan.size() < least) {
    return {Code::kInvalidArgument,
            "the model has " + std::to_string(plan.size()) + " trained elements; to be cut into " +
                std::to_string(plan.method.phases) + " shards it needs at least " +
                std::to_string(least) + ": use fewer phases, or another method"};
  }
  return {};
}

void Gather(const JointPlan& plan, std::span<const float> flat, std::vector<float>* joint) {
  joint->clear();
  joint->reserve(static_cast<size_t>(plan.size()));
  for (const ElementRange& range : plan.ranges) {
    const std::span<const float> part = Of(flat, range);
    joint->insert(joint->end(), part.begin(), part.end());
  }
}

void Scatter(const JointPlan& plan, std::span<const float> joint, std::vector<float>* flat) {
  size_t from = 0;
  for (const ElementRange& range : plan.ranges) {
    const auto part = joint.subspan(from, static_cast<size_t>(range.size));
    std::copy(part.begin(), part.end(), flat->begin() + range.offset);
    from += part.size();
  }
}

}  // namespace strom
