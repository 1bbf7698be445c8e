// A round at the master: a part's mean goes out while later parts still come, and who comes late,
// comes back or is lost in the middle of it changes nothing for the others.
#include "core/master/shard_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <variant>
#include <vector>

#include "core/joint/bfloat16.h"

namespace strom {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kGeneration = 5;
constexpr int64_t kSize = 40;  // parts of 16, 16 and 8 elements
constexpr int64_t kPart = 16;

class RecordingHost final : public ShardExchangeHost {
 public:
  void Send(int32_t rank, const ControlMessage& message) override {
    const auto* const rounds = std::get_if<Rounds>(&message);
    if (rounds != nullptr && rounds->where == Rounds::kGiveLast) asked_last.push_back(rank);
  }
  void SendBlob(int32_t rank, const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) {
      BlobChunk parsed;
      ASSERT_TRUE(ParseChunk(*chunk, &parsed).ok());
      got[rank].push_back({parsed.name.mark,
                           static_cast<int64_t>(parsed.offset),
                           parsed.total,
                           parsed.name.count,
                           {parsed.bytes.begin(), parsed.bytes.end()}});
    }
  }
  int64_t QueuedBytes(int32_t) const override { return 0; }

  struct Piece {
    uint64_t mark;
    int64_t offset;
    uint64_t total;
    uint32_t count;
    std::vector<uint8_t> bytes;
    std::vector<float> Values() const {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(values.data()));
      return values;
    }
  };
  std::map<int32_t, std::vector<Piece>> got;
  std::vector<int32_t> asked_last;  // for their last snapshots
};

class RoundsTest : public testing::Test {
 protected:
  explicit RoundsTest(int32_t bfloat16 = 0, int32_t gradients = 0) {
    JointPlan plan;
    plan.method.kind = STROM_SPARKNET;
    plan.method.phases = 1;
    plan.method.steps = 1;
    plan.method.bfloat16 = bfloat16;
    plan.method.gradients = gradients;
    plan.ranges = {{0, kSize}};
    exchange.emplace(plan, kGeneration, std::vector<float>(kSize, 0.0f), 0, &host);
    for (int32_t rank = 0; rank < 2; ++rank) exchange->Join(rank, false);
    Settle();
  }

  void Settle() {
    while (exchange->NextTimeout() <= ++now) exchange->Advance(now);
  }

  // Parts [first, last) of a snapshot whose values are all `value`.
  void Give(int32_t rank, uint64_t mark, float value, int first = 0, int last = 3,
            uint32_t count = 1) {
    const std::vector<float> values(kSize, value);
    for (int part = first; part < last; ++part) {
      const auto begin = static_cast<size_t>(part * kPart);
      const auto piece = std::span(values).subspan(begin, std::min<size_t>(kPart, kSize - begin));
      GiveChunk(rank, EncodePiece({BlobKind::kShard, kGeneration, mark, mark, count}, piece,
                                  begin * sizeof(float), kSize * sizeof(float)));
    }
    Settle();
  }

  void GiveChunk(int32_t rank, const Buffer& chunk) {
    BlobChunk parsed;
    ASSERT_TRUE(ParseChunk(*chunk, &parsed).ok());
    bool whole = false;
    EXPECT_EQ(exchange->HandleShard(now, rank, parsed, &whole), "");
  }

  // Where the pieces that the worker got begin, in elements, of a float32 target.
  std::vector<int64_t> Offsets(int32_t rank) {
    std::vector<int64_t> offsets;
    for (const auto& piece : host.got[rank]) {
      offsets.push_back(piece.offset / static_cast<int64_t>(sizeof(float)));
    }
    return offsets;
  }

  int64_t now = 0;
  RecordingHost host;
  std::optional<ShardExchange> exchange;
};

TEST_F(RoundsTest, APartGoesOutAsSoonAsAllHaveGivenIt) {
  Give(0, 0, 1);
  EXPECT_THAT(Offsets(0), IsEmpty());
  Give(1, 0, 3, 0, 1);
  EXPECT_THAT(Offsets(0), ElementsAre(0));
  EXPECT_THAT(Offsets(1), ElementsAre(0));
  EXPECT_THAT(host.got[1][0].Values(), Each(2.0f));
  EXPECT_THAT(exchange->joint().joint(), Each(0.0f));  // until the round has ended
  Give(1, 0, 3, 1, 3);
  EXPECT_THAT(Offsets(0), ElementsAre(0, 16, 32));
  EXPECT_THAT(exchange->joint().joint(), Each(2.0f));
  EXPECT_EQ(exchange->joint().cycles(), 1);
}

// It would be the half of a round's mean in one part, and of another's in the next.
TEST_F(RoundsTest, ALastSnapshotIsNoPartOfTheRoundsAfterIt) {
  Give(0, 0, 2);
  Give(1, 0, 2);
  Give(0, LastMark(0), 2, 0, 1);  // the rest is on a slow line
  Give(1, 1, 10);
  EXPECT_EQ(exchange->joint().joint(), std::vector<float>(kSize, 10.0f));
  Give(1, 2, 20);
  Give(0, LastMark(0), 2, 1, 3);
  Give(1, 3, 30);
  EXPECT_EQ(exchange->joint().joint(), std::vector<float>(kSize, 30.0f));
  Give(1, LastMark(0), 32);
  exchange->Close();
  EXPECT_EQ(exchange->joint().joint(), std::vector<float>(kSize, 32.0f));
}

TEST_F(RoundsTest, LastSnapshotsOfTheSameRoundAreTakenInOnce) {
  Give(0, 0, 2);
  Give(1, 0, 2);
  Give(0, LastMark(0), 4);
  Give(1, LastMark(0), 10);
  exchange->Close();
  EXPECT_EQ(exchange->joint().joint(), std::vector<float>(kSize, 7.0f));
}

// A sanitizer sees a difference that does not fit.
TEST_F(RoundsTest, StepsAreCountedWhateverNumbersAMemberGivesThem) {
  const std::vector<float> values(kSize, 1.0f);
  const auto give = [&](uint64_t round, uint64_t key) {
    for (const Buffer& chunk : EncodeBlob({BlobKind::kShard, kGeneration, key, round, 1}, values,
                                          kPart * static_cast<int64_t>(sizeof(float)))) {
      GiveChunk(0, chunk);
    }
    Give(1, round, 1);
  };
  give(0, uint64_t{1} << 63);
  give(1, (uint64_t{1} << 63) - 1);
  give(2, 0);
  EXPECT_EQ(exchange->joint().cycles(), 3);
  EXPECT_EQ(exchange->steps_counted(), 6);
}

TEST_F(RoundsTest, WhoIsLostInTheMiddleCountsInThePartsThatItHasGiven) {
  Give(0, 0, 1);
  Give(1, 0, 3, 0, 2);
  exchange->Leave(1);
  Settle();
  EXPECT_THAT(Offsets(0), ElementsAre(0, 16, 32));
  EXPECT_THAT(host.got[0][1].Values(), Each(2.0f));
  EXPECT_THAT(host.got[0][2].Values(), Each(1.0f));
}

TEST_F(RoundsTest, WhoComesBackInTheMiddleGetsTheWholeMean) {
  Give(0, 0, 1);
  Give(1, 0, 3, 0, 1);
  exchange->Leave(1);
  exchange->Return(1);
  host.got.clear();
  Give(1, 0, 3);  // all of it, said again
  EXPECT_THAT(Offsets(0), ElementsAre(16, 32));
  ASSERT_THAT(Offsets(1), ElementsAre(0));
  EXPECT_EQ(host.got[1][0].Values(), std::vector<float>(kSize, 2.0f));
  EXPECT_EQ(exchange->steps_counted(), 2);
}

TEST_F(RoundsTest, WhoComesLateIsNotWaitedForAndCountsWhereItIsInTime) {
  Give(0, 0, 1);
  Give(1, 0, 3, 0, 1);
  exchange->Join(2, true);
  Settle();
  Give(2, 0, 8);
  EXPECT_THAT(Offsets(0), ElementsAre(0));
  Give(1, 0, 3, 1, 3);
  EXPECT_THAT(host.got[0][0].Values(), Each(2.0f));
  EXPECT_THAT(host.got[0][1].Values(), Each(4.0f));
  ASSERT_THAT(Offsets(2), ElementsAre(0));
  EXPECT_EQ(host.got[2][0].bytes.size(), kSize * sizeof(float));
}

TEST_F(RoundsTest, AReplacementOfOneWhoHasGivenPartsCountsOnce) {
  Give(0, 0, 1, 0, 1);
  Give(1, 0, 3);
  exchange->Leave(1);
  exchange->Join(1, true);
  Settle();
  Give(1, 0, 5);  // parts 1 and 2 are open still
  Give(0, 0, 1, 1, 3);
  EXPECT_THAT(host.got[0][0].Values(), Each(2.0f));
  EXPECT_THAT(host.got[0][1].Values(), Each(3.0f));
}

class RoundsOfChangesTest : public RoundsTest {
 protected:
  RoundsOfChangesTest() : RoundsTest(1) {}

  // From `before` to `after`.
  void GiveChange(int32_t rank, uint64_t mark, float before, float after) {
    const std::vector<float> from(kSize, before), to(kSize, after);
    std::vector<uint8_t> change(kSize * kBfloat16Bytes);
    EncodeChange(from, to, change);
    for (const Buffer& chunk : EncodeBlob({BlobKind::kShard, kGeneration, mark, mark, 1}, change,
                                          kPart * kBfloat16Bytes)) {
      GiveChunk(rank, chunk);
    }
    Settle();
  }
};

TEST_F(RoundsOfChangesTest, EachGetsWhatItHasGiven) {
  Give(0, 0, 1);
  Give(1, 0, 3);
  EXPECT_EQ(host.got[0].front().total, kSize * sizeof(float));
  host.got.clear();
  exchange->Join(2, true);
  GiveChange(0, 1, 2, 3);
  Give(2, 1, 6);  // it has not seen the round before
  GiveChange(1, 1, 2, 6);
  EXPECT_THAT(exchange->joint().joint(), Each(5.0f));
  EXPECT_EQ(host.got[0].front().total, kSize * kBfloat16Bytes);
  std::vector<float> came(kPart);
  AddChange(std::vector<float>(kPart, 2.0f), host.got[0].front().bytes, came);
  EXPECT_THAT(came, Each(5.0f));
  EXPECT_THAT(host.got[2].front().Values(), Each(5.0f));
}

TEST_F(RoundsOfChangesTest, TheMeanIsWhatTheRoundedChangeMakesOfTheModelBefore) {
  Give(0, 0, 1);
  Give(1, 0, 1);
  GiveChange(0, 1, 1, 1.001f);
  GiveChange(1, 1, 1, 1.002f);
  std::vector<float> came(kPart);
  AddChange(std::vector<float>(kPart, 1.0f), host.got[1][3].bytes, came);  // the second round's
  EXPECT_THAT(exchange->joint().joint(), Each(came[0]));
}

class RoundsOfGradientsTest : public RoundsTest {
 protected:
  RoundsOfGradientsTest() : RoundsTest(0, 1) {}

  void GiveGradient(int32_t rank, uint64_t round, float value, float rate = .5f) {
    Give(rank, round, value, 0, 3, RateBits(rate));
  }
  // The last snapshot of who has `rounds` in it.
  void GiveLast(int32_t rank, float value, uint64_t rounds) {
    End(rank, rounds);
    Give(rank, LastMark(0), value);
  }
  void End(int32_t rank, uint64_t rounds) {
    exchange->Finish(rank, /*stop=*/false, rounds);
    Settle();
  }
  std::vector<float> Model() {
    exchange->Close();
    std::vector<float> flat(kSize, -1.0f);
    exchange->WriteTo(&flat);
    return flat;
  }
};

TEST_F(RoundsOfGradientsTest, AllGetTheMeanAndTheRateOfTheLowestRank) {
  GiveGradient(1, 0, 3, .25f);
  GiveGradient(0, 0, 1, .5f);
  ASSERT_THAT(Offsets(1), ElementsAre(0, 16, 32));
  EXPECT_THAT(host.got[1][2].Values(), Each(2.0f));
  EXPECT_EQ(RateOf(host.got[1][0].count), .5f);
  EXPECT_EQ(RateOf(host.got[0][2].count), .5f);
  EXPECT_EQ(exchange->steps_counted(), 2);
  exchange->Leave(0);
  GiveGradient(1, 1, 3, .25f);
  EXPECT_EQ(RateOf(host.got[1].back().count), .25f);
}

TEST_F(RoundsOfGradientsTest, OfOneThatOverflowsAllAreTold) {
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, std::numeric_limits<float>::infinity());
  EXPECT_THAT(host.got[0][0].Values(), Each(std::numeric_limits<float>::infinity()));
}

TEST_F(RoundsOfGradientsTest, ALastSnapshotIsNoPartOfTheRoundAtHand) {
  GiveGradient(0, 0, 1);
  GiveLast(1, 7, 0);
  ASSERT_THAT(Offsets(0), ElementsAre(0, 16, 32));
  EXPECT_THAT(host.got[0][0].Values(), Each(1.0f));
  GiveLast(0, 8, 1);
  EXPECT_THAT(Model(), Each(8.0f));  // what most steps have made
}

TEST_F(RoundsOfGradientsTest, WhereOneHasEndedTheTrainingItsModelIsThatOfAll) {
  exchange->Finish(1, /*stop=*/true, 0);
  GiveGradient(0, 0, 1);
  GiveLast(0, 8, 1);  // which it is not asked for
  Give(1, LastMark(0), 7);
  EXPECT_THAT(Model(), Each(7.0f));
}

TEST_F(RoundsOfGradientsTest, WithoutALastSnapshotTheParametersStayAsTheyAre) {
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, 1);
  EXPECT_THAT(Model(), Each(-1.0f));
}

TEST_F(RoundsOfGradientsTest, OneIsAskedForTheModelThatAllHave) {
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, 1);
  EXPECT_TRUE(exchange->HasLast()) << "nobody has ended";
  End(1, 1);
  EXPECT_THAT(host.asked_last, IsEmpty()) << "one trains";
  End(0, 1);
  EXPECT_FALSE(exchange->HasLast());
  EXPECT_THAT(host.asked_last, ElementsAre(0)) << "the lowest rank";
  Give(1, LastMark(0), 9);  // which it was not asked for
  EXPECT_FALSE(exchange->HasLast());
  Give(0, LastMark(0), 8);
  EXPECT_TRUE(exchange->HasLast());
  exchange->Leave(0);
  Settle();
  EXPECT_THAT(host.asked_last, ElementsAre(0));
  EXPECT_THAT(Model(), Each(8.0f));
}

TEST_F(RoundsOfGradientsTest, WhereTheOneThatIsAskedIsLostAnotherIsAsked) {
  End(1, 1);
  End(0, 1);
  Give(0, LastMark(0), 7, 0, 2);  // the rest is lost with its line
  exchange->Leave(0);
  Settle();
  ASSERT_THAT(host.asked_last, ElementsAre(0, 1));
  exchange->Leave(1);
  exchange->Return(0);
  Settle();
  ASSERT_THAT(host.asked_last, ElementsAre(0, 1, 0));
  Give(0, LastMark(0), 8);
  EXPECT_THAT(Model(), Each(8.0f));
}

TEST_F(RoundsOfGradientsTest, WhoHasMadeMoreRoundsIsAskedAndWhoComesLaterTooIfItHasMore) {
  End(0, 1);
  End(1, 2);
  exchange->Join(2, true);  // in the place of one that is lost
  Settle();
  Give(1, LastMark(0), 8);
  EXPECT_THAT(host.asked_last, ElementsAre(1));
  EXPECT_TRUE(exchange->HasLast());
  GiveLast(2, 9, 3);
  EXPECT_THAT(host.asked_last, ElementsAre(1, 2));
  EXPECT_THAT(Model(), Each(9.0f));
}

TEST_F(RoundsOfGradientsTest, WhereWhoHasEndedTheTrainingIsLostItsTwinsModelIsThatOfAll) {
  exchange->Join(2, false);
  exchange->Finish(0, /*stop=*/true, 5);
  End(1, 5);
  exchange->Leave(0);
  End(2, 6);
  EXPECT_THAT(host.asked_last, ElementsAre(1));
  Give(1, LastMark(0), 8);
  EXPECT_TRUE(exchange->HasLast());
  EXPECT_THAT(Model(), Each(8.0f));
}

TEST_F(RoundsOfGradientsTest, TheRoundAtHandWaitsForWhoHasTheStateBeforeIt) {
  exchange->Join(2, true);
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, 3);
  EXPECT_FALSE(exchange->Hold(2, 0));  // that state is a step behind
  EXPECT_TRUE(exchange->Hold(2, 1));
  host.got.clear();
  GiveGradient(0, 1, 1);
  GiveGradient(1, 1, 3);
  EXPECT_THAT(Offsets(0), IsEmpty());
  GiveGradient(2, 1, 8);
  EXPECT_THAT(host.got[2][0].Values(), Each(4.0f));
  EXPECT_THAT(host.got[0][0].Values(), Each(4.0f));
}

// Its successor's rounds are other ones than those that it made alone.
TEST_F(RoundsOfGradientsTest, AfterTheLossOfWhoTrainedOnAloneAllGoBackToTheStateThatIsThere) {
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, 3);
  GiveLast(0, 8, 1);
  GiveGradient(1, 1, 5);  // alone
  exchange->Leave(1);
  exchange->Join(1, true);
  EXPECT_FALSE(exchange->Hold(1, 0));
  ASSERT_TRUE(exchange->Hold(1, 1));
  host.got.clear();
  GiveGradient(1, 1, 7);
  ASSERT_THAT(Offsets(1), ElementsAre(0, 16, 32));
  EXPECT_THAT(host.got[1][0].Values(), Each(7.0f));
}

TEST_F(RoundsOfGradientsTest, WhatWasGivenForALaterRoundIsForgottenWhereAllGoBack) {
  exchange->Join(2, true);
  ASSERT_TRUE(exchange->Hold(2, 0));
  for (int32_t rank = 0; rank < 3; ++rank) GiveGradient(rank, 0, 1);
  GiveLast(0, 8, 1);
  GiveGradient(1, 1, 5);
  GiveGradient(2, 1, 5);
  Give(1, 2, 5, 0, 1);  // the first of whose parts has a mean
  Give(2, 2, 5, 0, 2);
  exchange->Leave(1);
  exchange->Leave(2);
  exchange->Join(1, true);
  ASSERT_TRUE(exchange->Hold(1, 1));
  host.got.clear();
  GiveGradient(1, 1, 7);
  ASSERT_THAT(Offsets(1), ElementsAre(0, 16, 32));
  for (const auto& piece : host.got[1]) EXPECT_THAT(piece.Values(), Each(7.0f));
}

TEST_F(RoundsOfGradientsTest, NobodyGoesBackWhileOneTrainsOrWhereNobodyHasEnded) {
  exchange->Join(2, true);
  for (uint64_t round = 0; round < 2; ++round) {
    GiveGradient(0, round, 1);
    GiveGradient(1, round, 3);
  }
  GiveLast(0, 8, 2);
  GiveGradient(1, 2, 3);
  EXPECT_FALSE(exchange->Hold(2, 2)) << "one trains";
  exchange->Leave(1);
  exchange->Leave(0);
  EXPECT_FALSE(exchange->Hold(2, 0)) << "nobody is there";
  EXPECT_FALSE(exchange->Hold(2, 2));
}

// The one that is away is ahead: it would step with a state that nobody else has.
TEST_F(RoundsOfGradientsTest, WhoWasAwayWhenAllWentBackStartsAnew) {
  exchange->Join(2, true);
  for (uint64_t round = 0; round < 2; ++round) {
    GiveGradient(0, round, 1);
    GiveGradient(1, round, 3);
    exchange->Handle(0, 1, Have{kGeneration, round});
  }
  GiveLast(0, 8, 2);
  GiveGradient(1, 2, 3);
  exchange->Handle(0, 1, Have{kGeneration, 2});
  exchange->Leave(1);
  EXPECT_TRUE(exchange->MayReturn(1));
  ASSERT_TRUE(exchange->Hold(2, 2));
  EXPECT_FALSE(exchange->MayReturn(1));
}

TEST_F(RoundsOfGradientsTest, NoRoundWaitsForWhoHasToGetItsStateAgain) {
  exchange->Join(2, true);
  ASSERT_TRUE(exchange->Hold(2, 0));
  GiveGradient(0, 0, 1);
  GiveGradient(1, 0, 3);
  EXPECT_THAT(Offsets(0), IsEmpty());
  exchange->Release(2);
  Settle();
  EXPECT_THAT(host.got[0][0].Values(), Each(2.0f));
}

TEST_F(RoundsOfGradientsTest, WhoWasAwayMayReturnWhileTheMeanThatItLacksIsHere) {
  exchange->Leave(1);
  GiveGradient(0, 0, 1);
  EXPECT_TRUE(exchange->MayReturn(1));
  exchange->Return(1);
  GiveGradient(1, 0, 3);  // too late to count
  ASSERT_THAT(Offsets(1), ElementsAre(0));
  EXPECT_EQ(host.got[1][0].Values(), std::vector<float>(kSize, 1.0f));
  exchange->Leave(1);
  GiveGradient(0, 1, 1);
  GiveGradient(0, 2, 1);
  EXPECT_FALSE(exchange->MayReturn(1));
}

// It would get the mean that it lacks with the learning rate of the round after it.
TEST_F(RoundsOfGradientsTest, NobodyReturnsToAMeanBetweenThePartsOfTheNext) {
  exchange->Leave(1);
  GiveGradient(0, 0, 1);
  EXPECT_TRUE(exchange->MayReturn(1));
  Give(0, 1, 1, 0, 1, RateBits(.25f));
  EXPECT_FALSE(exchange->MayReturn(1));
}

TEST_F(RoundsOfGradientsTest, WhoIsDoneMayReturnWheneverItComes) {
  exchange->Finish(1);
  exchange->Leave(1);
  for (uint64_t round = 0; round < 4; ++round) GiveGradient(0, round, 1);
  EXPECT_TRUE(exchange->MayReturn(1));
}

TEST_F(RoundsOfGradientsTest, AGradientOfARoundThatIsLongOverCostsItsSenderItsPlace) {
  exchange->Leave(1);
  GiveGradient(0, 0, 1);
  GiveGradient(0, 1, 1);
  exchange->Return(1);
  BlobChunk chunk;
  chunk.name = {BlobKind::kShard, kGeneration, 0, 0, 1};
  bool whole = false;
  EXPECT_THAT(exchange->HandleShard(now, 1, chunk, &whole), testing::HasSubstr("long over"));
}

}  // namespace
}  // namespace strom
