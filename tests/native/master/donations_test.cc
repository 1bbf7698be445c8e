// A late joiner's question for a state and its way back, donor and master face to face.
#include "core/master/donations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/worker/donor.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr int64_t kTimeout = 1'000'000'000;
constexpr int64_t kWindow = 2 * kChunkBytes;
constexpr Layout kLayout = {.generation = 3, .size = 0, .hash = 5};

// What the master says to whom; the joiner's queue is what the test says.
class RecordedHost final : public GenerationHost {
 public:
  void Send(int32_t rank, const ControlMessage& message) override {
    if (const auto* ask = std::get_if<AskState>(&message)) donors[rank].HandleAsk(*ask);
  }
  void SendBlob(int32_t rank, const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) {
      EXPECT_TRUE(assemblers[rank].Add(*chunk, int64_t{1} << 40, &got[rank]).ok());
    }
  }
  void Fail(int32_t, Code why, const std::string& reason) override {
    code = why;
    failed = reason;
  }
  void Report(MasterEvent event) override { events.push_back(event.text); }
  int64_t QueuedBytes(int32_t) const override { return queued; }
  const VersionVector& received() const override { return received_; }
  int64_t MostValuesBytes() const override { return int64_t{1} << 30; }
  bool Settled() const override { return true; }
  bool IsAway(int32_t rank) const override { return away == rank; }
  void PublishAll() override {}

  std::map<int32_t, Donor> donors;
  std::map<int32_t, BlobAssembler> assemblers;
  std::map<int32_t, std::optional<Blob>> got;
  std::vector<std::string> events;
  Code code = Code::kOk;
  std::string failed;
  int32_t away = -1;
  int64_t queued = 0;

 private:
  VersionVector received_;
};

// Three workers train; number 2 has joined late and asked.
class DonationsTest : public testing::Test {
 protected:
  DonationsTest() {
    generation.Join(2, 9);
    donations.HandleAsk(0, 2, &generation);
  }
  // One exchange between the donor and the master; how many bytes went.
  size_t Exchange(int32_t donor, int64_t now_ns = 0) {
    size_t bytes = 0;
    for (const Buffer& chunk : host.donors[donor].TakeChunks(kLayout.generation)) {
      BlobChunk parsed;
      EXPECT_TRUE(ParseChunk(*chunk, &parsed).ok());
      donations.HandleChunk(now_ns, donor, parsed, chunk, &generation);
      bytes += parsed.bytes.size();
    }
    donations.Advance(now_ns, &generation);
    return bytes;
  }
  static Buffer State(size_t bytes) { return MakeBuffer(std::vector<uint8_t>(bytes, 7)); }

  RecordedHost host;
  DropCounters drops;
  std::vector<float> parameters;
  MasterGeneration generation{
      kLayout,      JointPlan{}, 0,    std::nullopt, {{0, 4}, {1, 5}, {2, 6}},
      BytesCodec(), &parameters, &host};
  Donations donations{kTimeout, kWindow, &host, &drops};
};

TEST_F(DonationsTest, TheChiefIsAskedAndSendsNoFurtherThanItsWindow) {
  EXPECT_TRUE(host.donors[0].IsWanted());
  EXPECT_FALSE(host.donors[1].IsWanted());
  host.donors[0].Donate(State(5 * kChunkBytes + 3));
  EXPECT_EQ(Exchange(0), kWindow);
  host.queued = kWindow + 1;
  EXPECT_EQ(Exchange(0), kWindow);  // what the first pieces have made room for
  EXPECT_EQ(Exchange(0), 0);        // the joiner's link is full
  EXPECT_LT(donations.NextTimeout(), kTimeout / 10);
  host.queued = 0;
  donations.Advance(0, &generation);
  EXPECT_EQ(Exchange(0), kChunkBytes + 3);
  ASSERT_TRUE(host.got[2]);
  EXPECT_EQ(host.got[2]->bytes, *State(5 * kChunkBytes + 3));
  EXPECT_THAT(host.events.back(), HasSubstr("worker 0 has given worker 2 its state: 5.2 MB"));
}

TEST_F(DonationsTest, ADonorThatIsSilentOrEmptyOrLostMakesRoomForTheNext) {
  donations.Advance(6 * kTimeout, &generation);
  EXPECT_FALSE(host.donors[0].IsWanted());
  EXPECT_THAT(host.events.back(), HasSubstr("does not answer"));
  EXPECT_TRUE(host.donors[1].IsWanted());
  host.donors[0].Donate(State(8));  // too late
  host.donors[1].Donate(State(0));
  Exchange(1, 6 * kTimeout);
  ASSERT_TRUE(host.got[2]);
  EXPECT_TRUE(host.got[2]->bytes.empty());
  EXPECT_THAT(host.events.back(), HasSubstr("nobody is left to give worker 2 a state"));
}

// On a line that takes a window in longer than a donor has to answer.
TEST_F(DonationsTest, ADonorIsNotSilentWhileItWaitsForTheJoinersLink) {
  host.donors[0].Donate(State(5 * kChunkBytes));
  Exchange(0);
  host.queued = kWindow + 1;
  Exchange(0);
  for (int64_t at = 0; at < 20 * kTimeout; at += kTimeout) donations.Advance(at, &generation);
  EXPECT_FALSE(host.donors[1].IsWanted());
  EXPECT_THAT(host.events, testing::IsEmpty());
  host.queued = 0;
  donations.Advance(20 * kTimeout, &generation);
  EXPECT_EQ(Exchange(0, 25 * kTimeout), kChunkBytes) << "the whole time to answer is left";
  ASSERT_TRUE(host.got[2]);
  EXPECT_EQ(host.got[2]->bytes.size(), static_cast<size_t>(5 * kChunkBytes));
}

TEST_F(DonationsTest, TheNextBeginsAnewWhereTheLostDonorHadSentAPart) {
  host.donors[0].Donate(State(4 * kChunkBytes));
  Exchange(0);
  generation.Lose(0);
  donations.Advance(0, &generation);
  host.donors[1].Donate(State(kChunkBytes));
  Exchange(1);
  ASSERT_TRUE(host.got[2]);
  EXPECT_EQ(host.got[2]->bytes.size(), static_cast<size_t>(kChunkBytes));
}

TEST_F(DonationsTest, WhoIsDoneIsAskedWhereNobodyTrains) {
  generation.HandleDone(0, {kLayout.generation, 0, 0});
  donations.Advance(0, &generation);
  EXPECT_TRUE(host.donors[0].IsWanted());  // it was asked before, and waits for the others now
  generation.Lose(0);
  donations.Advance(0, &generation);
  EXPECT_TRUE(host.donors[1].IsWanted());
  generation.HandleDone(1, {kLayout.generation, 0, 0});
  host.donors[1].Donate(State(8));
  Exchange(1);
  ASSERT_TRUE(host.got[2]);
  EXPECT_EQ(host.got[2]->bytes.size(), 8u);
}

TEST_F(DonationsTest, OneAsksOnlyOnceAndWhoHasAStateNotAtAll) {
  donations.HandleAsk(0, 2, &generation);
  donations.HandleAsk(0, 1, &generation);
  EXPECT_EQ(drops["question for a state by who has one or has asked"], 2);
}

TEST_F(DonationsTest, WhatWasLostWithALinkIsAskedForOverTheNext) {
  host.donors[0].Donate(State(1000));
  Exchange(0);
  host.got[2].reset();
  donations.Withdraw(2);
  generation.Lose(2);
  ASSERT_TRUE(generation.Reinstate(2, 9));
  donations.HandleAsk(0, 2, &generation);
  host.donors[0].Donate(State(1000));
  Exchange(0);
  ASSERT_TRUE(host.got[2].has_value());
  EXPECT_EQ(host.got[2]->bytes.size(), 1000u);
}

// Rounds of gradients: the joiner has to step with the others from the state on.
class DonationsOfOneStateTest : public DonationsTest {
 protected:
  DonationsOfOneStateTest() {
    plan.method.kind = STROM_SPARKNET;
    plan.method.phases = plan.method.gradients = 1;
    plan.method.steps = 1;
    plan.ranges = {{0, 4}};
    parameters.resize(4);
    exact.emplace(Layout{.generation = 3, .size = 4, .hash = 5}, plan, 0, std::nullopt,
                  std::map<int32_t, uint64_t>{{0, 4}, {1, 5}}, BytesCodec(), &parameters, &host);
    exact->Join(2, 9);
    host = {};
    donations.Clear();
    donations.HandleAsk(0, 2, &*exact);
  }
  void Donate(int32_t donor, uint64_t round) {
    host.donors[donor].Donate(State(8), round);
    for (const Buffer& chunk : host.donors[donor].TakeChunks(kLayout.generation)) {
      BlobChunk parsed;
      EXPECT_TRUE(ParseChunk(*chunk, &parsed).ok());
      donations.HandleChunk(0, donor, parsed, chunk, &*exact);
    }
  }

  JointPlan plan;
  std::optional<MasterGeneration> exact;
};

TEST_F(DonationsOfOneStateTest, AStateSaysWithWhichRoundItsNewOwnerBegins) {
  EXPECT_TRUE(exact->MayDonate(0));
  Donate(0, 0);
  ASSERT_TRUE(host.got[2]);
  EXPECT_EQ(host.got[2]->name.mark, 0u);
  EXPECT_TRUE(exact->MayDonate(2));
}

TEST_F(DonationsOfOneStateTest, AStateOfAnotherStepIsNotPassedOn) {
  Donate(0, 1);
  EXPECT_FALSE(host.got[2]);
  EXPECT_THAT(host.events.back(), HasSubstr("gave that of another step"));
  EXPECT_TRUE(host.donors[1].IsWanted());
}

TEST_F(DonationsOfOneStateTest, WhoGaveThatOfAnotherStepIsAskedOnceMore) {
  Donate(0, 1);
  Donate(1, 1);
  EXPECT_EQ(host.failed, "");
  Donate(0, 0);
  EXPECT_TRUE(host.got[2]);
}

TEST_F(DonationsOfOneStateTest, WithoutOneNobodyJoinsThoseWhoTrain) {
  for (int pass = 0; pass < 3; ++pass) {
    Donate(0, 1);
    EXPECT_EQ(host.failed, "");
    Donate(1, 1);
  }
  EXPECT_EQ(host.code, Code::kMasterLost);
  EXPECT_THAT(host.failed, HasSubstr("no worker has given worker 2 its state"));
  EXPECT_FALSE(host.got[2]);
}

TEST_F(DonationsOfOneStateTest, WhoIsOnlyAwayIsWaitedFor) {
  host.away = 1;
  exact->Lose(0);
  exact->Lose(1);
  for (const int64_t now_ns : {kTimeout / 4, kTimeout / 2}) {
    donations.Advance(now_ns, &*exact);
    EXPECT_LE(donations.NextTimeout(), now_ns + kTimeout / 4);
  }
  EXPECT_EQ(host.failed, "");
  ASSERT_TRUE(exact->Reinstate(1, 5));
  donations.Advance(kTimeout, &*exact);
  Donate(1, 0);
  EXPECT_TRUE(host.got[2]);
}

TEST_F(DonationsOfOneStateTest, WhoIsAwayForGoodIsWaitedForNoLonger) {
  host.away = 1;
  exact->Lose(0);
  exact->Lose(1);
  donations.Advance(0, &*exact);
  EXPECT_EQ(host.failed, "");
  host.away = -1;
  donations.Advance(kTimeout, &*exact);
  EXPECT_EQ(host.code, Code::kStateLost);
  EXPECT_FALSE(host.got[2]);
}

TEST_F(DonationsOfOneStateTest, WhereNobodyIsLeftItDoesNotBeginWithItsOwn) {
  exact->Lose(0);
  exact->Lose(1);
  donations.Advance(0, &*exact);
  EXPECT_FALSE(host.got[2]);
  EXPECT_EQ(host.code, Code::kStateLost);
  EXPECT_THAT(host.failed, HasSubstr("no worker is left that has the state"));
}

TEST_F(DonationsOfOneStateTest, WhoHasAnotherStateThanTheChiefMayAskThoughItIsNotLate) {
  EXPECT_TRUE(exact->BeginToAsk(1));
  EXPECT_FALSE(exact->MayDonate(1));
}

}  // namespace
}  // namespace strom
