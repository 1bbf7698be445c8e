// The step kernels: r += s * u, and what reaches the threshold leaves, as codes or as a bitmap, of
// one bit an element or of four states (core/codec/bitmap4.h) with halves of the threshold.
//
// One pass over memory does all of it: the update, the entries that are sent, the variable's new
// value, clipping and the statistics. Every implementation gives the same bits as the scalar oracle
// (the two sums excepted, which depend on the order of additions), so workers on different
// processors agree. Source: Strom 2015, algorithm 1; clipping after Deeplearning4j's.
#ifndef KERAS_STROM_CORE_STEP_RESIDUAL_H_
#define KERAS_STROM_CORE_STEP_RESIDUAL_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "core/codec/bitmap.h"
#include "core/codec/bitmap4.h"

namespace strom {

// What follows the words that say which update is not finite.
inline constexpr const char* kNotFiniteRemedy =
    "; nothing was sent. Lower the learning rate, clip the gradients (clipnorm=) or look for a bad "
    "batch";

// What such words call a variable: its name where it has one, else where it starts.
inline std::string DescribeVariable(const char* name, int64_t offset) {
  if (name == nullptr) return "the variable at flat element " + std::to_string(offset);
  return std::string("'").append(name).append("'");
}

// What a step does with every element.
struct StepRule {
  float scale = 1;      // s
  float threshold = 0;  // tau > 0
  // After the entries have left, |r| is cut down to this; infinity = do not clip.
  float clip_limit = std::numeric_limits<float>::infinity();
  // Of a StepRun: value = before + what is sent; otherwise value = before.
  bool apply_own = true;
};

// Consecutive elements whose update is after - before. `value` may be `before` or `after`; no other
// overlap is allowed.
struct StepRun {
  int64_t size = 0;
  const float* before = nullptr;
  const float* after = nullptr;
  float* value = nullptr;
  float* residual = nullptr;
  uint32_t first_index = 0;  // of the first element, in its chunk (core/codec/entries.h)
};

// The same where a worker's values include its residuals, x = G + r, G being what all workers
// share: what leaves goes from r to G, so the value stays what the optimizer wrote. It is written
// only where the update is scaled, value = before + s * (value - before), and where clipping takes
// something from the residual, which leaves the value as well.
struct FullRun {
  int64_t size = 0;
  const float* before = nullptr;
  float* value = nullptr;  // what the optimizer wrote; does not overlap `before`, or is the same
  float* residual = nullptr;
  uint32_t first_index = 0;  // as in StepRun
};

// Consecutive elements whose update lies in memory; they do not overlap.
struct EncodeRun {
  int64_t size = 0;
  const float* update = nullptr;
  float* residual = nullptr;
  uint32_t first_index = 0;  // as in StepRun
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

// Writes the codes (core/codec/entries.h) of the entries to `codes`, which has room for run.size,
// and returns how many there are. What lies behind them in that room may change too.
template <typename Run>
using CodesFunction = int64_t (*)(const Run& run, const StepRule& rule, uint32_t* codes,
                                  StepStatistics* statistics);

using StepFunction = CodesFunction<StepRun>;
using FullFunction = CodesFunction<FullRun>;
using EncodeFunction = CodesFunction<EncodeRun>;

// Appends the run's elements to `bitmap`; its length plus kBitmapSlack bytes are the room needed.
using BitmapFunction = void (*)(const EncodeRun& run, const StepRule& rule, Bitmap* bitmap,
                                StepStatistics* statistics);

// The same with halves: what has reached a half of the threshold but not all of it leaves a half in
// those steps in which a half has its sign. `bitmap` has whole pairs so far.
using Bitmap4Function = void (*)(const EncodeRun& run, const StepRule& rule, Bitmap4* bitmap,
                                 StepStatistics* statistics);

// One way to do it. (A step has no bitmap: at the densities of training a list of codes is shorter
// and as fast.)
struct StepKernel {
  const char* name;
  StepFunction step;
  FullFunction step_full;
  EncodeFunction encode;
  BitmapFunction encode_bitmap;
  Bitmap4Function encode_bitmap4;
};

// The kernels that this processor can run: the scalar oracle first, the fastest last. Tests and
// benchmarks take the one they want from here.
std::span<const StepKernel> StepKernels();

// The fastest; what everybody else uses.
inline const StepKernel& BestStepKernel() { return StepKernels().back(); }

// The kernel of that name, or null where this processor has none: "scalar", "blocks", "avx2",
// "avx512", "neon".
const StepKernel* FindStepKernel(std::string_view name);

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_RESIDUAL_H_
