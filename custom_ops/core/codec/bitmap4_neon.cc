// Reading bitmaps of four states with NEON, eight elements at a time.
#include "core/codec/bitmap4_readers.h"

#if defined(STROM_NEON)

#include <arm_neon.h>

#include <algorithm>
#include <bit>

namespace strom {
namespace {

int64_t Count(const uint8_t* payload, int64_t pairs) {
  uint64x2_t counts = vdupq_n_u64(0);
  int64_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    const uint8x16x2_t both = vld2q_u8(payload + 2 * i);
    const uint8x16_t ones = vcntq_u8(vorrq_u8(both.val[0], both.val[1]));
    counts = vpadalq_u32(counts, vpaddlq_u16(vpaddlq_u8(ones)));
  }
  auto count = static_cast<int64_t>(vaddvq_u64(counts));
  for (; i < pairs; ++i) {
    count += std::popcount(static_cast<uint8_t>(payload[2 * i] | payload[2 * i + 1]));
  }
  return count;
}

void Add(const uint8_t* payload, int64_t first, int64_t last, const Bitmap4Values& adds,
         float* values) {
  const int64_t whole = std::min((first + 7) & ~int64_t{7}, last);  // where a pair begins
  AddBitmap4Scalar(payload, first, whole, adds, values);
  const float32x4_t nothing = vdupq_n_f32(-0.0f);  // Unlike 0, it leaves -0 as it is.
  const float32x4_t plus_value = vdupq_n_f32(adds.value);
  const float32x4_t minus_value = vdupq_n_f32(-adds.value);
  float signed_halves[4];
  for (int i = 0; i < 4; ++i) {
    signed_halves[i] = HalfIsNegative(i, adds.iteration) ? -adds.value / 2 : adds.value / 2;
  }
  const float32x4_t half = vld1q_f32(signed_halves);
  const uint32x4_t places[2] = {{1, 2, 4, 8}, {16, 32, 64, 128}};
  int64_t i = whole;
  for (; i + 8 <= last; i += 8) {
    const uint32x4_t plus_bits = vdupq_n_u32(payload[i >> 2]);
    const uint32x4_t minus_bits = vdupq_n_u32(payload[(i >> 2) + 1]);
    float* const eight = values + (i - first);
    for (int j = 0; j < 2; ++j) {
      const uint32x4_t plus = vtstq_u32(plus_bits, places[j]);
      const uint32x4_t minus = vtstq_u32(minus_bits, places[j]);
      const float32x4_t sum = vbslq_f32(minus, vbslq_f32(plus, half, minus_value),
                                        vbslq_f32(plus, plus_value, nothing));
      vst1q_f32(eight + 4 * j, vaddq_f32(vld1q_f32(eight + 4 * j), sum));
    }
  }
  AddBitmap4Scalar(payload, i, last, adds, values + (i - first));
}

}  // namespace

Bitmap4Reader Bitmap4ReaderNeon() { return {"NEON", Count, Add}; }

}  // namespace strom

#endif  // STROM_NEON
