// A worker's parent and children: whom it takes in, when it is an orphan, and which places it
// takes.
#include "core/worker/tree_links.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/json.h"
#include "link_events.h"
#include "recorded_links.h"

namespace strom {
namespace {

constexpr int64_t kTimeoutNs = 1'000'000'000;
constexpr LinkId kMaster = 900, kKnock = 901;
constexpr uint64_t kOwn = 5;
constexpr Token kInstance = {1};
constexpr TreePlace::Child kChild = {.origin = 8, .rank = 3, .instance = {9}};

TreePlace UnderAWorker(uint64_t version) {
  TreePlace place;
  place.version = version;
  place.depth = 2;
  place.parent = 4;
  place.parent_rank = 1;
  place.parent_address.port = static_cast<uint16_t>(version);
  return place;
}

class TreeLinksTest : public testing::Test {
 protected:
  TreeLinksTest()
      : relay({.replication = {}, .codec = &BytesCodec()}, &links, &drops),
        tree(kInstance, kTimeoutNs, &links, &relay, &drops) {
    tree.MasterUp(0, kMaster, kOwn, 1);
    relay.Begin({.generation = 1, .size = 1, .hash = 1});
    std::vector<Replication::Accepted> none;
    relay.Open(0, {}, &none);
    tree.Started(0);
  }
  bool SaysOfItsParent(const std::string& field) const {
    JsonObject json;
    tree.AddStatus(&json);
    return json.Text().find(field + ", \"depth\"") != std::string::npos;
  }
  void Knock(const ChildHello& hello) {
    tree.HandleHello(0, HelloOn(kKnock, EncodeChildHello(hello)));
  }

  // Of kChild's updates this one comes over `link`.
  void Take(LinkId link, uint64_t counter) {
    std::vector<Replication::Accepted> accepted;
    const Buffer update = MakeBuffer(std::vector<uint8_t>(100));
    EXPECT_EQ(relay.Take(0, link, {kChild.origin, counter}, update, &accepted), "");
  }

  // It has a place, with kChild below it on link kKnock.
  void HaveChild() {
    TreePlace place;
    place.version = 1;
    place.children = {kChild};
    tree.HandlePlace(0, place);
    Knock({kChild.origin, kChild.instance});
    tree.HandleUp(0, kKnock);
  }

  RecordedLinks links;
  DropCounters drops;
  Relay relay;
  TreeLinks tree;
};

TEST_F(TreeLinksTest, AFreshWorkerIsALeafUnderTheMaster) {
  EXPECT_TRUE(relay.IsAttached(kMaster));
  Knock({kChild.origin, kChild.instance});
  EXPECT_TRUE(links.refused.contains(kKnock));
}

TEST_F(TreeLinksTest, OnlyANamedChildWithItsInstanceIsTakenIn) {
  TreePlace place;
  place.version = 1;
  place.children = {kChild};
  tree.HandlePlace(0, place);
  Knock({kChild.origin, Token{7}});
  EXPECT_TRUE(links.refused.contains(kKnock));
  links.refused.clear();
  Knock({kChild.origin, kChild.instance});
  EXPECT_TRUE(links.refused.empty());
  tree.HandleUp(0, kKnock);
  EXPECT_TRUE(relay.Has(kKnock));
  place.version = 2;
  place.children.clear();
  tree.HandlePlace(0, place);
  EXPECT_TRUE(links.closed.contains(kKnock));
  EXPECT_FALSE(relay.Has(kKnock));
  EXPECT_EQ(links.Last<Placed>(kMaster)->version, 2u);
}

TEST_F(TreeLinksTest, AStalePlaceChangesNothing) {
  tree.HandlePlace(0, UnderAWorker(3));
  tree.HandlePlace(0, UnderAWorker(2));
  ASSERT_EQ(links.connected.size(), 1u);
  EXPECT_EQ(links.connected[0].port, 3);
  EXPECT_EQ(links.Last<Placed>(kMaster)->version, 3u);
}

TEST_F(TreeLinksTest, TheOldParentIsLeftBeforeTheWorkerAttachesToTheNew) {
  tree.HandlePlace(0, UnderAWorker(1));
  EXPECT_FALSE(relay.Has(kMaster)) << "the link stays, for control alone";
  tree.HandleUp(0, 1);
  EXPECT_TRUE(links.Last<Attach>(1));
  TreePlace other = UnderAWorker(2);
  other.parent = 6;
  tree.HandlePlace(0, other);
  EXPECT_TRUE(links.closed.contains(1));
  EXPECT_FALSE(relay.Has(1));
  EXPECT_FALSE(links.Last<Attach>(2)) << "its link does not stand yet";
}

// Who shows the tree cannot tell it by the peers' addresses, and a child may have the parent's
// port.
TEST_F(TreeLinksTest, TheStatusSaysWhichLinkLeadsToTheParent) {
  EXPECT_TRUE(SaysOfItsParent("\"parent_link\": 900"));
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleUp(0, 1);
  EXPECT_TRUE(SaysOfItsParent("\"parent_link\": 1"));
  tree.HandleDown(0, Down(1, Code::kMasterLost));
  EXPECT_TRUE(SaysOfItsParent("\"parent_link\": 0")) << "it is an orphan";
}

TEST_F(TreeLinksTest, AParentThatDoesNotKnowUsYetIsAskedAgain) {
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleDown(0, Down(1, Code::kRefused));
  EXPECT_FALSE(tree.is_orphan());
  tree.HandleTimeout(tree.NextTimeout());
  EXPECT_EQ(links.connected.size(), 2u);
}

TEST_F(TreeLinksTest, AParentWithAnotherAddressIsSoughtThereWhereNoLinkToItStands) {
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandlePlace(0, UnderAWorker(2));  // the port, too
  EXPECT_TRUE(links.closed.contains(1));
  ASSERT_EQ(links.connected.size(), 2u);
  EXPECT_EQ(links.connected[1].port, 2);
  tree.HandleUp(0, 2);
  tree.HandlePlace(0, UnderAWorker(3));
  EXPECT_FALSE(links.closed.contains(2)) << "a link that stands goes on";
  EXPECT_EQ(links.connected.size(), 2u);
  EXPECT_FALSE(tree.is_orphan());
}

TEST_F(TreeLinksTest, AWorkerWhoseParentIsGoneAsksForAPlaceUntilItGetsOne) {
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleUp(0, 1);
  tree.HandleDown(0, Down(1, Code::kMasterLost));
  EXPECT_TRUE(tree.is_orphan());
  ASSERT_TRUE(links.Last<Orphan>(kMaster));
  EXPECT_EQ(links.Last<Orphan>(kMaster)->version, 1u);
  links.sent.clear();
  tree.HandleTimeout(tree.NextTimeout());
  EXPECT_TRUE(links.Last<Orphan>(kMaster));
  tree.HandlePlace(0, UnderAWorker(2));  // the same parent, anew
  EXPECT_FALSE(tree.is_orphan());
  EXPECT_EQ(links.connected.size(), 2u);
}

TEST_F(TreeLinksTest, AWorkerThatHearsNoBeaconIsAnOrphanThoughItsParentAnswers) {
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleUp(0, 1);
  tree.HandleBeacon(kTimeoutNs / 2, 1, Beacon{1, 1, {}});
  tree.HandleBeacon(kTimeoutNs, kMaster, Beacon{1, 1, {}});  // not through its parent
  tree.HandleTimeout(kTimeoutNs);
  EXPECT_FALSE(tree.is_orphan());
  tree.HandleTimeout(kTimeoutNs * 3 / 2);
  EXPECT_TRUE(tree.is_orphan());
  EXPECT_TRUE(links.closed.contains(1));
}

TEST_F(TreeLinksTest, AChildThatLacksWhatIsNotKeptHereIsToldSo) {
  HaveChild();
  tree.Abandon(0, kKnock);
  ASSERT_TRUE(links.Last<TooFarBehind>(kKnock));
  EXPECT_EQ(links.Last<TooFarBehind>(kKnock)->generation, 1u);
  EXPECT_FALSE(links.Last<Failure>(kKnock)) << "the master may keep it still";
  EXPECT_FALSE(links.closed.contains(kKnock));
}

// A link that is closed sends nothing more of what it was given before.
TEST_F(TreeLinksTest, AChildWhoseOwnUpdateIsRefusedHearsWhyAndEndsTheLinkItself) {
  for (const bool ends : {true, false}) {
    links.closed.clear();
    HaveChild();
    tree.Reject(0, kKnock, kChild.origin, "bad update");
    ASSERT_TRUE(links.Last<Failure>(kKnock));
    EXPECT_NE(links.Last<Failure>(kKnock)->reason.find("bad update"), std::string::npos);
    EXPECT_TRUE(links.closed.empty());
    EXPECT_FALSE(tree.IsNeighbour(kKnock));
    EXPECT_FALSE(relay.Has(kKnock));
    if (ends) tree.HandleDown(0, Down(kKnock, Code::kClosed));
    EXPECT_EQ(tree.NextTimeout(), ends ? kNever : kTimeoutNs);
    tree.HandleTimeout(kTimeoutNs);
    EXPECT_EQ(links.closed.contains(kKnock), !ends);
    EXPECT_EQ(tree.NextTimeout(), kNever);
  }
}

TEST_F(TreeLinksTest, WhereTheParentKeepsTooLittleAWorkerAsksForAPlaceUnderTheMaster) {
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleUp(0, 1);
  tree.HandleControl(0, 1, *EncodeControl(TooFarBehind{1}));
  ASSERT_TRUE(tree.TakeTooFarBehind());
  tree.AskForPlaceUnderMaster(0);
  EXPECT_TRUE(links.closed.contains(1));
  EXPECT_TRUE(tree.is_orphan());
  const auto orphan = links.Last<Orphan>(kMaster);
  ASSERT_TRUE(orphan);
  EXPECT_EQ(orphan->too_far_behind, 1);
  EXPECT_EQ(orphan->reason, "it keeps no longer what this worker lacks");
  tree.HandlePlace(0, UnderAWorker(2));
  tree.HandleUp(0, 2);
  links.sent.clear();
  tree.HandleDown(kTimeoutNs, Down(2, Code::kMasterLost));
  ASSERT_TRUE(links.Last<Orphan>(kMaster));
  EXPECT_EQ(links.Last<Orphan>(kMaster)->too_far_behind, 0) << "that was the parent before";
}

// Whatever becomes of one place after another, the master is not asked all the time.
TEST_F(TreeLinksTest, BetweenTwoQuestionsForAPlaceThereIsAPause) {
  int64_t now_ns = 0;
  uint64_t version = 0;
  int asked = 0;
  while (now_ns < kTimeoutNs) {
    if (tree.is_orphan() || version == 0) {
      tree.HandlePlace(now_ns, UnderAWorker(++version));
      tree.HandleUp(now_ns, static_cast<LinkId>(version));
    }
    links.sent.clear();
    tree.HandleDown(now_ns, Down(static_cast<LinkId>(version), Code::kMasterLost));
    while (!links.Last<Orphan>(kMaster)) {
      ASSERT_TRUE(tree.is_orphan());
      ASSERT_GT(tree.NextTimeout(), now_ns);
      tree.HandleTimeout(now_ns = tree.NextTimeout());
    }
    ++asked;
  }
  EXPECT_GE(asked, 40);
  EXPECT_LE(asked, 51);
}

// Its beacon would make what the master lacks be forgotten.
TEST_F(TreeLinksTest, OfItsOwnUpdatesAWorkerBelievesTheMasterAlone) {
  std::vector<Replication::Accepted> accepted;
  (void)relay.Take(0, 0, {kOwn, 1}, MakeBuffer(std::vector<uint8_t>(100)), &accepted);
  tree.HandlePlace(0, UnderAWorker(1));
  tree.HandleUp(0, 1);
  constexpr int64_t kLater = int64_t{1} << 50;
  tree.HandleBeacon(kLater, 1, Beacon{1, 1, {{kOwn, 1}}});
  EXPECT_EQ(relay.replication().retained(), 1);
  tree.HandleBeacon(kLater, kMaster, Beacon{1, 1, {{kOwn, 1}}});
  EXPECT_EQ(relay.replication().retained(), 0);
}

// Where the child is lost, the end of the fit waits for what PLACED names of it, and for no more.
TEST_F(TreeLinksTest, WhatAPlaceDoesNotNameOfAFormerNeighbourIsNotAcceptedLater) {
  HaveChild();
  Take(kKnock, 1);
  Take(kKnock, 3);  // the second is late
  TreePlace alone;
  alone.version = 2;
  tree.HandlePlace(0, alone);
  ASSERT_TRUE(links.closed.contains(kKnock));
  EXPECT_EQ(links.Last<Placed>(kMaster)->vector, (VersionVector{{kChild.origin, 1}}));
  Take(kMaster, 2);
  EXPECT_EQ(relay.received(), (VersionVector{{kChild.origin, 2}}));
  Take(kMaster, 3);
  EXPECT_EQ(relay.received(), (VersionVector{{kChild.origin, 3}}));
}

TEST_F(TreeLinksTest, WhatIsHeldGoesWithALinkThatIsLost) {
  HaveChild();
  Take(kKnock, 2);
  tree.HandleDown(0, Down(kKnock, Code::kMasterLost));
  EXPECT_EQ(relay.replication().hold_bytes(), 0);
  tree.HandlePlace(0, UnderAWorker(2));
  tree.HandleUp(0, 1);
  Take(1, 2);
  tree.HandleDown(0, Down(1, Code::kMasterLost));
  EXPECT_EQ(relay.replication().hold_bytes(), 0);
  Take(kMaster, 2);
  tree.MasterDown();
  EXPECT_EQ(relay.replication().hold_bytes(), 0);
}

TEST_F(TreeLinksTest, BeaconsFlowDownTheTree) {
  HaveChild();
  tree.HandleBeacon(0, kMaster, Beacon{1, 1, {{kOwn, 3}}});
  ASSERT_TRUE(links.Last<Beacon>(kKnock));
  EXPECT_EQ(links.Last<Beacon>(kKnock)->vector, (VersionVector{{kOwn, 3}}));
}

}  // namespace
}  // namespace strom
