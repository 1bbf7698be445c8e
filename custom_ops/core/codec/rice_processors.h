// The coders of core/codec/rice.h for particular processors; RiceCoders picks those that can run.
#ifndef KERAS_STROM_CORE_CODEC_RICE_PROCESSORS_H_
#define KERAS_STROM_CORE_CODEC_RICE_PROCESSORS_H_

#include "core/base/processor.h"
#include "core/codec/rice.h"

namespace strom {

#if defined(STROM_X86)
RiceCoder RiceBmi2();    // where HasAvx2()
RiceCoder RiceAvx512();  // where HasAvx512()
#elif defined(STROM_NEON)
RiceCoder RiceNeon();
#endif

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_RICE_PROCESSORS_H_
