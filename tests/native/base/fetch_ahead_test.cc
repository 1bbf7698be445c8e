// What is asked for ahead of a pass lies in its arrays.
#include "core/base/fetch_ahead.h"

#include <gtest/gtest.h>

namespace strom {
namespace {

TEST(FetchAhead, AsksForNothingBehindTheEndOfThePass) {
  constexpr int64_t kSize = 5000;
  const FetchAhead ahead(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    EXPECT_EQ(ahead.At(i), GainsByFetchingAhead() && i + FetchAhead::kDistance < kSize) << i;
  }
}

TEST(FetchAhead, AsksForNothingOfAShortPass) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, FetchAhead::kDistance}) {
    EXPECT_FALSE(FetchAhead(size).At(0)) << size;
  }
}

}  // namespace
}  // namespace strom
