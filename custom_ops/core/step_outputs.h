// Where the step kernels put the entries they find. Both kinds take the elements of a run in
// ascending order, one or 64 at a time, so that every kernel is written once for both.
//
// Kernels keep an output by value: the compiler then holds its fields in registers, whatever the
// kernel writes to memory.
#ifndef KERAS_STROM_CORE_STEP_OUTPUTS_H_
#define KERAS_STROM_CORE_STEP_OUTPUTS_H_

#include <bit>
#include <cstdint>

#include "core/bitmap.h"

namespace strom {

struct CodeOutput {
  uint32_t* codes;
  int64_t count = 0;

  // The element with this index.
  void Put(uint32_t index, bool hit, bool negative) {
    if (hit) codes[count++] = (index << 1) | (negative ? 1u : 0u);
  }

  // 64 elements; bit i of the masks is the element with index first + i.
  void PutBlock(uint32_t first, uint64_t hits, uint64_t negative) {
    for (; hits != 0; hits &= hits - 1) {
      const int i = std::countr_zero(hits);
      Put(first + static_cast<uint32_t>(i), true, (negative >> i & 1) != 0);
    }
  }
};

struct BitmapOutput {
  Bitmap bitmap;

  void Put(uint32_t, bool hit, bool negative) { bitmap.Append(hit, hit && negative, 1, hit); }

  void PutBlock(uint32_t, uint64_t hits, uint64_t negative) {
    uint64_t signs = 0;
    int count = 0;
    for (uint64_t left = hits; left != 0; left &= left - 1) {
      signs |= (negative >> std::countr_zero(left) & 1) << count++;
    }
    bitmap.Append(hits, signs, 64, count);
  }
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_OUTPUTS_H_
