// A thread's stack that is in no core dump, for the one that handles keys.
#ifndef KERAS_STROM_NET_UNDUMPED_STACK_H_
#define KERAS_STROM_NET_UNDUMPED_STACK_H_

#include <cstddef>

namespace strom {

// While it lives, the stack of the thread that has made it is left out of core dumps.
class UndumpedStack {
 public:
  UndumpedStack();
  ~UndumpedStack();
  UndumpedStack(const UndumpedStack&) = delete;
  UndumpedStack& operator=(const UndumpedStack&) = delete;

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_UNDUMPED_STACK_H_
