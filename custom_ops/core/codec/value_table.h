// The table of a message whose entries do not all add the same: runs of consecutive entries, each
// with its value. So a sender may have a threshold for each variable; readers know no variables.
// docs/internals/message_format.md, "Table of values".
#ifndef KERAS_STROM_CORE_CODEC_VALUE_TABLE_H_
#define KERAS_STROM_CORE_CODEC_VALUE_TABLE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"

namespace strom {

// Consecutive entries of an update, in the order of their elements, that stand for one value.
struct ValueRun {
  int64_t count = 0;
  float threshold = 0;  // that they reached; not in the table
  float value = 0;      // a TableValue
};

// The longest that a table of so many runs can be; 0 for one, which needs none.
int64_t TableBytesBound(int64_t runs);

// What a table holds of a value: the upper half of its float32, rounded to the nearest, ties to
// even (bfloat16: 8 significant bits). `value` is positive; the result is finite.
inline float TableValue(float value) {
  constexpr uint32_t kLargest = 0x7f7f0000;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  return std::bit_cast<float>(std::min(rounded, kLargest));
}

// Whether a table can hold `value` as it is: positive, normal, finite, and its own TableValue.
bool IsTableValue(float value);

// Appends the runs as a table.
void WriteValueTable(std::span<const ValueRun> runs, std::vector<uint8_t>* out);

// A table as it was read; without one, every entry adds the message's value.
class ValueTable {
 public:
  // Reads a table at *position, which then stands behind it. Returns the check that failed, or
  // null; `count` is what the message says of its entries.
  const char* Read(Bytes bytes, size_t* position, int64_t count);

  bool empty() const { return runs_.empty(); }

  // Calls visit(first, last, value) for the runs among entries [begin, end), ascending.
  template <typename Visit>
  void ForEachRun(int64_t begin, int64_t end, Visit visit) const {
    auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                                [](int64_t entry, const Run& r) { return entry < r.end; });
    for (; begin < end; ++run) {
      const int64_t last = std::min(end, run->end);
      visit(begin, last, run->value);
      begin = last;
    }
  }

 private:
  struct Run {
    int64_t end;  // the entry behind its last one
    float value;
  };

  std::vector<Run> runs_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_VALUE_TABLE_H_
