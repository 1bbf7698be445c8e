// A worker's links to the others of its rounds: who makes them, who is taken in, and when the
// master hears of them.
#include "core/worker/peer_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "link_events.h"
#include "recorded_links.h"

namespace strom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kTimeoutNs = 1'000'000'000;
constexpr LinkId kMaster = 900, kKnock = 901;
constexpr int32_t kOwnRank = 1;

Peers::Peer PeerOf(int32_t rank, uint8_t instance = 1) {
  Peers::Peer peer;
  peer.rank = rank;
  peer.origin = static_cast<uint64_t>(rank) + 100;
  peer.instance = {instance};
  peer.address.port = static_cast<uint16_t>(4000 + rank);
  return peer;
}

class PeerLinksTest : public testing::Test {
 protected:
  PeerLinksTest() : peers(Token{1}, kOwnRank, kTimeoutNs, &links) {}

  void Name(std::vector<Peers::Peer> all) {
    ASSERT_TRUE(peers.Handle(0, {7, ++version, std::move(all)}, kMaster).ok());
  }
  bool Knock(const PeerHello& hello) {
    return peers.HandleHello(0, HelloOn(kKnock, EncodePeerHello(hello)));
  }
  // All links of {0, 1, 2} stand.
  void LinkAll() {
    Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2)});
    peers.HandleUp(0, 1);
    Knock({100, {1}, version});
    peers.HandleUp(0, kKnock);
    ASSERT_EQ(peers.PollLinked()->linked, 1);
  }

  RecordedLinks links;
  uint64_t version = 0;
  PeerLinks peers;
};

TEST_F(PeerLinksTest, TheLowerRankMakesTheLink) {
  Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2), PeerOf(5)});
  ASSERT_EQ(links.connected.size(), 2u);
  EXPECT_EQ(links.connected[0].port, 4002);
  EXPECT_EQ(links.connected[1].port, 4005);
  EXPECT_THAT(peers.ranks(), ElementsAre(0, 1, 2, 5));
}

TEST_F(PeerLinksTest, OnlyANamedLowerRankIsTakenIn) {
  EXPECT_TRUE(Knock({100, {1}, 1}));
  EXPECT_TRUE(links.refused.contains(kKnock));  // nobody is named yet
  Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2)});
  for (const PeerHello& hello : {PeerHello{100, {9}, 1}, PeerHello{102, {1}, 1}}) {
    links.refused.clear();
    EXPECT_TRUE(Knock(hello));
    EXPECT_TRUE(links.refused.contains(kKnock));
  }
  links.refused.clear();
  EXPECT_TRUE(Knock({100, {1}, 1}));
  EXPECT_THAT(links.refused, IsEmpty());
  EXPECT_THAT(links.accepted, ElementsAre(kKnock));
  EXPECT_TRUE(peers.HandleUp(0, kKnock));
  EXPECT_EQ(peers.RankOf(kKnock), 0);
}

TEST_F(PeerLinksTest, AChildOfTheTreeIsNoneOfThem) {
  EXPECT_FALSE(peers.HandleHello(0, HelloOn(kKnock, EncodeChildHello({100, {1}}))));
  EXPECT_FALSE(peers.HandleUp(0, kKnock));
  EXPECT_FALSE(peers.HandleDown(0, Down(kKnock, Code::kClosed)));
}

TEST_F(PeerLinksTest, TheMasterHearsOfItOnceAllStand) {
  Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleUp(0, 1);
  EXPECT_FALSE(peers.PollLinked());
  Knock({100, {1}, 1});
  EXPECT_FALSE(peers.PollLinked());  // a hello may be somebody's who cannot answer
  peers.HandleUp(0, kKnock);
  const auto linked = peers.PollLinked();
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->version, 1u);
  EXPECT_EQ(linked->linked, 1);
  EXPECT_FALSE(peers.PollLinked());
  peers.TellAgain();
  EXPECT_TRUE(peers.PollLinked());
}

TEST_F(PeerLinksTest, ALostLinkIsToldAndMadeAgain) {
  LinkAll();
  peers.HandleDown(0, Down(1, Code::kMasterLost));
  EXPECT_EQ(peers.PollLinked()->linked, 0);
  EXPECT_EQ(peers.LinkTo(2), 0u);
  EXPECT_FALSE(peers.PollNotice());  // that worker may be lost
  ASSERT_EQ(peers.NextTimeout(), kTimeoutNs);
  peers.HandleTimeout(kTimeoutNs);
  ASSERT_EQ(links.connected.size(), 2u);
  peers.HandleUp(kTimeoutNs, 2);
  EXPECT_EQ(peers.PollLinked()->linked, 1);
}

TEST_F(PeerLinksTest, OneThatCannotBeReachedIsSaidOnce) {
  Name({PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleDown(0, Down(1, Code::kUnreachable));
  EXPECT_FALSE(peers.PollNotice());  // that worker may be lost
  peers.HandleTimeout(kTimeoutNs);
  peers.HandleDown(kTimeoutNs, Down(2, Code::kUnreachable));
  EXPECT_THAT(*peers.PollNotice(), HasSubstr("worker 2 cannot be reached from worker 1 (silent)"));
  peers.HandleTimeout(2 * kTimeoutNs);
  peers.HandleDown(2 * kTimeoutNs, Down(3, Code::kUnreachable));
  EXPECT_FALSE(peers.PollNotice());
  EXPECT_EQ(peers.NextTimeout(), 3 * kTimeoutNs);
  peers.Rest();  // another fit
  EXPECT_EQ(peers.NextTimeout(), kNever);
  Name({PeerOf(kOwnRank), PeerOf(2)});
  EXPECT_EQ(links.connected.size(), 4u);
  peers.HandleDown(3 * kTimeoutNs, Down(4, Code::kUnreachable));
  EXPECT_FALSE(peers.PollNotice());
}

TEST_F(PeerLinksTest, OneThatIsReplacedSoonIsNoneThatCannotBeReached) {
  Name({PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleDown(kTimeoutNs, Down(1, Code::kUnreachable));
  Name({PeerOf(kOwnRank), PeerOf(2, /*instance=*/2)});
  peers.HandleDown(kTimeoutNs, Down(2, Code::kUnreachable));
  EXPECT_FALSE(peers.PollNotice()) << "its successor has been tried once";
  peers.HandleTimeout(2 * kTimeoutNs);
  peers.HandleDown(2 * kTimeoutNs, Down(3, Code::kUnreachable));
  EXPECT_TRUE(peers.PollNotice());
}

TEST_F(PeerLinksTest, OneThatCannotBeReachedAtEitherAddressIsSaidOnce) {
  Name({PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleDown(0, Down(1, Code::kUnreachable));
  Peers::Peer moved = PeerOf(2);
  moved.address.port = 5000;
  Name({PeerOf(kOwnRank), moved});
  peers.HandleDown(0, Down(2, Code::kUnreachable));
  EXPECT_TRUE(peers.PollNotice());
  Name({PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleDown(0, Down(3, Code::kUnreachable));
  EXPECT_FALSE(peers.PollNotice());
}

// Links say of whoever does not accept a handshake that it is the master.
TEST_F(PeerLinksTest, OneThatDoesNotAcceptTheSecretIsNotSaidToBeTheMaster) {
  Name({PeerOf(kOwnRank), PeerOf(2)});
  for (LinkId link = 1; link <= 2; ++link) {
    LinkEvent rejected = Down(link, Code::kRejectedSecret);
    rejected.reason = "the master answers but does not accept this job";
    peers.HandleDown(0, rejected);
    peers.HandleTimeout(kTimeoutNs);
  }
  EXPECT_THAT(*peers.PollNotice(),
              HasSubstr("(something answers at its address but does not accept the job's secret)"));
}

TEST_F(PeerLinksTest, OneThatHasLeftIsNotTriedAgain) {
  LinkAll();
  LinkEvent left = Down(1, Code::kClosed);
  left.reason.clear();
  peers.HandleDown(0, left);
  EXPECT_EQ(peers.NextTimeout(), kNever);
}

TEST_F(PeerLinksTest, WorkersThatCannotBeAreRefused) {
  EXPECT_EQ(peers.Handle(0, {7, 1, {}}, kMaster).code, Code::kCorrupt);
  EXPECT_EQ(peers.Handle(0, {7, 1, {PeerOf(0), PeerOf(2)}}, kMaster).code, Code::kCorrupt);
  EXPECT_EQ(peers.Handle(0, {7, 1, {PeerOf(1), PeerOf(1)}}, kMaster).code, Code::kCorrupt);
  EXPECT_EQ(peers.Handle(0, {7, 1, {PeerOf(2), PeerOf(1)}}, kMaster).code, Code::kCorrupt);
}

TEST_F(PeerLinksTest, OfANewLinkInThePlaceOfAnotherTheMasterHearsBoth) {
  LinkAll();
  const LinkId again = kKnock + 1;
  peers.HandleHello(0, HelloOn(again, EncodePeerHello({100, {1}, version})));
  peers.HandleUp(0, again);
  EXPECT_TRUE(links.closed.contains(kKnock));
  EXPECT_EQ(peers.PollLinked()->linked, 0);
  EXPECT_EQ(peers.PollLinked()->linked, 1);
  EXPECT_FALSE(peers.PollLinked());
}

TEST_F(PeerLinksTest, WhoHasNotHeardOfItYetIsAskedAgainSoonWithoutANotice) {
  Name({PeerOf(kOwnRank), PeerOf(2)});
  peers.HandleDown(0, Down(1, Code::kRefused));
  EXPECT_FALSE(peers.PollNotice());
  EXPECT_LT(peers.NextTimeout(), kTimeoutNs / 10);
}

// Its first packet comes once the master has named another process of that rank.
TEST_F(PeerLinksTest, ALinkOfAReplacedProcessIsNotTakenForItsSuccessors) {
  Name({PeerOf(0), PeerOf(kOwnRank)});
  Knock({100, {1}, version});
  Name({PeerOf(0, /*instance=*/2), PeerOf(kOwnRank)});
  EXPECT_TRUE(links.closed.contains(kKnock));
  EXPECT_FALSE(peers.HandleUp(0, kKnock));
  EXPECT_EQ(peers.LinkTo(0), 0u);
  EXPECT_FALSE(peers.PollLinked());
  const LinkId successor = kKnock + 1;
  peers.HandleHello(0, HelloOn(successor, EncodePeerHello({100, {2}, version})));
  peers.HandleUp(0, successor);
  EXPECT_EQ(peers.LinkTo(0), successor);
}

TEST_F(PeerLinksTest, AWelcomedLinkOfOneThatIsNamedAgainIsKept) {
  Name({PeerOf(0), PeerOf(kOwnRank)});
  Knock({100, {1}, version});
  Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2)});
  EXPECT_FALSE(links.closed.contains(kKnock));
  EXPECT_TRUE(peers.HandleUp(0, kKnock));
  EXPECT_EQ(peers.LinkTo(0), kKnock);
}

TEST_F(PeerLinksTest, LinksToThoseWhoStayAreKept) {
  LinkAll();
  Name({PeerOf(kOwnRank), PeerOf(2), PeerOf(3)});
  EXPECT_TRUE(links.closed.contains(kKnock));
  EXPECT_FALSE(links.closed.contains(1));
  ASSERT_EQ(links.connected.size(), 2u);
  EXPECT_EQ(links.connected[1].port, 4003);
  Name({PeerOf(kOwnRank), PeerOf(2, /*instance=*/2)});  // another process
  EXPECT_TRUE(links.closed.contains(1));
}

// The master has named others for a moment, of which this worker has not heard.
TEST_F(PeerLinksTest, OneThatHasClosedTheLinkForAnEarlierWordIsTriedAgain) {
  LinkAll();
  Name({PeerOf(0), PeerOf(kOwnRank), PeerOf(2)});
  PeerLinks other(Token{1}, 2, kTimeoutNs, &links);
  ASSERT_TRUE(other.Handle(0, {7, 1, {PeerOf(kOwnRank), PeerOf(2)}}, kMaster).ok());
  const LinkId there = kKnock + 1;
  other.HandleHello(0, HelloOn(there, EncodePeerHello({101, {1}, 1})));
  other.HandleUp(0, there);
  ASSERT_TRUE(other.Handle(0, {7, 2, {PeerOf(2), PeerOf(3)}}, kMaster).ok());
  ASSERT_TRUE(links.closed.contains(there));
  LinkEvent closed = Down(1, Code::kClosed);
  closed.reason = links.closed[there];
  peers.HandleDown(0, closed);
  EXPECT_LT(peers.NextTimeout(), kTimeoutNs);
}

TEST_F(PeerLinksTest, ALinkThatEndsAfterTheFitIsNotMadeAgainBeforeTheNext) {
  Name({PeerOf(kOwnRank), PeerOf(2), PeerOf(3)});
  peers.HandleUp(0, 1);
  peers.HandleDown(0, Down(2, Code::kUnreachable));
  peers.HandleTimeout(kTimeoutNs);
  ASSERT_EQ(links.connected.size(), 3u);
  peers.Rest();
  peers.HandleDown(kTimeoutNs, Down(1, Code::kMasterLost));
  peers.HandleDown(kTimeoutNs, Down(3, Code::kUnreachable));  // was being tried
  EXPECT_EQ(peers.NextTimeout(), kNever);
  EXPECT_TRUE(peers.PollNotice());
  Name({PeerOf(kOwnRank), PeerOf(2), PeerOf(3)});
  EXPECT_EQ(links.connected.size(), 5u);
}

}  // namespace
}  // namespace strom
