// The step kernel of any kind of vectors, written once for AVX2, AVX-512 and NEON: blocks of
// elements, skipping on where few are hit.
//
// The file of one kind includes it and says before how its functions are compiled, as
// STROM_VECTORS_TARGET (core/base/processor.h). It gives a type `Vectors` with the names of the
// vectors, what arithmetic operators do not say, and how a block's entries are put into an output:
//
//   - Floats, Bits (as integers), Doubles (half of the lanes), Mask (of the lanes)
//   - kLanes, kVectors (of a block), kDenseEntries (of a stretch: with more no block is skipped)
//   - Load, Store, Set, NoBits, SetDoubles, Magnitude, Larger, CopySign, FlipSigns, BitsOf,
//     LargestBits, AnyOver, Largest, LowDoubles, HighDoubles, Sum, Reaches, IsOver, Or, AndNot,
//     Count, Pick, SubtractWhere, AddWhere
//   - PutBlock(output, first, block): false where the block surely has no entry
#ifndef KERAS_STROM_CORE_STEP_STEP_VECTORS_H_
#define KERAS_STROM_CORE_STEP_STEP_VECTORS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/fetch_ahead.h"
#include "core/step/step_kernels.h"

#define STROM_INLINE STROM_VECTORS_TARGET inline __attribute__((always_inline))

namespace strom {
// One for each file: what is compiled for one kind of processor must not be linked for another.
namespace {

constexpr int32_t kLargestFinite = 0x7f7fffff;  // the bits of the largest finite float

template <typename Vectors>
struct BlockOf {
  using Floats = typename Vectors::Floats;
  using Mask = typename Vectors::Mask;

  Floats residual[Vectors::kVectors];
  Floats value[Vectors::kVectors];  // of a StepRun: first the old one, then the new one
  Mask hits[Vectors::kVectors];
  Mask halves[Vectors::kVectors];  // of the hits; only where the output has halves
};

// Blocks as VectorStep takes them.
template <typename V>
struct FiniteBlocksOf {
  static constexpr int kVectors = V::kVectors;
  static constexpr int kLanes = V::kLanes;
  static constexpr int64_t kBlock = kVectors * kLanes;

  using Floats = typename V::Floats;
  using Bits = typename V::Bits;
  using Doubles = typename V::Doubles;
  using Mask = typename V::Mask;
  using Block = BlockOf<V>;

  template <typename Run, typename Output>
  STROM_VECTORS_TARGET static int64_t FiniteBlocks(Run run, const StepRule& rule, Output* result,
                                                   StepStatistics* statistics) {
    // By value: then they stay in registers, whatever is written to memory.
    Output output = *result;
    constexpr bool kFull = std::is_same_v<Run, FullRun>;
    const bool apply_own = std::is_same_v<Run, StepRun> && rule.apply_own;
    const bool scales_value = kFull && rule.scale != 1;
    const Floats scale = V::Set(rule.scale);
    const Floats threshold = V::Set(rule.threshold);
    const Floats half = V::Set(rule.threshold / 2);
    const Floats half_signs = SignsOfHalves(output, run.first_index);
    const int32_t below_threshold = std::bit_cast<int32_t>(rule.threshold) - 1;
    const float largest_usual = std::min(rule.clip_limit, std::numeric_limits<float>::max());
    Bits largest = V::NoBits();
    Doubles sum = V::SetDoubles(0);
    Density<Output> dense;
    const FetchAhead ahead(run.size);
    int64_t i = 0;
    for (; i + kBlock <= run.size; i += kBlock) {
      Block block;
      float* const residual = run.residual + i;
      if (ahead.At(i)) {
        FetchAhead::Lines<kBlock>(residual);
        FetchUpdate(run, i);
        FetchOutput(output);
      }
      for (int j = 0; j < kVectors; ++j) {
        const Floats update = LoadUpdate(run, i + j * kLanes, &block.value[j]);
        const Floats step = scale * update;
        block.residual[j] = V::Load(residual + j * kLanes) + step;
        if constexpr (kFull) {
          if (!scales_value) continue;
          block.value[j] = V::Load(run.before + i + j * kLanes) + step;
        }
      }
      const Output output_before = output;
      if (i % kStretch == 0) dense.Next(output, V::kDenseEntries);
      bool writes = scales_value;
      Magnitudes magnitudes = MagnitudesOf(block);
      Bits largest_here = LargestOf(magnitudes);
      if (dense.value || V::AnyOver(largest_here, below_threshold)) {
        FindHits<Output>(magnitudes, threshold, half, half_signs, &block);
        const bool hit = V::PutBlock(&output, run.first_index + static_cast<uint32_t>(i), block);
        Send<Output>(threshold, half, apply_own, &block);
        writes |= hit && apply_own;
        magnitudes = MagnitudesOf(block);
        largest_here = LargestOf(magnitudes);
      }
      if (V::AnyOver(largest_here, std::bit_cast<int32_t>(largest_usual))) [[unlikely]] {
        // Sending leaves what is not finite as it is.
        if (V::AnyOver(largest_here, kLargestFinite)) {
          output = output_before;
          break;
        }
        if constexpr (kFull) {
          const Block whole = block;
          ClipBlock(rule.clip_limit, block.residual, statistics);
          for (int j = 0; j < kVectors; ++j) {
            block.value[j] = whole.value[j] - (whole.residual[j] - block.residual[j]);
          }
          writes = true;
        } else {
          ClipBlock(rule.clip_limit, block.residual, statistics);
        }
        magnitudes = MagnitudesOf(block);
        largest_here = LargestOf(magnitudes);
      }
      largest = V::LargestBits(largest, largest_here);
      const Floats sums = SumOf(magnitudes);
      sum = sum + (V::LowDoubles(sums) + V::HighDoubles(sums));
      StoreValues(run, i, writes, block);
      for (int j = 0; j < kVectors; ++j) V::Store(residual + j * kLanes, block.residual[j]);
    }
    statistics->max_residual =
        std::max(statistics->max_residual, std::bit_cast<float>(V::Largest(largest)));
    statistics->sum_residual += V::Sum(sum);
    *result = output;
    return i;
  }

 private:
  struct Magnitudes {
    Floats x[kVectors];
  };

  STROM_INLINE static Floats LoadUpdate(const StepRun& run, int64_t i, Floats* value) {
    *value = V::Load(run.before + i);
    return V::Load(run.after + i) - *value;
  }
  STROM_INLINE static Floats LoadUpdate(const FullRun& run, int64_t i, Floats* value) {
    *value = V::Load(run.value + i);
    return *value - V::Load(run.before + i);
  }
  STROM_INLINE static Floats LoadUpdate(const EncodeRun& run, int64_t i, Floats*) {
    return V::Load(run.update + i);
  }

  STROM_INLINE static void FetchUpdate(const StepRun& run, int64_t i) {
    FetchAhead::Lines<kBlock>(run.before + i);
    FetchAhead::Lines<kBlock>(run.after + i);
  }
  STROM_INLINE static void FetchUpdate(const FullRun& run, int64_t i) {
    FetchAhead::Lines<kBlock>(run.before + i);
    FetchAhead::Lines<kBlock>(run.value + i);
  }
  STROM_INLINE static void FetchUpdate(const EncodeRun& run, int64_t i) {
    FetchAhead::Lines<kBlock>(run.update + i);
  }
  // Of codes as many as some blocks of a dense update have; a bitmap is short.
  STROM_INLINE static void FetchOutput(const CodeOutput& output) {
    __builtin_prefetch(output.codes + output.count + 128, 1);
  }
  template <typename Bitmaps>
  STROM_INLINE static void FetchOutput(const Bitmaps&) {}

  STROM_INLINE static Magnitudes MagnitudesOf(const Block& block) {
    Magnitudes magnitudes;
    for (int j = 0; j < kVectors; ++j) magnitudes.x[j] = V::Magnitude(block.residual[j]);
    return magnitudes;
  }

  // As bits, which are ordered like the magnitudes, with NaN above infinity above the rest.
  template <int first = 0, int count = kVectors>
  STROM_INLINE static Bits LargestOf(const Magnitudes& m) {
    if constexpr (count == 1) {
      return V::BitsOf(m.x[first]);
    } else {
      return V::LargestBits(LargestOf<first, count / 2>(m),
                            LargestOf<first + count / 2, count / 2>(m));
    }
  }

  template <int first = 0, int count = kVectors>
  STROM_INLINE static Floats SumOf(const Magnitudes& m) {
    if constexpr (count == 1) {
      return m.x[first];
    } else {
      return SumOf<first, count / 2>(m) + SumOf<first + count / 2, count / 2>(m);
    }
  }

  // The sign of what elements send as a half, in the sign of each lane.
  template <typename Output>
  STROM_INLINE static Floats SignsOfHalves(const Output& output, uint32_t first) {
    if constexpr (!Output::kHalves) {
      return V::Set(0);
    } else {
      float signs[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        signs[j] = HalfIsNegative(int64_t{first} + j, output.bitmap.iteration) ? -0.0f : 0.0f;
      }
      return V::Load(signs);
    }
  }

  // Finds what leaves a block.
  template <typename Output>
  STROM_INLINE static void FindHits(const Magnitudes& magnitudes, Floats threshold, Floats half,
                                    Floats half_signs, Block* block) {
    for (int j = 0; j < kVectors; ++j) {
      block->hits[j] = V::Reaches(magnitudes.x[j], threshold);
      if (!Output::kHalves) continue;
      // Only what has the sign of its half is positive here.
      const Mask over_half = V::Reaches(V::FlipSigns(block->residual[j], half_signs), half);
      block->halves[j] = V::AndNot(over_half, block->hits[j]);
      block->hits[j] = V::Or(block->hits[j], over_half);
    }
  }

  // Lets the entries of a block leave.
  template <typename Output>
  STROM_INLINE static void Send(Floats threshold, Floats half, bool apply_own, Block* block) {
    for (int j = 0; j < kVectors; ++j) {
      Floats magnitude = threshold;
      if constexpr (Output::kHalves) magnitude = V::Pick(block->halves[j], half, threshold);
      const Floats sent = V::CopySign(magnitude, block->residual[j]);
      block->residual[j] = V::SubtractWhere(block->hits[j], block->residual[j], sent);
      // Not value + 0 where nothing is sent, which would turn -0 into 0.
      if (apply_own) block->value[j] = V::AddWhere(block->hits[j], block->value[j], sent);
    }
  }

  // Where `value` is `before`, only blocks with an entry change.
  STROM_INLINE static void StoreValues(const StepRun& run, int64_t i, bool changed,
                                       const Block& block) {
    if (run.value == run.before && !changed) return;
    for (int j = 0; j < kVectors; ++j) V::Store(run.value + i + j * kLanes, block.value[j]);
  }
  STROM_INLINE static void StoreValues(const FullRun& run, int64_t i, bool changed,
                                       const Block& block) {
    if (!changed) return;
    for (int j = 0; j < kVectors; ++j) V::Store(run.value + i + j * kLanes, block.value[j]);
  }
  STROM_INLINE static void StoreValues(const EncodeRun&, int64_t, bool, const Block&) {}

  // Differences of floats are summed as doubles, where they are exact.
  STROM_VECTORS_TARGET static void ClipBlock(float clip_limit, Floats* residual,
                                             StepStatistics* statistics) {
    const Floats limit = V::Set(clip_limit);
    const Doubles wide_limit = V::SetDoubles(clip_limit);
    Doubles mass = V::SetDoubles(0);
    for (int j = 0; j < kVectors; ++j) {
      const Floats magnitude = V::Magnitude(residual[j]);
      const Mask over = V::IsOver(magnitude, limit);
      // What is not over counts as the limit itself.
      const Floats capped = V::Larger(magnitude, limit);
      mass = mass + (V::LowDoubles(capped) - wide_limit);
      mass = mass + (V::HighDoubles(capped) - wide_limit);
      statistics->clipped_count += V::Count(over);
      residual[j] = V::Pick(over, V::CopySign(limit, residual[j]), residual[j]);
    }
    statistics->clipped_mass += V::Sum(mass);
  }
};

}  // namespace
}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_STEP_VECTORS_H_
