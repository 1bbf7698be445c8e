#include "core/base/processor.h"

#if defined(STROM_NEON)
#include <sys/auxv.h>
#endif

namespace strom {

#if defined(STROM_X86)

bool HasCrc() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"); }

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512vpopcntdq");
}

bool GainsByFetchingAhead() { return __builtin_cpu_is("intel"); }

#else

#if defined(STROM_NEON)
bool HasCrc() {
  const unsigned long needed = HWCAP_CRC32 | HWCAP_PMULL;
  return (getauxval(AT_HWCAP) & needed) == needed;
}
#else
bool HasCrc() { return false; }
#endif

bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
bool GainsByFetchingAhead() { return false; }

#endif

}  // namespace strom
