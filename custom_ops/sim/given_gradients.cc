#include "sim/given_gradients.h"

#include <algorithm>
#include <cmath>

#include "core/base/hash.h"
#include "sim/combinations.h"

namespace strom {

namespace {

constexpr size_t kRememberedRounds = 64;
// Gradients are below 2 in magnitude; bfloat16 rounds them, and their mean.
constexpr double kTolerance = 1e-5;
constexpr double kToleranceOfBfloat16 = 1e-2;

}  // namespace

void GivenGradients::Give(uint64_t generation, uint64_t round, int32_t rank,
                          std::vector<float> gradient) {
  rounds_[{generation, round}].by_rank[rank].push_back(std::move(gradient));
  if (rounds_.size() > kRememberedRounds) rounds_.erase(rounds_.begin());
}

void GivenGradients::Skip(uint64_t generation, uint64_t round) {
  rounds_[{generation, round}].is_skipped = true;
}

std::string GivenGradients::Check(const JointPlan& plan, uint64_t generation, uint64_t round,
                                  std::span<const float> mean) {
  if (!rounds_.empty() && std::pair(generation, round) < rounds_.begin()->first) return "";
  Round& made = rounds_[{generation, round}];
  const uint64_t hash = Hash(AsBytes(mean));
  if (made.is_skipped || !made.accepted.insert(hash).second) return "";
  std::vector<Choice> choices;
  for (const auto& [rank, gradients] : made.by_rank) {
    Choice& choice = choices.emplace_back();
    for (const std::vector<float>& one : gradients) choice.push_back(&one);
    if (struck_.contains(rank)) choice.push_back(nullptr);
  }
  ++checked_;
  const double tolerance = plan.method.bfloat16 != 0 ? kToleranceOfBfloat16 : kTolerance;
  for (const ElementRange& part : PartsOf(plan)) {
    if (Explains(choices, part, tolerance, mean)) continue;
    return "has a mean of round " + std::to_string(round) + " that the gradients of " +
           std::to_string(choices.size()) + " workers do not make, from element " +
           std::to_string(part.offset) + " on";
  }
  return "";
}

// Whether one choice each makes the part's mean.
bool GivenGradients::Explains(const std::vector<Choice>& choices, const ElementRange& part,
                              double tolerance, std::span<const float> mean) const {
  return AnyCombinationOfSome(choices, [&](const Choice& chosen) {
    bool fits = !chosen.empty();
    for (int64_t e = part.offset; fits && e < part.end(); ++e) {
      const auto element = static_cast<size_t>(e);
      double sum = 0;
      for (const std::vector<float>* gradient : chosen) sum += (*gradient)[element];
      fits = std::abs(sum / static_cast<double>(chosen.size()) - mean[element]) <= tolerance;
    }
    return fits;
  });
}

}  // namespace strom
