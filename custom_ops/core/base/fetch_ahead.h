// Asking for memory before it is needed, on processors that gain by it.
//
// The processor's own prefetcher stops at the end of every page of 4 KiB, and a pass that does much
// with each value fills the window of instructions before that window reaches far into memory. What
// it gives and where is in docs/decisions/fetching_ahead.md.
#ifndef KERAS_STROM_CORE_BASE_FETCH_AHEAD_H_
#define KERAS_STROM_CORE_BASE_FETCH_AHEAD_H_

#include <cstddef>
#include <cstdint>

#include "core/base/processor.h"

namespace strom {

inline constexpr int64_t kLineFloats = 64 / sizeof(float);  // of a cache line

// For one pass over arrays of `size` floats each, from their start to their end.
class FetchAhead {
 public:
  // In floats: a page. Half as far and twice as far give nearly as much.
  static constexpr int64_t kDistance = 1024;

  explicit FetchAhead(int64_t size) : end_(GainsByFetchingAhead() ? size - kDistance : 0) {}

  // Whether the pass asks for memory when it is at element i: not for what lies behind the arrays.
  bool At(int64_t i) const { return i < end_; }

  // Asks for the `floats` floats that the pass will come to kDistance after `values`.
  template <int64_t floats>
  __attribute__((always_inline)) static void Lines(const float* values) {
    for (int64_t i = 0; i < floats; i += kLineFloats) __builtin_prefetch(values + kDistance + i);
  }

 private:
  int64_t end_;
};

// Asks for part number `part` of `parts` equal ones of `size` floats. They come into the second
// cache, as they may be more than the first one holds.
inline void FetchPart(const float* values, int64_t size, size_t part, size_t parts) {
  const auto lines = static_cast<size_t>((size + kLineFloats - 1) / kLineFloats);
  for (size_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line) {
    __builtin_prefetch(values + static_cast<int64_t>(line) * kLineFloats, 0, 2);
  }
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_FETCH_AHEAD_H_
