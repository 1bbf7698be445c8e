// Where the step kernels put the entries they find. All kinds take the elements of a run in
// ascending order, one or 64 at a time, so that every kernel is written once for all of them.
//
// Kernels keep an output by value: the compiler then holds its fields in registers, whatever the
// kernel writes to memory.
#ifndef KERAS_STROM_CORE_STEP_STEP_OUTPUTS_H_
#define KERAS_STROM_CORE_STEP_STEP_OUTPUTS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/codec/bitmap.h"
#include "core/codec/bitmap4.h"

namespace strom {

// 64 elements, a bit each. What is no hit is no half either.
struct BlockBits {
  uint64_t hits = 0;      // what leaves
  uint64_t negative = 0;  // the residual's signs
  uint64_t halves = 0;    // hits that send a half of the threshold
};

struct CodeOutput {
  // Whether an element may send a half of the threshold.
  static constexpr bool kHalves = false;

  uint32_t* codes;
  int64_t count = 0;

  // The element with this index sends so much, which is 0, the threshold or a half, with a sign.
  void Put(uint32_t index, float sent, float /*threshold*/) {
    if (sent != 0) codes[count++] = (index << 1) | (std::signbit(sent) ? 1u : 0u);
  }

  // 64 elements; bit i is the element with index first + i.
  void PutBlock(uint32_t first, const BlockBits& bits) {
    for (uint64_t left = bits.hits; left != 0; left &= left - 1) {
      const int i = std::countr_zero(left);
      codes[count++] =
          (first + static_cast<uint32_t>(i)) << 1 | static_cast<uint32_t>(bits.negative >> i & 1);
    }
  }
};

struct BitmapOutput {
  static constexpr bool kHalves = false;

  Bitmap bitmap;

  void Put(uint32_t, float sent, float /*threshold*/) {
    bitmap.Append(sent != 0, sent < 0, 1, sent != 0);
  }

  void PutBlock(uint32_t, const BlockBits& bits) {
    uint64_t signs = 0;
    int count = 0;
    for (uint64_t left = bits.hits; left != 0; left &= left - 1) {
      signs |= (bits.negative >> std::countr_zero(left) & 1) << count++;
    }
    bitmap.Append(bits.hits, signs, 64, count);
  }
};

struct Bitmap4Output {
  static constexpr bool kHalves = true;

  Bitmap4 bitmap;

  void Put(uint32_t, float sent, float threshold) {
    const bool half = sent != 0 && std::fabs(sent) < threshold;
    bitmap.Append(half || sent > 0, half || sent < 0);
  }

  void PutBlock(uint32_t, const BlockBits& bits) {
    bitmap.Append64(bits.hits & (~bits.negative | bits.halves),
                    bits.hits & (bits.negative | bits.halves));
  }
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_STEP_OUTPUTS_H_
