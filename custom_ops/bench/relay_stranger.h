// Somebody who can reach the master's port and receives at its address, but has a wrong secret: it
// fetches cookies, as anybody may, and floods the master with HELLOs that are opened in vain.
#ifndef KERAS_STROM_BENCH_RELAY_STRANGER_H_
#define KERAS_STROM_BENCH_RELAY_STRANGER_H_

#include <cstdint>
#include <string>

#include "core/base/types.h"

namespace strom::bench {

struct RelayStrangerOptions {
  std::string address;  // the master's, an IPv4 literal
  uint16_t port = 0;
  PublicKeyBytes key{};  // the master's
  int64_t hellos = 1;    // different ones, sent in turn
  double per_second = 8200;
  double seconds = 1;  // less than a cookie lives (10 s at least)
};

// Runs to the end and returns {"sent", "seconds"} as JSON. Throws on any failure.
std::string RunRelayStranger(const RelayStrangerOptions& options);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_STRANGER_H_
