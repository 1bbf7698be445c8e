// The step kernels one by one; core/step/residual.h chooses among them.
//
// A kernel is a type with one function template, Step, for all kinds of run and of output
// (core/step/step_outputs.h); MakeStepKernel makes the functions of a StepKernel out of it.
#ifndef KERAS_STROM_CORE_STEP_STEP_KERNELS_H_
#define KERAS_STROM_CORE_STEP_STEP_KERNELS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/base/processor.h"
#include "core/step/residual.h"
#include "core/step/step_outputs.h"

namespace strom {

extern const StepKernel kScalarStepKernel;
extern const StepKernel kBlocksStepKernel;  // what the compiler makes vectors of, on any processor
#if defined(STROM_X86)
extern const StepKernel kAvx2StepKernel;
extern const StepKernel kAvx512StepKernel;
#elif defined(STROM_NEON)
extern const StepKernel kNeonStepKernel;
#endif

// Elements [start, start + size) of a run.
inline StepRun Part(const StepRun& run, int64_t start, int64_t size) {
  return {size,
          run.before + start,
          run.after + start,
          run.value + start,
          run.residual + start,
          run.first_index + static_cast<uint32_t>(start)};
}

inline FullRun Part(const FullRun& run, int64_t start, int64_t size) {
  return {size, run.before + start, run.value + start, run.residual + start,
          run.first_index + static_cast<uint32_t>(start)};
}

inline EncodeRun Part(const EncodeRun& run, int64_t start, int64_t size) {
  return {size, run.update + start, run.residual + start,
          run.first_index + static_cast<uint32_t>(start)};
}

inline float Update(const StepRun& run, int64_t i) { return run.after[i] - run.before[i]; }
inline float Update(const FullRun& run, int64_t i) { return run.value[i] - run.before[i]; }
inline float Update(const EncodeRun& run, int64_t i) { return run.update[i]; }

// Cuts a residual down to the limit.
inline float Clip(float residual, float limit, StepStatistics* statistics) {
  const float magnitude = std::fabs(residual);
  if (magnitude <= limit) return residual;
  statistics->clipped_mass += static_cast<double>(magnitude) - static_cast<double>(limit);
  ++statistics->clipped_count;
  return std::copysign(limit, residual);
}

// What leaves of a residual: the threshold or, where the output has halves, a half, with a sign; or
// 0.
template <typename Output>
float Sent(const Output& output, uint32_t index, float residual, float threshold) {
  if (std::fabs(residual) >= threshold) return std::copysign(threshold, residual);
  if constexpr (Output::kHalves) {
    const bool negative = HalfIsNegative(index, output.bitmap.iteration);
    const float half = threshold / 2;
    if (negative ? residual <= -half : residual >= half) return negative ? -half : half;
  }
  return 0;
}

// The oracle; also the tails of the other kernels, and their blocks with something not finite.
struct ScalarStep {
  template <typename Run, typename Output>
  __attribute__((noinline)) static Output Step(const Run& run, const StepRule& rule, Output output,
                                               StepStatistics* statistics) {
    for (int64_t i = 0; i < run.size; ++i) {
      const auto index = run.first_index + static_cast<uint32_t>(i);
      Element element;
      element.step = rule.scale * Update(run, i);
      float residual = run.residual[i] + element.step;
      element.is_finite = std::isfinite(residual);
      if (element.is_finite) {
        element.sent = Sent(output, index, residual, rule.threshold);
        residual -= element.sent;
      } else {
        if (statistics->nonfinite_count++ == 0) statistics->first_nonfinite = index;
        residual = run.residual[i];
      }
      output.Put(index, element.sent, rule.threshold);
      const float clipped = Clip(residual, rule.clip_limit, statistics);
      element.taken = residual - clipped;
      residual = clipped;
      run.residual[i] = residual;
      SetValue(run, rule, i, element);
      statistics->max_residual = std::max(statistics->max_residual, std::fabs(residual));
      statistics->sum_residual += std::fabs(residual);
    }
    return output;
  }

 private:
  struct Element {
    float step = 0;  // s * update
    bool is_finite = true;
    float sent = 0;
    float taken = 0;  // by clipping
  };

  static void SetValue(const StepRun& run, const StepRule& rule, int64_t i,
                       const Element& element) {
    const float before = run.before[i];
    // Not before + 0, which would turn -0 into 0.
    run.value[i] = element.sent != 0 && rule.apply_own ? before + element.sent : before;
  }
  static void SetValue(const FullRun& run, const StepRule& rule, int64_t i,
                       const Element& element) {
    if (!element.is_finite) {
      run.value[i] = run.before[i];
    } else if (rule.scale != 1) {
      run.value[i] = run.before[i] + element.step;
    }
    if (element.taken != 0) run.value[i] -= element.taken;
  }
  static void SetValue(const EncodeRun&, const StepRule&, int64_t, const Element&) {}
};

// Whether so many blocks of a vector kernel are hit that skipping the others would cost more than
// it saves: a wrongly predicted branch takes as long as a block. Told by the stretch of elements
// before; the first one counts as dense.
constexpr int64_t kStretch = 4096;

template <typename Output>
struct Density;

template <>
struct Density<CodeOutput> {
  // A stretch begins; the one before was dense with more than `dense_entries` entries.
  void Next(const CodeOutput& output, int64_t dense_entries) {
    value = count < 0 || output.count - count > dense_entries;
    count = output.count;
  }

  bool value = true;
  int64_t count = -1;
};

// A bitmap takes its words either way.
struct AlwaysDense {
  template <typename Output>
  void Next(const Output&, int64_t) {}
  static constexpr bool value = true;
};

template <>
struct Density<BitmapOutput> : AlwaysDense {};

template <>
struct Density<Bitmap4Output> : AlwaysDense {};

// A kernel out of `Vectors`, which takes blocks of Vectors::kBlock elements as long as all of them
// are finite: FiniteBlocks(run, rule, output, statistics) returns how many elements it has done.
// The rest is the oracle's. (A call to it inside the vectors' loop would cost them their
// registers.)
template <typename Vectors>
struct VectorStep {
  template <typename Run, typename Output>
  static Output Step(const Run& run, const StepRule& rule, Output output,
                     StepStatistics* statistics) {
    int64_t done = 0;
    for (;;) {
      done += Vectors::FiniteBlocks(Part(run, done, run.size - done), rule, &output, statistics);
      const int64_t size = std::min(run.size - done, Vectors::kBlock);
      output = ScalarStep::Step(Part(run, done, size), rule, output, statistics);
      if (size < Vectors::kBlock) return output;
      done += size;
    }
  }
};

template <typename Kernel, typename Run>
int64_t ToCodes(const Run& run, const StepRule& rule, uint32_t* codes, StepStatistics* statistics) {
  return Kernel::Step(run, rule, CodeOutput{codes}, statistics).count;
}

template <typename Kernel>
void ToBitmap(const EncodeRun& run, const StepRule& rule, Bitmap* bitmap,
              StepStatistics* statistics) {
  *bitmap = Kernel::Step(run, rule, BitmapOutput{*bitmap}, statistics).bitmap;
}

template <typename Kernel>
void ToBitmap4(const EncodeRun& run, const StepRule& rule, Bitmap4* bitmap,
               StepStatistics* statistics) {
  *bitmap = Kernel::Step(run, rule, Bitmap4Output{*bitmap}, statistics).bitmap;
}

template <typename Kernel>
constexpr StepKernel MakeStepKernel(const char* name) {
  return {name,
          ToCodes<Kernel, StepRun>,
          ToCodes<Kernel, FullRun>,
          ToCodes<Kernel, EncodeRun>,
          ToBitmap<Kernel>,
          ToBitmap4<Kernel>};
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_STEP_KERNELS_H_
