// The step with AVX2: 32 elements at a time, skipping on where few are hit; the codes of the hit
// ones are brought together by a permutation out of a table.
//
// The room for codes suffices as in step_avx512.cc.
#include "core/step/step_kernels.h"

#if defined(STROM_X86)

#include <immintrin.h>

#include <array>
#include <bit>
#include <limits>
#include <type_traits>

namespace strom {
namespace {

#define STROM_INLINE STROM_TARGET_AVX2 inline __attribute__((always_inline))

constexpr int kVectors = 4;
constexpr int kLanes = 8;
constexpr int64_t kDenseEntries = 12;           // of a stretch: from there on no block is skipped
constexpr int32_t kLargestFinite = 0x7f7fffff;  // the bits of the largest finite float

// For each mask of eight lanes the numbers of those that are set, one a byte, from the lowest on.
constexpr std::array<uint64_t, 256> MakeLaneTable() {
  std::array<uint64_t, 256> table{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    int place = 0;
    for (uint64_t lane = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) table[mask] |= lane << (8 * place++);
    }
  }
  return table;
}

alignas(64) constexpr std::array<uint64_t, 256> kLaneTable = MakeLaneTable();

struct Block {
  __m256 residual[kVectors];
  __m256 value[kVectors];  // of a StepRun: first the old one, then the new one
  __m256 hits[kVectors];
  __m256 halves[kVectors];  // of the hits; only where the output has halves
};

STROM_INLINE __m256 LoadUpdate(const StepRun& run, int64_t i, __m256* value) {
  *value = _mm256_loadu_ps(run.before + i);
  return _mm256_sub_ps(_mm256_loadu_ps(run.after + i), *value);
}

STROM_INLINE __m256 LoadUpdate(const FullRun& run, int64_t i, __m256* value) {
  *value = _mm256_loadu_ps(run.value + i);
  return _mm256_sub_ps(*value, _mm256_loadu_ps(run.before + i));
}

STROM_INLINE __m256 LoadUpdate(const EncodeRun& run, int64_t i, __m256*) {
  return _mm256_loadu_ps(run.update + i);
}

STROM_INLINE __m256 Signs() { return _mm256_set1_ps(-0.0f); }

STROM_INLINE __m256 Magnitude(__m256 x) { return _mm256_andnot_ps(Signs(), x); }

// `magnitude` has no sign of its own.
STROM_INLINE __m256 CopySign(__m256 magnitude, __m256 sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(Signs(), sign));
}

STROM_INLINE bool Any(__m256 mask) { return _mm256_movemask_ps(mask) != 0; }

struct Magnitudes {
  __m256 x[kVectors];
};

STROM_INLINE Magnitudes MagnitudesOf(const Block& block) {
  return {Magnitude(block.residual[0]), Magnitude(block.residual[1]), Magnitude(block.residual[2]),
          Magnitude(block.residual[3])};
}

// As bits, which are ordered like the magnitudes, with NaN above infinity above the rest.
STROM_INLINE __m256i Largest(const Magnitudes& m) {
  const __m256i low = _mm256_max_epi32(_mm256_castps_si256(m.x[0]), _mm256_castps_si256(m.x[1]));
  const __m256i high = _mm256_max_epi32(_mm256_castps_si256(m.x[2]), _mm256_castps_si256(m.x[3]));
  return _mm256_max_epi32(low, high);
}

STROM_INLINE bool AnyOver(__m256i bits, int32_t limit) {
  return Any(_mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(limit))));
}

STROM_INLINE __m256 Sum(const Magnitudes& m) {
  return _mm256_add_ps(_mm256_add_ps(m.x[0], m.x[1]), _mm256_add_ps(m.x[2], m.x[3]));
}

STROM_INLINE __m256d WidenAndAdd(__m256d sum, __m256 x) {
  return _mm256_add_pd(sum, _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                                          _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))));
}

STROM_INLINE double Sum(__m256d x) {
  const __m128d halves = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(halves, _mm_unpackhi_pd(halves, halves)));
}

STROM_INLINE float Largest(__m256i bits) {
  const __m256 x = _mm256_castsi256_ps(bits);
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

STROM_INLINE void PutBlock(CodeOutput* output, uint32_t first, const Block& block) {
  const __m256i steps = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  __m256i next = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first << 1)), steps);
  for (int j = 0; j < kVectors; ++j) {
    const __m256i negative = _mm256_srli_epi32(_mm256_castps_si256(block.residual[j]), 31);
    const __m256i codes = _mm256_or_si256(next, negative);
    next = _mm256_add_epi32(next, _mm256_set1_epi32(2 * kLanes));
    const auto mask = static_cast<uint32_t>(_mm256_movemask_ps(block.hits[j]));
    const __m256i lanes =
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kLaneTable[mask])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output->codes + output->count),
                        _mm256_permutevar8x32_epi32(codes, lanes));
    output->count += _mm_popcnt_u32(mask);
  }
}

// pext is slow before Zen 3, where this kernel takes 2 to 4 ns an element of a dense update.
STROM_INLINE void PutBlock(BitmapOutput* output, uint32_t, const Block& block) {
  uint32_t hits = 0;
  uint32_t negative = 0;
  for (int j = 0; j < kVectors; ++j) {
    hits |= static_cast<uint32_t>(_mm256_movemask_ps(block.hits[j])) << (j * kLanes);
    negative |= static_cast<uint32_t>(_mm256_movemask_ps(block.residual[j])) << (j * kLanes);
  }
  output->bitmap.Append(hits, _pext_u32(negative, hits), kVectors * kLanes,
                        static_cast<int>(_mm_popcnt_u32(hits)));
}

STROM_INLINE void PutBlock(Bitmap4Output* output, uint32_t, const Block& block) {
  uint32_t hits = 0;
  uint32_t negative = 0;
  uint32_t halves = 0;
  for (int j = 0; j < kVectors; ++j) {
    hits |= static_cast<uint32_t>(_mm256_movemask_ps(block.hits[j])) << (j * kLanes);
    negative |= static_cast<uint32_t>(_mm256_movemask_ps(block.residual[j])) << (j * kLanes);
    halves |= static_cast<uint32_t>(_mm256_movemask_ps(block.halves[j])) << (j * kLanes);
  }
  const uint32_t plus = hits & (~negative | halves);
  const uint32_t minus = hits & (negative | halves);
  Bitmap4& bitmap = output->bitmap;
  _mm_storel_epi64(reinterpret_cast<__m128i*>(bitmap.bytes + (bitmap.elements >> 2)),
                   _mm_unpacklo_epi8(_mm_cvtsi32_si128(static_cast<int>(plus)),
                                     _mm_cvtsi32_si128(static_cast<int>(minus))));
  bitmap.elements += kVectors * kLanes;
  bitmap.count += _mm_popcnt_u32(hits);
}

// The sign of what elements send as a half, in the sign of each lane.
template <typename Output>
STROM_INLINE __m256 SignsOfHalves(const Output& output, uint32_t first) {
  if constexpr (!Output::kHalves) {
    return _mm256_setzero_ps();
  } else {
    const bool even = HalfIsNegative(first, output.bitmap.iteration);
    const int at_even = even ? INT32_MIN : 0;
    const int at_odd = even ? 0 : INT32_MIN;
    return _mm256_castsi256_ps(
        _mm256_setr_epi32(at_even, at_odd, at_even, at_odd, at_even, at_odd, at_even, at_odd));
  }
}

// Finds what leaves a block.
template <typename Output>
STROM_INLINE void FindHits(const Magnitudes& magnitudes, __m256 threshold, __m256 half,
                           __m256 half_signs, Block* block) {
  for (int j = 0; j < kVectors; ++j) {
    block->hits[j] = _mm256_cmp_ps(magnitudes.x[j], threshold, _CMP_GE_OQ);
    if (!Output::kHalves) continue;
    // Only what has the sign of its half is positive here.
    const __m256 turned = _mm256_xor_ps(block->residual[j], half_signs);
    const __m256 over_half = _mm256_cmp_ps(turned, half, _CMP_GE_OQ);
    block->halves[j] = _mm256_andnot_ps(block->hits[j], over_half);
    block->hits[j] = _mm256_or_ps(block->hits[j], over_half);
  }
}

// Lets the entries of a block leave.
template <typename Output>
STROM_INLINE void Send(__m256 threshold, __m256 half, bool apply_own, Block* block) {
  for (int j = 0; j < kVectors; ++j) {
    const __m256 magnitude =
        Output::kHalves ? _mm256_blendv_ps(threshold, half, block->halves[j]) : threshold;
    const __m256 sent = CopySign(magnitude, block->residual[j]);
    block->residual[j] = _mm256_sub_ps(block->residual[j], _mm256_and_ps(block->hits[j], sent));
    // Not value + 0 where nothing is sent, which would turn -0 into 0.
    if (apply_own) {
      block->value[j] =
          _mm256_blendv_ps(block->value[j], _mm256_add_ps(block->value[j], sent), block->hits[j]);
    }
  }
}

// Where `value` is `before`, only blocks with an entry change.
STROM_INLINE void StoreValues(const StepRun& run, int64_t i, bool changed, const Block& block) {
  if (run.value == run.before && !changed) return;
  for (int j = 0; j < kVectors; ++j) _mm256_storeu_ps(run.value + i + j * kLanes, block.value[j]);
}
STROM_INLINE void StoreValues(const FullRun& run, int64_t i, bool changed, const Block& block) {
  if (!changed) return;
  for (int j = 0; j < kVectors; ++j) _mm256_storeu_ps(run.value + i + j * kLanes, block.value[j]);
}
STROM_INLINE void StoreValues(const EncodeRun&, int64_t, bool, const Block&) {}

struct Avx2Vectors {
  static constexpr int64_t kBlock = kVectors * kLanes;

  template <typename Run, typename Output>
  STROM_TARGET_AVX2 static int64_t FiniteBlocks(Run run, const StepRule& rule, Output* result,
                                                StepStatistics* statistics) {
    // By value: then they stay in registers, whatever is written to memory.
    Output output = *result;
    constexpr bool kFull = std::is_same_v<Run, FullRun>;
    const bool apply_own = std::is_same_v<Run, StepRun> && rule.apply_own;
    const bool scales_value = kFull && rule.scale != 1;
    const __m256 scale = _mm256_set1_ps(rule.scale);
    const __m256 threshold = _mm256_set1_ps(rule.threshold);
    const __m256 half = _mm256_set1_ps(rule.threshold / 2);
    const __m256 half_signs = SignsOfHalves(output, run.first_index);
    const int32_t below_threshold = std::bit_cast<int32_t>(rule.threshold) - 1;
    const float largest_usual = std::min(rule.clip_limit, std::numeric_limits<float>::max());
    __m256i largest = _mm256_setzero_si256();
    __m256d sum = _mm256_setzero_pd();
    Density<Output> dense;
    int64_t i = 0;
    for (; i + kBlock <= run.size; i += kBlock) {
      Block block;
      float* const residual = run.residual + i;
      for (int j = 0; j < kVectors; ++j) {
        const __m256 update = LoadUpdate(run, i + j * kLanes, &block.value[j]);
        const __m256 step = _mm256_mul_ps(scale, update);
        block.residual[j] = _mm256_add_ps(_mm256_loadu_ps(residual + j * kLanes), step);
        if constexpr (kFull) {
          if (!scales_value) continue;
          block.value[j] = _mm256_add_ps(_mm256_loadu_ps(run.before + i + j * kLanes), step);
        }
      }
      const Output output_before = output;
      if (i % kStretch == 0) dense.Next(output, kDenseEntries);
      bool writes = scales_value;
      Magnitudes magnitudes = MagnitudesOf(block);
      __m256i largest_here = Largest(magnitudes);
      const bool hit = dense.value || AnyOver(largest_here, below_threshold);
      if (hit) {
        FindHits<Output>(magnitudes, threshold, half, half_signs, &block);
        PutBlock(&output, run.first_index + static_cast<uint32_t>(i), block);
        Send<Output>(threshold, half, apply_own, &block);
        writes |= apply_own;
        magnitudes = MagnitudesOf(block);
        largest_here = Largest(magnitudes);
      }
      if (AnyOver(largest_here, std::bit_cast<int32_t>(largest_usual))) [[unlikely]] {
        // Sending leaves what is not finite as it is.
        if (AnyOver(largest_here, kLargestFinite)) {
          output = output_before;
          break;
        }
        if constexpr (kFull) {
          const Block whole = block;
          ClipBlock(rule.clip_limit, block.residual, statistics);
          for (int j = 0; j < kVectors; ++j) {
            const __m256 taken = _mm256_sub_ps(whole.residual[j], block.residual[j]);
            block.value[j] = _mm256_sub_ps(whole.value[j], taken);
          }
          writes = true;
        } else {
          ClipBlock(rule.clip_limit, block.residual, statistics);
        }
        magnitudes = MagnitudesOf(block);
        largest_here = Largest(magnitudes);
      }
      largest = _mm256_max_epi32(largest, largest_here);
      sum = WidenAndAdd(sum, Sum(magnitudes));
      StoreValues(run, i, writes, block);
      for (int j = 0; j < kVectors; ++j) {
        _mm256_storeu_ps(residual + j * kLanes, block.residual[j]);
      }
    }
    statistics->max_residual = std::max(statistics->max_residual, Largest(largest));
    statistics->sum_residual += Sum(sum);
    *result = output;
    return i;
  }

 private:
  // Differences of floats are summed as doubles, where they are exact.
  STROM_TARGET_AVX2 static void ClipBlock(float clip_limit, __m256* residual,
                                          StepStatistics* statistics) {
    const __m256 limit = _mm256_set1_ps(clip_limit);
    const __m256d wide_limit = _mm256_set1_pd(clip_limit);
    __m256d mass = _mm256_setzero_pd();
    for (int j = 0; j < kVectors; ++j) {
      const __m256 magnitude = Magnitude(residual[j]);
      const __m256 over = _mm256_cmp_ps(magnitude, limit, _CMP_GT_OQ);
      // What is not over counts as the limit itself.
      const __m256 capped = _mm256_max_ps(magnitude, limit);
      for (const __m128 half : {_mm256_castps256_ps128(capped), _mm256_extractf128_ps(capped, 1)}) {
        mass = _mm256_add_pd(mass, _mm256_sub_pd(_mm256_cvtps_pd(half), wide_limit));
      }
      statistics->clipped_count += std::popcount(static_cast<uint32_t>(_mm256_movemask_ps(over)));
      residual[j] = _mm256_blendv_ps(residual[j], CopySign(limit, residual[j]), over);
    }
    statistics->clipped_mass += Sum(mass);
  }
};

}  // namespace

const StepKernel kAvx2StepKernel = MakeStepKernel<VectorStep<Avx2Vectors>>("avx2");

}  // namespace strom

#endif  // STROM_X86
