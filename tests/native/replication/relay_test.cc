// How a node relays between its neighbours: attaching, catching up, lagging, holding back. The
// updates are any bytes of 100; a queue's cap is 1000.
#include "core/replication/relay.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "recorded_links.h"

namespace strom {
namespace {

constexpr int64_t kUpdateBytes = 100;
constexpr Layout kLayout = {.generation = 1, .size = 10, .hash = 5};
constexpr LinkId kParent = 1, kChild = 2, kOther = 3;
constexpr uint64_t kOrigin = 7;

class RelayTest : public testing::Test {
 protected:
  explicit RelayTest(bool is_root = false)
      : relay(
            {
                .replication = {.ring_bytes = 1 << 20, .hold_bytes = 1 << 20},
                .queue_bytes = 10 * kUpdateBytes,
                .is_root = is_root,
                .codec = &BytesCodec(),
            },
            &links, &drops) {
    if (!is_root) relay.Add(0, kParent, Relay::Role::kParent, "the master");
    relay.Add(0, kChild, Relay::Role::kChild, "worker 1");
    relay.Add(0, kOther, Relay::Role::kChild, "worker 2");
    relay.Begin(kLayout);
  }

  // All neighbours have attached with empty vectors.
  void Start() {
    std::vector<Replication::Accepted> none;
    relay.Open(0, {}, &none);
    for (const LinkId link : {kParent, kChild, kOther}) relay.HandleAttach(0, link, Attach{1, {}});
  }
  void Take(LinkId from, uint64_t counter, uint64_t origin = kOrigin) {
    std::vector<uint8_t> update(kUpdateBytes);
    WriteUpdateHeader({{origin, counter}, 0, kLayout, kLastPartFlag}, update);
    const Buffer buffer = MakeBuffer(std::move(update));
    const Relay::Checked checked = relay.Check(buffer);
    ASSERT_EQ(checked.verdict, Relay::Checked::Verdict::kFits) << checked.why;
    std::vector<Replication::Accepted> accepted;
    EXPECT_EQ(relay.Take(0, from, checked.header.id, buffer, &accepted), "");
    relay.Advance(0);
  }
  std::vector<std::string> Notices() {
    std::vector<std::string> texts;
    while (auto notice = relay.PollNotice()) texts.push_back(notice->text);
    return texts;
  }

  RecordedLinks links;
  DropCounters drops;
  Relay relay;
};

TEST_F(RelayTest, PassesOnToAllNeighboursButTheOneItCameFrom) {
  Start();
  Take(kChild, 1);
  Take(kParent, 1, kOrigin + 1);
  Take(0, 1, kOrigin + 2);
  EXPECT_EQ(links.Updates(kParent), 2);
  EXPECT_EQ(links.Updates(kChild), 2);
  EXPECT_EQ(links.Updates(kOther), 3);
}

TEST_F(RelayTest, AChildThatAttachesBeforeThisNodeHasStartedIsAnsweredThen) {
  relay.HandleAttach(0, kChild, Attach{1, {}});
  EXPECT_FALSE(links.Last<Attach>(kChild));
  std::vector<Replication::Accepted> none;
  relay.Open(0, {{kOrigin, 4}}, &none);
  ASSERT_TRUE(links.Last<Attach>(kChild));
  EXPECT_EQ(links.Last<Attach>(kChild)->vector, (VersionVector{{kOrigin, 4}}));
}

TEST_F(RelayTest, AnAttachedParentHasAllOnceItHasAcknowledgedAll) {
  std::vector<Replication::Accepted> none;
  relay.Open(0, {}, &none);
  Take(0, 1);
  EXPECT_FALSE(relay.HasAll(kParent));  // It has not attached: nothing was sent to it.
  relay.HandleAttach(0, kParent, Attach{1, {}});
  EXPECT_TRUE(relay.HasAll(kParent));
  Take(0, 2);
  links.queued[kParent] = kUpdateBytes;
  EXPECT_FALSE(relay.HasAll(kParent));
  links.queued[kParent] = 0;
  EXPECT_TRUE(relay.HasAll(kParent));
  relay.HandleAttach(0, kChild, Attach{1, {}});
  EXPECT_FALSE(relay.HasAll(kChild));
}

TEST_F(RelayTest, WhatTheMasterHoldsIsNotSentUpAgain) {
  std::vector<Replication::Accepted> none;
  relay.Open(0, {}, &none);
  for (uint64_t counter = 1; counter <= 5; ++counter) Take(0, counter);
  relay.SetMasterVector(0, {{kOrigin, 3}});
  relay.HandleAttach(0, kParent, Attach{1, {}});
  EXPECT_EQ(links.Updates(kParent), 2);
  relay.HandleAttach(0, kChild, Attach{1, {}});
  EXPECT_EQ(links.Updates(kChild), 5);
}

TEST_F(RelayTest, AChildOverItsCapLagsAndNobodyElseNotices) {
  Start();
  links.queued[kChild] = 10 * kUpdateBytes;
  Take(kParent, 1);
  EXPECT_EQ(links.voided[kChild], 1);
  EXPECT_EQ(links.Updates(kChild), 0);
  EXPECT_EQ(links.Updates(kOther), 1);
  EXPECT_TRUE(links.held_back.empty());
  EXPECT_EQ(Notices().size(), 1u);
}

TEST_F(RelayTest, AChildThatLagsIsAskedOnceItsLinkHasDrainedAndGetsWhatItLacks) {
  Start();
  links.queued[kChild] = 10 * kUpdateBytes;
  Take(kParent, 1);
  Take(kParent, 2);
  EXPECT_FALSE(links.Last<AttachAnew>(kChild));
  EXPECT_LT(relay.NextTimeout(), kNever) << "queues shrink without an event";
  links.queued[kChild] = 2 * kUpdateBytes;
  relay.Advance(relay.NextTimeout());
  ASSERT_TRUE(links.Last<AttachAnew>(kChild));
  links.sent.clear();
  relay.HandleAttach(0, kChild, Attach{1, {{kOrigin, 1}}});
  EXPECT_FALSE(links.Last<Attach>(kChild)) << "it is attached upward all the time";
  EXPECT_EQ(links.Updates(kChild), 1);
  EXPECT_TRUE(relay.IsAttached(kChild));
  EXPECT_EQ(Notices().back(), "worker 1 has caught up");
}

TEST_F(RelayTest, CatchesUpInPiecesAsTheQueueDrains) {
  Start();
  relay.Remove(kChild);
  for (uint64_t counter = 1; counter <= 20; ++counter) Take(kParent, counter);
  relay.Add(0, kChild, Relay::Role::kChild, "worker 1");
  links.queues = true;
  relay.HandleAttach(0, kChild, Attach{1, {}});
  int pieces = 0;
  for (; !relay.IsAttached(kChild); ++pieces) {
    EXPECT_LE(links.queued[kChild], 5 * kUpdateBytes + 100);
    links.queued[kChild] = 0;
    relay.Advance(0);
    ASSERT_LT(pieces, 10);
  }
  EXPECT_GE(pieces, 3);
  EXPECT_EQ(links.Updates(kChild), 20);
}

TEST_F(RelayTest, ChildrenAreHeldBackWhileTheParentsQueueIsLong) {
  Start();
  links.queued[kParent] = 5 * kUpdateBytes + 1;
  Take(kChild, 1);
  EXPECT_EQ(links.held_back, (std::set<LinkId>{kChild, kOther}));
  links.queued[kParent] = 4 * kUpdateBytes;
  relay.Advance(0);
  EXPECT_EQ(links.held_back.size(), 2u) << "not before it is a quarter";
  links.queued[kParent] = 2 * kUpdateBytes;
  relay.Advance(0);
  EXPECT_TRUE(links.held_back.empty());
}

TEST_F(RelayTest, NothingIsDroppedOnItsWayUp) {
  Start();
  links.queued[kParent] = 100 * kUpdateBytes;
  for (uint64_t counter = 1; counter <= 20; ++counter) Take(kChild, counter);
  EXPECT_EQ(links.Updates(kParent), 20);
  EXPECT_EQ(links.voided[kParent], 0);
}

TEST_F(RelayTest, WithoutAParentWhatTheMasterLacksHoldsTheChildrenBack) {
  Start();
  relay.Remove(kParent);
  for (uint64_t counter = 1; counter <= 6; ++counter) Take(kChild, counter);
  EXPECT_TRUE(links.held_back.contains(kChild));
  relay.SetMasterVector(0, {{kOrigin, 5}});
  relay.Advance(0);
  EXPECT_TRUE(links.held_back.empty());
}

TEST_F(RelayTest, WhatIsLeaptOverNeedNotGoUp) {
  Start();
  links.queued[kParent] = 100 * kUpdateBytes;
  relay.HandleAttach(0, kParent, Attach{1, {}});  // it is told what it lacks when that has left
  std::vector<Replication::Accepted> accepted;
  relay.FastForward(0, {{kOrigin, 9}}, &accepted);
  links.queued[kParent] = 0;
  relay.Advance(0);
  EXPECT_TRUE(relay.IsAttached(kParent));
  EXPECT_FALSE(relay.PollNotice());
}

class RootTest : public RelayTest {
 protected:
  RootTest() : RelayTest(true) {}
};

TEST_F(RootTest, TheMasterNeverHoldsBack) {
  Start();
  links.queued[kChild] = links.queued[kOther] = 100 * kUpdateBytes;
  for (uint64_t counter = 1; counter <= 50; ++counter) Take(kChild, counter);
  EXPECT_TRUE(links.held_back.empty());
}

TEST_F(RelayTest, AfterALeapChildrenAttachAnewAndTheParentGetsWhatWasHeld) {
  Start();
  Take(kChild, 6, kOrigin + 1);  // held: the first five are missing
  EXPECT_EQ(links.Updates(kParent), 0);
  std::vector<Replication::Accepted> accepted;
  relay.FastForward(0, {{kOrigin, 9}, {kOrigin + 1, 5}}, &accepted);
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(relay.received(), (VersionVector{{kOrigin, 9}, {kOrigin + 1, 6}}));
  EXPECT_EQ(links.Updates(kParent), 1);
  EXPECT_EQ(links.Updates(kOther), 0);
  EXPECT_FALSE(relay.IsAttached(kOther));
  relay.HandleAttach(0, kOther, Attach{1, {{kOrigin, 9}, {kOrigin + 1, 5}}});
  EXPECT_TRUE(relay.IsAttached(kOther));
  EXPECT_EQ(links.Updates(kOther), 1);
}

TEST_F(RootTest, AChildThatLacksWhatTheRingHasGivenUpIsTooFarBehind) {
  std::vector<Replication::Accepted> none;
  relay.Open(0, {{kOrigin, 4}}, &none);
  relay.HandleAttach(0, kChild, Attach{1, {{kOrigin, 2}}});
  const auto notice = relay.PollNotice();
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->type, RelayNotice::Type::kTooFarBehind);
  EXPECT_EQ(notice->link, kChild);
}

}  // namespace
}  // namespace strom
