// Subnormal numbers, those under 2^-126, as IEEE 754 has them.
//
// TensorFlow makes its threads take them for zero, because some processors are slow with them. The
// codec promises the same bits wherever it runs and lends itself a thread that keeps them.
#ifndef KERAS_STROM_CORE_BASE_SUBNORMALS_H_
#define KERAS_STROM_CORE_BASE_SUBNORMALS_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace strom {

// While it lives, the thread that made it computes with subnormal numbers.
class KeepSubnormals {
 public:
  KeepSubnormals() : before_(Read()) { Write(before_ & ~kTakeForZero); }
  ~KeepSubnormals() { Write(before_); }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kTakeForZero = 0x8040;  // of results, of operands
  static uint64_t Read() { return _mm_getcsr(); }
  static void Set(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kTakeForZero = uint64_t{1} << 24;
  static uint64_t Read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kTakeForZero = 0;
  static uint64_t Read() { return 0; }
  static void Set(uint64_t) {}
#endif

  // The compiler, which knows nothing of the mode, moves no access to memory across this, and so
  // none of the arithmetic between reading and writing it.
  static void Write(uint64_t mode) {
    asm volatile("" : : : "memory");
    Set(mode);
    asm volatile("" : : : "memory");
  }

  const uint64_t before_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_SUBNORMALS_H_
