// How messages to users name workers, addresses and spans of time.
#ifndef KERAS_STROM_CORE_REPLICATION_FORMATTING_H_
#define KERAS_STROM_CORE_REPLICATION_FORMATTING_H_

#include <cstdint>
#include <string>

#include "core/base/link_layer.h"

namespace strom {

inline std::string WorkerName(int32_t rank) { return "worker " + std::to_string(rank); }

// "10.0.0.1:4000" or "[fe80:...]:4000".
std::string AddressText(const Address& address);

// "5.0 s".
std::string SecondsText(int64_t ns);

// "12.3 MB".
std::string MegabytesText(int64_t bytes);

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_FORMATTING_H_
