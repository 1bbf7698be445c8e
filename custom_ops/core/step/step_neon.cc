// The step with NEON, which every 64-bit Arm processor has: 32 elements at a time, skipping on
// where few are hit. Inside a block a code takes a byte, so that the codes of eight hit elements
// are brought together by one look-up.
//
// The room for codes suffices as in step_avx512.cc.
#include "core/base/processor.h"

#if defined(STROM_NEON)

#define STROM_VECTORS_TARGET  // NEON needs no leave of the compiler

#include <arm_neon.h>

#include <bit>
#include <cstring>

#include "core/step/lane_table.h"
#include "core/step/step_vectors.h"

namespace strom {
namespace {

struct Neon {
  using Floats = float32x4_t;
  using Bits = int32x4_t;
  using Doubles = float64x2_t;
  using Mask = uint32x4_t;
  using Block = BlockOf<Neon>;

  static constexpr int kVectors = 8;
  static constexpr int kLanes = 4;
  static constexpr int64_t kDenseEntries = 12;  // as with AVX2; not measured

  STROM_INLINE static Floats Load(const float* from) { return vld1q_f32(from); }
  STROM_INLINE static void Store(float* to, Floats x) { vst1q_f32(to, x); }
  STROM_INLINE static Floats Set(float x) { return vdupq_n_f32(x); }
  STROM_INLINE static Bits NoBits() { return vdupq_n_s32(0); }
  STROM_INLINE static Doubles SetDoubles(double x) { return vdupq_n_f64(x); }

  STROM_INLINE static Floats Magnitude(Floats x) { return vabsq_f32(x); }
  STROM_INLINE static Floats Larger(Floats a, Floats b) { return vmaxq_f32(a, b); }
  STROM_INLINE static Floats CopySign(Floats magnitude, Floats sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
  }
  STROM_INLINE static Floats FlipSigns(Floats x, Floats signs) {
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(signs)));
  }

  STROM_INLINE static Bits BitsOf(Floats x) { return vreinterpretq_s32_f32(x); }
  STROM_INLINE static Bits LargestBits(Bits a, Bits b) { return vmaxq_s32(a, b); }
  STROM_INLINE static bool AnyOver(Bits bits, int32_t limit) { return vmaxvq_s32(bits) > limit; }
  STROM_INLINE static int32_t Largest(Bits bits) { return vmaxvq_s32(bits); }

  STROM_INLINE static Doubles LowDoubles(Floats x) { return vcvt_f64_f32(vget_low_f32(x)); }
  STROM_INLINE static Doubles HighDoubles(Floats x) { return vcvt_high_f64_f32(x); }
  STROM_INLINE static double Sum(Doubles x) { return vaddvq_f64(x); }

  STROM_INLINE static Mask Reaches(Floats x, Floats limit) { return vcgeq_f32(x, limit); }
  STROM_INLINE static Mask IsOver(Floats x, Floats limit) { return vcgtq_f32(x, limit); }
  STROM_INLINE static Mask Or(Mask a, Mask b) { return vorrq_u32(a, b); }
  STROM_INLINE static Mask AndNot(Mask a, Mask b) { return vbicq_u32(a, b); }
  STROM_INLINE static int64_t Count(Mask mask) { return vaddvq_u32(vshrq_n_u32(mask, 31)); }
  STROM_INLINE static Floats Pick(Mask mask, Floats where, Floats otherwise) {
    return vbslq_f32(mask, where, otherwise);
  }
  STROM_INLINE static Floats SubtractWhere(Mask mask, Floats x, Floats y) {
    return x - vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(y)));
  }
  STROM_INLINE static Floats AddWhere(Mask mask, Floats x, Floats y) {
    return vbslq_f32(mask, x + y, x);
  }

  STROM_INLINE static bool PutBlock(CodeOutput* output, uint32_t first, const Block& block) {
    const Bytes32 negative = NegativeBytes(block);
    const uint32_t hits = Gather(BytesOf(block.hits));
    const Places places(hits);
    const uint8x16_t twice = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const uint32x4_t start = vdupq_n_u32(first << 1);
    // All ones stand for a negative element: less them is one more.
    const uint8x16_t low = vsubq_u8(twice, negative.low);
    const uint8x16_t high = vsubq_u8(vaddq_u8(twice, vdupq_n_u8(32)), negative.high);
    uint32_t* const codes = output->codes + output->count;
    PutCodes(vget_low_u8(low), hits & 0xff, start, codes);
    PutCodes(vget_high_u8(low), hits >> 8 & 0xff, start, codes + places.before(1));
    PutCodes(vget_low_u8(high), hits >> 16 & 0xff, start, codes + places.before(2));
    PutCodes(vget_high_u8(high), hits >> 24, start, codes + places.before(3));
    output->count += places.before(4);
    return hits != 0;
  }

  STROM_INLINE static bool PutBlock(BitmapOutput* output, uint32_t, const Block& block) {
    const Bytes32 negative = NegativeBytes(block);
    const uint32_t hits = Gather(BytesOf(block.hits));
    const Places places(hits);
    // The signs of the hit elements of each eight, in the first bytes; behind those it is any.
    const uint8x16_t low = vcombine_u8(Together(vget_low_u8(negative.low), hits & 0xff),
                                       Together(vget_high_u8(negative.low), hits >> 8 & 0xff));
    const uint8x16_t high = vcombine_u8(Together(vget_low_u8(negative.high), hits >> 16 & 0xff),
                                        Together(vget_high_u8(negative.high), hits >> 24));
    const uint32_t eights = Gather(Bytes32{low, high});
    uint64_t signs = eights & 0xff;
    signs = (signs & Ones(places.before(1))) | uint64_t{eights >> 8 & 0xff} << places.before(1);
    signs = (signs & Ones(places.before(2))) | uint64_t{eights >> 16 & 0xff} << places.before(2);
    signs = (signs & Ones(places.before(3))) | uint64_t{eights >> 24} << places.before(3);
    output->bitmap.Append(hits, signs & Ones(places.before(4)), kVectors * kLanes,
                          places.before(4));
    return hits != 0;
  }

  STROM_INLINE static bool PutBlock(Bitmap4Output* output, uint32_t, const Block& block) {
    const Bytes32 hits = BytesOf(block.hits);
    const Bytes32 halves = BytesOf(block.halves);
    const Bytes32 negative = NegativeBytes(block);
    const uint32_t plus = Gather({vandq_u8(hits.low, vornq_u8(halves.low, negative.low)),
                                  vandq_u8(hits.high, vornq_u8(halves.high, negative.high))});
    const uint32_t minus = Gather({vandq_u8(hits.low, vorrq_u8(halves.low, negative.low)),
                                   vandq_u8(hits.high, vorrq_u8(halves.high, negative.high))});
    Bitmap4& bitmap = output->bitmap;
    vst1_u8(bitmap.bytes + (bitmap.elements >> 2), vzip1_u8(vcreate_u8(plus), vcreate_u8(minus)));
    bitmap.elements += kVectors * kLanes;
    bitmap.count += Places(plus | minus).before(4);
    return true;
  }

 private:
  // A byte for each element of a block, of all ones or none.
  struct Bytes32 {
    uint8x16_t low;
    uint8x16_t high;
  };

  // How many bits are set in front of each byte of a word of 32 bits.
  class Places {
   public:
    STROM_INLINE explicit Places(uint32_t word) {
      const uint8x8_t counts = vcnt_u8(vcreate_u8(word));
      // Byte i of the product is the sum of bytes 0 to i.
      sums_ = vget_lane_u32(vreinterpret_u32_u8(counts), 0) * 0x01010101u;
    }
    // Bytes from 1 on; 4 is the end.
    STROM_INLINE int before(int byte) const {
      return static_cast<int>(sums_ >> (8 * (byte - 1)) & 0xff);
    }

   private:
    uint32_t sums_;
  };

  STROM_INLINE static uint64_t Ones(int bits) { return (uint64_t{1} << bits) - 1; }

  // Of masks of lanes: the low bytes of the low halves.
  STROM_INLINE static uint8x16_t Narrow(const uint32x4_t* masks) {
    const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(masks[0]),  //
                                      vreinterpretq_u16_u32(masks[1]));
    const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(masks[2]),  //
                                       vreinterpretq_u16_u32(masks[3]));
    return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
  }
  STROM_INLINE static Bytes32 BytesOf(const Mask* masks) {
    return {Narrow(masks), Narrow(masks + 4)};
  }

  STROM_INLINE static Bytes32 NegativeBytes(const Block& block) {
    Mask masks[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      masks[j] = vcltzq_s32(vreinterpretq_s32_f32(block.residual[j]));
    }
    return BytesOf(masks);
  }

  // A bit for each byte.
  STROM_INLINE static uint32_t Gather(const Bytes32& bytes) {
    const uint8x16_t places = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t pairs = vpaddq_u8(vandq_u8(bytes.low, places), vandq_u8(bytes.high, places));
    const uint8x16_t fours = vpaddq_u8(pairs, pairs);
    return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(fours, fours)), 0);
  }

  // Those of eight bytes whose bits are set in the mask, in front.
  STROM_INLINE static uint8x8_t Together(uint8x8_t bytes, uint32_t mask) {
    return vtbl1_u8(bytes, vcreate_u8(kLaneTable[mask]));
  }

  // Writes eight codes, of which those of set bits count.
  STROM_INLINE static void PutCodes(uint8x8_t bytes, uint32_t mask, uint32x4_t start,
                                    uint32_t* codes) {
    const uint16x8_t wide = vmovl_u8(Together(bytes, mask));
    vst1q_u32(codes, vaddw_u16(start, vget_low_u16(wide)));
    vst1q_u32(codes + 4, vaddw_high_u16(start, wide));
  }
};

}  // namespace

const StepKernel kNeonStepKernel = MakeStepKernel<VectorStep<FiniteBlocksOf<Neon>>>("neon");

}  // namespace strom

#endif  // STROM_NEON
