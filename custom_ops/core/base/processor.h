// Which instructions this processor has beyond those that every processor of its kind has.
//
// Functions that need them carry STROM_TARGET_..., one by one: a whole file compiled for a newer
// processor would also emit such copies of the inline functions it includes, and the linker may
// pick one of those for everybody.
#ifndef KERAS_STROM_CORE_BASE_PROCESSOR_H_
#define KERAS_STROM_CORE_BASE_PROCESSOR_H_

#if defined(__x86_64__)
#define STROM_X86 1
#define STROM_TARGET_CRC __attribute__((target("sse4.2,pclmul")))
#define STROM_TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define STROM_TARGET_AVX512                                               \
  __attribute__((                                                         \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2," \
             "avx512vpopcntdq,avx2,bmi,bmi2,popcnt")))
#elif defined(__aarch64__)
#define STROM_NEON 1  // part of every such processor
#define STROM_TARGET_CRC __attribute__((target("+crc+crypto")))
#endif

namespace strom {

// What STROM_TARGET_CRC needs: instructions for CRC32C, and for the products of polynomials.
bool HasCrc();

// What STROM_TARGET_AVX2 and STROM_TARGET_AVX512 (Ice Lake and Zen 4 on) need, the operating
// system's part included.
bool HasAvx2();
bool HasAvx512();

// Whether core/base/fetch_ahead.h is of use.
bool GainsByFetchingAhead();

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_PROCESSOR_H_
