// Split Rice: the coding of one span's entries (CODEC.md; bit by bit in MESSAGE_FORMAT.md).
//
// An entry's gap, the number of elements skipped since the entry before it, is cut at bit k. The k
// low bits and the sign of every entry stand first, at a fixed width; then one unary stream with,
// for each entry, as many zeros as the gap's high part says and a one. With k = 0 the unary stream
// is the span's bitmap, so the dense coding needs no code of its own.
#ifndef KERAS_STROM_CORE_RICE_H_
#define KERAS_STROM_CORE_RICE_H_

#include <cstdint>
#include <span>

#include "core/types.h"

namespace strom {

// An entry's code: its index times 2, plus 1 if it is negative; ascending.
using Codes = std::span<const uint32_t>;

// The elements skipped before each entry.
using Gaps = std::span<const uint32_t>;

// How a span would be coded. The choice is exact: no other k from `least_k` on
// needs fewer bits.
struct RiceChoice {
  int k = 0;
  int64_t bytes = 0;
};

// Needs at least one gap; together with their entries they fill at most 2^21 elements.
RiceChoice ChooseRice(Gaps gaps, int least_k = 0);

// The span's bitmap, k = 0.
RiceChoice BitmapChoice(Gaps gaps);

// Writes choice.bytes bytes; of the codes only the signs matter here. Needs kBitSlack bytes of room
// behind them (core/bits.h).
void EncodeRice(Codes codes, Gaps gaps, RiceChoice choice, uint8_t* out);

// Whether `payload` is exactly what `count` > 0 entries with parameter k in a span of `elements`
// elements look like: lengths, number of ones, last index, zero padding. Null, or the check that
// failed. `payload` needs kBitSlack readable bytes behind it.
const char* CheckRice(Bytes payload, int64_t count, int k, int64_t elements);

// Writes the `count` > 0 codes, relative to the span, of a payload that passed CheckRice; the same
// slack.
void DecodeRice(Bytes payload, int64_t count, int k, uint32_t* codes);

}  // namespace strom

#endif  // KERAS_STROM_CORE_RICE_H_
