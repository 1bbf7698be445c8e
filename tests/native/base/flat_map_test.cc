// A map as one sorted array: as std::map has it, whatever is done in whatever order.
#include "core/base/flat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>

namespace strom {
namespace {

using Map = FlatMap<int, int>;
using testing::ElementsAre;
using testing::Pair;

TEST(FlatMapTest, DoesAsStdMapDoes) {
  std::mt19937 random(1);
  Map map;
  std::map<int, int> expected;
  for (int i = 0; i < 5000; ++i) {
    const int key = static_cast<int>(random() % 50), value = static_cast<int>(random() % 1000);
    switch (random() % 6) {
      case 0:
        map[key] = expected[key] = value;
        break;
      case 1:
        EXPECT_EQ(map.try_emplace(key, value).second, expected.try_emplace(key, value).second);
        break;
      case 2:
        EXPECT_EQ(map.erase(key), expected.erase(key));
        break;
      case 3:
        if (const auto found = map.find(key); found != map.end()) {
          const auto next = map.erase(found);
          const auto also = expected.erase(expected.find(key));
          EXPECT_EQ(next == map.end(), also == expected.end());
        }
        break;
      case 4:
        EXPECT_EQ(std::distance(map.begin(), map.lower_bound(key)),
                  std::distance(expected.begin(), expected.lower_bound(key)));
        break;
      default:
        EXPECT_EQ(map.contains(key), expected.contains(key));
    }
    ASSERT_EQ(map.size(), expected.size());
    ASSERT_TRUE(std::equal(
        map.begin(), map.end(), expected.begin(),
        [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; }));
  }
}

TEST(FlatMapTest, KeysAreInOrderAndTheFirstOfTwoIsTaken) {
  const Map map{{3, 30}, {1, 10}, {3, 31}, {2, 20}};
  EXPECT_THAT(map, ElementsAre(Pair(1, 10), Pair(2, 20), Pair(3, 30)));
  EXPECT_EQ(map.back(), std::pair(3, 30));
  EXPECT_EQ(map, (Map{{1, 10}, {2, 20}, {3, 30}}));
}

TEST(FlatMapTest, AKeyThatIsNotThereIsNotMadeByLooking) {
  const Map map{{1, 10}};
  EXPECT_EQ(map.at(1), 10);
  EXPECT_THROW(map.at(2), std::out_of_range);
  EXPECT_EQ(map.find(2), map.end());
  EXPECT_EQ(map.size(), 1U);
}

TEST(FlatMapTest, ErasesWhatAPredicateNames) {
  Map map{{1, 10}, {2, 20}, {3, 30}, {4, 40}};
  EXPECT_EQ(erase_if(map, [](const auto& entry) { return entry.first % 2 == 0; }), 2U);
  EXPECT_THAT(map, ElementsAre(Pair(1, 10), Pair(3, 30)));
}

TEST(FlatMapTest, WithMemoryForItAnInsertionMovesNothing) {
  Map map{{2, 20}};
  map.reserve(2);
  const auto* const first = &*map.begin();
  map[3] = 30;
  EXPECT_EQ(&*map.begin(), first);
}

}  // namespace
}  // namespace strom
