// Blocks of 64 elements in plain C++ that compilers turn into whatever vectors the target has:
// the fastest kernel where no hand-written one fits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/base/little_endian.h"
#include "core/step/step_kernels.h"

namespace strom {
namespace {

// As integers, the magnitudes of floats are ordered like the floats, with infinity and then the
// NaNs above all finite ones: one maximum finds hits, values to clip and what is not finite.
constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int kBlock = 64;
constexpr int kLanes = 16;

int32_t MagnitudeBits(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

int32_t LargestMagnitude(const float* x) {
  int32_t largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, MagnitudeBits(x[i]));
  return largest;
}

// In a fixed order of additions that needs no reordering by the compiler to be vectorised.
float SumOfMagnitudes(const float* x) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = std::fabs(x[i]);
  for (int start = kLanes; start < kBlock; start += kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] += std::fabs(x[start + i]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Bit i is set where residual[i] has a place[i] that is not 0. The compiler compares many at once
// into bytes; the product moves bit 0 of each of eight bytes into the top byte.
uint64_t GatherBits(const uint8_t* places) {
  uint64_t mask = 0;
  for (int i = 0; i < kBlock; i += 8) {
    mask |= (LoadLittleEndian<uint64_t>(places + i) * 0x0102040810204080 >> 56) << i;
  }
  return mask;
}

// Bit i is set where |residual[i]| reaches the threshold.
uint64_t FindHits(const float* residual, int32_t threshold) {
  uint8_t hits[kBlock];
  for (int i = 0; i < kBlock; ++i) hits[i] = MagnitudeBits(residual[i]) >= threshold;
  return GatherBits(hits);
}

uint64_t FindNegative(const float* residual) {
  uint8_t negative[kBlock];
  for (int i = 0; i < kBlock; ++i) negative[i] = std::bit_cast<uint32_t>(residual[i]) >> 31;
  return GatherBits(negative);
}

void CopyValues(const StepRun& run, int64_t start) {
  if (run.value == run.before) return;
  std::memcpy(run.value + start, run.before + start, kBlock * sizeof(float));
}
void CopyValues(const FullRun&, int64_t) {}
void CopyValues(const EncodeRun&, int64_t) {}

void AddToValue(const StepRun& run, const StepRule& rule, int64_t i, float sent) {
  if (rule.apply_own) run.value[i] = run.before[i] + sent;
}
void AddToValue(const FullRun&, const StepRule&, int64_t, float) {}
void AddToValue(const EncodeRun&, const StepRule&, int64_t, float) {}

// The values of a block where the update is scaled.
void ScaleUpdate(const FullRun& run, const StepRule& rule, int64_t start) {
  if (rule.scale == 1) return;
  for (int64_t i = start; i < start + kBlock; ++i) {
    run.value[i] = run.before[i] + rule.scale * Update(run, i);
  }
}
void ScaleUpdate(const StepRun&, const StepRule&, int64_t) {}
void ScaleUpdate(const EncodeRun&, const StepRule&, int64_t) {}

void TakeFromValue(const FullRun& run, int64_t i, float taken) { run.value[i] -= taken; }
void TakeFromValue(const StepRun&, int64_t, float) {}
void TakeFromValue(const EncodeRun&, int64_t, float) {}

struct BlockStep {
  template <typename Run, typename Output>
  static Output Step(const Run& run, const StepRule& rule, Output output,
                     StepStatistics* statistics) {
    const int32_t threshold = MagnitudeBits(rule.threshold);
    // What leaves, if only in part.
    const int32_t least = Output::kHalves ? MagnitudeBits(rule.threshold / 2) : threshold;
    const int32_t clip_limit = MagnitudeBits(rule.clip_limit);
    int32_t largest_of_all = 0;
    int64_t start = 0;
    for (; start + kBlock <= run.size; start += kBlock) {
      alignas(64) float residual[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        residual[i] = run.residual[start + i] + rule.scale * Update(run, start + i);
      }
      int32_t largest = LargestMagnitude(residual);
      if (largest >= kInfinityBits) {
        output = ScalarStep::Step(Part(run, start, kBlock), rule, output, statistics);
        continue;
      }
      CopyValues(run, start);
      ScaleUpdate(run, rule, start);
      const auto first = run.first_index + static_cast<uint32_t>(start);
      BlockBits bits;
      if (largest >= least) {
        bits.hits = FindHits(residual, threshold);
        bits.negative = FindNegative(residual);
        if constexpr (Output::kHalves) {
          const uint64_t negative = NegativeHalves(first, output.bitmap.iteration);
          bits.halves = FindHits(residual, least) & ~bits.hits & ~(bits.negative ^ negative);
          bits.hits |= bits.halves;
        }
      }
      output.PutBlock(first, bits);
      if (bits.hits != 0) {
        Send(run, rule, start, bits, residual);
        largest = LargestMagnitude(residual);
      }
      if (largest > clip_limit) {
        for (int i = 0; i < kBlock; ++i) {
          const float clipped = Clip(residual[i], rule.clip_limit, statistics);
          TakeFromValue(run, start + i, residual[i] - clipped);
          residual[i] = clipped;
        }
        largest = LargestMagnitude(residual);
      }
      std::memcpy(run.residual + start, residual, sizeof(residual));
      largest_of_all = std::max(largest_of_all, largest);
      statistics->sum_residual += static_cast<double>(SumOfMagnitudes(residual));
    }
    statistics->max_residual =
        std::max(statistics->max_residual, std::bit_cast<float>(largest_of_all));
    return ScalarStep::Step(Part(run, start, run.size - start), rule, output, statistics);
  }

 private:
  // Lets the entries of a block leave; only they are visited.
  template <typename Run>
  static void Send(const Run& run, const StepRule& rule, int64_t start, const BlockBits& bits,
                   float* residual) {
    for (uint64_t left = bits.hits; left != 0; left &= left - 1) {
      const int i = std::countr_zero(left);
      const bool half = (bits.halves >> i & 1) != 0;
      const float sent = std::copysign(half ? rule.threshold / 2 : rule.threshold, residual[i]);
      residual[i] -= sent;
      AddToValue(run, rule, start + i, sent);
    }
  }
};

}  // namespace

const StepKernel kBlocksStepKernel = MakeStepKernel<BlockStep>("blocks");

}  // namespace strom
