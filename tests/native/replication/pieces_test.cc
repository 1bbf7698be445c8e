#include "core/replication/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
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

// Where these pieces of `values` belong, if they are to be those of `wanted`.
WholePieceTaker TakerOf(const std::vector<float>& wanted, const std::vector<uint32_t>& indices,
                        std::vector<float>* values) {
  const PieceGrid grid(values->size());
  const std::vector<uint64_t> hashes = grid.Hashes(wanted);
  std::vector<PieceTaker::Place> places;
  for (const uint32_t index : indices) {
    places.push_back({grid.Piece(std::span(*values), index), hashes[index]});
  }
  return WholePieceTaker(std::move(places));
}

// Their bytes, one behind the other.
std::vector<uint8_t> BytesOf(const std::vector<float>& values,
                             const std::vector<uint32_t>& indices) {
  std::vector<uint8_t> bytes;
  for (const Bytes piece : PieceGrid(values.size()).Parts(values, indices)) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  }
  return bytes;
}

TEST(WholePieceTaker, WhatOneLacksMakesItsValuesThoseOfTheOther) {
  for (const size_t size : {size_t{1}, size_t{300}, size_t{1001}}) {
    const PieceGrid grid(size);
    const std::vector<float> wanted = Counting(size);
    std::vector<float> had = wanted;
    had[size / 2] = -1;
    had[size - 1] = -2;
    const std::vector<uint32_t> lacking = Lacking(grid.Hashes(wanted), grid.Hashes(had));
    ASSERT_THAT(lacking, SizeIs(size == 1 ? 1 : 2));
    const std::vector<uint8_t> bytes = BytesOf(wanted, lacking);
    EXPECT_EQ(bytes.size(), grid.ElementsOf(lacking) * sizeof(float));
    WholePieceTaker taker = TakerOf(wanted, lacking, &had);
    for (size_t at = 0; at < bytes.size(); at += 3) {
      EXPECT_FALSE(taker.IsWhole());
      ASSERT_TRUE(
          taker.Take(Bytes(bytes).subspan(at, std::min<size_t>(3, bytes.size() - at))).ok());
    }
    EXPECT_TRUE(taker.IsWhole());
    EXPECT_EQ(had, wanted);
    EXPECT_EQ(taker.Take(Bytes(bytes).first(1)).code, Code::kCorrupt) << "one too many";
  }
}

TEST(WholePieceTaker, WhatBelongsToAnotherHashIsRefusedOnceItsPieceIsWhole) {
  const std::vector<float> wanted = Counting(1001);
  std::vector<float> values(1001);
  WholePieceTaker taker = TakerOf(wanted, {3, 250}, &values);
  std::vector<uint8_t> bytes = BytesOf(wanted, {3, 250});
  ++bytes.back();
  EXPECT_TRUE(taker.Take(Bytes(bytes).first(bytes.size() - 1)).ok());
  EXPECT_EQ(taker.Take(Bytes(bytes).last(1)).code, Code::kCorrupt);
}

TEST(WholePieceTaker, WithoutPlacesItIsWhole) {
  WholePieceTaker taker({});
  EXPECT_TRUE(taker.IsWhole());
  EXPECT_TRUE(taker.Take({}).ok());
}

TEST(PieceGrid, WhoHasNothingLacksAll) {
  const PieceGrid grid(10);
  const std::vector<float> values = Counting(10);
  EXPECT_THAT(Lacking(grid.Hashes(values), {}), SizeIs(10));
  EXPECT_THAT(Lacking(grid.Hashes(values), grid.Hashes(values)), IsEmpty());
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
