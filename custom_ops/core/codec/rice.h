// Split Rice: the coding of one span's entries (docs/internals/codec.md; bit by bit in
// docs/internals/message_format.md).
//
// An entry's gap, the number of elements skipped since the entry before it, is cut at bit k. The k
// low bits and the sign of every entry stand first, at a fixed width; then one unary stream with,
// for each entry, as many zeros as the gap's high part says and a one. With k = 0 the unary stream
// is the span's bitmap, so the dense coding needs no format of its own.
//
// There is an implementation for every processor (RiceCoders) and the scalar one is the oracle: all
// write the same bytes, make the same choices and refuse the same payloads.
#ifndef KERAS_STROM_CORE_CODEC_RICE_H_
#define KERAS_STROM_CORE_CODEC_RICE_H_

#include <cstdint>
#include <span>

#include "core/base/bits.h"
#include "core/base/types.h"

namespace strom {

// An entry's code: its index times 2, plus 1 if it is negative; ascending. The index counts from
// any place before the span; `origin` below is the index of the span's first element.
using Codes = std::span<const uint32_t>;

// What may be touched, in bytes, behind a payload that is read or written, and, in codes, behind
// those that are decoded.
inline constexpr size_t kRiceSlack = 64;
inline constexpr size_t kCodeSlack = 64;

// How a span is coded, and the length of its payload.
struct RiceChoice {
  int k = 0;
  int64_t bytes = 0;
};

// The bytes of the fields, which is where the unary stream begins.
constexpr int64_t FieldBytes(int64_t count, int k) { return BytesOfBits(count * (k + 1)); }

// The span's bitmap, k = 0. Needs at least one code, as do all functions below.
RiceChoice BitmapChoice(Codes codes, uint32_t origin);

struct RiceCoder {
  const char* name;

  // The k >= least_k that needs the fewest bits, the smallest of equals. The codes lie within 2^21
  // elements.
  RiceChoice (*choose)(Codes codes, uint32_t origin, int least_k);

  // Writes choice.bytes bytes, and may overwrite kRiceSlack bytes behind them.
  void (*encode)(Codes codes, uint32_t origin, RiceChoice choice, uint8_t* out);

  // Whether `payload` is exactly what `count` > 0 entries with parameter k in a span of `elements`
  // elements look like: lengths, number of ones, last index, zero padding. Null, or the check that
  // failed. kRiceSlack bytes behind the payload may be read.
  const char* (*check)(Bytes payload, int64_t count, int k, int64_t elements);

  // Writes the `count` > 0 codes, relative to the span, of a payload that passed the check; the
  // same slack, and kCodeSlack behind the codes.
  void (*decode)(Bytes payload, int64_t count, int k, uint32_t* codes);

  // values[i] += value, or -value, for the entries of a payload with k = 0 that passed the check,
  // in a span that has `elements` values; the same slack. Null where decoding first is as fast.
  void (*add_bitmap)(Bytes payload, int64_t count, float value, int64_t elements, float* values);
};

// The implementations that this processor can run: the scalar oracle first, the fastest last.
std::span<const RiceCoder> RiceCoders();

// The fastest one.
inline const RiceCoder& Rice() {
  static const RiceCoder& fastest = RiceCoders().back();
  return fastest;
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_RICE_H_
