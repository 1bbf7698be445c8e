// Which updates of a soak count, and what is said of their ages.
#include "bench/relay_ages.h"

#include <gtest/gtest.h>

namespace strom::bench {
namespace {

TEST(RelayAges, WhatWasMadeBeforeTrainingHadSettledDoesNotCount) {
  UpdateAges ages;
  ages.CountFrom(1'000'000);
  ages.Add(999'999, 60'000'000);
  EXPECT_EQ(ages.Json(), "[]");
  ages.Add(1'000'000, 1'003'000);
  ages.Add(2'000'000, 2'001'000);
  ages.Add(3'000'000, 3'002'000);
  EXPECT_EQ(ages.Json(), "[2.000000, 2.000000, 3.000000]");
}

}  // namespace
}  // namespace strom::bench
