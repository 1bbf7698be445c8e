// What becomes of the entries of an update once the step kernel has found them: they may stand for
// more than the threshold, the momentum of their elements is cleared, and a sending that failed is
// taken back.
//
// Only these elements are visited, so the cost is the message's, not the model's. Segments are the
// step's, ascending; each entry lies in one of them.
#ifndef KERAS_STROM_CORE_STEP_SENT_ENTRIES_H_
#define KERAS_STROM_CORE_STEP_SENT_ENTRIES_H_

#include <span>

#include "core/base/parallel.h"
#include "core/base/segment_values.h"
#include "core/codec/entries.h"
#include "core/step/residual.h"
#include "core/step/residual_store.h"
#include "core/step/step_values.h"

namespace strom {

// What SendMean changes: of a step, and of its segments where somebody asks for them.
struct SentStatistics {
  StepStatistics* all = nullptr;
  std::span<strom_segment_result> segments = {};
};

// The kernel has sent ±threshold for each entry and left `value` = `before`. Sends ±v instead, v
// the mean magnitude of these residuals before anything left, at least the threshold; where
// thresholds differ, each segment has a mean of its own, as a TableValue. Writes v to `means`, one
// a group of `thresholds`, and leaves those without entries. Throws std::bad_alloc before it has
// changed anything. Residuals and the statistics follow, except that max_residual may be too
// high, by less than the threshold; where `apply_own`, values get ±v.
void SendMean(const EntryList& entries, std::span<const strom_segment> segments,
              SegmentValues thresholds, bool apply_own, ResidualStore* residuals,
              std::span<float> means, const SentStatistics& statistics, const Parallel& parallel);

// momentum = 0 for every entry whose segment has one; `momenta` as in strom_step_options. After Lin
// et al. 2018, "Deep Gradient Compression", section 3.2, momentum factor masking: what was sent is
// not pushed again from the past.
void MaskMomenta(const EntryList& entries, std::span<const strom_segment> segments,
                 float* const* momenta, const Parallel& parallel);

// The same entries return to the residual, within rounding, and where the step has added them they
// leave the values.
void TakeBackEntries(const EntryList& entries, std::span<const strom_segment> segments,
                     SegmentValues values, bool applied, ResidualStore* residuals);

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_SENT_ENTRIES_H_
