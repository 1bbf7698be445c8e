// Reading bitmaps of four states with AVX2, eight elements at a time. (64 at a time with AVX-512
// took as long: both wait for the memory of the parameters.)
#include "core/base/fetch_ahead.h"
#include "core/codec/bitmap4_readers.h"

#if defined(STROM_X86)

#include <immintrin.h>

#include <algorithm>

namespace strom {
namespace {

// A bit for each entry in the low byte of every pair.
uint64_t EntriesOf(const uint8_t* payload) {
  const auto pairs = LoadLittleEndian<uint64_t>(payload);
  return (pairs | pairs >> 8) & 0x00ff00ff00ff00ff;
}

STROM_TARGET_AVX2 int64_t Count(const uint8_t* payload, int64_t pairs) {
  int64_t count = 0;
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    count += static_cast<int64_t>(
        _mm_popcnt_u64(EntriesOf(payload + 2 * i) | EntriesOf(payload + 2 * i + 8) << 8));
  }
  for (; i < pairs; ++i) {
    count += _mm_popcnt_u32(static_cast<uint32_t>(payload[2 * i] | payload[2 * i + 1]));
  }
  return count;
}

STROM_TARGET_AVX2 void Add(const uint8_t* payload, int64_t first, int64_t last,
                           const Bitmap4Values& adds, float* values) {
  const int64_t whole = std::min((first + 7) & ~int64_t{7}, last);  // where a pair begins
  AddBitmap4Scalar(payload, first, whole, adds, values);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  // These bring an element's bits to the sign, by which a blend chooses.
  const __m256i to_plus = _mm256_sub_epi32(_mm256_set1_epi32(31), lanes);
  const __m256i to_minus = _mm256_sub_epi32(_mm256_set1_epi32(23), lanes);
  const __m256 nothing = _mm256_set1_ps(-0.0f);  // Unlike 0, it leaves -0 as it is.
  const __m256 plus_value = _mm256_set1_ps(adds.value);
  const __m256 minus_value = _mm256_set1_ps(-adds.value);
  float signed_halves[8];
  for (int i = 0; i < 8; ++i) {
    signed_halves[i] = HalfIsNegative(i, adds.iteration) ? -adds.value / 2 : adds.value / 2;
  }
  const __m256 half = _mm256_loadu_ps(signed_halves);
  const FetchAhead ahead(last);
  int64_t i = whole;
  for (; i + 8 <= last; i += 8) {
    const __m256i pair = _mm256_set1_epi32(LoadLittleEndian<uint16_t>(payload + (i >> 2)));
    const __m256 plus = _mm256_castsi256_ps(_mm256_sllv_epi32(pair, to_plus));
    const __m256 minus = _mm256_castsi256_ps(_mm256_sllv_epi32(pair, to_minus));
    const __m256 sum = _mm256_blendv_ps(_mm256_blendv_ps(nothing, plus_value, plus),
                                        _mm256_blendv_ps(minus_value, half, plus), minus);
    float* const place = values + (i - first);
    if (ahead.At(i)) FetchAhead::Lines<8>(place);
    _mm256_storeu_ps(place, _mm256_add_ps(_mm256_loadu_ps(place), sum));
  }
  AddBitmap4Scalar(payload, i, last, adds, values + (i - first));
}

}  // namespace

Bitmap4Reader Bitmap4ReaderAvx2() { return {"AVX2", Count, Add}; }

}  // namespace strom

#endif  // STROM_X86
