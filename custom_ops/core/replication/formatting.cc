#include "core/replication/formatting.h"

#include <cstdio>

#include "core/base/mapped_ipv4.h"

namespace strom {

std::string AddressText(const Address& address) {
  char text[64];
  const auto& ip = address.ip;
  if (IsMappedIpv4(address)) {
    std::snprintf(text, sizeof(text), "%u.%u.%u.%u:%u", ip[12], ip[13], ip[14], ip[15],
                  address.port);
    return text;
  }
  std::string groups;
  for (size_t i = 0; i < ip.size(); i += 2) {
    std::snprintf(text, sizeof(text), "%s%x", i == 0 ? "" : ":", ip[i] << 8 | ip[i + 1]);
    groups += text;
  }
  return "[" + groups + "]:" + std::to_string(address.port);
}

std::string MegabytesText(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MB", static_cast<double>(bytes) * 1e-6);
  return text;
}

std::string SecondsText(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace strom
