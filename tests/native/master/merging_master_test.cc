// A master that merges: what it publishes, what it refuses, and whom it asks for what is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/codec/message_writer.h"
#include "core/replication/merged_update.h"
#include "core/replication/relay.h"
#include "core/replication/version_vector.h"
#include "scripted_master.h"

namespace strom {
namespace {

using testing::HasSubstr;

const MasterNodeOptions kMergingStar = {.merging = Merging::kOn, .merging_interval_ns = 0};
// Ranks 0 and 1 under the master, 2 under rank 0.
const MasterNodeOptions kMergingTree = {.topology = Topology::kMesh,
                                        .max_children = 2,
                                        .merging = Merging::kOn,
                                        .merging_interval_ns = 0};

// The contents of the publications that went to `link`, one after the other.
UpdateRanges Published(const RecordedLinks& links, LinkId link) {
  UpdateRanges published;
  for (const RecordedLinks::Sent& sent : links.sent) {
    if (sent.link != link || sent.channel != Channel::kUpdate) continue;
    UpdateHeader header;
    EXPECT_TRUE(ValidateUpdate(*sent.message, kLayout, MessageCodec(), &header).ok());
    EXPECT_EQ(header.id.origin, MasterOrigin(1));
    const UpdateRanges contents = ContentsOf(sent.message);
    published.insert(published.end(), contents.begin(), contents.end());
  }
  return published;
}

TEST(MergingMasterTest, WhereUpdatesAreMergedTheMasterPublishesWhatItHasAccepted) {
  Master master(3, kMergingTree);
  master.Start();
  ASSERT_EQ(master.links.Last<StartGeneration>(1)->merging_ns, 0);
  master.Merged(1, {{Master::Origin(1), 1}, {Master::Origin(3), 1}, {Master::Origin(3), 2}});
  const UpdateRanges expected = {{Master::Origin(1), 0, 1, 0}, {Master::Origin(3), 0, 2, 0}};
  EXPECT_EQ(Published(master.links, 1), expected) << "to whom it comes from, too";
  EXPECT_EQ(Published(master.links, 2), expected);
  EXPECT_EQ(Published(master.links, 3), UpdateRanges()) << "it gets them from above";
  EXPECT_EQ(master.node.parameters()[0], 3);
}

TEST(MergingMasterTest, AMergedUpdateWhereNoneAreMergedCostsItsSenderTheLink) {
  Master master(2);
  master.Start();
  master.Merged(2, {{Master::Origin(2), 1}});
  EXPECT_THAT(master.links.closed[2], HasSubstr("none are merged"));
  EXPECT_TRUE(master.node.received().empty());
  EXPECT_EQ(master.node.parameters()[0], 0);
}

TEST(MergingMasterTest, InAStarAMergedUpdateWithAnothersInItCostsItsSenderTheLink) {
  Master master(3, kMergingStar);
  master.Start();
  master.Merged(2, {{Master::Origin(2), 1}, {Master::Origin(3), 1}});
  EXPECT_THAT(master.links.closed[2], HasSubstr("in another worker's name"));
  EXPECT_TRUE(master.node.received().empty());
  EXPECT_EQ(master.links.Updates(1), 0);
  master.Merged(3, {{Master::Origin(3), 1}});
  EXPECT_EQ(Published(master.links, 1), (UpdateRanges{{Master::Origin(3), 0, 1, 0}}));
}

TEST(MergingMasterTest, AMergedUpdateWithAnUnknownOriginIsDroppedWhole) {
  Master master(3, kMergingTree);
  master.Start();
  master.Merged(1, {{Master::Origin(1), 1}, {Master::Origin(77), 1}});
  EXPECT_TRUE(master.node.received().empty());
  EXPECT_TRUE(master.links.closed.empty());
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"update of an unknown origin\": 1"));
  master.Merged(1, {{Master::Origin(1), 1}});
  EXPECT_EQ(CounterOf(master.node.received(), Master::Origin(1)), 1u);
}

TEST(MergingMasterTest, AMergedUpdateAfterFinalChangesNothing) {
  Master master(2, kMergingStar);
  master.Start();
  master.Merged(1, {{Master::Origin(1), 1}});
  master.Say(1, Done{1, 1, 0});
  master.Say(2, Done{1, 0, 0});
  const auto final = master.links.Last<Final>(1);
  ASSERT_TRUE(final);
  EXPECT_EQ(final->vector, (VersionVector{{MasterOrigin(1), 1}, {Master::Origin(1), 1}}));
  master.Merged(1, {{Master::Origin(1), 2}});
  EXPECT_EQ(master.node.received(), final->vector);
  EXPECT_EQ(master.node.parameters()[0], 1);
  EXPECT_EQ(master.links.Updates(2), 1);
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"update after its origin's DONE\": 1"));
}

TEST(MergingMasterTest, WhateverNameAMergedUpdateBearsItIsPublishedAsWhatItContains) {
  Master master(2, kMergingStar);
  master.Start();
  const Buffer update = UpdateWith({Master::Origin(2), 1}, kLayout);
  for (const UpdateId name : {UpdateId{MasterOrigin(1), 5}, {Master::Origin(1), 3}}) {
    const Buffer merged = MergedOf({update}, kLayout, name);
    master.node.HandleLinkEvent(kNow, MessageOn(2, Channel::kUpdate, merged));
  }
  EXPECT_EQ(master.node.received(), (VersionVector{{MasterOrigin(1), 1}, {Master::Origin(2), 1}}));
  EXPECT_EQ(Published(master.links, 1), (UpdateRanges{{Master::Origin(2), 0, 1, 0}}));
}

// Around a message of the greatest length there is no room for the contents.
TEST(MergingMasterTest, AnUpdateThatIsTooLongToBePublishedCostsItsSenderTheLink) {
  std::vector<uint8_t> longest(static_cast<size_t>(kMaxMessageBytes));
  const auto say = [&](Master* master, const UpdateHeader& header) {
    WriteUpdateHeader(header, longest);
    master->node.HandleLinkEvent(kNow, MessageOn(2, Channel::kUpdate, MakeBuffer(longest)));
  };
  const auto options = [](const MasterNodeOptions& of) {
    MasterNodeOptions with = of;
    with.codec = &BytesCodec();
    return with;
  };
  const UpdateHeader header = {{Master::Origin(2), 1}, 0, kLayout, kLastPartFlag};
  Master master(2, options(kMergingStar));
  master.Start();
  say(&master, header);
  EXPECT_THAT(master.links.closed[2], HasSubstr("too long"));
  EXPECT_FALSE(master.links.closed.contains(1));
  EXPECT_EQ(master.links.Updates(1), 0);
  Master plain(2, options({}));
  plain.Start();
  say(&plain, header);
  EXPECT_FALSE(plain.links.closed.contains(2));
  EXPECT_EQ(plain.links.Updates(1), 1);
}

TEST(MergingMasterTest, WhatIsMissingIsAskedOfItsOrigin) {
  Master master(3, kMergingTree);
  master.Start();
  master.Merged(1, {{Master::Origin(1), 1}, {Master::Origin(3), 3}});
  EXPECT_FALSE(master.links.Last<SayAgain>(3)) << "it may have been overtaken";
  master.node.HandleTimeout(master.node.NextTimeout());
  const int64_t now_ns = master.RunUntilAsked(3);
  const auto again = master.links.Last<SayAgain>(3);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->generation, 1u);
  EXPECT_EQ(again->from, 0u);
  EXPECT_EQ(again->to, 2u);
  EXPECT_FALSE(master.links.Last<SayAgain>(1));
  // It says them to the master itself.
  for (const uint64_t counter : {1, 2}) {
    master.node.HandleLinkEvent(
        now_ns, MessageOn(3, Channel::kUpdate, UpdateWith({Master::Origin(3), counter}, kLayout)));
  }
  EXPECT_EQ(master.node.parameters()[0], 4);
  EXPECT_EQ(CounterOf(master.node.received(), Master::Origin(3)), 3u);
}

TEST(MergingMasterTest, WhereNobodyIsLeftToAskTheOthersSayTheirsAgainByThemselves) {
  Master master(3, kMergingTree);
  master.Start();
  master.Merged(1, {{Master::Origin(1), 1}, {Master::Origin(3), 3}});
  master.node.HandleLinkEvent(kNow, Down(3, Code::kMasterLost));
  master.RunUntilAsked(1);
  const auto again = master.links.Last<SayAgain>(1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->from, 0u);
  EXPECT_EQ(again->to, 1u);
  EXPECT_EQ(master.node.replication().hold_bytes(), 0);
}

TEST(MergingMasterTest, AMergedUpdateOfWhichAPartIsHereIsAskedForAgainWithoutIt) {
  Master master(3, kMergingTree);
  master.Start();
  master.Update(3, {Master::Origin(3), 1});
  master.Merged(1, {{Master::Origin(1), 1}, {Master::Origin(3), 1}});
  EXPECT_FALSE(CounterOf(master.node.received(), Master::Origin(1)));
  const auto again = master.links.Last<SayAgain>(1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->to, 1u);
  EXPECT_FALSE(master.links.Last<SayAgain>(3));
}

// While the links are busy it looks at them now and then, and does not stay awake.
TEST(MergingMasterTest, WhatWaitsForBusyLinksIsPublishedSoonAfterOneIsIdle) {
  Master master(3, kMergingTree);
  master.Start();
  master.links.queued[1] = master.links.queued[2] = kBusyLinkBytes + 1;
  master.Merged(1, {{Master::Origin(1), 1}});
  EXPECT_EQ(master.links.Updates(2), 0);
  int64_t now_ns = kNow;
  int looks = 0;
  master.node.HandleTimeout(now_ns);  // the first beacon
  while (now_ns < kNow + 1'000'000'000) {
    ASSERT_GT(master.node.NextTimeout(), now_ns);
    master.node.HandleTimeout(now_ns = master.node.NextTimeout());
    ++looks;
  }
  EXPECT_LE(looks, 110);
  EXPECT_EQ(master.links.Updates(2), 0);
  master.links.queued[2] = 0;
  const int64_t idle_ns = now_ns;
  while (master.links.Updates(2) == 0 && now_ns < idle_ns + 1'000'000'000) {
    master.node.HandleTimeout(now_ns = master.node.NextTimeout());
  }
  EXPECT_EQ(master.links.Updates(2), 1);
  EXPECT_LE(now_ns - idle_ns, 10'000'000);
}

TEST(MergingMasterTest, ManyMergedUpdatesBetweenTwoBeaconsBringTheNextOneEarly) {
  const int64_t bytes = SizeOf(MergedOf({UpdateWith({1, 1}, kLayout)}, kLayout));
  MasterNodeOptions options = kMergingStar;
  options.ring_bytes = 10 * bytes;
  Master master(2, options);
  master.Start();
  master.node.HandleTimeout(kNow);
  int beacons = 0;
  for (uint64_t counter = 1; counter <= 100; ++counter) {
    master.Merged(1, {{Master::Origin(1), counter}});
    if (master.node.NextTimeout() <= kNow) {
      master.node.HandleTimeout(kNow);
      ++beacons;
    }
    EXPECT_LE(master.node.replication().ring_bytes(), 22 * bytes);
  }
  EXPECT_GT(beacons, 2);
}

}  // namespace
}  // namespace strom
