// How many of its runs a test of whole jobs makes: all, and few where a sanitizer makes each take
// ten to twenty times as long.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_SHARE_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_SHARE_H_

#include <algorithm>
#include <cstdint>

namespace strom {

constexpr uint64_t ShareOf(uint64_t runs) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max<uint64_t>(1, runs / 20);
#else
  return runs;
#endif
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_SHARE_H_
