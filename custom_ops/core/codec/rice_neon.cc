// Split Rice with NEON: a look-up brings to each lane the bytes around its field, eight at a time.
//
// By count of instructions it pays (docs/internals/processors.md); no such processor was at hand.
#include "core/base/processor.h"

#if defined(STROM_NEON)

#define STROM_CODER_TARGET  // NEON needs no leave of the compiler

#include <arm_neon.h>

#include <array>
#include <bit>
#include <cstring>

#include "core/codec/rice_eights.h"
#include "core/codec/rice_processors.h"

namespace strom {
namespace {

class NeonPacking {
 public:
  explicit NeonPacking(int width) : width_(width), mask_(vdupq_n_u32((1u << width) - 1)) {
    std::array<uint32_t, kGroup> bytes;  // around each field
    std::array<int32_t, kGroup> shifts;  // by which it moves down: to the left by less than nothing
    for (size_t i = 0; i < kGroup; ++i) {
      const int bit = static_cast<int>(i) * width;
      bytes[i] = 0x03020100u + 0x01010101u * static_cast<uint32_t>(bit >> 3);
      shifts[i] = -(bit & 7);
    }
    for (size_t half = 0; half < 2; ++half) {
      bytes_[half] = vreinterpretq_u8_u32(vld1q_u32(bytes.data() + 4 * half));
      shifts_[half] = vld1q_s32(shifts.data() + 4 * half);
    }
  }

  STROM_INLINE void Put(const uint32_t* fields, uint8_t* out) const {
    const uint64x2_t first = Pairs(fields);
    const uint64x2_t second = Pairs(fields + 4);
    const uint64x2_t fours = vorrq_u64(
        vuzp1q_u64(first, second), vshlq_u64(vuzp2q_u64(first, second), vdupq_n_s64(2 * width_)));
    const unsigned __int128 eight = static_cast<unsigned __int128>(vgetq_lane_u64(fours, 1))
                                        << (4 * width_) |
                                    vgetq_lane_u64(fours, 0);
    std::memcpy(out, &eight, sizeof(eight));
  }

  STROM_INLINE std::array<uint64_t, 2> Get(const uint8_t* packed) const {
    const auto four = [&](size_t half) {
      return vget_lane_u64(vreinterpret_u64_u16(vmovn_u32(Fields(vld1q_u8(packed), half))), 0);
    };
    return {four(0), four(1)};
  }

  // The first or the last four of eight fields, which begin with the window.
  STROM_INLINE uint32x4_t Fields(uint8x16_t window, size_t half) const {
    // Bytes beyond the window, which no field reaches, become zero.
    const uint32x4_t around = vreinterpretq_u32_u8(vqtbl1q_u8(window, bytes_[half]));
    return vandq_u32(vshlq_u32(around, shifts_[half]), mask_);
  }

 private:
  // Two fields one behind the other, in each half.
  STROM_INLINE uint64x2_t Pairs(const uint32_t* fields) const {
    const uint64x2_t two = vreinterpretq_u64_u32(vld1q_u32(fields));
    return vorrq_u64(vandq_u64(two, vdupq_n_u64(0xffffffff)),
                     vshlq_u64(vshrq_n_u64(two, 32), vdupq_n_s64(width_)));
  }

  int width_;
  uint32x4_t mask_;
  uint8x16_t bytes_[2];
  int32x4_t shifts_[2];
};

using Eights = CoderOfEights<NeonPacking>;

// The positions of the first `count` ones, and perhaps some more, up to kCodeSlack.
void FindOnes(const uint8_t* unary, int64_t count, uint32_t* positions) {
  uint32_t start = 0;
  for (int64_t i = 0; i < count; start += 64) {
    for (auto word = LoadLittleEndian<uint64_t>(unary + (start >> 3)); word != 0;
         word &= word - 1) {
      positions[i++] = start + static_cast<uint32_t>(std::countr_zero(word));
    }
  }
}

// Lane i gets the sum of lanes 0 to i.
STROM_INLINE uint32x4_t PrefixSum(uint32x4_t lanes) {
  const uint32x4_t zero = vdupq_n_u32(0);
  lanes = vaddq_u32(lanes, vextq_u32(zero, lanes, 3));
  return vaddq_u32(lanes, vextq_u32(zero, lanes, 2));
}

void Decode(Bytes payload, int64_t count, int k, uint32_t* codes) {
  const int width = k + 1;
  if (width > kWidest) return Eights::Decode(payload, count, k, codes);
  FindOnes(payload.data() + FieldBytes(count, k), count, codes);
  // index = sum of the low parts so far + (sum of the high parts so far << k) + number of entries
  // before; the high parts' sum is the one's position less the ones before it.
  const NeonPacking packing(width);
  const int32x4_t by_k = vdupq_n_s32(k);
  uint32x4_t low_parts = vdupq_n_u32(0);
  uint32x4_t before = {0, 1, 2, 3};
  for (int64_t i = 0; i < count; i += kGroup) {
    const uint8x16_t window = vld1q_u8(payload.data() + (i >> 3) * width);
    for (size_t half = 0; half < 2; ++half) {
      uint32_t* const four = codes + i + 4 * half;
      const uint32x4_t low_and_sign = packing.Fields(window, half);
      low_parts = vaddq_u32(PrefixSum(vshrq_n_u32(low_and_sign, 1)), low_parts);
      const uint32x4_t high_parts = vshlq_u32(vsubq_u32(vld1q_u32(four), before), by_k);
      const uint32x4_t index = vaddq_u32(vaddq_u32(low_parts, high_parts), before);
      vst1q_u32(four, vsliq_n_u32(low_and_sign, index, 1));  // above the sign, which stays
      low_parts = vdupq_laneq_u32(low_parts, 3);
      before = vaddq_u32(before, vdupq_n_u32(4));
    }
  }
}

}  // namespace

RiceCoder RiceNeon() { return Eights::Coder("NEON", Decode); }

}  // namespace strom

#endif  // STROM_NEON
