#include "net/undumped_stack.h"

#include <pthread.h>
#include <sys/mman.h>

namespace strom {

UndumpedStack::UndumpedStack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  if (pthread_attr_getstack(&attributes, &address_, &bytes_) == 0) {
    madvise(address_, bytes_, MADV_DONTDUMP);
  }
  pthread_attr_destroy(&attributes);
}

// Threads of others may get the same pages after this one.
UndumpedStack::~UndumpedStack() { madvise(address_, bytes_, MADV_DODUMP); }

}  // namespace strom
