#include "core/residual.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/little_endian.h"

namespace strom {
namespace {

// As integers, the magnitudes of floats are ordered like the floats, with infinity and then the
// NaNs above all finite ones: one maximum finds hits, values to clip and what is not finite.
constexpr int32_t kInfinityBits = 0x7f800000;

int32_t MagnitudeBits(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

// Cuts a residual down to the limit.
float Clip(float residual, float limit, StepStatistics* statistics) {
  const float magnitude = std::fabs(residual);
  if (magnitude <= limit) return residual;
  statistics->clipped_mass += static_cast<double>(magnitude) - static_cast<double>(limit);
  ++statistics->clipped_count;
  return std::copysign(limit, residual);
}

int64_t StepScalar(const StepRun& run, const StepRule& rule, uint32_t* codes,
                   StepStatistics* statistics) {
  int64_t count = 0;
  for (int64_t i = 0; i < run.size; ++i) {
    const float before = run.before[i];
    const auto index = run.first_index + static_cast<uint32_t>(i);
    float residual = run.residual[i] + rule.scale * (run.after[i] - before);
    float sent = 0;
    if (!std::isfinite(residual)) {
      if (statistics->nonfinite_count++ == 0) statistics->first_nonfinite = index;
      residual = run.residual[i];
    } else if (std::fabs(residual) >= rule.threshold) {
      sent = std::copysign(rule.threshold, residual);
      residual -= sent;
      codes[count++] = (index << 1) | (std::signbit(sent) ? 1u : 0u);
    }
    residual = Clip(residual, rule.clip_limit, statistics);
    run.residual[i] = residual;
    // Not before + 0, which would turn -0 into 0.
    run.value[i] = sent != 0 && rule.apply_own ? before + sent : before;
    statistics->max_residual = std::max(statistics->max_residual, std::fabs(residual));
    statistics->sum_residual += std::fabs(residual);
  }
  return count;
}

// --- blocks that the compiler vectorises

constexpr int kBlock = 64;
constexpr int kLanes = 16;

#define STROM_INLINE inline __attribute__((always_inline))

STROM_INLINE int32_t LargestMagnitude(const float* x) {
  int32_t largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, MagnitudeBits(x[i]));
  return largest;
}

// In a fixed order of additions that needs no reordering by the compiler to be vectorised.
STROM_INLINE float SumOfMagnitudes(const float* x) {
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

// Bit i is set where |residual[i]| reaches the threshold. The compiler compares many at once into
// bytes; the product moves bit 0 of each of eight bytes into the top byte.
STROM_INLINE uint64_t FindHits(const float* residual, int32_t threshold) {
  uint8_t hits[kBlock];
  for (int i = 0; i < kBlock; ++i) hits[i] = MagnitudeBits(residual[i]) >= threshold;
  uint64_t mask = 0;
  for (int i = 0; i < kBlock; i += 8) {
    mask |= (LoadLittleEndian<uint64_t>(hits + i) * 0x0102040810204080 >> 56) << i;
  }
  return mask;
}

// Lets the entries of a block leave; only they are visited.
STROM_INLINE int64_t SendEntries(const StepRun& run, const StepRule& rule, int64_t start,
                                 float* residual, uint32_t* codes) {
  const auto first_index = run.first_index + static_cast<uint32_t>(start);
  int64_t count = 0;
  for (uint64_t hits = FindHits(residual, MagnitudeBits(rule.threshold)); hits != 0;
       hits &= hits - 1) {
    const int i = std::countr_zero(hits);
    const float sent = std::copysign(rule.threshold, residual[i]);
    residual[i] -= sent;
    codes[count++] = ((first_index + static_cast<uint32_t>(i)) << 1) | std::signbit(sent);
    if (rule.apply_own) run.value[start + i] = run.before[start + i] + sent;
  }
  return count;
}

STROM_INLINE int64_t StepBlocks(const StepRun& run, const StepRule& rule, uint32_t* codes,
                                StepStatistics* statistics) {
  const int32_t threshold = MagnitudeBits(rule.threshold);
  const int32_t clip_limit = MagnitudeBits(rule.clip_limit);
  int32_t largest_of_all = 0;
  int64_t count = 0;
  int64_t start = 0;
  const auto rest = [&](int64_t size) {
    return StepRun{size,
                   run.before + start,
                   run.after + start,
                   run.value + start,
                   run.residual + start,
                   run.first_index + static_cast<uint32_t>(start)};
  };
  for (; start + kBlock <= run.size; start += kBlock) {
    const float* const before = run.before + start;
    const float* const after = run.after + start;
    alignas(64) float residual[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      residual[i] = run.residual[start + i] + rule.scale * (after[i] - before[i]);
    }
    int32_t largest = LargestMagnitude(residual);
    if (largest >= kInfinityBits) {
      count += StepScalar(rest(kBlock), rule, codes + count, statistics);
      continue;
    }
    if (run.value != run.before) std::memcpy(run.value + start, before, sizeof(residual));
    if (largest >= threshold) {
      count += SendEntries(run, rule, start, residual, codes + count);
      largest = LargestMagnitude(residual);
    }
    if (largest > clip_limit) {
      for (float& r : residual) r = Clip(r, rule.clip_limit, statistics);
      largest = LargestMagnitude(residual);
    }
    std::memcpy(run.residual + start, residual, sizeof(residual));
    largest_of_all = std::max(largest_of_all, largest);
    statistics->sum_residual += static_cast<double>(SumOfMagnitudes(residual));
  }
  statistics->max_residual =
      std::max(statistics->max_residual, std::bit_cast<float>(largest_of_all));
  return count + StepScalar(rest(run.size - start), rule, codes + count, statistics);
}

int64_t StepPortable(const StepRun& run, const StepRule& rule, uint32_t* codes,
                     StepStatistics* statistics) {
  return StepBlocks(run, rule, codes, statistics);
}

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v3"))) int64_t StepV3(const StepRun& run, const StepRule& rule,
                                                         uint32_t* codes,
                                                         StepStatistics* statistics) {
  return StepBlocks(run, rule, codes, statistics);
}
#endif

std::vector<StepKernel> FindKernels() {
  std::vector<StepKernel> kernels = {{"scalar", StepScalar}, {"blocks", StepPortable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("fma")) {
    kernels.push_back({"blocks, x86-64-v3", StepV3});
  }
#endif
  return kernels;
}

}  // namespace

std::span<const StepKernel> StepKernels() {
  static const std::vector<StepKernel> kernels = FindKernels();
  return kernels;
}

}  // namespace strom
