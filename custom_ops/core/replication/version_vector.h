// Comparing and joining version vectors: the whole arithmetic of "what do I lack?".
#ifndef KERAS_STROM_CORE_REPLICATION_VERSION_VECTOR_H_
#define KERAS_STROM_CORE_REPLICATION_VERSION_VECTOR_H_

#include <algorithm>
#include <cstdint>

#include "core/base/types.h"

namespace strom {

// The highest counter of `origin` that `vector` holds; 0 = none.
inline uint64_t CounterOf(const VersionVector& vector, uint64_t origin) {
  auto found = vector.find(origin);
  return found == vector.end() ? 0 : found->second;
}

inline bool Covers(const VersionVector& vector, const UpdateId& id) {
  return CounterOf(vector, id.origin) >= id.counter;
}

// True where `vector` holds everything that `other` holds.
inline bool Covers(const VersionVector& vector, const VersionVector& other) {
  return std::all_of(other.begin(), other.end(), [&](const auto& entry) {
    return CounterOf(vector, entry.first) >= entry.second;
  });
}

// `into` becomes the union of both.
inline void Join(const VersionVector& other, VersionVector* into) {
  for (const auto& [origin, counter] : other) {
    uint64_t& own = (*into)[origin];
    own = std::max(own, counter);
  }
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_VERSION_VECTOR_H_
