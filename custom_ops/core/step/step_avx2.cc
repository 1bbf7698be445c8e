// The step with AVX2: 32 elements at a time, skipping on where few are hit; the codes of the hit
// ones are brought together by a permutation out of a table.
//
// The room for codes suffices as in step_avx512.cc.
#include "core/base/processor.h"

#if defined(STROM_X86)

#define STROM_VECTORS_TARGET STROM_TARGET_AVX2

#include <immintrin.h>

#include <bit>

#include "core/step/lane_table.h"
#include "core/step/step_vectors.h"

namespace strom {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Bits = __m256i;
  using Doubles = __m256d;
  using Mask = __m256;
  using Block = BlockOf<Avx2>;

  static constexpr int kVectors = 4;
  static constexpr int kLanes = 8;
  static constexpr int64_t kDenseEntries = 12;

  STROM_INLINE static Floats Load(const float* from) { return _mm256_loadu_ps(from); }
  STROM_INLINE static void Store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  STROM_INLINE static Floats Set(float x) { return _mm256_set1_ps(x); }
  STROM_INLINE static Bits NoBits() { return _mm256_setzero_si256(); }
  STROM_INLINE static Doubles SetDoubles(double x) { return _mm256_set1_pd(x); }

  STROM_INLINE static Floats Signs() { return _mm256_set1_ps(-0.0f); }
  STROM_INLINE static Floats Magnitude(Floats x) { return _mm256_andnot_ps(Signs(), x); }
  STROM_INLINE static Floats Larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  // `magnitude` has no sign of its own.
  STROM_INLINE static Floats CopySign(Floats magnitude, Floats sign) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(Signs(), sign));
  }
  STROM_INLINE static Floats FlipSigns(Floats x, Floats signs) { return _mm256_xor_ps(x, signs); }

  STROM_INLINE static Bits BitsOf(Floats x) { return _mm256_castps_si256(x); }
  STROM_INLINE static Bits LargestBits(Bits a, Bits b) { return _mm256_max_epi32(a, b); }
  STROM_INLINE static bool AnyOver(Bits bits, int32_t limit) {
    const __m256i over = _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(limit));
    return _mm256_movemask_ps(_mm256_castsi256_ps(over)) != 0;
  }
  // Of bits of magnitudes.
  STROM_INLINE static int32_t Largest(Bits bits) {
    const __m256 x = _mm256_castsi256_ps(bits);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return std::bit_cast<int32_t>(_mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y))));
  }

  STROM_INLINE static Doubles LowDoubles(Floats x) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  }
  STROM_INLINE static Doubles HighDoubles(Floats x) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  }
  STROM_INLINE static double Sum(Doubles x) {
    const __m128d halves = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(halves, _mm_unpackhi_pd(halves, halves)));
  }

  STROM_INLINE static Mask Reaches(Floats x, Floats limit) {
    return _mm256_cmp_ps(x, limit, _CMP_GE_OQ);
  }
  STROM_INLINE static Mask IsOver(Floats x, Floats limit) {
    return _mm256_cmp_ps(x, limit, _CMP_GT_OQ);
  }
  STROM_INLINE static Mask Or(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  STROM_INLINE static Mask AndNot(Mask a, Mask b) { return _mm256_andnot_ps(b, a); }
  STROM_INLINE static uint32_t MaskBits(Mask mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(mask));
  }
  STROM_INLINE static int64_t Count(Mask mask) { return _mm_popcnt_u32(MaskBits(mask)); }
  STROM_INLINE static Floats Pick(Mask mask, Floats where, Floats otherwise) {
    return _mm256_blendv_ps(otherwise, where, mask);
  }
  STROM_INLINE static Floats SubtractWhere(Mask mask, Floats x, Floats y) {
    return _mm256_sub_ps(x, _mm256_and_ps(mask, y));
  }
  STROM_INLINE static Floats AddWhere(Mask mask, Floats x, Floats y) {
    return _mm256_blendv_ps(x, _mm256_add_ps(x, y), mask);
  }

  STROM_INLINE static bool PutBlock(CodeOutput* output, uint32_t first, const Block& block) {
    const __m256i steps = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i next = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first << 1)), steps);
    for (int j = 0; j < kVectors; ++j) {
      const __m256i negative = _mm256_srli_epi32(_mm256_castps_si256(block.residual[j]), 31);
      const __m256i codes = _mm256_or_si256(next, negative);
      next = _mm256_add_epi32(next, _mm256_set1_epi32(2 * kLanes));
      const uint32_t mask = MaskBits(block.hits[j]);
      const __m256i lanes =
          _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kLaneTable[mask])));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(output->codes + output->count),
                          _mm256_permutevar8x32_epi32(codes, lanes));
      output->count += _mm_popcnt_u32(mask);
    }
    return true;
  }

  // pext is slow before Zen 3, where this kernel takes 2 to 4 ns an element of a dense update.
  STROM_INLINE static bool PutBlock(BitmapOutput* output, uint32_t, const Block& block) {
    const BlockBits bits = GatherBits<false>(block);
    const auto hits = static_cast<uint32_t>(bits.hits);
    const uint32_t signs = _pext_u32(static_cast<uint32_t>(bits.negative), hits);
    output->bitmap.Append(hits, signs, kVectors * kLanes, static_cast<int>(_mm_popcnt_u32(hits)));
    return true;
  }

  STROM_INLINE static bool PutBlock(Bitmap4Output* output, uint32_t, const Block& block) {
    const BlockBits bits = GatherBits<true>(block);
    const auto plus = static_cast<int>(bits.hits & (~bits.negative | bits.halves));
    const auto minus = static_cast<int>(bits.hits & (bits.negative | bits.halves));
    Bitmap4& bitmap = output->bitmap;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(bitmap.bytes + (bitmap.elements >> 2)),
                     _mm_unpacklo_epi8(_mm_cvtsi32_si128(plus), _mm_cvtsi32_si128(minus)));
    bitmap.elements += kVectors * kLanes;
    bitmap.count += _mm_popcnt_u32(static_cast<uint32_t>(bits.hits));
    return true;
  }

 private:
  template <bool with_halves>
  STROM_INLINE static BlockBits GatherBits(const Block& block) {
    BlockBits bits;
    for (int j = 0; j < kVectors; ++j) {
      bits.hits |= uint64_t{MaskBits(block.hits[j])} << (j * kLanes);
      bits.negative |= uint64_t{MaskBits(block.residual[j])} << (j * kLanes);
      if (with_halves) bits.halves |= uint64_t{MaskBits(block.halves[j])} << (j * kLanes);
    }
    return bits;
  }
};

}  // namespace

const StepKernel kAvx2StepKernel = MakeStepKernel<VectorStep<FiniteBlocksOf<Avx2>>>("avx2");

}  // namespace strom

#endif  // STROM_X86
