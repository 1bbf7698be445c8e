// The step kernel: r += s * (after - before), and what reaches the threshold leaves.
//
// One pass over memory does all of it: the update, the entries that are sent, the variable's new
// value, clipping and the statistics. Every implementation gives the same bits as the scalar oracle
// (the sum of |r| excepted, which depends on the order of additions), so workers on different
// processors agree. Source: Strom 2015, algorithm 1; clipping after Deeplearning4j's.
#ifndef KERAS_STROM_CORE_RESIDUAL_H_
#define KERAS_STROM_CORE_RESIDUAL_H_

#include <cstdint>
#include <limits>
#include <span>

namespace strom {

// What a step does with every element.
struct StepRule {
  float scale = 1;      // s
  float threshold = 0;  // tau > 0
  // After the entries have left, |r| is cut down to this; infinity = do not clip.
  float clip_limit = std::numeric_limits<float>::infinity();
  bool apply_own = true;  // value = before + what is sent; otherwise value = before
};

// Consecutive elements. `value` may be `before` or `after`; no other overlap is allowed.
struct StepRun {
  int64_t size = 0;
  const float* before = nullptr;
  const float* after = nullptr;
  float* value = nullptr;
  float* residual = nullptr;
  uint32_t first_index = 0;  // of the first element, in its chunk (core/entries.h)
};

// Added up over the runs of a step.
struct StepStatistics {
  float max_residual = 0;   // of |r| after encoding and clipping
  double sum_residual = 0;  // likewise
  double clipped_mass = 0;
  int64_t clipped_count = 0;
  // Elements whose r + s * (after - before) is NaN or infinite. They are not sent, their residual
  // stays as it was, and their value is `before`.
  int64_t nonfinite_count = 0;
  uint32_t first_nonfinite = 0;  // the index in its chunk of the first one
};

// Writes the codes (core/entries.h) of the entries to `codes`, which has room for run.size, and
// returns how many there are.
using StepFunction = int64_t (*)(const StepRun& run, const StepRule& rule, uint32_t* codes,
                                 StepStatistics* statistics);

struct StepKernel {
  const char* name;
  StepFunction step;
};

// The kernels that this processor can run: the scalar oracle first, the fastest last.
std::span<const StepKernel> StepKernels();

}  // namespace strom

#endif  // KERAS_STROM_CORE_RESIDUAL_H_
