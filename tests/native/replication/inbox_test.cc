// A worker that takes nothing for long holds no more than its bound and one copy of the parameters.
#include "core/replication/inbox.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace strom {
namespace {

// A message is one byte: what is added to every parameter.
class OneValueCodec final : public UpdateCodec {
 public:
  Status Check(Bytes, uint64_t) const override { return {}; }
  void Apply(Bytes message, std::span<float> parameters) const override {
    for (float& parameter : parameters) parameter += message[0];
  }
};

constexpr uint64_t kElements = 3;
constexpr int64_t kUpdateBytes = kUpdateHeaderBytes + 1;

ReceivedUpdate Update(uint64_t origin, uint64_t counter, uint8_t value,
                      uint64_t elements = kElements) {
  std::vector<uint8_t> update(static_cast<size_t>(kUpdateBytes), value);
  WriteUpdateHeader({{origin, counter}, 0, {1, elements, 0}, kLastPartFlag}, update);
  return {{origin, counter}, MakeBuffer(std::move(update))};
}

TEST(Inbox, KeepsWhatFitsAsItCame) {
  const OneValueCodec codec;
  Inbox inbox(2 * kUpdateBytes, codec);
  inbox.Add(Update(1, 1, 5));
  inbox.Add(Update(2, 1, 6));
  EXPECT_EQ(inbox.bytes(), 2 * kUpdateBytes);
  const Received received = inbox.Take();
  EXPECT_EQ(received.folded.updates, 0);
  ASSERT_EQ(received.updates.size(), 2u);
  EXPECT_EQ(received.updates[0].id, (UpdateId{1, 1}));
  EXPECT_TRUE(inbox.empty());
  EXPECT_EQ(inbox.bytes(), 0);
}

TEST(Inbox, AddsUpTheOldestBeyondItsBound) {
  const OneValueCodec codec;
  Inbox inbox(2 * kUpdateBytes, codec);
  for (uint64_t counter = 1; counter <= 10; ++counter) {
    inbox.Add(Update(1, counter, 1));
    inbox.Add(Update(2, counter + 7, 2));
    EXPECT_LE(inbox.bytes(), 2 * kUpdateBytes);
  }
  EXPECT_EQ(inbox.folded_updates(), 18);
  const Received received = inbox.Take();
  EXPECT_EQ(received.folded.sum, std::vector<float>(kElements, 9 * (1 + 2)));
  EXPECT_EQ(received.folded.first, (VersionVector{{1, 1}, {2, 8}}));
  EXPECT_EQ(received.folded.last, (VersionVector{{1, 9}, {2, 16}}));
  ASSERT_EQ(received.updates.size(), 2u);
  EXPECT_EQ(received.updates[0].id, (UpdateId{1, 10}));
  EXPECT_EQ(received.updates[1].id, (UpdateId{2, 17}));

  inbox.Add(Update(1, 11, 1));
  EXPECT_EQ(inbox.Take().folded.updates, 0);
}

TEST(Inbox, ASnapshotTakesThePlaceOfWhatWaits) {
  const OneValueCodec codec;
  Inbox inbox(2 * kUpdateBytes, codec);
  for (uint64_t counter = 1; counter <= 5; ++counter) inbox.Add(Update(1, counter, 1));
  inbox.Restart({std::make_shared<const std::vector<float>>(kElements), {{1, 3}}});
  EXPECT_FALSE(inbox.empty());
  inbox.Add(Update(1, 4, 1));
  const Received received = inbox.Take();
  ASSERT_TRUE(received.snapshot);
  EXPECT_EQ(received.snapshot->cut, (VersionVector{{1, 3}}));
  EXPECT_EQ(received.folded.updates, 0);
  EXPECT_EQ(received.updates.size(), 1u);
  EXPECT_TRUE(inbox.empty());
  EXPECT_FALSE(inbox.Take().snapshot);
}

// A header may say anything of the step that it is of.
TEST(Inbox, AddsUpWhatHeadersSayOfTheirStepsWithoutEnd) {
  const OneValueCodec codec;
  Inbox inbox(0, codec);
  const auto add = [&](uint64_t counter, uint64_t iteration, UpdateRange range) {
    std::vector<uint8_t> update(static_cast<size_t>(kUpdateBytes), 1);
    WriteUpdateHeader({{MasterOrigin(1), counter}, iteration, {1, kElements, 0}, kMergedFlag},
                      update);
    inbox.Add({{MasterOrigin(1), counter},
               MakeBuffer(std::move(update)),
               std::make_shared<const UpdateRanges>(UpdateRanges{range})});
  };
  constexpr uint64_t kMany = uint64_t{1} << 20;
  for (uint64_t i = 0; i < 3; ++i)
    add(1 + i, i, {1, i * kMany, (i + 1) * kMany, ~uint64_t{0} >> 1});
  const FoldedUpdates folded = inbox.Take().folded;
  EXPECT_EQ(folded.updates, static_cast<int64_t>(3 * kMany));
  EXPECT_EQ(folded.iterations, static_cast<double>(3 * kMany) * 0x1p35);
}

TEST(Inbox, FoldsNothingWhereTheOrderCounts) {
  const OneValueCodec codec;
  Inbox inbox(kNever, codec);
  for (uint64_t counter = 1; counter <= 100; ++counter) inbox.Add(Update(1, counter, 1));
  EXPECT_EQ(inbox.Take().updates.size(), 100u);
}

TEST(Inbox, DoesNotAddUpUpdatesOfAnotherFlatSpace) {
  const OneValueCodec codec;
  Inbox inbox(kUpdateBytes, codec);
  inbox.Add(Update(1, 1, 1));
  inbox.Add(Update(1, 2, 1));
  inbox.Add(Update(1, 3, 1, kElements + 1));
  inbox.Add(Update(1, 4, 1, kElements + 1));
  const Received received = inbox.Take();
  EXPECT_EQ(received.folded.updates, 2);
  EXPECT_EQ(received.updates.size(), 2u);
}

}  // namespace
}  // namespace strom
