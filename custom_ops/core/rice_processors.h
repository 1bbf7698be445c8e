// The coders of core/rice.h for particular processors; RiceCoders picks those that can run.
#ifndef KERAS_STROM_CORE_RICE_PROCESSORS_H_
#define KERAS_STROM_CORE_RICE_PROCESSORS_H_

#include "core/rice.h"

namespace strom {

#if defined(__x86_64__)
RiceCoder RiceBmi2();    // x86-64-v3: AVX2 and BMI2
RiceCoder RiceAvx512();  // with VBMI, VBMI2 and VPOPCNTDQ: Ice Lake, Zen 4 and later
#endif

}  // namespace strom

#endif  // KERAS_STROM_CORE_RICE_PROCESSORS_H_
