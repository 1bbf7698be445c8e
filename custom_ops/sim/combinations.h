// What the truths that joint models are judged by have in common: they look for what may have been
// counted among what was given, part by part.
#ifndef KERAS_STROM_SIM_COMBINATIONS_H_
#define KERAS_STROM_SIM_COMBINATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/joint/joint_model.h"
#include "core/joint/joint_plan.h"

namespace strom {

// Visits one of each choice, in all combinations, like the digits of a number, until `visit` is
// true; whether it was. No choice is empty.
template <typename Choice, typename Visit>
bool AnyCombination(const std::vector<Choice>& choices, Visit visit) {
  std::vector<size_t> at(choices.size());
  while (true) {
    Choice chosen;
    for (size_t i = 0; i < choices.size(); ++i) chosen.push_back(choices[i][at[i]]);
    if (visit(std::move(chosen))) return true;
    size_t digit = 0;
    while (digit < at.size() && ++at[digit] == choices[digit].size()) at[digit++] = 0;
    if (digit == at.size()) return false;
  }
}

// The same where a choice may be null, which leaves it out.
template <typename Choice, typename Visit>
bool AnyCombinationOfSome(const std::vector<Choice>& choices, Visit visit) {
  return AnyCombination(choices, [&](Choice chosen) {
    std::erase(chosen, nullptr);
    return visit(std::move(chosen));
  });
}

// Judging more elements, of a shard or a model that is judged part by part, would take long.
inline constexpr int64_t kMostJudged = int64_t{1} << 12;

// As a shard of so many elements is cut, from 0 on.
inline std::vector<ElementRange> PartsOfShard(const JointPlan& plan, int64_t size) {
  std::vector<ElementRange> parts;
  const int64_t elements = PartElements(plan.method, plan.size());
  for (int64_t at = 0; at < size; at += elements) {
    parts.push_back({at, std::min(elements, size - at)});
  }
  return parts;
}

// As a joint model of one shard is cut.
inline std::vector<ElementRange> PartsOf(const JointPlan& plan) {
  return PartsOfShard(plan, plan.size());
}

}  // namespace strom

#endif  // KERAS_STROM_SIM_COMBINATIONS_H_
