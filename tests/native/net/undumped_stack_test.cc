#include "net/undumped_stack.h"

#include <gtest/gtest.h>

#include <thread>

#include "core_dump.h"

namespace strom {
namespace {

TEST(UndumpedStack, IsDumpedAgainAfterwards) {
  if (!KernelTakesAdvice()) GTEST_SKIP() << "an emulation ignores MADV_DONTDUMP";
  std::thread([] {
    const int local = 0;
    {
      const UndumpedStack stack;
      EXPECT_FALSE(IsDumped(&local));
    }
    EXPECT_TRUE(IsDumped(&local));
  }).join();
}

}  // namespace
}  // namespace strom
