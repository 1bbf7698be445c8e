// How long merged messages wait for one another, by the steps that are made.
#include "core/replication/pace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kMost = 5 * kMillisecond;

// Steps [first, first + count) of that length; when the last was made.
int64_t Make(Pace* pace, int64_t now_ns, uint64_t first, uint64_t count, int64_t step_ns) {
  for (uint64_t i = 0; i < count; ++i) pace->Note(now_ns += step_ns, first + i);
  return now_ns;
}

TEST(Pace, IsTheMostThatIsAllowedUntilTheLengthOfAStepIsKnown) {
  Pace pace(kMost);
  EXPECT_EQ(pace.interval_ns(), kMost);
  pace.Note(0, 7);
  EXPECT_EQ(pace.interval_ns(), kMost);
}

TEST(Pace, IsNoTimeThatAClockCannotReach) {
  EXPECT_LE(Pace(std::numeric_limits<int64_t>::max()).interval_ns(), 60'000 * kMillisecond);
  EXPECT_EQ(Pace(-5).interval_ns(), 0);
}

TEST(Pace, IsASixteenthOfAShortStepAndTheMostOfALongOne) {
  Pace fast(kMost), slow(kMost);
  Make(&fast, 0, 0, 20, 16 * kMillisecond);
  EXPECT_EQ(fast.interval_ns(), kMillisecond);
  Make(&slow, 0, 0, 20, 200 * kMillisecond);
  EXPECT_EQ(slow.interval_ns(), kMost);
}

TEST(Pace, CountsAStepOnceHoweverManyWorkersMakeItAndThoseThatAreSkipped) {
  Pace pace(kMost);
  for (uint64_t step = 0; step < 40; step += 2) {
    for (int worker = 0; worker < 3; ++worker) {
      pace.Note(static_cast<int64_t>(step) * 16 * kMillisecond + worker, step);
    }
  }
  EXPECT_NEAR(static_cast<double>(pace.interval_ns()), 1.0 * kMillisecond, 1000);
}

TEST(Pace, FollowsStepsThatBecomeLonger) {
  Pace pace(kMost);
  const int64_t now_ns = Make(&pace, 0, 0, 20, 16 * kMillisecond);
  Make(&pace, now_ns, 20, 60, 64 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(pace.interval_ns()), 4.0 * kMillisecond, 0.01 * kMillisecond);
}

TEST(Pace, ANumberFarFromTheOthersStopsNothing) {
  for (const uint64_t far : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 40}) {
    Pace pace(kMost);
    int64_t now_ns = Make(&pace, 0, 0, 20, 16 * kMillisecond);
    pace.Note(now_ns, far);
    EXPECT_EQ(pace.interval_ns(), kMillisecond);
    Make(&pace, now_ns, 20, 60, 64 * kMillisecond);
    EXPECT_NEAR(static_cast<double>(pace.interval_ns()), 4.0 * kMillisecond, 0.01 * kMillisecond);
  }
}

}  // namespace
}  // namespace strom
