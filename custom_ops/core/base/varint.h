// Whole numbers of 7 bits a byte, the least significant first; the top bit is set on all bytes but
// the last.
#ifndef KERAS_STROM_CORE_BASE_VARINT_H_
#define KERAS_STROM_CORE_BASE_VARINT_H_

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace strom {

// Reads a varint of at most `max_bytes` bytes at *position; -1 for one that is longer, cut off, or
// padded.
inline int64_t ReadVarint(Bytes bytes, size_t* position, int max_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < max_bytes; ++i) {
    if (*position >= bytes.size()) return -1;
    const uint8_t byte = bytes[(*position)++];
    value |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) return i > 0 && byte == 0 ? -1 : static_cast<int64_t>(value);
  }
  return -1;
}

// Returns how many bytes it took.
inline size_t WriteVarint(uint8_t* out, int64_t value) {
  auto left = static_cast<uint64_t>(value);
  size_t bytes = 0;
  for (; left >= 0x80; left >>= 7) out[bytes++] = static_cast<uint8_t>(left | 0x80);
  out[bytes++] = static_cast<uint8_t>(left);
  return bytes;
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_VARINT_H_
