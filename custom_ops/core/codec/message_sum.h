// The exact sum of several messages, as messages: for whoever has to pass on many updates and may
// pass on one in their place.
//
// An entry adds ±v, and senders take their v from the same few values, or from such as are a power
// of two times one another. What an element gets from those is a whole number of the smallest of
// them, and a whole number is made of powers of two: so a message for each power says all of it, in
// ordinary entries, and nothing is rounded.
#ifndef KERAS_STROM_CORE_CODEC_MESSAGE_SUM_H_
#define KERAS_STROM_CORE_CODEC_MESSAGE_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/codec/message.h"

namespace strom {

// As many can be summed at once.
inline constexpr size_t kMaxAddends = size_t{1} << 20;

// An entry of this magnitude or more is not summed: what a sum's values may grow to has to be
// finite.
inline constexpr float kSummableBelow = 0x1p+100f;

// One message that takes part in a sum. Its bytes have been parsed before, or written here
// (OpenValidatedMessage); borrowed.
struct Addend {
  Bytes message;
  bool negative = false;  // it is taken away instead
};

// Whether a message's entries can be summed: it has no raw spans, and each value is zero, or normal
// and below kSummableBelow in magnitude. Whatever a sum consists of can be summed again, until its
// values have grown that large.
bool CanSum(const ParsedMessage& message);

// Messages that together add to every element exactly what the addends add, each with one value,
// which is its threshold too. They name the most elements and the latest iteration of any addend.
// Each starts behind `room` zero bytes, which do not count, and none is longer than `max_bytes`
// (>= kMinMessageBytes). Every addend satisfies CanSum.
//
// There are never more entries than the addends have. What an element gets from values of one
// mantissa, if all such lie within a factor of 2^40, is one number, in as few entries as there can
// be, and in none where it is zero: nothing is left of entries that cancel, and no message where
// that is all of them. Values of different mantissas are not set off against one another.
//
// The bytes do not depend on the order of the addends.
std::vector<std::vector<uint8_t>> SumMessages(std::span<const Addend> addends, int64_t max_bytes,
                                              int64_t room = 0);

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_MESSAGE_SUM_H_
