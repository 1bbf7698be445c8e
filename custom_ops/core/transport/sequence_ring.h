// One value for each sequence of a window, in a ring that grows with the window: a link on a short
// line needs a few hundred, one on a long line all of kWindowPackets.
#ifndef KERAS_STROM_CORE_TRANSPORT_SEQUENCE_RING_H_
#define KERAS_STROM_CORE_TRANSPORT_SEQUENCE_RING_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/transport/sequence_set.h"

namespace strom {

template <typename T>
class SequenceRing {
 public:
  T& operator[](uint32_t sequence) { return values_[sequence % values_.size()]; }
  const T& operator[](uint32_t sequence) const { return values_[sequence % values_.size()]; }

  // Makes room for [begin, end), at most kWindowPackets; of those before `old_end` it keeps the
  // values. Moves them all when it grows.
  void Extend(uint32_t begin, uint32_t old_end, uint32_t end) {
    if (end - begin <= values_.size()) return;
    std::vector<T> larger(std::max<size_t>(kLeastValues, std::bit_ceil(end - begin)));
    for (uint32_t s = begin; s != old_end; ++s) {
      larger[s % larger.size()] = std::move((*this)[s]);
    }
    values_ = std::move(larger);
  }

 private:
  static constexpr size_t kLeastValues = 256;
  std::vector<T> values_ = std::vector<T>(kLeastValues);  // a power of two, for the wrap-around
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_SEQUENCE_RING_H_
