#include "net/host.h"

#include <cctype>
#include <fstream>
#include <string>

#include "net/io_loop.h"

namespace strom {

std::array<uint8_t, 16> HostOfThisProcess() {
  std::array<uint8_t, 16> host{};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string digits;
  for (char c; file.get(c);) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  if (digits.size() != 2 * host.size()) {
    SystemRandom().Fill(host);
    return host;
  }
  for (size_t i = 0; i < host.size(); ++i) {
    host[i] = static_cast<uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
  return host;
}

}  // namespace strom
