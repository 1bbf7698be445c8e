// The seam to somebody else's threads: every task once, and no exception into those threads.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>
#include <thread>

namespace strom {
namespace {

// Two threads beside the caller's; what came into one of them as an exception would end the test.
Parallel Three() {
  const auto run = [](void*, int64_t tasks, Parallel::Task task, void* context) {
    std::atomic<int64_t> next = 0;
    const auto work = [&] {
      for (int64_t i = next++; i < tasks; i = next++) task(context, i);
    };
    std::thread second(work), third(work);
    work();
    second.join();
    third.join();
  };
  return {3, run, nullptr};
}

TEST(Parallel, RunsEveryTaskOnce) {
  for (const Parallel& parallel : {Parallel{}, Three()}) {
    std::array<std::atomic<int>, 100> runs{};
    parallel.For(100, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST(Parallel, WhatTasksThrowComesOutOnTheCallersThread) {
  for (const Parallel& parallel : {Parallel{}, Three()}) {
    EXPECT_THROW(parallel.For(100,
                              [](int64_t task) {
                                if (task % 3 == 1) throw std::bad_alloc();
                              }),
                 std::bad_alloc);
  }
}

}  // namespace
}  // namespace strom
