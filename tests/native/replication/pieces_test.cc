#include "core/replication/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace strom {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// 1, 2, 3, ...
std::vector<float> Counting(size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

TEST(PieceGrid, HasAtMostSoManyPiecesWhateverTheSize) {
  EXPECT_EQ(PieceGrid(0).count(), 0u);
  EXPECT_EQ(PieceGrid(1).count(), 1u);
  EXPECT_EQ(PieceGrid(kMostPieces).count(), kMostPieces);
  EXPECT_EQ(PieceGrid(kMostPieces + 1).count(), 129u);  // two values each, and one in the last
  EXPECT_LE(PieceGrid(18'000'000).count(), kMostPieces);
  EXPECT_LE(PieceGrid(~uint64_t{0}).count(), kMostPieces);
}

TEST(PieceGrid, OnlyWholePiecesHaveAHash) {
  const PieceGrid grid(1001);  // four values each, and one in the last
  const std::vector<float> values = Counting(1001);
  const std::vector<uint64_t> hashes = grid.Hashes(values);
  ASSERT_THAT(hashes, SizeIs(251));
  EXPECT_THAT(grid.Hashes(std::span(values).first(1000)), SizeIs(250));
  EXPECT_THAT(grid.Hashes(std::span(values).first(7)), ElementsAre(hashes[0]));
  EXPECT_THAT(grid.Hashes({}), IsEmpty());
}

TEST(PieceGrid, WhatOneLacksMakesItsValuesThoseOfTheOther) {
  for (const size_t size : {size_t{1}, size_t{300}, size_t{1001}}) {
    const PieceGrid grid(size);
    const std::vector<float> wanted = Counting(size);
    std::vector<float> had = wanted;
    had[size / 2] = -1;
    had[size - 1] = -2;
    const std::vector<uint64_t> hashes = grid.Hashes(wanted);
    const std::vector<uint32_t> lacking = Lacking(hashes, grid.Hashes(had));
    ASSERT_THAT(lacking, SizeIs(size == 1 ? 1 : 2));
    const std::vector<uint8_t> list = grid.List(wanted, lacking);
    EXPECT_LE(static_cast<int64_t>(list.size()), grid.MostBytes());
    std::vector<uint32_t> read;
    ASSERT_TRUE(grid.Read(list, &read).ok());
    EXPECT_EQ(read, lacking);
    EXPECT_TRUE(grid.HasHashes(list, hashes));
    EXPECT_FALSE(grid.HasHashes(grid.List(had, lacking), hashes));
    grid.Put(list, had);
    EXPECT_EQ(had, wanted);
    EXPECT_EQ(HashOfAll(grid.Hashes(had)), HashOfAll(hashes));
  }
}

TEST(PieceGrid, WhoHasNothingLacksAll) {
  const PieceGrid grid(10);
  const std::vector<float> values = Counting(10);
  EXPECT_THAT(Lacking(grid.Hashes(values), {}), SizeIs(10));
  EXPECT_THAT(Lacking(grid.Hashes(values), grid.Hashes(values)), IsEmpty());
}

TEST(PieceGrid, AListThatIsNoneIsSaidToBe) {
  const PieceGrid grid(1001);
  std::vector<uint32_t> read;
  const std::vector<uint8_t> list = grid.List(Counting(1001), {3, 250});
  for (size_t size = 1; size < list.size(); ++size) {
    const bool is_whole = size == 20;  // the first piece
    EXPECT_EQ(grid.Read(Bytes(list).first(size), &read).ok(), is_whole) << size;
  }
  std::vector<uint8_t> descending = list;
  descending[20] = 3;
  EXPECT_EQ(grid.Read(descending, &read).code, Code::kCorrupt);
  std::vector<uint8_t> beyond = list;
  beyond[20] = 251;
  EXPECT_EQ(grid.Read(beyond, &read).code, Code::kCorrupt);
}

TEST(PieceGrid, IndicesAreThoseOfItsPiecesAscending) {
  const PieceGrid grid(10);
  EXPECT_TRUE(grid.Has({}));
  EXPECT_TRUE(grid.Has({0, 9}));
  EXPECT_FALSE(grid.Has({9, 0}));
  EXPECT_FALSE(grid.Has({1, 1}));
  EXPECT_FALSE(grid.Has({10}));
}

}  // namespace
}  // namespace strom
