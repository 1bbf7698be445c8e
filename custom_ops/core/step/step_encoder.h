// The step kernel over all segments of a training step, on as many threads as are lent to it.
//
// The segments are cut at fixed places of the flat space and the parts' results are put together in
// order, so that one thread or many give the same entries, values, residuals and statistics to the
// last bit.
#ifndef KERAS_STROM_CORE_STEP_STEP_ENCODER_H_
#define KERAS_STROM_CORE_STEP_STEP_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/segment_values.h"
#include "core/codec/entries.h"
#include "core/step/residual.h"
#include "core/step/residual_store.h"
#include "core/step/step_values.h"

namespace strom {

// What a step does with the elements of each segment.
struct StepRules {
  StepRule rule;             // all of them, but for threshold and clip_limit
  SegmentValues thresholds;  // tau > 0
  float clip_multiple = 0;   // of the threshold, the clip limit; 0 = do not clip
  bool full = false;         // values include the residuals and are `after` (FullRun)

  StepRule of(size_t segment) const {
    StepRule own = rule;
    own.threshold = thresholds[segment];
    if (clip_multiple > 0) own.clip_limit = clip_multiple * own.threshold;
    return own;
  }
};

class StepEncoder {
 public:
  // Residuals and values change; entries() then holds what leaves. Segments ascend without overlap.
  // One that did not change, such as a frozen layer's, sends nothing: its residual waits, is not
  // looked at and does not count in the statistics, and its value is not written. Throws
  // std::bad_alloc: if it has begun, the update is in the residuals, within rounding, and there are
  // no entries; the values are those from before or, where the rules say `full`, include the
  // residuals.
  StepStatistics Encode(std::span<const strom_segment> segments, const StepRules& rules,
                        ResidualStore* residuals, const Parallel& parallel);

  const EntryList& entries() const { return entries_; }
  // Whether an Encode since Clear, also one that has thrown, has changed residuals and values.
  bool has_begun() const { return has_begun_; }
  void Clear() {
    entries_.Clear();
    has_begun_ = false;
  }

  // The last Encode, segment by segment: all but `value`. `results` are as many as the
  // segments, or none.
  void DescribeSegments(std::span<const strom_segment> segments, SegmentValues thresholds,
                        std::span<strom_segment_result> results) const;

  // Names the segments of the last Encode whose update held a NaN or an infinity, and how many.
  std::string DescribeNonfinite(std::span<const strom_segment> segments) const;

 private:
  // Consecutive elements of one segment within one chunk.
  struct Part {
    StepRun run;
    int64_t chunk;
    size_t segment;
    int64_t done = 0;     // elements that have been through the kernel
    int64_t entries = 0;  // that these have given
    StepStatistics statistics = {};
  };

  void CutParts(std::span<const strom_segment> segments, ResidualStore* residuals);
  void ShareOut(const Parallel& parallel);
  void FindEntries(const StepRules& rules, const Parallel& parallel);
  void RunParts(size_t first, size_t last, const StepRules& rules, EntryList* entries);
  void TakeBack(std::span<const strom_segment> segments, const StepRules& rules,
                ResidualStore* residuals);

  bool has_begun_ = false;
  // One task puts what it finds here; that of several is joined.
  EntryList entries_;
  // Kept from step to step for their memory.
  std::vector<Part> parts_;
  std::vector<size_t> task_starts_;      // task t runs parts [task_starts_[t], task_starts_[t + 1])
  std::vector<EntryList> task_entries_;  // of several tasks
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_STEP_ENCODER_H_
