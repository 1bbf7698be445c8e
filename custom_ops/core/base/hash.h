// A fast 64-bit hash that names layouts and compares parameters: equal on every machine and in
// every version of this library. It protects from accidents, not from an adversary
// (core/transport/crypto.h does).
#ifndef KERAS_STROM_CORE_BASE_HASH_H_
#define KERAS_STROM_CORE_BASE_HASH_H_

#include <cstdint>

#include "core/base/types.h"

namespace strom {

// The hash of `bytes` and of everything that led to `previous` (0 at the start of a chain). Where a
// chain is cut into pieces matters: Hash(ab) and Hash(b, Hash(a)) differ.
uint64_t Hash(Bytes bytes, uint64_t previous = 0);

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_HASH_H_
