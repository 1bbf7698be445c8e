// The step with AVX-512: 64 elements at a time, skipping on where few are hit, without a branch
// where many are.
//
// Entries are compressed in a register and stored whole. The room for codes suffices: no more
// entries than elements came before, so the vector ends inside the run's size. (A compress to
// memory is microcoded on Zen 4 and five times slower; software prefetches cost more than they
// give.)
#include "core/step/step_kernels.h"

#if defined(STROM_X86)

#include <immintrin.h>

#include <bit>
#include <limits>
#include <type_traits>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
// GCC 12 warns falsely about its own intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace strom {
namespace {

#define STROM_INLINE STROM_TARGET_AVX512 inline __attribute__((always_inline))

constexpr int kVectors = 4;
constexpr int kLanes = 16;
constexpr int64_t kDenseEntries = 6;            // of a stretch: from there on no block is skipped
constexpr int32_t kLargestFinite = 0x7f7fffff;  // the bits of the largest finite float

struct Block {
  __m512 residual[kVectors];
  __m512 value[kVectors];  // of a StepRun: first the old one, then the new one
  __mmask16 hits[kVectors];
  __mmask16 halves[kVectors];  // of the hits; only where the output has halves
};

STROM_INLINE __m512 LoadUpdate(const StepRun& run, int64_t i, __m512* value) {
  *value = _mm512_loadu_ps(run.before + i);
  return _mm512_sub_ps(_mm512_loadu_ps(run.after + i), *value);
}

STROM_INLINE __m512 LoadUpdate(const FullRun& run, int64_t i, __m512* value) {
  *value = _mm512_loadu_ps(run.value + i);
  return _mm512_sub_ps(*value, _mm512_loadu_ps(run.before + i));
}

STROM_INLINE __m512 LoadUpdate(const EncodeRun& run, int64_t i, __m512*) {
  return _mm512_loadu_ps(run.update + i);
}

struct Magnitudes {
  __m512 x[kVectors];
};

STROM_INLINE Magnitudes MagnitudesOf(const Block& block) {
  return {_mm512_abs_ps(block.residual[0]), _mm512_abs_ps(block.residual[1]),
          _mm512_abs_ps(block.residual[2]), _mm512_abs_ps(block.residual[3])};
}

// As bits, which are ordered like the magnitudes, with NaN above infinity above the rest.
STROM_INLINE __m512i Largest(const Magnitudes& m) {
  const __m512i low = _mm512_max_epi32(_mm512_castps_si512(m.x[0]), _mm512_castps_si512(m.x[1]));
  const __m512i high = _mm512_max_epi32(_mm512_castps_si512(m.x[2]), _mm512_castps_si512(m.x[3]));
  return _mm512_max_epi32(low, high);
}

STROM_INLINE bool AnyOver(__m512i bits, int32_t limit) {
  return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(limit)) != 0;
}

STROM_INLINE __m512 Sum(const Magnitudes& m) {
  return _mm512_add_ps(_mm512_add_ps(m.x[0], m.x[1]), _mm512_add_ps(m.x[2], m.x[3]));
}

STROM_INLINE __m512 CopySign(__m512 magnitude, __m512 sign) {
  // 0xd8: the second where the third has a bit, otherwise the first.
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude),
                                                       _mm512_castps_si512(sign),
                                                       _mm512_set1_epi32(INT32_MIN), 0xd8));
}

STROM_INLINE __m512d WidenAndAdd(__m512d sum, __m512 x) {
  const __m256 low = _mm512_castps512_ps256(x);
  const __m256 high = _mm512_extractf32x8_ps(x, 1);
  return _mm512_add_pd(sum, _mm512_add_pd(_mm512_cvtps_pd(low), _mm512_cvtps_pd(high)));
}

template <typename Output>
STROM_INLINE BlockBits BitsOf(const Block& block) {
  BlockBits bits;
  for (int j = 0; j < kVectors; ++j) {
    bits.hits |= uint64_t{block.hits[j]} << (j * kLanes);
    bits.negative |= uint64_t{_mm512_movepi32_mask(_mm512_castps_si512(block.residual[j]))}
                     << (j * kLanes);
    if (Output::kHalves) bits.halves |= uint64_t{block.halves[j]} << (j * kLanes);
  }
  return bits;
}

// Inside a block a code takes a byte, so that all of its codes are compressed at once. (Vector by
// vector, four stores an element apart would land on the border of two cache lines again and
// again.)
STROM_INLINE void PutBlock(CodeOutput* output, uint32_t first, const BlockBits& bits) {
  const __m512i lanes = _mm512_set_epi64(0x7e7c7a7876747270, 0x6e6c6a6866646260, 0x5e5c5a5856545250,
                                         0x4e4c4a4846444240, 0x3e3c3a3836343230, 0x2e2c2a2826242220,
                                         0x1e1c1a1816141210, 0x0e0c0a0806040200);
  const __m512i codes = _mm512_mask_add_epi8(lanes, bits.negative, lanes, _mm512_set1_epi8(1));
  const __m512i start = _mm512_set1_epi32(static_cast<int>(first << 1));
  const auto count = static_cast<int64_t>(_mm_popcnt_u64(bits.hits));
  __m512i left = _mm512_maskz_compress_epi8(bits.hits, codes);
  for (int64_t done = 0;;) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(left));
    _mm512_storeu_si512(output->codes + output->count + done, _mm512_add_epi32(wide, start));
    done += kLanes;
    if (done >= count) break;
    left = _mm512_alignr_epi64(left, left, 2);  // 16 bytes on
  }
  output->count += count;
}

STROM_INLINE void PutBlock(BitmapOutput* output, uint32_t, const BlockBits& bits) {
  output->bitmap.Append(bits.hits, _pext_u64(bits.negative, bits.hits), kVectors * kLanes,
                        static_cast<int>(_mm_popcnt_u64(bits.hits)));
}

STROM_INLINE void PutBlock(Bitmap4Output* output, uint32_t, const BlockBits& bits) {
  const uint64_t plus = bits.hits & (~bits.negative | bits.halves);
  const uint64_t minus = bits.hits & (bits.negative | bits.halves);
  Bitmap4& bitmap = output->bitmap;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bitmap.bytes + (bitmap.elements >> 2)),
                   _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(plus)),
                                     _mm_cvtsi64_si128(static_cast<int64_t>(minus))));
  bitmap.elements += kVectors * kLanes;
  bitmap.count += static_cast<int64_t>(_mm_popcnt_u64(bits.hits));
}

// The sign of what elements send as a half, in the sign of each lane.
template <typename Output>
STROM_INLINE __m512 SignsOfHalves(const Output& output, uint32_t first) {
  if constexpr (!Output::kHalves) {
    return _mm512_setzero_ps();
  } else {
    const auto negative = static_cast<__mmask16>(NegativeHalves(first, output.bitmap.iteration));
    return _mm512_castsi512_ps(_mm512_maskz_set1_epi32(negative, INT32_MIN));
  }
}

// Finds what leaves a block.
template <typename Output>
STROM_INLINE void FindHits(const Magnitudes& magnitudes, __m512 threshold, __m512 half,
                           __m512 half_signs, Block* block) {
  for (int j = 0; j < kVectors; ++j) {
    block->hits[j] = _mm512_cmp_ps_mask(magnitudes.x[j], threshold, _CMP_GE_OQ);
    if (!Output::kHalves) continue;
    // Only what has the sign of its half is positive here.
    const __m512 turned = _mm512_xor_ps(block->residual[j], half_signs);
    const __mmask16 over_half = _mm512_cmp_ps_mask(turned, half, _CMP_GE_OQ);
    block->halves[j] = _kandn_mask16(block->hits[j], over_half);
    block->hits[j] = _kor_mask16(block->hits[j], over_half);
  }
}

// Lets the entries of a block leave.
template <typename Output>
STROM_INLINE void Send(__m512 threshold, __m512 half, bool apply_own, Block* block) {
  for (int j = 0; j < kVectors; ++j) {
    const __m512 magnitude =
        Output::kHalves ? _mm512_mask_mov_ps(threshold, block->halves[j], half) : threshold;
    const __m512 sent = CopySign(magnitude, block->residual[j]);
    const __mmask16 hits = block->hits[j];
    block->residual[j] = _mm512_mask_sub_ps(block->residual[j], hits, block->residual[j], sent);
    if (apply_own) {
      block->value[j] = _mm512_mask_add_ps(block->value[j], hits, block->value[j], sent);
    }
  }
}

// Where `value` is `before`, only blocks with an entry change.
STROM_INLINE void StoreValues(const StepRun& run, int64_t i, bool changed, const Block& block) {
  if (run.value == run.before && !changed) return;
  for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(run.value + i + j * kLanes, block.value[j]);
}
STROM_INLINE void StoreValues(const FullRun& run, int64_t i, bool changed, const Block& block) {
  if (!changed) return;
  for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(run.value + i + j * kLanes, block.value[j]);
}
STROM_INLINE void StoreValues(const EncodeRun&, int64_t, bool, const Block&) {}

struct Avx512Vectors {
  static constexpr int64_t kBlock = kVectors * kLanes;

  template <typename Run, typename Output>
  STROM_TARGET_AVX512 static int64_t FiniteBlocks(Run run, const StepRule& rule, Output* result,
                                                  StepStatistics* statistics) {
    // By value: then they stay in registers, whatever is written to memory.
    Output output = *result;
    constexpr bool kFull = std::is_same_v<Run, FullRun>;
    const bool apply_own = std::is_same_v<Run, StepRun> && rule.apply_own;
    const bool scales_value = kFull && rule.scale != 1;
    const __m512 scale = _mm512_set1_ps(rule.scale);
    const __m512 threshold = _mm512_set1_ps(rule.threshold);
    const __m512 half = _mm512_set1_ps(rule.threshold / 2);
    const __m512 half_signs = SignsOfHalves(output, run.first_index);
    const int32_t below_threshold = std::bit_cast<int32_t>(rule.threshold) - 1;
    const float largest_usual = std::min(rule.clip_limit, std::numeric_limits<float>::max());
    __m512i largest = _mm512_setzero_si512();
    __m512d sum = _mm512_setzero_pd();
    Density<Output> dense;
    int64_t i = 0;
    for (; i + kBlock <= run.size; i += kBlock) {
      Block block;
      float* const residual = run.residual + i;
      for (int j = 0; j < kVectors; ++j) {
        const __m512 update = LoadUpdate(run, i + j * kLanes, &block.value[j]);
        const __m512 step = _mm512_mul_ps(scale, update);
        block.residual[j] = _mm512_add_ps(_mm512_loadu_ps(residual + j * kLanes), step);
        if constexpr (kFull) {
          if (!scales_value) continue;
          block.value[j] = _mm512_add_ps(_mm512_loadu_ps(run.before + i + j * kLanes), step);
        }
      }
      const Output output_before = output;
      if (i % kStretch == 0) dense.Next(output, kDenseEntries);
      bool writes = scales_value;
      Magnitudes magnitudes = MagnitudesOf(block);
      __m512i largest_here = Largest(magnitudes);
      BlockBits bits;
      if (dense.value || AnyOver(largest_here, below_threshold)) {
        FindHits<Output>(magnitudes, threshold, half, half_signs, &block);
        bits = BitsOf<Output>(block);
        PutBlock(&output, run.first_index + static_cast<uint32_t>(i), bits);
        Send<Output>(threshold, half, apply_own, &block);
        writes |= bits.hits != 0 && apply_own;
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
            const __m512 taken = _mm512_sub_ps(whole.residual[j], block.residual[j]);
            block.value[j] = _mm512_sub_ps(whole.value[j], taken);
          }
          writes = true;
        } else {
          ClipBlock(rule.clip_limit, block.residual, statistics);
        }
        magnitudes = MagnitudesOf(block);
        largest_here = Largest(magnitudes);
      }
      largest = _mm512_max_epi32(largest, largest_here);
      sum = WidenAndAdd(sum, Sum(magnitudes));
      StoreValues(run, i, writes, block);
      for (int j = 0; j < kVectors; ++j) {
        _mm512_storeu_ps(residual + j * kLanes, block.residual[j]);
      }
    }
    statistics->max_residual =
        std::max(statistics->max_residual, std::bit_cast<float>(_mm512_reduce_max_epi32(largest)));
    statistics->sum_residual += _mm512_reduce_add_pd(sum);
    *result = output;
    return i;
  }

 private:
  // Differences of floats are summed as doubles, where they are exact.
  STROM_TARGET_AVX512 static void ClipBlock(float clip_limit, __m512* residual,
                                            StepStatistics* statistics) {
    const __m512 limit = _mm512_set1_ps(clip_limit);
    const __m512d wide_limit = _mm512_set1_pd(clip_limit);
    __m512d mass = _mm512_setzero_pd();
    for (int j = 0; j < kVectors; ++j) {
      const __m512 magnitude = _mm512_abs_ps(residual[j]);
      const __mmask16 over = _mm512_cmp_ps_mask(magnitude, limit, _CMP_GT_OQ);
      // What is not over counts as the limit itself.
      const __m512 capped = _mm512_max_ps(magnitude, limit);
      for (const __m256 half :
           {_mm512_castps512_ps256(capped), _mm512_extractf32x8_ps(capped, 1)}) {
        mass = _mm512_add_pd(mass, _mm512_sub_pd(_mm512_cvtps_pd(half), wide_limit));
      }
      statistics->clipped_count += _mm_popcnt_u32(over);
      residual[j] = _mm512_mask_mov_ps(residual[j], over, CopySign(limit, residual[j]));
    }
    statistics->clipped_mass += _mm512_reduce_add_pd(mass);
  }
};

}  // namespace

const StepKernel kAvx512StepKernel = MakeStepKernel<VectorStep<Avx512Vectors>>("avx512");

}  // namespace strom

#endif  // STROM_X86
