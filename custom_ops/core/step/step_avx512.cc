// The step with AVX-512: 64 elements at a time, skipping on where few are hit, without a branch
// where many are.
//
// Entries are compressed in a register and stored whole. The room for codes suffices: no more
// entries than elements came before, so the vector ends inside the run's size. (A compress to
// memory is microcoded on Zen 4 and five times slower.)
#include "core/base/processor.h"

#if defined(STROM_X86)

#define STROM_VECTORS_TARGET STROM_TARGET_AVX512

#include <immintrin.h>

#include <bit>

#include "core/step/step_vectors.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
// GCC 12 warns falsely about its own intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace strom {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Bits = __m512i;
  using Doubles = __m512d;
  using Mask = __mmask16;
  using Block = BlockOf<Avx512>;

  static constexpr int kVectors = 4;
  static constexpr int kLanes = 16;
  static constexpr int64_t kDenseEntries = 6;

  STROM_INLINE static Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  STROM_INLINE static void Store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  STROM_INLINE static Floats Set(float x) { return _mm512_set1_ps(x); }
  STROM_INLINE static Bits NoBits() { return _mm512_setzero_si512(); }
  STROM_INLINE static Doubles SetDoubles(double x) { return _mm512_set1_pd(x); }

  STROM_INLINE static Floats Magnitude(Floats x) { return _mm512_abs_ps(x); }
  STROM_INLINE static Floats Larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  STROM_INLINE static Floats CopySign(Floats magnitude, Floats sign) {
    // 0xd8: the second where the third has a bit, otherwise the first.
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude),
                                                         _mm512_castps_si512(sign),
                                                         _mm512_set1_epi32(INT32_MIN), 0xd8));
  }
  STROM_INLINE static Floats FlipSigns(Floats x, Floats signs) { return _mm512_xor_ps(x, signs); }

  STROM_INLINE static Bits BitsOf(Floats x) { return _mm512_castps_si512(x); }
  STROM_INLINE static Bits LargestBits(Bits a, Bits b) { return _mm512_max_epi32(a, b); }
  STROM_INLINE static bool AnyOver(Bits bits, int32_t limit) {
    return _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(limit)) != 0;
  }
  STROM_INLINE static int32_t Largest(Bits bits) { return _mm512_reduce_max_epi32(bits); }

  STROM_INLINE static Doubles LowDoubles(Floats x) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  }
  STROM_INLINE static Doubles HighDoubles(Floats x) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  }
  STROM_INLINE static double Sum(Doubles x) { return _mm512_reduce_add_pd(x); }

  STROM_INLINE static Mask Reaches(Floats x, Floats limit) {
    return _mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ);
  }
  STROM_INLINE static Mask IsOver(Floats x, Floats limit) {
    return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ);
  }
  STROM_INLINE static Mask Or(Mask a, Mask b) { return _kor_mask16(a, b); }
  STROM_INLINE static Mask AndNot(Mask a, Mask b) { return _kandn_mask16(b, a); }
  STROM_INLINE static int64_t Count(Mask mask) { return _mm_popcnt_u32(mask); }
  STROM_INLINE static Floats Pick(Mask mask, Floats where, Floats otherwise) {
    return _mm512_mask_mov_ps(otherwise, mask, where);
  }
  STROM_INLINE static Floats SubtractWhere(Mask mask, Floats x, Floats y) {
    return _mm512_mask_sub_ps(x, mask, x, y);
  }
  STROM_INLINE static Floats AddWhere(Mask mask, Floats x, Floats y) {
    return _mm512_mask_add_ps(x, mask, x, y);
  }

  template <typename Output>
  STROM_INLINE static bool PutBlock(Output* output, uint32_t first, const Block& block) {
    BlockBits bits;
    for (int j = 0; j < kVectors; ++j) {
      bits.hits |= uint64_t{block.hits[j]} << (j * kLanes);
      bits.negative |= uint64_t{_mm512_movepi32_mask(_mm512_castps_si512(block.residual[j]))}
                       << (j * kLanes);
      if (Output::kHalves) bits.halves |= uint64_t{block.halves[j]} << (j * kLanes);
    }
    PutBits(output, first, bits);
    return bits.hits != 0;
  }

 private:
  // Inside a block a code takes a byte, so that all of its codes are compressed at once. (Vector by
  // vector, four stores an element apart would land on the border of two cache lines again and
  // again.)
  STROM_INLINE static void PutBits(CodeOutput* output, uint32_t first, const BlockBits& bits) {
    const __m512i lanes = _mm512_set_epi64(
        0x7e7c7a7876747270, 0x6e6c6a6866646260, 0x5e5c5a5856545250, 0x4e4c4a4846444240,
        0x3e3c3a3836343230, 0x2e2c2a2826242220, 0x1e1c1a1816141210, 0x0e0c0a0806040200);
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

  STROM_INLINE static void PutBits(BitmapOutput* output, uint32_t, const BlockBits& bits) {
    output->bitmap.Append(bits.hits, _pext_u64(bits.negative, bits.hits), kVectors * kLanes,
                          static_cast<int>(_mm_popcnt_u64(bits.hits)));
  }

  STROM_INLINE static void PutBits(Bitmap4Output* output, uint32_t, const BlockBits& bits) {
    const uint64_t plus = bits.hits & (~bits.negative | bits.halves);
    const uint64_t minus = bits.hits & (bits.negative | bits.halves);
    Bitmap4& bitmap = output->bitmap;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bitmap.bytes + (bitmap.elements >> 2)),
                     _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(plus)),
                                       _mm_cvtsi64_si128(static_cast<int64_t>(minus))));
    bitmap.elements += kVectors * kLanes;
    bitmap.count += static_cast<int64_t>(_mm_popcnt_u64(bits.hits));
  }
};

}  // namespace

const StepKernel kAvx512StepKernel = MakeStepKernel<VectorStep<FiniteBlocksOf<Avx512>>>("avx512");

}  // namespace strom

#endif  // STROM_X86
