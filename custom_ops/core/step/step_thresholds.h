// The thresholds of one step, and what the entries that reached them stand for: one number for all
// segments, or one for each.
//
// Thresholds that differ are rounded to what a message can say (core/codec/value_table.h) before
// anything is compared with them, so that what leaves a residual is what arrives. Where updates are
// merged, those that may be are drawn to a grid first (core/codec/threshold_grid.h).
#ifndef KERAS_STROM_CORE_STEP_STEP_THRESHOLDS_H_
#define KERAS_STROM_CORE_STEP_STEP_THRESHOLDS_H_

#include <span>
#include <vector>

#include "core/base/segment_values.h"
#include "core/base/types.h"
#include "core/codec/value_table.h"
#include "core/step/step_values.h"

namespace strom {

class StepThresholds {
 public:
  // Refuses what is not finite or not over 0, in words.
  static Status Check(std::span<const strom_segment> segments, const strom_step_options& options);

  // Begins a step whose options have passed Check. Entries stand for the threshold of their
  // segment. `merges` as in Exchange.
  void Begin(std::span<const strom_segment> segments, const strom_step_options& options,
             bool merges);

  SegmentValues thresholds() const {
    return each_.empty() ? SegmentValues(all_) : SegmentValues(each_);
  }
  SegmentValues values() const {
    return each_.empty() ? SegmentValues(value_) : SegmentValues(values_);
  }

  // The values, one a group of `thresholds()`, to be changed (SendMean).
  std::span<float> means() { return each_.empty() ? std::span(&value_, 1) : std::span(values_); }

  // Of the segments, to be filled in; none where there is one threshold.
  std::span<strom_segment_result> results() { return results_; }

  // After the entries have been found: tells the result of thresholds and values, and returns the
  // runs that a message writer wants; none where there is one threshold.
  std::vector<ValueRun> Finish(strom_step_result* result);

 private:
  float all_ = 0;
  float value_ = 0;
  std::vector<float> each_;
  std::vector<float> values_;
  std::vector<strom_segment_result> results_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_STEP_THRESHOLDS_H_
