#include "core/base/types.h"

#include <cstdio>
#include <cstdlib>

namespace strom {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace strom
