// Memory that is in no core dump, for keys: whoever gets hold of one reads no key in it.
#ifndef KERAS_STROM_CORE_TRANSPORT_UNDUMPED_H_
#define KERAS_STROM_CORE_TRANSPORT_UNDUMPED_H_

#include <cstddef>

namespace strom {

// As malloc, realloc and free, from any thread; nullptr where there is no memory.
void* AllocateUndumped(size_t bytes);
void* ReallocateUndumped(void* block, size_t bytes);
void FreeUndumped(void* block);

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_UNDUMPED_H_
