// CRC32C (Castagnoli), the checksum of messages: it finds what memory and software break. What
// comes over the network is authenticated before it gets here.
#ifndef KERAS_STROM_CORE_BASE_CRC32C_H_
#define KERAS_STROM_CORE_BASE_CRC32C_H_

#include <cstdint>

#include "core/base/types.h"

namespace strom {

// The checksum of `bytes`, or, given the checksum of what precedes them, of both together. Uses the
// processor's instruction where there is one.
uint32_t Crc32c(Bytes bytes, uint32_t previous = 0);

// The same in portable code: the oracle of the tests, and the fallback.
uint32_t Crc32cPortable(Bytes bytes, uint32_t previous = 0);

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_CRC32C_H_
