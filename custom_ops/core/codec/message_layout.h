// Offsets and widths of the message header, shared by its reader and its writer.
// docs/internals/message_format.md is the same in words.
#ifndef KERAS_STROM_CORE_CODEC_MESSAGE_LAYOUT_H_
#define KERAS_STROM_CORE_CODEC_MESSAGE_LAYOUT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/crc32c.h"
#include "core/base/types.h"

namespace strom {

inline constexpr size_t kVersionOffset = 2;
inline constexpr size_t kFlagsOffset = 3;
inline constexpr size_t kChecksumOffset = 4;
inline constexpr size_t kThresholdOffset = 8;
inline constexpr size_t kLog2SpanOffset = 12;
inline constexpr size_t kCountBitsOffset = 13;
inline constexpr size_t kFixedHeaderBytes = 14;

// The longest varints that follow, in this order; then the value, if the flags say so.
inline constexpr int kElementsBytes = 6;
inline constexpr int kIterationBytes = 5;
inline constexpr int kSpansBytes = 4;  // of the first span, and of the number of spans
inline constexpr int kCountBytes = 5;
inline constexpr int kPayloadBytes = 5;

// So that a payload end fits in 32 bits.
inline constexpr int64_t kMaxPayloadBytes = (int64_t{1} << 32) - 1;

inline constexpr int kCodingBits = 5;  // k or kRawCoding in a directory row

inline int BitWidth(uint64_t value) { return static_cast<int>(std::bit_width(value)); }

// The checksum covers every byte but its own four.
inline uint32_t MessageChecksum(Bytes bytes) {
  return Crc32c(bytes.subspan(kChecksumOffset + 4), Crc32c(bytes.first(kChecksumOffset)));
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_MESSAGE_LAYOUT_H_
