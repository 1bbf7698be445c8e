// The coders of core/rice.h for particular processors; RiceCoders picks those that can run.
#ifndef KERAS_STROM_CORE_RICE_PROCESSORS_H_
#define KERAS_STROM_CORE_RICE_PROCESSORS_H_

#include "core/processor.h"
#include "core/rice.h"

namespace strom {

#if defined(STROM_X86)
RiceCoder RiceBmi2();    // where HasAvx2()
RiceCoder RiceAvx512();  // where HasAvx512()
#endif

}  // namespace strom

#endif  // KERAS_STROM_CORE_RICE_PROCESSORS_H_
