// What waits at a worker for its parent: when it leaves, in which order, and in how many messages.
#include "core/replication/upward_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/replication/merged_update.h"
#include "merged_updates.h"

namespace strom {
namespace {

constexpr Layout kLayout = {.generation = 1, .size = 100, .hash = 5};
constexpr int64_t kInterval = 5;

UpwardQueue Queue() {
  UpwardQueue queue;
  queue.Restart(kLayout, kInterval);
  return queue;
}

Buffer Update(uint64_t origin, uint64_t counter) { return UpdateWith({origin, counter}, kLayout); }

TEST(UpwardQueue, ASingleUpdateLeavesAsItCame) {
  UpwardQueue queue = Queue();
  const Buffer update = Update(1, 1);
  queue.Add(update);
  EXPECT_EQ(queue.Take(0, MessageCodec()), update);
  const Buffer merged = MergedOf({Update(1, 2), Update(2, 1)}, kLayout);
  queue.Add(merged);
  EXPECT_EQ(queue.Take(kInterval, MessageCodec()), merged);
}

TEST(UpwardQueue, TheFirstAfterAPauseLeavesAtOnceAndTheNextAfterTheInterval) {
  UpwardQueue queue = Queue();
  EXPECT_EQ(queue.due_ns(), kNever);
  queue.Add(Update(1, 1));
  EXPECT_LE(queue.due_ns(), 100);
  (void)queue.Take(100, MessageCodec());
  EXPECT_EQ(queue.due_ns(), kNever);
  queue.Add(Update(1, 2));
  EXPECT_EQ(queue.due_ns(), 100 + kInterval);
  (void)queue.Take(110, MessageCodec());
  queue.Add(Update(1, 3));
  EXPECT_EQ(queue.due_ns(), 110 + kInterval);
}

TEST(UpwardQueue, WhatWaitsLeavesTogether) {
  UpwardQueue queue = Queue();
  for (uint64_t counter = 1; counter <= 3; ++counter) {
    queue.Add(Update(7, counter));
    queue.Add(MergedOf({Update(1, counter), Update(3, counter + 5)}, kLayout));
  }
  const Buffer merged = queue.Take(0, MessageCodec());
  EXPECT_TRUE(queue.empty());
  UpdateHeader header;
  ASSERT_TRUE(ValidateUpdate(*merged, kLayout, MessageCodec(), &header).ok());
  EXPECT_TRUE(header.merged());
  EXPECT_EQ(header.id, (UpdateId{1, 3}));
  EXPECT_EQ(ContentsOf(merged), (UpdateRanges{{1, 0, 3, 0}, {3, 5, 8, 0}, {7, 0, 3, 0}}));
}

TEST(UpwardQueue, WhatDoesNotFollowLeavesInAMessageOfItsOwnInTheOrderInWhichItCame) {
  UpwardQueue queue = Queue();
  queue.Add(Update(1, 1));
  queue.Add(Update(2, 1));
  queue.Add(Update(1, 3));  // the second has come by another way
  queue.Add(Update(2, 2));
  queue.Add(Update(1, 3));  // twice
  EXPECT_EQ(ContentsOf(queue.Take(0, MessageCodec())), (UpdateRanges{{1, 0, 1, 0}, {2, 0, 1, 0}}));
  EXPECT_EQ(queue.due_ns(), kInterval);
  EXPECT_EQ(ContentsOf(queue.Take(5, MessageCodec())), (UpdateRanges{{1, 2, 3, 0}, {2, 1, 2, 0}}));
  EXPECT_EQ(ContentsOf(queue.Take(10, MessageCodec())), (UpdateRanges{{1, 2, 3, 0}}));
  EXPECT_TRUE(queue.empty());
}

TEST(UpwardQueue, KnowsItsBytes) {
  UpwardQueue queue = Queue();
  const Buffer update = Update(1, 1);
  queue.Add(update);
  queue.Add(Update(1, 1));
  EXPECT_EQ(queue.bytes(), 2 * std::ssize(*update));
  (void)queue.Take(0, MessageCodec());
  EXPECT_EQ(queue.bytes(), std::ssize(*update));
  (void)queue.Take(0, MessageCodec());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST(UpwardQueue, AnotherGenerationBeginsWithNothing) {
  UpwardQueue queue = Queue();
  queue.Add(Update(1, 1));
  (void)queue.Take(1000, MessageCodec());
  queue.Add(Update(1, 2));
  queue.Restart({.generation = 2, .size = 100, .hash = 5}, kInterval);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
  queue.Add(Update(1, 3));
  EXPECT_LE(queue.due_ns(), 0);
}

}  // namespace
}  // namespace strom
