#include "core/step/step_thresholds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "core/codec/message_sum.h"
#include "core/codec/threshold_grid.h"

namespace strom {
namespace {

Status Invalid(const std::string& what, float threshold) {
  return {Code::kInvalidArgument,
          what + " is " + std::to_string(threshold) +
              "; a threshold algorithm has to give a finite number over 0 in every step"};
}

std::string NameOf(std::span<const strom_segment> segments, size_t i) {
  const char* const name = segments[i].name;
  return name == nullptr ? "segment " + std::to_string(i) : "'" + std::string(name) + "'";
}

// What no sum takes (core/codec/message_sum.h) gains nothing by it.
float Drawn(float threshold) {
  return std::isnormal(threshold) && threshold < kSummableBelow ? OnGrid(threshold) : threshold;
}

}  // namespace

Status StepThresholds::Check(std::span<const strom_segment> segments,
                             const strom_step_options& options) {
  if (options.thresholds == nullptr) {
    if (options.segment_results != nullptr) {
      return {Code::kInvalidArgument,
              "`segment_results` is for segments with `thresholds` of their own"};
    }
    const bool usable = std::isfinite(options.threshold) && options.threshold > 0;
    return usable ? Status{} : Invalid("the threshold", options.threshold);
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const float threshold = options.thresholds[i];
    if (std::isnormal(threshold) && threshold > 0) continue;
    return Invalid("the threshold of " + NameOf(segments, i), threshold);
  }
  return {};
}

void StepThresholds::Begin(std::span<const strom_segment> segments,
                           const strom_step_options& options, bool merges) {
  // The mean of what is sent, of which a threshold says little, lies on no grid.
  const bool draws = merges && options.draws_threshold != 0 && options.send_mean == 0;
  const auto chosen = [draws](float threshold) { return draws ? Drawn(threshold) : threshold; };
  all_ = value_ = chosen(options.threshold);
  each_.clear();
  for (size_t i = 0; options.thresholds != nullptr && i < segments.size(); ++i) {
    each_.push_back(TableValue(chosen(options.thresholds[i])));
  }
  values_ = each_;
  results_.assign(each_.size(), {});
}

std::vector<ValueRun> StepThresholds::Finish(strom_step_result* result) {
  result->threshold = all_;
  result->value = value_;
  std::vector<ValueRun> runs;
  if (each_.empty()) return runs;
  double mass = 0;
  float least = 0;
  for (size_t i = 0; i < results_.size(); ++i) {
    strom_segment_result& segment = results_[i];
    segment.value = values_[i];
    mass += static_cast<double>(segment.count) * static_cast<double>(segment.value);
    if (segment.elements > 0 && (least == 0 || each_[i] < least)) least = each_[i];
    if (segment.count == 0) continue;
    if (runs.empty() || runs.back().value != values_[i]) runs.push_back({0, each_[i], values_[i]});
    runs.back().count += segment.count;
    runs.back().threshold = std::min(runs.back().threshold, each_[i]);
  }
  result->threshold = least;
  result->value = least;
  if (runs.size() == 1) result->value = runs.front().value;
  if (runs.size() > 1) {
    result->value = static_cast<float>(mass / static_cast<double>(result->count));
  }
  return runs;
}

}  // namespace strom
