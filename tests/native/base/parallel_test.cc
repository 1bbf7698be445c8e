// The seam to somebody else's threads: every task once, and no exception into those threads.
#include "core/base/parallel.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>

#include "own_threads.h"

namespace strom {
namespace {

TEST(Parallel, RunsEveryTaskOnce) {
  for (const Parallel& parallel : {Parallel{}, OwnThreads(3)}) {
    std::array<std::atomic<int>, 100> runs{};
    parallel.For(100, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST(Parallel, WhatTasksThrowComesOutOnTheCallersThread) {
  for (const Parallel& parallel : {Parallel{}, OwnThreads(3)}) {
    EXPECT_THROW(parallel.For(100,
                              [](int64_t task) {
                                if (task % 3 == 1) throw std::bad_alloc();
                              }),
                 std::bad_alloc);
  }
}

}  // namespace
}  // namespace strom
