// Changes as bfloat16: how they are rounded, and that before and change make one and the same
// after.
#include "core/joint/bfloat16.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace strom {
namespace {

using testing::ElementsAre;

std::vector<float> ThroughTheWire(const std::vector<float>& before,
                                  const std::vector<float>& after) {
  std::vector<uint8_t> change(before.size() * kBfloat16Bytes);
  EncodeChange(before, after, change);
  std::vector<float> came(before.size());
  AddChange(before, change, came);
  return came;
}

TEST(Bfloat16Test, IsTheNearestNumberAndTiesGoToEven) {
  const std::vector<float> zero(6, 0.0f);
  const std::vector<float> changes = {1.0f, 1.00390625f, 1.01171875f, 1.004f, -1.00390625f, 0.0f};
  EXPECT_THAT(ThroughTheWire(zero, changes),
              ElementsAre(1.0f, 1.0f, 1.015625f, 1.0078125f, -1.0f, 0.0f));
}

TEST(Bfloat16Test, WhatWouldBeInfiniteIsTheLargestNumber) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<uint8_t> change(2 * kBfloat16Bytes);
  EncodeChange(std::vector<float>{0, kMost}, std::vector<float>{kMost, -kMost}, change);
  EXPECT_THAT(change, ElementsAre(0x7f, 0x7f, 0x7f, 0xff));
}

TEST(Bfloat16Test, RoundsAChangeToEightBitsHoweverLargeTheModelIs) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> before, after;
  for (int i = 0; i < 10'000; ++i) {
    before.push_back(normal(random));
    after.push_back(before.back() + 1e-3f * normal(random));
  }
  const std::vector<float> came = ThroughTheWire(before, after);
  for (size_t i = 0; i < came.size(); ++i) {
    const float change = after[i] - before[i];
    EXPECT_NEAR(came[i] - before[i], change, std::abs(change) / 256 + 4e-7f);
  }
}

TEST(Bfloat16Test, ValuesThemselvesAreRoundedAndWhatIsNotFiniteStaysSo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.01171875f,
                                     -1.004f,
                                     0.0f,
                                     kInfinity,
                                     -kInfinity,
                                     std::numeric_limits<float>::max(),
                                     std::bit_cast<float>(uint32_t{0x7f800001})};
  std::vector<uint8_t> rounded(values.size() * kBfloat16Bytes);
  EncodeRounded(values, rounded);
  std::vector<float> came(values.size());
  DecodeRounded(rounded, came);
  ASSERT_TRUE(std::isnan(came.back()));
  came.pop_back();
  EXPECT_THAT(came, ElementsAre(1.015625f, -1.0078125f, 0.0f, kInfinity, -kInfinity,
                                std::bit_cast<float>(uint32_t{0x7f7f0000})));
}

}  // namespace
}  // namespace strom
