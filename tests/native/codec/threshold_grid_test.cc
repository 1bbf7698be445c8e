// The grid that thresholds are drawn to where updates are merged.
#include "core/codec/threshold_grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "core/codec/value_table.h"

namespace strom {
namespace {

// Positive normal numbers of every magnitude that a threshold may have.
template <typename Visit>
void ForRandomThresholds(Visit visit) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-126, 126);
  for (int i = 0; i < 100'000; ++i) visit(std::exp2(exponent(random)));
}

TEST(ThresholdGrid, AThresholdMovesByATenthAtMost) {
  ForRandomThresholds([](float threshold) {
    const float ratio = OnGrid(threshold) / threshold;
    ASSERT_GE(ratio, 0.9f) << threshold;
    ASSERT_LE(ratio, 1.1f) << threshold;
  });
}

TEST(ThresholdGrid, WhatIsOnTheGridStays) {
  ForRandomThresholds([](float threshold) {
    const float once = OnGrid(threshold);
    ASSERT_EQ(OnGrid(once), once) << threshold;
  });
}

TEST(ThresholdGrid, ATableOfValuesHasRoomForIt) {
  ForRandomThresholds([](float threshold) {
    const float on_grid = OnGrid(threshold);
    int exponent = 0;
    const float mantissa = std::ldexp(std::frexp(on_grid, &exponent), 8);
    ASSERT_EQ(mantissa, std::floor(mantissa)) << threshold;
    if (on_grid > 1e-30f && on_grid < 1e30f) {
      ASSERT_EQ(TableValue(on_grid), on_grid) << threshold;
    }
  });
}

TEST(ThresholdGrid, APowerOfTwoTimesAThresholdLiesTheSameTimesOn) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> significand(1, 2);
  for (int i = 0; i < 10'000; ++i) {
    const float threshold = significand(random);
    for (const int power : {-100, -7, -1, 1, 3, 90}) {
      ASSERT_EQ(OnGrid(std::ldexp(threshold, power)), std::ldexp(OnGrid(threshold), power));
    }
  }
}

TEST(ThresholdGrid, ThereAreFourToAPowerOfTwoAndALargerOneIsNeverBelow) {
  std::set<float> on_grid;
  float before = 0;
  for (float threshold = 1; threshold < 2; threshold += 1e-4f) {
    const float next = OnGrid(threshold);
    EXPECT_GE(next, before);
    on_grid.insert(before = next);
  }
  EXPECT_EQ(on_grid, (std::set<float>{1, 1.1875f, 1.4140625f, 1.6796875f, 2}));
}

TEST(ThresholdGrid, TheLeastAndTheLargestThresholdsStayNormalAndFinite) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  EXPECT_EQ(OnGrid(kLeast), kLeast);
  EXPECT_TRUE(std::isnormal(OnGrid(std::nextafter(kLeast, 1.0f))));
  EXPECT_TRUE(std::isnormal(OnGrid(0x1p126f)));
}

}  // namespace
}  // namespace strom
