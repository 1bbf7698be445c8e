// Whether a core dump of this process would hold a byte, as the kernel says.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_

#include <sys/mman.h>

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

// Whether wishes for memory (madvise) are taken at all: qemu's emulation of a user's program, which
// runs tests for other kinds of processors, leaves them aside.
inline bool KernelTakesAdvice() {
  constexpr size_t kBytes = size_t{1} << 16;
  void* const area =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) return true;
  const bool takes_advice = madvise(area, kBytes, MADV_DONTDUMP) != 0 || !IsDumped(area);
  munmap(area, kBytes);
  return takes_advice;
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_CORE_DUMP_H_
