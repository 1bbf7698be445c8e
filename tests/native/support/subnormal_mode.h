// Lets a thread take subnormal numbers for zero, as TensorFlow sets its own threads.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_SUBNORMAL_MODE_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_SUBNORMAL_MODE_H_

#include <cstdint>

namespace strom {

#if defined(__x86_64__)
inline constexpr uint64_t kSubnormalsAreZero = 0x8040;  // of results, of operands
inline uint64_t SubnormalMode() { return __builtin_ia32_stmxcsr() & kSubnormalsAreZero; }
inline void SetSubnormalMode(uint64_t mode) {
  const uint64_t others = __builtin_ia32_stmxcsr() & ~kSubnormalsAreZero;
  __builtin_ia32_ldmxcsr(static_cast<uint32_t>(others | mode));
}
#elif defined(__aarch64__)
inline constexpr uint64_t kSubnormalsAreZero = uint64_t{1} << 24;
inline uint64_t SubnormalMode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode & kSubnormalsAreZero;
}
inline void SetSubnormalMode(uint64_t mode) {
  uint64_t others;
  asm volatile("mrs %0, fpcr" : "=r"(others));
  asm volatile("msr fpcr, %0" : : "r"((others & ~kSubnormalsAreZero) | mode));
}
#else
inline constexpr uint64_t kSubnormalsAreZero = 0;
inline uint64_t SubnormalMode() { return 0; }
inline void SetSubnormalMode(uint64_t) {}
#endif

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_SUBNORMAL_MODE_H_
