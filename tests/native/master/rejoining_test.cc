// Workers that leave to join anew, as one does whose fit has failed: no start is without them.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "scripted_master.h"

namespace strom {
namespace {

constexpr int64_t kTimeout = 5'000'000'000;
constexpr Layout kNext = {.generation = 3, .size = kLayout.size, .hash = kLayout.hash};

// Two workers that have been through a generation. Rank 0 is link 1, rank 1 link 2.
struct Rejoining : Master {
  Rejoining() : Master(2, {.failure_timeout_ns = kTimeout}) {
    Start();
    End();
  }
  void Leave(LinkId link, const std::string& why) {
    LinkEvent down = Down(link, Code::kClosed);
    down.reason = std::string(kJoinsAnew) + why;
    node.HandleLinkEvent(kNow, down);
  }
  void Return(LinkId link, int32_t rank) {
    SayHello(link, rank, static_cast<uint8_t>(link));
    node.HandleLinkEvent(kNow, Up(link));
  }
  void Begin(LinkId link) { Say(link, Announce{kNext, 0, ""}); }
  void BeginAsChief(LinkId link) { Master::BeginAsChief(link, {kNext, 0, ""}); }
  bool HasStarted(LinkId link) const {
    const auto start = links.Last<StartGeneration>(link);
    return start && start->generation == kNext.generation;
  }
};

TEST(RejoiningTest, TheChiefDoesNotStartWhileAnotherIsOnItsWayBack) {
  Rejoining master;
  master.Leave(2, "fit 2 failed on worker 1: bad data");
  master.BeginAsChief(1);
  EXPECT_FALSE(master.HasStarted(1)) << "alone";
  master.Return(3, 1);
  EXPECT_FALSE(master.HasStarted(1)) << "alone";
  master.Begin(3);
  EXPECT_TRUE(master.HasStarted(1));
  EXPECT_TRUE(master.HasStarted(3));
}

TEST(RejoiningTest, NobodyStartsWithTheMastersValuesWhileTheChiefIsOnItsWayBack) {
  Rejoining master;
  master.Leave(1, "fit 2 failed on worker 0: bad data");
  master.Begin(2);
  EXPECT_FALSE(master.HasStarted(2));
  master.Return(3, 0);
  master.BeginAsChief(3);
  EXPECT_TRUE(master.HasStarted(2));
  EXPECT_TRUE(master.HasStarted(3));
}

TEST(RejoiningTest, WhoHasLeftToJoinAnewIsNotLost) {
  Rejoining master;
  master.Leave(2, "fit 2 failed on worker 1: bad data");
  const auto notice = master.links.Last<Notice>(1);
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->text, "worker 1 left to join anew: fit 2 failed on worker 1: bad data");
}

TEST(RejoiningTest, WhoDoesNotComeBackIsLostAndNotWaitedForAnyMore) {
  Rejoining master;
  master.Leave(2, "fit 2 failed on worker 1: bad data");
  master.BeginAsChief(1);
  master.node.HandleTimeout(kNow + 2 * kTimeout - 1);
  EXPECT_FALSE(master.HasStarted(1));
  master.node.HandleTimeout(kNow + 3 * kTimeout);
  EXPECT_TRUE(master.HasStarted(1));
  EXPECT_EQ(master.links.Last<Notice>(1)->text, "worker 1 was lost: it does not join anew");
}

TEST(RejoiningTest, OneThatIsRefusedMayBeginAnotherFitWithTheOthers) {
  Rejoining master;
  Layout other = kNext;
  other.hash += 1;
  master.Say(2, Announce{other, 0, ""});
  master.BeginAsChief(1);  // All are refused, as nobody knows whose model is right.
  ASSERT_TRUE(master.links.Last<Failure>(1));
  ASSERT_TRUE(master.links.Last<Failure>(2));
  master.Return(3, 0);
  master.BeginAsChief(3);
  EXPECT_FALSE(master.HasStarted(3)) << "alone";
  master.Return(4, 1);
  master.Begin(4);
  EXPECT_TRUE(master.HasStarted(3));
  EXPECT_TRUE(master.HasStarted(4));
}

// Where a host is lost, all its workers come back at once, and each may be as large as a model.
TEST(RejoiningTest, ThoseWhoComeAfterTheEndTogetherShareOneCopyOfTheParameters) {
  Rejoining master;
  for (const LinkId link : {1, 2}) {
    master.node.HandleLinkEvent(kNow, Down(link, Code::kMasterLost));
  }
  std::set<const void*> copies;
  for (const LinkId link : {3, 4}) {
    master.SayHello(link, static_cast<int32_t>(link) - 3, static_cast<uint8_t>(link),
                    /*attempt=*/1);
    master.node.HandleLinkEvent(kNow, Up(link));
    master.links.sent.clear();
    Announce announce{kLayout, 0, ""};
    announce.hashes.resize(PieceGrid(kLayout.size).count());
    master.Say(link, announce);
    const auto ended = master.links.Last<Ended>(link);
    ASSERT_TRUE(ended);
    for (const RecordedLinks::Sent& sent : master.links.sent) {
      if (sent.channel != Channel::kState) continue;
      BlobChunk chunk;
      ASSERT_TRUE(ParseChunk(*sent.message, &chunk).ok());
      EXPECT_EQ(chunk.name.mark, ended->snapshot);
      copies.insert(sent.message.get());
    }
  }
  EXPECT_EQ(copies.size(), 1u);
}

}  // namespace
}  // namespace strom
