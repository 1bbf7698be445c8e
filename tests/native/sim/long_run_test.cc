// Memory stays flat in jobs that replace hundreds of processes, or last for hours of virtual time.
// `simulator --long` runs the same for ten thousand, and for a week.
#include "sim/long_run.h"

#include <gtest/gtest.h>

namespace strom {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kShare = 10;  // a run takes as much longer
#else
constexpr int64_t kShare = 1;
#endif

TEST(LongRunTest, HundredsOfRejoinsInSynchronousModeLeaveNothingBehind) {
  const LongRun run = RunLong(RejoinsJob(500 / kShare, /*max_staleness=*/0));
  EXPECT_EQ(run.broken, "");
  EXPECT_EQ(run.replaced, 500 / kShare);
  EXPECT_GT(run.rejoined, 250 / kShare);
  EXPECT_LT(run.last_tenth.origins, 20);
}

TEST(LongRunTest, HundredsOfRejoinsInBoundedModeLeaveNothingBehind) {
  const LongRun run = RunLong(RejoinsJob(200 / kShare, /*max_staleness=*/2));
  EXPECT_EQ(run.broken, "");
  EXPECT_EQ(run.replaced, 200 / kShare);
}

TEST(LongRunTest, HoursOfUpdatesLeaveNothingBehind) {
  const LongRun run = RunLong(HoursJob(12 / kShare + 6));
  EXPECT_EQ(run.broken, "");
  EXPECT_GT(run.hours, 6);
  EXPECT_EQ(run.generations, 12 / kShare + 6);
  EXPECT_LE(run.last_tenth.origins, 5);
}

TEST(LongRunTest, WhatGrowsIsFound) {
  const Holdings first = {
      .origins = 10, .update_bytes = 1000, .status_bytes = 2000, .resident_bytes = 1 << 20};
  EXPECT_EQ(StaysFlat(first, first), "");
  Holdings last = first;
  last.origins = 100;
  EXPECT_EQ(StaysFlat(first, last), "origins in a vector grew from 10 to 100");
  last = first;
  last.resident_bytes = 100 << 20;
  EXPECT_NE(StaysFlat(first, last), "");
}

}  // namespace
}  // namespace strom
