// Split Rice for AVX2 and BMI2: pext and pdep pack and unpack eight fields at a time;
// a bitmap's elements are added to by AVX2.
#include "core/base/processor.h"

#if defined(STROM_X86)

#define STROM_CODER_TARGET STROM_TARGET_AVX2

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/base/fetch_ahead.h"
#include "core/codec/rice_eights.h"
#include "core/codec/rice_processors.h"

namespace strom {
namespace {

class Bmi2Packing {
 public:
  explicit Bmi2Packing(int width) : width_(width), masks_(FieldMasks(width)) {}

  STROM_INLINE void Put(const uint32_t* fields, uint8_t* out) const {
    const auto four = [&](size_t i) STROM_CODER_TARGET {
      std::array<uint16_t, 4> narrow;
      for (size_t j = 0; j < 4; ++j) narrow[j] = static_cast<uint16_t>(fields[i + j]);
      return _pext_u64(std::bit_cast<uint64_t>(narrow), masks_);
    };
    const unsigned __int128 eight =
        static_cast<unsigned __int128>(four(4)) << (4 * width_) | four(0);
    std::memcpy(out, &eight, sizeof(eight));
  }

  STROM_INLINE std::array<uint64_t, 2> Get(const uint8_t* packed) const {
    const int bits = 4 * width_;
    const auto first = LoadLittleEndian<uint64_t>(packed);
    const auto second = LoadLittleEndian<uint64_t>(packed + (bits >> 3)) >> (bits & 7);
    return {_pdep_u64(first, masks_), _pdep_u64(second, masks_)};
  }

 private:
  int width_;
  uint64_t masks_;
};

STROM_TARGET_AVX2 void AddBitmap(Bytes payload, int64_t count, float value, int64_t elements,
                                 float* values) {
  const int64_t field_bytes = FieldBytes(count, 0);
  const uint8_t* const unary = payload.data() + field_bytes;
  const int64_t bits = 8 * (static_cast<int64_t>(payload.size()) - field_bytes);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  // These bring an element's bits to the sign, by which a blend chooses.
  const __m256i to_one = _mm256_sub_epi32(_mm256_set1_epi32(31), lanes);
  const __m256i to_negative = _mm256_sub_epi32(_mm256_set1_epi32(23), lanes);
  const __m256 nothing = _mm256_set1_ps(-0.0f);  // Unlike 0, it leaves -0 as it is.
  const __m256 plus = _mm256_set1_ps(value);
  const __m256 minus = _mm256_set1_ps(-value);
  const FetchAhead ahead(elements);
  int64_t sign = 0;
  for (int64_t start = 0; start < bits; start += 64) {
    auto ones = LoadLittleEndian<uint64_t>(unary + (start >> 3));
    if (bits - start < 64) ones &= (uint64_t{1} << (bits - start)) - 1;
    uint64_t negative = _pdep_u64(Read64Bits(payload.data(), sign), ones);
    sign += std::popcount(ones);
    float* place = values + start;
    if (ahead.At(start)) FetchAhead::Lines<64>(place);
    int64_t left = std::min<int64_t>(64, elements - start);
    for (; left >= 8; left -= 8, place += 8, ones >>= 8, negative >>= 8) {
      const __m256i pair = _mm256_set1_epi32(static_cast<int>((ones & 0xff) | negative << 8));
      const __m256 is_one = _mm256_castsi256_ps(_mm256_sllv_epi32(pair, to_one));
      const __m256 is_negative = _mm256_castsi256_ps(_mm256_sllv_epi32(pair, to_negative));
      const __m256 change =
          _mm256_blendv_ps(nothing, _mm256_blendv_ps(plus, minus, is_negative), is_one);
      _mm256_storeu_ps(place, _mm256_add_ps(_mm256_loadu_ps(place), change));
    }
    for (; left > 0; --left, ++place, ones >>= 1, negative >>= 1) {
      if (ones & 1) *place += negative & 1 ? -value : value;
    }
  }
}

}  // namespace

RiceCoder RiceBmi2() {
  RiceCoder coder = CoderOfEights<Bmi2Packing>::Coder("BMI2");
  coder.add_bitmap = AddBitmap;
  return coder;
}

}  // namespace strom

#endif  // STROM_X86
