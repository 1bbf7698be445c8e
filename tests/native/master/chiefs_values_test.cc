#include "core/master/chiefs_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace strom {
namespace {

using testing::ElementsAre;

constexpr uint64_t kNumber = 7;

// A chief with these values.
class Chief {
 public:
  explicit Chief(std::vector<float> own) : values(std::move(own)), grid_(values.size()) {}
  ChiefsValues Announced() const {
    Announce announce{{1, values.size(), 5}, 0, ""};
    announce.hashes = grid_.Hashes(values);
    return ChiefsValues(announce, kNumber);
  }
  std::vector<float> Answer(const AskPieces& ask) const {
    std::vector<float> answer;
    for (const uint32_t index : ask.indices) {
      std::ranges::copy(grid_.Piece(std::span(values), index), std::back_inserter(answer));
    }
    return answer;
  }

  const std::vector<float> values;

 private:
  const PieceGrid grid_;
};

TEST(ChiefsValues, OnlyWhatTheMasterLacksIsAskedFor) {
  const Chief chief({1, 2, 3, 4, 5});
  ChiefsValues announced = chief.Announced();
  std::vector<float> own{1, 0, 3, 0};  // of a smaller model
  EXPECT_FALSE(announced.IsWhole());
  const auto ask = announced.TakeQuestion(own);
  ASSERT_TRUE(ask);
  EXPECT_THAT(ask->indices, ElementsAre(1, 3, 4));
  EXPECT_EQ(ask->number, kNumber);
  EXPECT_FALSE(announced.TakeQuestion(own)) << "it is asked once";
  EXPECT_FALSE(announced.IsWhole());
  EXPECT_EQ(announced.Add(chief.Answer(*ask)), "");
  EXPECT_TRUE(announced.IsWhole());
  ASSERT_TRUE(announced.Install(&own));
  EXPECT_EQ(own, chief.values);
}

TEST(ChiefsValues, NothingIsAskedForWhereTheMasterHasAll) {
  const Chief chief({1, 2, 3});
  ChiefsValues announced = chief.Announced();
  std::vector<float> own = chief.values;
  EXPECT_FALSE(announced.TakeQuestion(own));
  EXPECT_TRUE(announced.IsWhole());
  ASSERT_TRUE(announced.Install(&own));
  EXPECT_EQ(own, chief.values);
}

TEST(ChiefsValues, ValuesThatHaveChangedSinceTheQuestionAreAskedForAgain) {
  const Chief chief({1, 2, 3});
  ChiefsValues announced = chief.Announced();
  auto ask = announced.TakeQuestion(std::vector<float>{1, 0, 3});
  ASSERT_TRUE(ask);
  EXPECT_EQ(announced.Add(chief.Answer(*ask)), "");
  std::vector<float> others{1, 0, 0};  // another worker's replica has become the master's
  EXPECT_FALSE(announced.Install(&others));
  EXPECT_EQ(others, (std::vector<float>{1, 0, 0}));
  EXPECT_FALSE(announced.IsWhole());
  ask = announced.TakeQuestion(others);
  ASSERT_TRUE(ask);
  EXPECT_THAT(ask->indices, ElementsAre(2)) << "the second is here";
  EXPECT_EQ(announced.Add(chief.Answer(*ask)), "");
  ASSERT_TRUE(announced.Install(&others));
  EXPECT_EQ(others, chief.values);
}

TEST(ChiefsValues, NothingIsTakenThatWasNotAskedFor) {
  const Chief chief({1, 2, 3});
  ChiefsValues announced = chief.Announced();
  EXPECT_FALSE(announced.MostBytes({BlobKind::kPieces, 1, 0, kNumber, 0}));
  const auto ask = announced.TakeQuestion({});
  ASSERT_TRUE(ask);
  EXPECT_TRUE(announced.MostBytes({BlobKind::kPieces, 1, 0, kNumber, 0}));
  EXPECT_FALSE(announced.MostBytes({BlobKind::kPieces, 1, 0, kNumber - 1, 0}));
  EXPECT_FALSE(announced.MostBytes({BlobKind::kPieces, 2, 0, kNumber, 0}));
  EXPECT_EQ(announced.Add(chief.Answer(*ask)), "");
  EXPECT_FALSE(announced.MostBytes({BlobKind::kPieces, 1, 0, kNumber, 0}));
}

// What a piece of no values would be has a hash, too.
TEST(ChiefsValues, AModelThatNobodyHasIsNotThereByItsHashes) {
  ChiefsValues announced({{1, uint64_t{1} << 60, 5}, 0, "", {}, 0, std::vector<uint64_t>(256)}, 1);
  const auto ask = announced.TakeQuestion(std::vector<float>{1, 2});
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->indices.size(), kMostPieces);
}

}  // namespace
}  // namespace strom
