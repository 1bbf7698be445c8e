// What a master publishes of what it has accepted: when, in how many messages, and under which
// name.
#include "core/master/publisher.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/replication/merged_update.h"
#include "merged_updates.h"

namespace strom {
namespace {

constexpr Layout kLayout = {.generation = 1, .size = 100, .hash = 5};
constexpr uint64_t kMaster = MasterOrigin(3);
constexpr int64_t kInterval = 5;

Publisher WithCounter(uint64_t counter, const UpdateCodec& codec = MessageCodec()) {
  return Publisher(kLayout, kMaster, counter, kInterval, &codec);
}

Buffer Update(uint64_t origin, uint64_t counter) {
  return UpdateWith({origin, counter}, kLayout, {{0, 1}}, 1, 10 * counter);
}

Buffer OfBytes(const UpdateId& id, int64_t bytes) {
  std::vector<uint8_t> update(static_cast<size_t>(bytes));
  WriteUpdateHeader({id, 0, kLayout, kLastPartFlag}, update);
  return MakeBuffer(std::move(update));
}

TEST(Publisher, TheFirstAfterAPauseIsDueAtOnceAndThoseWithinTheIntervalTogetherAtItsEnd) {
  Publisher publisher = WithCounter(0);
  EXPECT_EQ(publisher.due_ns(), kNever);
  publisher.Add(Update(1, 1));
  EXPECT_LE(publisher.due_ns(), 100);
  (void)publisher.Publish(100);
  EXPECT_TRUE(publisher.empty());
  EXPECT_EQ(publisher.due_ns(), kNever);
  publisher.Add(Update(1, 2));
  publisher.Add(Update(2, 1));
  EXPECT_EQ(publisher.due_ns(), 100 + kInterval);
  const Buffer together = publisher.Publish(105).second;
  EXPECT_EQ(ContentsOf(together), (UpdateRanges{{1, 1, 2, 20}, {2, 0, 1, 10}}));
  publisher.Add(Update(2, 2));
  EXPECT_LE(publisher.due_ns(), 200);  // a pause
  EXPECT_EQ(publisher.published_updates(), 3);
}

TEST(Publisher, PublicationsAreNumberedOnUnderTheMastersOrigin) {
  Publisher publisher = WithCounter(7);
  for (uint64_t counter = 1; counter <= 3; ++counter) {
    publisher.Add(Update(1, counter));
    const auto [id, publication] = publisher.Publish(0);
    EXPECT_EQ(id, (UpdateId{kMaster, 7 + counter}));
    UpdateHeader header;
    ASSERT_TRUE(ValidateUpdate(*publication, kLayout, MessageCodec(), &header).ok());
    EXPECT_EQ(header.id, id);
    EXPECT_TRUE(header.merged());
    EXPECT_EQ(header.iteration, 10 * counter) << "of the latest in it";
  }
}

TEST(Publisher, WhatIsMergedOnItsWayIsPublishedWithTheRest) {
  Publisher publisher = WithCounter(0);
  publisher.Add(MergedOf({Update(1, 1), Update(2, 1)}, kLayout));
  publisher.Add(Update(1, 2));
  const Buffer publication = publisher.Publish(0).second;
  EXPECT_EQ(ContentsOf(publication), (UpdateRanges{{1, 0, 2, 20}, {2, 0, 1, 10}}));
  std::vector<float> added(kLayout.size);
  ForEachMessage(publication, [&](Bytes message) { MessageCodec().Apply(message, added); });
  EXPECT_EQ(added[0], 3);
}

TEST(Publisher, MoreThanOneMessageHoldsGoesOutInSeveralNoneTooLongAndInOrder) {
  Publisher publisher = WithCounter(0, BytesCodec());
  uint64_t counter = 0;
  for (const int64_t bytes : {400'000, 400'000, 400'000, 900'000, 100, 100}) {
    publisher.Add(OfBytes({1, ++counter}, bytes));
  }
  publisher.Add(OfBytes({1, ++counter}, kMaxMessageBytes - kMergedRoomBytes));
  publisher.Add(OfBytes({1, ++counter}, kMaxMessageBytes - kMergedRoomBytes));
  uint64_t published = 0;
  int publications = 0;
  for (; !publisher.empty(); ++publications) {
    const Buffer publication = publisher.Publish(0).second;
    EXPECT_LE(std::ssize(*publication), kMaxMessageBytes);
    const UpdateRanges contents = ContentsOf(publication);
    ASSERT_EQ(contents.size(), 1u);
    EXPECT_EQ(contents[0].from, published);
    published = contents[0].to;
  }
  EXPECT_EQ(published, counter);
  EXPECT_EQ(publications, 5);
}

}  // namespace
}  // namespace strom
