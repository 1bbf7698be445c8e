// A process that can open only a few more descriptors.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_FEW_DESCRIPTORS_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_FEW_DESCRIPTORS_H_

#include <sys/resource.h>
#include <unistd.h>

namespace strom {

// While it lives the process may open so many descriptors more, as long as it closes none.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    const rlimit few{static_cast<rlim_t>(next + more), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_FEW_DESCRIPTORS_H_
