// The wire format of an update's values (CODEC.md; the field table is in MESSAGE_FORMAT.md beside
// this file): a header with a checksum, a directory of spans, and a payload per span in split Rice,
// bitmap (split Rice with k = 0) or raw float32 coding.
//
// Bytes from outside are parsed once by ParseMessage; everything below takes only parsed messages.
#ifndef KERAS_STROM_CORE_MESSAGE_H_
#define KERAS_STROM_CORE_MESSAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"

namespace strom {

// A message that has passed every check: applying it cannot read or write out of bounds.
// Borrows the bytes it was parsed from.
class ParsedMessage;

// Checks magic, version, flags, lengths, CRC32C, every span's directory entry and payload, and that
// all values are finite. kCorrupt names the first check that failed.
Status ParseMessage(Bytes bytes, ParsedMessage* message);

// parameters[i] += value for every entry; `parameters` holds flat elements
// [offset, offset + parameters.size()), entries outside are skipped.
void ApplyMessage(const ParsedMessage& message, int64_t offset, std::span<float> parameters);

}  // namespace strom

#endif  // KERAS_STROM_CORE_MESSAGE_H_
