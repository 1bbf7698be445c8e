// Workers that leave to join anew, as one does whose fit has failed: no start is without them. And
// one that is back over another link.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/replication/blob.h"
#include "empty_update.h"
#include "link_events.h"
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

TEST(RejoiningTest, TheOthersHearWhoIsBack) {
  Rejoining master;
  EXPECT_FALSE(master.links.Last<Notice>(1)) << "joining for the first time is nothing to tell";
  EXPECT_FALSE(master.links.Last<Notice>(2));
  master.node.HandleLinkEvent(kNow, Down(2, Code::kUnreachable));
  master.SayHello(3, 1, 2);  // the same process
  master.node.HandleLinkEvent(kNow, Up(3));
  EXPECT_EQ(master.links.Last<Notice>(1)->text, "worker 1 is back");
  master.node.HandleLinkEvent(kNow, Down(3, Code::kUnreachable));
  master.SayHello(4, 1, 4, 1);
  master.node.HandleLinkEvent(kNow, Up(4));
  EXPECT_EQ(master.links.Last<Notice>(1)->text, "worker 1 has joined anew");
  EXPECT_FALSE(master.links.Last<Notice>(4)) << "its own";
}

TEST(RejoiningTest, ALinkThatReplacesAnotherBeforeThatWasMissedIsNotTold) {
  Rejoining master;
  master.SayHello(3, 1, 2);
  master.node.HandleLinkEvent(kNow, Up(3));
  EXPECT_FALSE(master.links.Last<Notice>(1));
}

// The others leave, too, and may be back only when the next one has failed there as well.
TEST(RejoiningTest, WhoComesToTheStartLaterHearsWithWhomItCannotBe) {
  Rejoining master;
  std::string cause(kCannotStart);
  cause += "fit 2 failed on worker 1: bad data";
  master.Leave(1, "as the other has failed");
  master.Leave(2, cause);
  master.Return(3, 0);
  EXPECT_FALSE(master.links.Last<Notice>(3));
  master.BeginAsChief(3);
  ASSERT_TRUE(master.links.Last<Notice>(3));
  EXPECT_EQ(master.links.Last<Notice>(3)->text, "worker 1 left to join anew: " + cause);
  master.Return(4, 1);
  master.Begin(4);
  EXPECT_FALSE(master.links.Last<Notice>(4)) << "its own";
  ASSERT_TRUE(master.HasStarted(3));
  // It has started without that: who comes later has nothing to do with it.
  master.node.HandleLinkEvent(kNow, Down(3, Code::kMasterLost));
  master.Return(5, 0);
  master.BeginAsChief(5);
  EXPECT_FALSE(master.links.Last<Notice>(5));
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

// In synchronous mode, where others step on while they come one after the other.
class SharedSnapshotTest : public testing::Test {
 protected:
  SharedSnapshotTest() {
    for (const int32_t rank : {0, 1, 2}) Hello(static_cast<LinkId>(rank) + 1, rank, 0);
    master.BeginAsChief(1, {kLayout, 0, ""});
    for (const LinkId link : {2, 3}) master.Say(link, Announce{kLayout, 0, ""});
    for (const LinkId link : {2, 3}) {
      master.node.HandleLinkEvent(kNow, Down(link, Code::kMasterLost));
      master.node.HandleTimeout(kNow + 3 * kTimeout);
    }
  }
  void Hello(LinkId link, int32_t rank, int32_t attempt) {
    master.SayHello(link, rank, static_cast<uint8_t>(link), attempt, /*max_staleness=*/0);
    master.node.HandleLinkEvent(kNow, Up(link));
  }
  // One by which the only worker that trains makes a STEP.
  void Step() {
    master.Update(1, {Master::Origin(1), ++counter});
    ASSERT_EQ(master.links.Last<strom::Step>(1)->step, counter - 1);
  }
  void Join(LinkId link, int32_t rank) {
    Hello(link, rank, 1);
    master.links.sent.clear();
    master.Say(link, Announce{kLayout, 0, ""});
    start = *master.links.Last<StartGeneration>(link);
    steps.clear();
    pending.clear();
    for (const RecordedLinks::Sent& sent : master.links.sent) {
      ControlMessage message;
      BlobChunk chunk;
      if (sent.link != link) continue;
      if (sent.channel == Channel::kControl && ParseControl(*sent.message, &message).ok()) {
        if (const auto* step = std::get_if<strom::Step>(&message)) steps.push_back(step->step);
      }
      if (sent.channel != Channel::kState || !ParseChunk(*sent.message, &chunk).ok()) continue;
      EXPECT_EQ(chunk.name.mark, start.snapshot);
      if (chunk.name.kind == BlobKind::kParameters) copies.insert(sent.message.get());
      std::vector<Buffer> updates;
      if (chunk.name.kind != BlobKind::kPending) continue;
      ASSERT_TRUE(ParseUpdates(chunk.bytes, &updates).ok());
      for (const Buffer& update : updates) {
        UpdateHeader header;
        ASSERT_TRUE(ParseUpdateHeader(*update, &header).ok());
        pending.push_back(header.id);
      }
    }
  }

  Master master{3, {.failure_timeout_ns = kTimeout}};
  uint64_t counter = 0;
  StartGeneration start;
  std::vector<uint64_t> steps;
  std::vector<UpdateId> pending;
  std::set<const void*> copies;  // of the parameters
};

TEST_F(SharedSnapshotTest, WhoComesAfterAFewStepsGetsTheseAndTheCopyThatTheFirstHasGot) {
  Step();
  Join(4, 1);
  EXPECT_EQ(start.step, 1u);
  EXPECT_TRUE(steps.empty());
  EXPECT_TRUE(pending.empty());
  Step();
  Step();
  Join(5, 2);
  EXPECT_EQ(start.step, 1u);
  EXPECT_EQ(start.cut, master.node.received());
  EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2}));
  const uint64_t origin = Master::Origin(1);
  EXPECT_EQ(pending, (std::vector<UpdateId>{{origin, 2}, {origin, 3}}));
  EXPECT_EQ(copies.size(), 1u);
}

TEST_F(SharedSnapshotTest, WhoComesAfterVeryManyStepsGetsParametersOfThen) {
  Join(4, 1);
  const int64_t bytes = std::ssize(*EmptyUpdate({1, 1}, kLayout));
  for (int64_t sent = 0; sent <= int64_t{1} << 20; sent += bytes) Step();
  Join(5, 2);
  EXPECT_EQ(start.step, counter);
  EXPECT_TRUE(steps.empty());
  EXPECT_TRUE(pending.empty());
  EXPECT_EQ(copies.size(), 2u);
}

TEST(RejoiningTest, WhoComesBackAndIsLostBeforeItsAttachHoldsNobodyUp) {
  Master master(3);
  master.Start();
  master.SayHello(4, 2, 3);
  master.node.HandleLinkEvent(kNow, Up(4));
  for (LinkId link = 1; link <= 2; ++link) master.Say(link, Done{1, 0, 0});
  EXPECT_FALSE(master.links.Last<Final>(1));
  master.node.HandleLinkEvent(kNow, Down(4, Code::kMasterLost));
  EXPECT_TRUE(master.links.Last<Final>(1));
}

// Rounds of all workers, which train their first.
struct Rounds : Master {
  Rounds() : Master(2, {.failure_timeout_ns = kTimeout}) {
    JointPlan plan;
    plan.method.kind = STROM_SPARKNET;
    plan.method.phases = plan.method.steps = 1;
    plan.ranges = {{0, static_cast<int64_t>(kLayout.size)}};
    Join();
    Master::BeginAsChief(1, {kLayout, 0, "", plan});
    Say(2, Announce{kLayout, 0, "", plan});
  }
  void Give(LinkId link) {
    const std::vector<float> values(kLayout.size, static_cast<float>(link));
    SayBlob(link, EncodeBlob({BlobKind::kShard, 1, 0, 0, 1}, values, 16 * sizeof(float)));
  }
  // In the half of the failure timeout that is over before it.
  bool HasMean(LinkId link) {
    while (node.NextTimeout() < now_ns + kTimeout / 2) node.HandleTimeout(node.NextTimeout());
    now_ns += kTimeout / 2;
    return std::any_of(links.sent.begin(), links.sent.end(), [&](const RecordedLinks::Sent& one) {
      BlobChunk chunk;
      return one.link == link && one.channel == Channel::kState &&
             ParseChunk(*one.message, &chunk).ok() && chunk.name.kind == BlobKind::kTarget;
    });
  }
  int64_t now_ns = kNow;
};

TEST(RejoiningTest, ARoundWaitsForWhoIsBackAndHasNotSaidWhetherItTakesPart) {
  for (const bool goes_on : {true, false}) {
    Rounds master;
    master.Give(1);
    EXPECT_FALSE(master.HasMean(1));
    master.SayHello(3, 1, 2);
    master.node.HandleLinkEvent(kNow, Up(3));
    EXPECT_FALSE(master.HasMean(1)) << "without it";
    if (goes_on) {
      master.Say(3, Attach{1, {}});
      EXPECT_FALSE(master.HasMean(1)) << "without it";
      master.Give(3);
      EXPECT_TRUE(master.HasMean(3));
    } else {
      master.node.HandleLinkEvent(kNow, Down(3, Code::kMasterLost));
    }
    EXPECT_TRUE(master.HasMean(1));
  }
}

}  // namespace
}  // namespace strom
