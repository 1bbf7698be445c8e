// IPv4 addresses as IPv6 has them: ::ffff:a.b.c.d.
#ifndef KERAS_STROM_CORE_BASE_MAPPED_IPV4_H_
#define KERAS_STROM_CORE_BASE_MAPPED_IPV4_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/link_layer.h"

namespace strom {

inline bool IsMappedIpv4(const Address& address) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), address.ip.begin());
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_MAPPED_IPV4_H_
