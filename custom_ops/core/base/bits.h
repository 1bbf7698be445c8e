// Fields of any width in a stream of bytes, least significant bit first: bit i of the stream is bit
// i % 8 of byte i / 8.
#ifndef KERAS_STROM_CORE_BASE_BITS_H_
#define KERAS_STROM_CORE_BASE_BITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/little_endian.h"
#include "core/base/types.h"

namespace strom {

// What ReadBits and BitWriter may touch behind the last byte of a stream.
inline constexpr size_t kBitSlack = 8;

constexpr int64_t BytesOfBits(int64_t bits) { return (bits + 7) / 8; }

// The `width` (at most 57) bits from bit `position`; reads up to kBitSlack bytes behind them.
inline uint64_t ReadBits(const uint8_t* stream, int64_t position, int width) {
  const uint64_t word = LoadLittleEndian<uint64_t>(stream + (position >> 3)) >> (position & 7);
  return word & ((uint64_t{1} << width) - 1);
}

// The 64 bits from bit `position`; reads up to kBitSlack bytes behind them.
inline uint64_t Read64Bits(const uint8_t* stream, int64_t position) {
  const uint8_t* const from = stream + (position >> 3);
  const int skip = static_cast<int>(position & 7);
  return LoadLittleEndian<uint64_t>(from) >> skip | uint64_t{from[8]} << 1 << (63 - skip);
}

// Appends fields to a stream that starts at `out`; needs kBitSlack bytes of room behind the stream.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}

  // `width` is at most 57; `value` has no bit beyond it.
  void Put(uint64_t value, int width) {
    word_ |= value << used_;
    used_ += width;
    StoreLittleEndian<uint64_t>(out_, word_);
    out_ += used_ >> 3;
    word_ = used_ >= 64 ? 0 : word_ >> (used_ & ~7);
    used_ &= 7;
  }

 private:
  uint8_t* out_;
  uint64_t word_ = 0;  // the stream's bits from *out_ on, `used_` of them (fewer than 8)
  int used_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_BITS_H_
