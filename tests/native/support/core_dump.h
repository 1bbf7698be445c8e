// Whether a core dump of this process would hold a byte, as the kernel says.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace strom {

// By the flag "dd" of the memory area that holds `address`, in /proc/self/smaps.
inline bool IsDumped(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream areas("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(areas, line);) {
    unsigned long first, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &end) == 2) {
      is_inside = first <= wanted && wanted < end;
    } else if (is_inside && line.starts_with("VmFlags:")) {
      return line.find(" dd") == std::string::npos;
    }
  }
  return true;
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_
