// Names the machine that this process runs on, so that the master can put the workers of one
// machine together. It proves nothing: any member could claim it.
#ifndef KERAS_STROM_NET_HOST_H_
#define KERAS_STROM_NET_HOST_H_

#include <array>
#include <cstdint>

namespace strom {

// The kernel's boot id, equal for all processes (and containers) of a machine; random where there
// is none.
std::array<uint8_t, 16> HostOfThisProcess();

}  // namespace strom

#endif  // KERAS_STROM_NET_HOST_H_
