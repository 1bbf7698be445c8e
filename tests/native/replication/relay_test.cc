// How a node relays between its neighbours: attaching, catching up, lagging, holding back. The
// updates are any bytes of 100; a queue's cap is 1000.
#include "core/replication/relay.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/replication/merged_update.h"
#include "merged_updates.h"
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

// ------------------------------------------------------------------------------- merging

constexpr uint64_t kMasterOrigin = MasterOrigin(1), kOwn = kMasterOrigin + 1;
constexpr int64_t kInterval = 1000;

class MergingRelayTest : public RelayTest {
 protected:
  explicit MergingRelayTest(bool is_root = false) : RelayTest(is_root) {
    std::vector<Replication::Accepted> none;
    relay.Open(0, {}, &none, kInterval, is_root ? 0 : kOwn);
    for (const LinkId link : {kParent, kChild, kOther}) relay.HandleAttach(0, link, Attach{1, {}});
  }
  // A publication of the master's with what a worker has made, if it has a name.
  Buffer Publication(uint64_t counter, const UpdateId& contained) {
    std::vector<uint8_t> update(kUpdateBytes);
    WriteUpdateHeader({contained, 0, kLayout, kLastPartFlag}, update);
    return MergedOf({MakeBuffer(std::move(update))}, kLayout, {kMasterOrigin, counter},
                    BytesCodec());
  }
  std::string TakePublication(LinkId from, const Buffer& publication) {
    const Relay::Checked checked = relay.Check(publication);
    EXPECT_EQ(checked.verdict, Relay::Checked::Verdict::kFits) << checked.why;
    std::vector<Replication::Accepted> accepted;
    return relay.Take(0, from, checked.header.id, publication, &accepted);
  }
  Buffer FromChild(uint64_t counter, uint64_t origin = kOrigin) {
    std::vector<uint8_t> update(kUpdateBytes);
    WriteUpdateHeader({{origin, counter}, 0, kLayout, kLastPartFlag}, update);
    return MakeBuffer(std::move(update));
  }
  UpdateRanges LastTo(LinkId link) {
    for (auto at = links.sent.rbegin(); at != links.sent.rend(); ++at) {
      if (at->link == link && at->channel == Channel::kUpdate) return ContentsOf(at->message);
    }
    return {};
  }
};

class MergingRootTest : public MergingRelayTest {
 protected:
  MergingRootTest() : MergingRelayTest(true) {}
};

TEST_F(MergingRelayTest, WorkersUpdatesGoUpAndTheMastersPublicationsDown) {
  relay.PassUp(FromChild(1));
  relay.Advance(0);
  EXPECT_EQ(links.Updates(kParent), 1);
  Take(0, 1, kOwn);
  relay.Advance(kInterval);
  EXPECT_EQ(links.Updates(kParent), 2);
  EXPECT_EQ(links.Updates(kChild), 0);
  EXPECT_EQ(links.Updates(kOther), 0);
  EXPECT_EQ(TakePublication(kParent, Publication(1, {kOrigin, 1})), "");
  EXPECT_EQ(links.Updates(kParent), 2);
  EXPECT_EQ(links.Updates(kChild), 1);
  EXPECT_EQ(links.Updates(kOther), 1);
}

TEST_F(MergingRelayTest, WhatPassesUpLeavesNoTrace) {
  relay.PassUp(FromChild(1));
  relay.PassUp(FromChild(1, kOrigin + 1));
  relay.Advance(0);
  EXPECT_EQ(links.Updates(kParent), 1);
  EXPECT_TRUE(relay.received().empty());
  EXPECT_EQ(relay.replication().retained(), 0);
  EXPECT_EQ(LastTo(kParent), (UpdateRanges{{kOrigin, 0, 1, 0}, {kOrigin + 1, 0, 1, 0}}));
}

TEST_F(MergingRelayTest, AChildMayNotSendAPublication) {
  EXPECT_NE(TakePublication(kChild, Publication(1, {kOrigin, 1})), "");
  EXPECT_EQ(links.Updates(kOther), 0);
  EXPECT_TRUE(relay.received().empty());
}

TEST_F(MergingRelayTest, WhatComesWithinTheIntervalGoesUpTogetherAtItsEnd) {
  relay.PassUp(FromChild(1));
  relay.Advance(0);
  for (uint64_t counter = 2; counter <= 4; ++counter) {
    relay.PassUp(FromChild(counter));
    relay.Advance(1);
  }
  EXPECT_EQ(links.Updates(kParent), 1);
  ASSERT_EQ(relay.NextTimeout(), kInterval);
  relay.Advance(kInterval);
  EXPECT_EQ(links.Updates(kParent), 2);
  EXPECT_EQ(LastTo(kParent), (UpdateRanges{{kOrigin, 1, 4, 0}}));
  EXPECT_EQ(relay.NextTimeout(), kNever);
}

TEST_F(MergingRelayTest, WhileTheParentsLinkIsBusyAllThatComesWaitsAndGoesTogether) {
  links.queued[kParent] = 100'000;
  int64_t now_ns = 0;
  for (uint64_t counter = 1; counter <= 5; ++counter) {
    relay.PassUp(FromChild(counter));
    relay.Advance(now_ns += 10 * kInterval);
  }
  EXPECT_EQ(links.Updates(kParent), 0);
  EXPECT_EQ(relay.OutgoingBytes(kOwn), 100'000 + 5 * kUpdateBytes);
  EXPECT_GT(relay.NextTimeout(), now_ns);
  EXPECT_LT(relay.NextTimeout(), kNever) << "queues shrink without an event";
  links.queued[kParent] = 1000;
  relay.Advance(now_ns = relay.NextTimeout());
  EXPECT_EQ(links.Updates(kParent), 1);
  EXPECT_EQ(LastTo(kParent), (UpdateRanges{{kOrigin, 0, 5, 0}}));
}

TEST_F(MergingRelayTest, WhatWaitsForALostParentGoesToTheNextOneThatAttaches) {
  relay.Remove(kParent);
  Take(0, 1, kOwn);
  relay.PassUp(FromChild(1));
  relay.Advance(10);
  EXPECT_EQ(links.Updates(kParent), 0);
  constexpr LinkId kNext = 9;
  relay.Add(20, kNext, Relay::Role::kParent, "worker 5");
  relay.HandleAttach(20, kNext, Attach{1, {}});
  relay.Advance(20);
  EXPECT_EQ(links.Updates(kNext), 2) << "its own by the replay, and what has come from below";
  EXPECT_EQ(LastTo(kNext), (UpdateRanges{{kOrigin, 0, 1, 0}}));
}

TEST_F(MergingRelayTest, ChildrenAreHeldBackWhileMuchWaitsForTheParent) {
  links.queued[kParent] = 65'537;  // busy; the queue's cap is 1000
  relay.PassUp(FromChild(1));
  relay.Advance(0);
  EXPECT_EQ(links.held_back, (std::set<LinkId>{kChild, kOther}));
  links.queued[kParent] = 0;
  relay.Advance(kInterval);
  EXPECT_TRUE(links.held_back.empty());
}

TEST_F(MergingRelayTest, AChildThatAttachesGetsPublicationsAlone) {
  Take(0, 1, kOwn);
  for (uint64_t counter = 1; counter <= 3; ++counter) {
    (void)TakePublication(kParent, Publication(counter, {kOrigin, counter}));
  }
  relay.Learn(0, {{kOrigin, 3}});
  links.sent.clear();
  // It lacks what its parent knows by publications alone, and its parent's own.
  relay.HandleAttach(0, kChild, Attach{1, {{kMasterOrigin, 1}, {kOrigin, 1}}});
  EXPECT_TRUE(relay.IsAttached(kChild));
  EXPECT_EQ(links.Updates(kChild), 2);
  EXPECT_FALSE(relay.PollNotice());
}

TEST_F(MergingRelayTest, AParentThatHasAcknowledgedAllMayStillRefuseIt) {
  Take(0, 1, kOwn);
  relay.Advance(0);
  EXPECT_EQ(links.queued[kParent], 0);
  EXPECT_FALSE(relay.HasAll(kParent));
}

TEST_F(MergingRelayTest, WhatWaitedInAnEarlierGenerationIsNotSent) {
  relay.PassUp(FromChild(1));
  relay.Begin({.generation = 2, .size = 10, .hash = 5});
  std::vector<Replication::Accepted> none;
  relay.Open(5, {}, &none, kInterval, kOwn);
  relay.HandleAttach(5, kParent, Attach{2, {}});
  relay.Advance(5);
  EXPECT_EQ(links.Updates(kParent), 0);
}

TEST_F(MergingRootTest, AMergedUpdateIsAcceptedAndTheRestOfARefusedOneIsNamed) {
  std::vector<Replication::Accepted> accepted;
  const Buffer merged =
      MergedOf({FromChild(1), FromChild(2), FromChild(1, kOrigin + 1)}, kLayout, {}, BytesCodec());
  relay.TakeMerged(0, kChild, ContentsOf(merged), merged, &accepted);
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(relay.received(), (VersionVector{{kOrigin, 2}, {kOrigin + 1, 1}}));
  EXPECT_EQ(links.Updates(kOther), 0) << "it is published instead";
  relay.TakeMerged(0, kOther, ContentsOf(merged), merged, &accepted);
  EXPECT_EQ(drops["duplicate update"], 1);
  const Buffer overlaps =
      MergedOf({FromChild(2), FromChild(3), FromChild(5, kOrigin + 1)}, kLayout, {}, BytesCodec());
  relay.TakeMerged(0, kOther, ContentsOf(overlaps), overlaps, &accepted);
  EXPECT_EQ(accepted.size(), 1u);
  EXPECT_EQ(relay.TakeRefused(), (UpdateRanges{{kOrigin, 2, 3, 0}, {kOrigin + 1, 4, 5, 0}}));
}

TEST_F(MergingRootTest, AChildIsIdleUnlessItsLinkHasMuchToSend) {
  EXPECT_TRUE(relay.HasIdleChild());
  links.queued[kChild] = links.queued[kOther] = links.queued[kParent] = 65'537;
  EXPECT_FALSE(relay.HasIdleChild());
  links.queued[kOther] = 65'536;
  EXPECT_TRUE(relay.HasIdleChild());
  relay.Remove(kOther);
  EXPECT_FALSE(relay.HasIdleChild());
  relay.Remove(kChild);
  EXPECT_TRUE(relay.HasIdleChild()) << "nobody would notice";
}

}  // namespace
}  // namespace strom
