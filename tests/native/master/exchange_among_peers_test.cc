// Where rounds of gradients are made: among the workers once they are linked, and at the master
// again, from one state of all, when one of them is lost, ends or comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "core/master/shard_exchange.h"

namespace strom {
namespace {

using testing::ElementsAre;

constexpr uint64_t kGeneration = 5;
constexpr int64_t kSize = 32;  // two parts

class Host final : public ShardExchangeHost {
 public:
  void Send(int32_t rank, const ControlMessage& message) override {
    if (const auto* peers = std::get_if<Peers>(&message)) named[rank] = *peers;
    if (const auto* rounds = std::get_if<Rounds>(&message)) orders[rank].push_back(*rounds);
  }
  void SendBlob(int32_t rank, const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) {
      BlobChunk parsed;
      ASSERT_TRUE(ParseChunk(*chunk, &parsed).ok());
      if (parsed.name.kind != BlobKind::kTarget) continue;
      std::vector<float>& mean = means[rank][parsed.name.mark];
      const size_t before = mean.size();
      mean.resize(before + parsed.bytes.size() / sizeof(float));
      std::copy(parsed.bytes.begin(), parsed.bytes.end(),
                reinterpret_cast<uint8_t*>(mean.data() + before));
    }
  }
  int64_t QueuedBytes(int32_t) const override { return 0; }
  void Fail(int32_t rank, Code, const std::string&) override { failed.push_back(rank); }
  int64_t FailureTimeout() const override { return kTimeoutNs; }
  std::optional<Peers::Peer> ContactOf(int32_t rank) const override {
    Peers::Peer peer;
    peer.rank = rank;
    peer.origin = static_cast<uint64_t>(rank) + 100;
    return peer;
  }

  static constexpr int64_t kTimeoutNs = 1'000'000;
  std::vector<int32_t> failed;
  std::map<int32_t, Peers> named;
  std::map<int32_t, std::vector<Rounds>> orders;
  std::map<int32_t, std::map<uint64_t, std::vector<float>>> means;  // by rank and round
};

class AmongPeersTest : public testing::Test {
 protected:
  void SetUp() override {
    JointPlan plan;
    plan.method.kind = STROM_SPARKNET;
    plan.method.phases = plan.method.steps = plan.method.gradients = 1;
    plan.ranges = {{0, kSize}};
    host = {};
    exchange.emplace(plan, kGeneration, std::vector<float>(kSize), 0, &host);
    for (int32_t rank = 0; rank < 3; ++rank) exchange->Join(rank, false);
    Advance();
  }

  void Advance() {
    while (exchange->NextTimeout() <= ++now) exchange->Advance(now);
  }
  std::string Give(int32_t rank, uint64_t mark, float value, size_t first = 0) {
    const std::vector<float> values(kSize, value);
    std::string fault;
    for (const Buffer& chunk :
         EncodeBlob({BlobKind::kShard, kGeneration, mark, mark, 1}, values, 16 * sizeof(float))) {
      BlobChunk parsed;
      EXPECT_TRUE(ParseChunk(*chunk, &parsed).ok());
      bool whole = false;
      if (parsed.offset >= first && fault.empty()) {
        fault = exchange->HandleShard(now, rank, parsed, &whole);
      }
    }
    Advance();
    return fault;
  }
  void RoundAtMaster(uint64_t round, int32_t workers = 3) {
    for (int32_t rank = 0; rank < workers; ++rank) ASSERT_EQ(Give(rank, round, 1), "");
  }
  void LinkAll() {
    for (const auto& [rank, peers] : host.named) {
      exchange->Handle(rank, Linked{kGeneration, peers.version, 1});
    }
  }
  void Have(int32_t rank, uint64_t round) {
    exchange->Handle(now, rank, strom::Have{kGeneration, round, static_cast<int64_t>(round)});
    Advance();
  }
  bool Report(int32_t rank, uint64_t round) {
    const uint64_t version = host.orders[rank].back().version;
    const bool may_stay = exchange->Handle(rank, AtRound{kGeneration, version, round});
    Advance();
    return may_stay;
  }
  // Rounds from kFirst on are made among the three.
  void BeginAmongPeers() {
    RoundAtMaster(0);
    LinkAll();
    RoundAtMaster(1);
    RoundAtMaster(2);
    for (int32_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(LastOrder(rank).where, Rounds::kAmongPeers);
      ASSERT_EQ(LastOrder(rank).round, kFirst);
      Have(rank, 2);
    }
  }
  // The same, and 3 makes the round before with them: they are stopped before they know.
  void JoinAsTheyBegin() {
    RoundAtMaster(0);
    LinkAll();
    RoundAtMaster(1);
    exchange->Join(3, /*late=*/true);
    ASSERT_TRUE(exchange->Hold(3, 2));
    RoundAtMaster(2, /*workers=*/4);
    ASSERT_EQ(LastOrder(0).where, Rounds::kStopped);
    Have(3, 2);
  }
  const Rounds& LastOrder(int32_t rank) { return host.orders[rank].back(); }

  static constexpr uint64_t kFirst = 3;
  int64_t now = 0;
  Host host;
  std::optional<ShardExchange> exchange;
};

TEST_F(AmongPeersTest, AllAreNamedAndGoOnByThemselvesOnceTheyAreLinked) {
  RoundAtMaster(0);
  ASSERT_EQ(host.named.size(), 3u);
  std::vector<int32_t> ranks;
  for (const Peers::Peer& peer : host.named[1].peers) ranks.push_back(peer.rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
  exchange->Handle(0, Linked{kGeneration, 1, 1});
  exchange->Handle(1, Linked{kGeneration, 1, 1});
  RoundAtMaster(1);
  EXPECT_TRUE(host.orders.empty());  // one is not linked yet
  exchange->Handle(2, Linked{kGeneration, 1, 1});
  RoundAtMaster(2);
  EXPECT_EQ(LastOrder(2).where, Rounds::kAmongPeers);
  EXPECT_EQ(LastOrder(2).round, 4u);
}

TEST_F(AmongPeersTest, StepsAreCountedByWhatTheWorkersHave) {
  BeginAmongPeers();
  const int64_t before = exchange->steps_counted();
  for (int32_t rank = 0; rank < 3; ++rank) Have(rank, kFirst);
  Have(1, kFirst + 1);
  Have(1, kFirst + 1);  // said again
  EXPECT_EQ(exchange->steps_counted(), before + 4);
}

TEST_F(AmongPeersTest, WhoWaitsInAnAverageIsHeldUpOnceAllOthersSayThatTheyHaveGiven) {
  BeginAmongPeers();
  exchange->Wait(0, kFirst);
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kAmongPeers);
  EXPECT_EQ(LastOrder(1).where, Rounds::kSayGiven);
  EXPECT_EQ(LastOrder(2).where, Rounds::kSayGiven);
  const size_t orders = host.orders[2].size();
  EXPECT_FALSE(exchange->IsHeldUp());
  EXPECT_TRUE(Report(1, kFirst));
  EXPECT_FALSE(exchange->IsHeldUp());
  EXPECT_TRUE(Report(2, kFirst));
  EXPECT_TRUE(exchange->IsHeldUp());
  exchange->EndWait(0);
  EXPECT_FALSE(exchange->IsHeldUp());
  exchange->Wait(0, kFirst);  // in the epoch's next average
  EXPECT_TRUE(exchange->IsHeldUp());
  EXPECT_EQ(host.orders[2].size(), orders);  // asked once
}

TEST_F(AmongPeersTest, WhoHasGivenForAMeanThatThereIsIsNotHeldUpByWhoWaits) {
  BeginAmongPeers();
  exchange->Wait(0, kFirst + 1);  // comes before its word that it has the mean of kFirst
  Advance();
  EXPECT_TRUE(Report(1, kFirst));
  EXPECT_TRUE(Report(2, kFirst));
  EXPECT_FALSE(exchange->IsHeldUp());
  exchange->Wait(1, kFirst + 1);
  exchange->Wait(2, kFirst + 1);
  EXPECT_TRUE(exchange->IsHeldUp());  // all wait
}

TEST_F(AmongPeersTest, WhoIsLostOrHasEndedHoldsUpNobodyWhoWaits) {
  BeginAmongPeers();
  exchange->Wait(0, kFirst);
  exchange->Finish(1);
  EXPECT_FALSE(exchange->IsHeldUp());
  exchange->Leave(2);
  EXPECT_TRUE(exchange->IsHeldUp());
  exchange->Join(2, /*late=*/true);
  EXPECT_TRUE(exchange->IsHeldUp());  // it has no state yet
}

class AveragesTest : public testing::Test {
 protected:
  AveragesTest() {
    JointPlan plan;
    plan.method.kind = STROM_SPARKNET;
    plan.method.phases = 1;
    plan.method.steps = 40;
    plan.ranges = {{0, kSize}};
    exchange.emplace(plan, kGeneration, std::vector<float>(kSize), 0, &host);
  }

  Host host;
  std::optional<ShardExchange> exchange;
};

TEST_F(AveragesTest, WhoJoinsInTheMiddleNeitherWaitsNorIsWaitedForBeforeItsFirstRound) {
  for (int32_t rank = 0; rank < 2; ++rank) exchange->Join(rank, /*late=*/false);
  exchange->Leave(1);
  exchange->Join(1, /*late=*/true);
  EXPECT_TRUE(exchange->IsAwaited(0));
  EXPECT_FALSE(exchange->IsAwaited(1));
  exchange->Wait(0, 0);
  EXPECT_TRUE(exchange->IsHeldUp());  // all who are awaited wait
}

TEST_F(AveragesTest, AtAnotherMasterAllWhoHaveTrainedAreWaitedForAtOnce) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    exchange->Join(rank, /*late=*/true, /*has_trained=*/true);
  }
  exchange->Join(2, /*late=*/true, /*has_trained=*/false);
  exchange->Wait(0, 0);
  EXPECT_FALSE(exchange->IsHeldUp());
  exchange->Wait(1, 0);
  EXPECT_TRUE(exchange->IsHeldUp());
  exchange->EndWait(1);
  exchange->Finish(1);
  EXPECT_FALSE(exchange->IsAwaited(1));
  EXPECT_TRUE(exchange->IsHeldUp());
}

TEST_F(AmongPeersTest, WhenOneIsLostTheOthersGoOnAtTheMaster) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  Report(0, kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);  // the other has not answered
  Report(1, kFirst);
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(LastOrder(rank).where, Rounds::kAtMaster);
    EXPECT_EQ(LastOrder(rank).round, kFirst);
  }
  Give(0, kFirst, 1);
  Give(1, kFirst, 3);
  EXPECT_EQ(host.means[0][kFirst], std::vector<float>(kSize, 2.0f));
}

TEST_F(AmongPeersTest, AMeanThatOneHasIsFetchedForWhoLacksIt) {
  BeginAmongPeers();
  Have(1, kFirst);
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  EXPECT_EQ(LastOrder(1).where, Rounds::kGiveMean);
  EXPECT_EQ(LastOrder(1).round, kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  EXPECT_EQ(Give(1, kFirstMeanMark + kFirst, 7), "");
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
  EXPECT_EQ(LastOrder(0).round, kFirst + 1);
  Give(0, kFirst, 1);  // says it again, and gets the mean that was made
  EXPECT_EQ(host.means[0][kFirst], std::vector<float>(kSize, 7.0f));
}

TEST_F(AmongPeersTest, WhereItsOnlyHolderIsLostTheRoundIsMadeAgain) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  exchange->Leave(1);
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);  // it may come back
  now += 2 * Host::kTimeoutNs;
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
  EXPECT_EQ(LastOrder(0).round, kFirst);
}

TEST_F(AmongPeersTest, AMeanThatDoesNotComeCostsItsHolderItsPlace) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  BlobChunk nothing;
  nothing.name = {BlobKind::kShard, kGeneration, 0, kFirstMeanMark + kFirst, 0};
  bool whole = false;
  EXPECT_THAT(exchange->HandleShard(now, 1, nothing, &whole), testing::HasSubstr("no mean"));
}

TEST_F(AmongPeersTest, WhoComesBackIsAskedAndGoesOnWhereItIsNoFurtherThanTheOthers) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst);
  ASSERT_TRUE(exchange->MayReturn(2));
  exchange->Return(2);
  EXPECT_EQ(LastOrder(2).where, Rounds::kStopped);
  EXPECT_TRUE(Report(2, kFirst));
  EXPECT_EQ(LastOrder(2).where, Rounds::kAtMaster);
  for (const float value : {1.0f, 2.0f, 6.0f}) Give(static_cast<int32_t>(value) / 2, kFirst, value);
  Give(2, kFirst, 6);
}

TEST_F(AmongPeersTest, WhoHasAMeanThatTheOthersNeverHadHasToGo) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst);
  Give(0, kFirst, 1);
  Give(1, kFirst, 1);  // made anew, without it
  ASSERT_TRUE(exchange->MayReturn(2));
  exchange->Return(2);
  EXPECT_FALSE(Report(2, kFirst + 1));
}

TEST_F(AmongPeersTest, ALinkThatIsLostAndOneWhoJoinsStopThem) {
  BeginAmongPeers();
  exchange->Handle(1, Linked{kGeneration, host.named[1].version, 0});
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
  RoundAtMaster(kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);  // until that one is linked again
  LinkAll();
  RoundAtMaster(kFirst + 1);
  EXPECT_EQ(LastOrder(0).where, Rounds::kAmongPeers);
  RoundAtMaster(kFirst + 2);
  exchange->Join(3, true);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
}

TEST_F(AmongPeersTest, OneWhoHasNotHadTheWordStopsThem) {
  BeginAmongPeers();
  EXPECT_EQ(Give(0, kFirst, 1), "");
  EXPECT_EQ(LastOrder(1).where, Rounds::kStopped);
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, kFirst);
  EXPECT_EQ(Give(0, kFirst, 1, 16 * sizeof(float)), "");  // was under way before it began again
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Give(rank, kFirst, 1), "");
  EXPECT_EQ(host.means[2][kFirst], std::vector<float>(kSize, 1.0f));
}

TEST_F(AmongPeersTest, OneWhoEndsStopsThemOnceAllHaveItsLastRound) {
  BeginAmongPeers();
  Have(0, kFirst);
  exchange->Finish(0);
  Advance();
  EXPECT_EQ(LastOrder(1).where, Rounds::kAmongPeers);
  Have(1, kFirst);
  Have(2, kFirst);
  EXPECT_EQ(LastOrder(1).where, Rounds::kStopped);
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, kFirst + 1);
  Give(1, kFirst + 1, 2);
  Give(2, kFirst + 1, 4);
  EXPECT_EQ(host.means[1][kFirst + 1], std::vector<float>(kSize, 3.0f));
}

TEST_F(AmongPeersTest, OneWhoHasEndedEarlierThanAnotherHoldsUpNothing) {
  BeginAmongPeers();
  Have(0, kFirst);
  Have(1, kFirst);
  exchange->Finish(2);  // it had the word only after its last round
  exchange->Finish(0);
  Advance();
  EXPECT_EQ(LastOrder(1).where, Rounds::kStopped);
}

TEST_F(AmongPeersTest, BeforeTheFirstOfThemTheRoundAtHandEndsHere) {
  RoundAtMaster(0);
  LinkAll();
  RoundAtMaster(1);
  exchange->Leave(2);
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kAmongPeers);
  RoundAtMaster(2, /*workers=*/2);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  Report(0, 3);
  Report(1, 3);
  EXPECT_EQ(LastOrder(1).where, Rounds::kAtMaster);
  EXPECT_EQ(LastOrder(1).round, 3u);
}

// Its links to each other have stood meanwhile.
TEST_F(AmongPeersTest, WhoComesBackToAMasterThatWasCutOffIsWaitedForAndGoesOn) {
  BeginAmongPeers();
  for (int32_t rank = 0; rank < 3; ++rank) exchange->Leave(rank);
  Advance();
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(exchange->MayReturn(rank));
    exchange->Return(rank);
    EXPECT_EQ(LastOrder(rank).where, Rounds::kStopped);
    EXPECT_TRUE(Report(rank, rank == 1 ? 501 : 500));
  }
  EXPECT_EQ(LastOrder(1).where, Rounds::kGiveMean);
  EXPECT_EQ(LastOrder(1).round, 500u);
  Give(1, kFirstMeanMark + 500, 7);
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
  EXPECT_EQ(LastOrder(0).round, 501u);
}

TEST_F(AmongPeersTest, WhoDoesNotComeBackIsWaitedForNoLongerThanItMayTake) {
  BeginAmongPeers();
  for (int32_t rank = 0; rank < 3; ++rank) exchange->Leave(rank);
  Advance();
  exchange->Return(0);
  Report(0, kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  now += 2 * Host::kTimeoutNs;
  Advance();
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
}

TEST_F(AmongPeersTest, OneWhoHasEndedMayComeBackWheneverItComes) {
  BeginAmongPeers();
  for (int32_t rank = 0; rank < 3; ++rank) Have(rank, kFirst);
  exchange->Finish(0);
  Advance();
  exchange->Leave(0);
  Report(1, kFirst + 1);
  Report(2, kFirst + 1);
  now += 2 * Host::kTimeoutNs;
  Advance();
  for (uint64_t round = kFirst + 1; round < kFirst + 4; ++round) {
    for (int32_t rank = 1; rank < 3; ++rank) Give(rank, round, 1);
  }
  ASSERT_TRUE(exchange->MayReturn(0));
  exchange->Return(0);
  EXPECT_TRUE(Report(0, kFirst + 1));
  EXPECT_EQ(LastOrder(0).where, Rounds::kAtMaster);
}

TEST_F(AmongPeersTest, WhoComesBackWhileAMeanIsFetchedIsHeard) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  exchange->Return(2);
  EXPECT_EQ(Give(1, kFirstMeanMark + kFirst, 7), "");
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  EXPECT_TRUE(Report(2, kFirst));
  EXPECT_EQ(LastOrder(2).where, Rounds::kAtMaster);
  for (int32_t rank = 0; rank < 3; rank += 2) Give(rank, kFirst, 1);
  EXPECT_EQ(host.means[2][kFirst], std::vector<float>(kSize, 7.0f));
}

TEST_F(AmongPeersTest, AMeanOfAnotherRoundThanWasAskedForCountsForNothing) {
  BeginAmongPeers();
  exchange->Leave(2);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  EXPECT_EQ(Give(1, kFirstMeanMark + kFirst + 40, 7), "");
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
}

TEST_F(AmongPeersTest, WhoHasGotAStateThatIsGoneHasToGo) {
  BeginAmongPeers();
  exchange->Join(3, true);
  Advance();
  Report(0, kFirst);
  Report(1, kFirst + 1);
  EXPECT_FALSE(exchange->Hold(3, kFirst + 2));
  ASSERT_TRUE(exchange->Hold(3, kFirst + 1));  // that of worker 1
  exchange->Leave(1);
  Report(2, kFirst);
  now += 2 * Host::kTimeoutNs;
  Advance();
  EXPECT_EQ(LastOrder(0).round, kFirst);
  EXPECT_THAT(host.failed, ElementsAre(3));
}

// All whom the rounds among the workers were to have are others by the time that they begin.
TEST_F(AmongPeersTest, WhereAllOfThemAreReplacedBeforeTheFirstTheirSuccessorsGoOn) {
  RoundAtMaster(0);
  LinkAll();
  RoundAtMaster(1);
  ASSERT_EQ(LastOrder(0).where, Rounds::kAmongPeers);
  for (int32_t rank = 0; rank < 3; ++rank) {
    exchange->Leave(rank);
    exchange->Join(rank, /*late=*/true);
    ASSERT_TRUE(rank == 2 || exchange->Hold(rank, 2));  // the state of worker 2
  }
  for (uint64_t round = 2; round < 5; ++round) RoundAtMaster(round, /*workers=*/2);
  EXPECT_EQ(host.means[0][4], std::vector<float>(kSize, 1.0f));
}

TEST_F(AmongPeersTest, OneWhoHasGotAStateGoesOnWithoutThoseWhoDoNotComeBack) {
  for (const uint64_t round : {kFirst, kFirst + 1}) {  // that comes next in its state
    SetUp();
    BeginAmongPeers();
    exchange->Join(3, /*late=*/true);
    Advance();
    ASSERT_TRUE(exchange->Hold(3, round));
    for (int32_t rank = 0; rank < 3; ++rank) exchange->Leave(rank);
    Advance();
    EXPECT_TRUE(host.orders[3].empty());  // they may come back
    now += 2 * Host::kTimeoutNs;
    Advance();
    ASSERT_FALSE(host.orders[3].empty());
    EXPECT_EQ(LastOrder(3).where, Rounds::kAtMaster);
    Give(3, round, 5);
    EXPECT_EQ(host.means[3][round], std::vector<float>(kSize, 5.0f));
    EXPECT_TRUE(host.failed.empty());
  }
}

TEST_F(AmongPeersTest, WhereThatOneIsLostTooTheWaitForTheOthersBeginsWithTheFirstToReturn) {
  BeginAmongPeers();
  exchange->Join(3, /*late=*/true);
  ASSERT_TRUE(exchange->Hold(3, kFirst));
  for (int32_t rank = 0; rank < 3; ++rank) exchange->Leave(rank);
  Advance();
  exchange->Leave(3);
  Advance();
  now += 2 * Host::kTimeoutNs;
  exchange->Return(0);
  Report(0, kFirst);
  EXPECT_EQ(LastOrder(0).where, Rounds::kStopped);
  exchange->Return(1);
  Report(1, kFirst + 1);
  exchange->Return(2);
  Report(2, kFirst);
  EXPECT_EQ(LastOrder(1).where, Rounds::kGiveMean);
}

// The word that stops them comes later than what they need for one round more.
TEST_F(AmongPeersTest, WhoHasJoinedGetsTheMeanOfARoundThatTheOthersHaveMadeWithoutIt) {
  JoinAsTheyBegin();
  for (int32_t rank = 0; rank < 3; ++rank) {
    Have(rank, 2);
    Have(rank, kFirst);
    Report(rank, kFirst + 1);
  }
  ASSERT_EQ(LastOrder(0).where, Rounds::kGiveMean);
  EXPECT_EQ(LastOrder(0).round, kFirst);
  EXPECT_EQ(Give(0, kFirstMeanMark + kFirst, 7), "");
  EXPECT_EQ(LastOrder(3).where, Rounds::kAtMaster);
  EXPECT_EQ(Give(3, kFirst, 1), "");
  EXPECT_EQ(host.means[3][kFirst], std::vector<float>(kSize, 7.0f));
}

TEST_F(AmongPeersTest, NoOtherMeanIsGivenForOneThatNobodyHasAnyMore) {
  JoinAsTheyBegin();
  for (int32_t rank = 0; rank < 3; ++rank) {
    Have(rank, 2);
    Have(rank, kFirst);
  }
  for (int32_t rank = 0; rank < 3; ++rank) exchange->Leave(rank);
  Advance();
  now += 2 * Host::kTimeoutNs;
  Advance();
  EXPECT_THAT(Give(3, kFirst, 1), testing::HasSubstr("start it anew"));
  EXPECT_FALSE(host.means[3].contains(kFirst));
}

// One member's word alone ends nobody else's process.
TEST_F(AmongPeersTest, OneThatSaysItIsFarAheadCostsTheOthersNothing) {
  BeginAmongPeers();
  exchange->Handle(1, Linked{kGeneration, host.named[1].version, 0});
  Report(0, kFirst);
  Report(2, kFirst);
  Report(1, kFirst + 40);  // nobody can have means for which two have not given
  EXPECT_THAT(host.failed, ElementsAre(1));
  exchange->Leave(1);
  Advance();
  now += 2 * Host::kTimeoutNs;  // it may come back
  Advance();
  EXPECT_EQ(Give(0, kFirst, 1), "");
  EXPECT_EQ(Give(2, kFirst, 1), "");
  EXPECT_THAT(host.means[0], testing::Contains(testing::Key(kFirst)));
}

}  // namespace
}  // namespace strom
