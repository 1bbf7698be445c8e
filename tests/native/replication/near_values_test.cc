#include "core/replication/near_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "share.h"

namespace strom {
namespace {

std::vector<uint8_t> NearOf(const std::vector<std::vector<float>>& pieces) {
  std::vector<uint8_t> bytes;
  for (const std::vector<float>& piece : pieces) AppendNear(piece, &bytes);
  return bytes;
}

NearPieceTaker TakerOf(const std::vector<std::vector<float>>& wanted,
                       std::vector<std::vector<float>>* had) {
  std::vector<PieceTaker::Place> places;
  for (size_t i = 0; i < wanted.size(); ++i) {
    places.push_back({(*had)[i], Hash(AsBytes(wanted[i]))});
  }
  return NearPieceTaker(std::move(places));
}

// Whether `had` becomes `wanted`, bit by bit.
bool Becomes(const std::vector<float>& wanted, std::vector<float> had) {
  std::vector<std::vector<float>> values = {std::move(had)};
  NearPieceTaker taker = TakerOf({wanted}, &values);
  const std::vector<uint8_t> bytes = NearOf({wanted});
  EXPECT_TRUE(taker.Take(bytes).ok());
  EXPECT_TRUE(taker.IsWhole());
  return taker.HaveTheirHashes();
}

std::vector<float> Normal(size_t size, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

// The distance of floats at the largest value.
double UnitOf(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return std::exp2(std::ilogb(largest) - 23);
}

// Each value as many units away as `units` says of its index.
template <typename Units>
std::vector<float> Moved(const std::vector<float>& values, Units units) {
  const double unit = UnitOf(values);
  std::vector<float> moved(values);
  for (size_t i = 0; i < values.size(); ++i) {
    moved[i] = static_cast<float>(values[i] + units(i) * unit);
  }
  return moved;
}

TEST(NearValues, WhatIsAFewUnitsAwayBecomesTheSame) {
  const std::vector<float> wanted = Normal(3000, 0.05f, 1);
  EXPECT_TRUE(Becomes(wanted, wanted));
  for (const double most : {0.3, 3.0, 30.0}) {
    EXPECT_TRUE(Becomes(wanted, Moved(wanted, [&](size_t i) { return i % 2 ? most : -most; })))
        << most;
  }
  EXPECT_FALSE(Becomes(wanted, Moved(wanted, [](size_t i) { return i == 2999 ? 100 : 0; })));
}

TEST(NearValues, TakeLittleMoreThanAQuarterOfALayersFloats) {
  EXPECT_LT(NearOf({Normal(100'000, 0.05f, 1)}).size(), 4 * 100'000 * 0.29);
}

TEST(NearValues, WhatCannotBeShortStaysAsItIs) {
  std::vector<float> tiny(2000, 1e-30f);  // below the unit
  tiny[0] = 1;
  EXPECT_TRUE(Becomes(tiny, tiny));
  EXPECT_EQ(NearOf({tiny}).size(),
            4 + 1 + 4 * 1024 + NearOf({std::vector(976, 1e-30f)}).size() - 4);
}

TEST(NearValues, NumbersOfEveryKindArriveBitByBit) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> kinds = {0.0f,
                                    -0.0f,
                                    Limits::denorm_min(),
                                    -3 * Limits::denorm_min(),
                                    Limits::min(),
                                    -Limits::min(),
                                    std::nextafter(Limits::min(), 0.0f),
                                    1.0f,
                                    -1.5f,
                                    0.1f,
                                    Limits::max(),
                                    -Limits::max()};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    EXPECT_TRUE(Becomes({kinds[kind]}, {kinds[kind]})) << kinds[kind];
    EXPECT_TRUE(Becomes({kinds.begin(), kinds.begin() + kind + 1},
                        {kinds.begin(), kinds.begin() + kind + 1}))
        << "up to " << kinds[kind];
  }
  EXPECT_TRUE(Becomes(std::vector<float>(5000), std::vector<float>(5000)));
  EXPECT_LT(NearOf({std::vector<float>(4096)}).size(), 4096);
}

TEST(NearValues, WhatIsNotFiniteArrivesWithItsBlock) {
  std::vector<float> wanted = Normal(3000, 1, 1);
  wanted[5] = std::numeric_limits<float>::quiet_NaN();
  wanted[2999] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(Becomes(wanted, wanted));
}

TEST(NearValues, OwnValuesOfAnyKindAreNotNear) {
  using Limits = std::numeric_limits<float>;
  for (const float own : {Limits::quiet_NaN(), -Limits::infinity(), Limits::max(), 1e-3f, 0.0f}) {
    EXPECT_FALSE(Becomes(Normal(3000, 1e-20f, 1), std::vector<float>(3000, own))) << own;
    EXPECT_FALSE(Becomes({1.0f, 1e-3f}, {own, own})) << own;
  }
}

TEST(NearValues, AnyBitsArriveWhereTheyAreHad) {
  std::mt19937 random(7);
  for (uint64_t run = 0; run < ShareOf(300); ++run) {
    std::vector<float> wanted(random() % kNearBlock + 1);
    const uint32_t least = random() % 250;
    for (float& value : wanted) {
      const uint32_t exponent = least + random() % 5;
      value = std::bit_cast<float>(static_cast<uint32_t>(random() & 0x807FFFFF) | exponent << 23);
    }
    EXPECT_TRUE(Becomes(wanted, wanted)) << run;
    EXPECT_TRUE(Becomes(wanted, Moved(wanted, [&](size_t) { return random() % 50 - 25.0; })))
        << run;
  }
}

TEST(NearPieceTaker, TakesPiecesInBytesOfAnyNumber) {
  const std::vector<std::vector<float>> wanted = {
      Normal(1500, 1, 1), Normal(1500, 1e-3f, 2), {2.0f}};
  const std::vector<uint8_t> bytes = NearOf(wanted);
  for (const size_t step : {size_t{1}, size_t{1000}, bytes.size()}) {
    std::vector<std::vector<float>> values = wanted;
    NearPieceTaker taker = TakerOf(wanted, &values);
    for (size_t at = 0; at < bytes.size(); at += step) {
      EXPECT_FALSE(taker.IsWhole());
      ASSERT_TRUE(taker.Take(Bytes(bytes).subspan(at, std::min(step, bytes.size() - at))).ok());
    }
    EXPECT_TRUE(taker.IsWhole());
    EXPECT_TRUE(taker.HaveTheirHashes());
    EXPECT_EQ(values, wanted);
    EXPECT_EQ(taker.Take(Bytes(bytes).first(1)).code, Code::kCorrupt) << "one too many";
  }
}

TEST(NearPieceTaker, OnePieceThatIsNotNearSpoilsNoOther) {
  const std::vector<std::vector<float>> wanted = {Normal(1500, 1, 1), Normal(1500, 1, 2),
                                                  Normal(1500, 1, 3)};
  std::vector<std::vector<float>> values = wanted;
  values[1] = Normal(1500, 1, 4);
  NearPieceTaker taker = TakerOf(wanted, &values);
  ASSERT_TRUE(taker.Take(NearOf(wanted)).ok());
  EXPECT_TRUE(taker.IsWhole());
  EXPECT_FALSE(taker.HaveTheirHashes());
  EXPECT_EQ(values[0], wanted[0]);
  EXPECT_EQ(values[2], wanted[2]);
}

TEST(NearPieceTaker, WithoutPlacesItIsWhole) {
  NearPieceTaker taker({});
  EXPECT_TRUE(taker.IsWhole());
  EXPECT_TRUE(taker.HaveTheirHashes());
  EXPECT_EQ(taker.Take(std::vector<uint8_t>(1)).code, Code::kCorrupt);
}

TEST(NearPieceTaker, ALengthThatNoPieceHasIsRefused) {
  for (const uint8_t length : {0, 4 + 1 + 1, 255}) {
    std::vector<std::vector<float>> values = {{1.0f}};
    NearPieceTaker taker = TakerOf({{1.0f}}, &values);
    EXPECT_EQ(taker.Take(std::vector<uint8_t>{length, 0, 0, 0, 0}).code, Code::kCorrupt)
        << int{length};
  }
}

TEST(NearPieceTaker, BytesThatAreMadeUpAreNotNear) {
  std::mt19937 random(3);
  for (uint64_t run = 0; run < ShareOf(300); ++run) {
    const std::vector<float> wanted = Normal(random() % 2000 + 1, 1, random());
    std::vector<uint8_t> bytes = NearOf({wanted});
    const size_t length = bytes.size();
    for (size_t i = 4; i < length; ++i) bytes[i] = static_cast<uint8_t>(random());
    std::vector<std::vector<float>> values = {wanted};
    NearPieceTaker taker = TakerOf({wanted}, &values);
    ASSERT_TRUE(taker.Take(bytes).ok());
    EXPECT_TRUE(taker.IsWhole());
    EXPECT_FALSE(taker.HaveTheirHashes());
  }
}

}  // namespace
}  // namespace strom
