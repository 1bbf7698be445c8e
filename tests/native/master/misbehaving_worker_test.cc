// A master against workers that hold the secret and keep no rule, and against those whose packets
// come at the worst moment. The links are scripted: what a node sends is recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/base/little_endian.h"
#include "core/master/master_node.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/version_vector.h"
#include "empty_update.h"
#include "link_events.h"
#include "recorded_links.h"
#include "scripted_master.h"

namespace strom {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;

TEST(MisbehavingWorkerTest, TwoHellosOfOneRankBeforeEitherLinkStandsLetOneIn) {
  Master master(2);
  master.SayHello(1, 0, 1);
  master.SayHello(2, 0, 2);
  EXPECT_EQ(master.links.accepted.size(), 2u);  // neither is a member yet
  master.node.HandleLinkEvent(kNow, Up(2));
  master.node.HandleLinkEvent(kNow, Up(1));
  EXPECT_FALSE(master.links.closed.contains(2));
  EXPECT_THAT(master.links.closed[1], HasSubstr("already taken"));
}

TEST(MisbehavingWorkerTest, AnEarlierAttemptWhoseLinkStandsLateSupersedesNobody) {
  Master master(1);
  master.SayHello(1, 0, 1, /*attempt=*/0);
  master.SayHello(2, 0, 2, /*attempt=*/1);
  master.node.HandleLinkEvent(kNow, Up(2));
  master.node.HandleLinkEvent(kNow, Up(1));
  EXPECT_FALSE(master.links.closed.contains(2));
  EXPECT_THAT(master.links.closed[1], HasSubstr("superseded"));
}

TEST(MisbehavingWorkerTest, AnUpdateAfterFinalChangesNothing) {
  Master master(2);
  master.Start();
  ASSERT_TRUE(master.links.Last<StartGeneration>(2));
  master.Update(2, {Master::Origin(2), 1});
  master.Say(1, Done{1, 0, 0});
  master.Say(2, Done{1, 1, 0});
  const auto final = master.links.Last<Final>(1);
  ASSERT_TRUE(final);
  master.Update(2, {Master::Origin(2), 2});
  EXPECT_EQ(master.node.received(), final->vector);
  EXPECT_THAT(master.links.closed[2], HasSubstr("after its DONE"));
}

TEST(MisbehavingWorkerTest, ADifferenceThatIsNoNumberIsTheWorst) {
  Master master(3);
  master.Start();
  for (LinkId link = 1; link <= 3; ++link) master.Say(link, Done{1, 0, 0});
  for (LinkId link = 1; link <= 3; ++link) {
    master.SayBlob(link, EncodeBlob({BlobKind::kState, 1, 0, 0, 0}, std::vector<double>{}));
  }
  master.Say(1, Verification{1, 1e-6, 0});
  master.Say(2, Verification{1, NAN, 0});
  master.Say(3, Verification{1, 1e-6, 0});
  const auto end = master.links.Last<End>(1);
  ASSERT_TRUE(end);
  EXPECT_TRUE(std::isnan(end->worst_difference));
}

// What has been sent to `link` as PARAMETERS of `generation`, in bytes.
size_t ParametersBytes(const RecordedLinks& links, LinkId link, uint64_t generation) {
  size_t bytes = 0;
  for (const RecordedLinks::Sent& sent : links.sent) {
    BlobChunk chunk;
    if (sent.link != link || sent.channel != Channel::kState) continue;
    EXPECT_TRUE(ParseChunk(*sent.message, &chunk).ok());
    const BlobName& name = chunk.name;
    if (name.kind == BlobKind::kParameters && name.generation == generation) {
      bytes += chunk.bytes.size();
    }
  }
  return bytes;
}

TEST(MisbehavingWorkerTest, ALayoutThatShrinksIsRefusedAndNothingIsToldBeyondTheParameters) {
  Master master(1);
  const Layout large = {1, 262144, 5}, small = {2, 1, 6};
  master.Join();
  master.BeginAsChief(1, {large, 0, ""}, std::vector<float>(large.size, 1));
  ASSERT_TRUE(master.links.Last<StartGeneration>(1));
  master.End();
  master.BeginAsChief(1, {small, 0, ""});
  const auto refused = master.links.Last<Failure>(1);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason, HasSubstr("fewer than the 262144"));
  EXPECT_EQ(master.node.parameters().size(), large.size);
}

TEST(MisbehavingWorkerTest, AChiefsValuesThatDoNotComeLeaveTheParametersOfTheLastEnd) {
  Master master(2);
  master.Start();
  master.End();
  const Layout next = {2, kLayout.size, kLayout.hash};
  const std::vector<float> values(kLayout.size, 7);
  master.Say(1, Announce{next, 0, "", {}, 0, PieceGrid(next.size).Hashes(values)});
  const std::optional<AskPieces> asked = master.links.Last<AskPieces>(1);
  ASSERT_TRUE(asked);
  master.SayBlob(1, EncodeBlob({BlobKind::kPieces, 2, 0, asked->number, 0}, std::vector<float>(1)));
  EXPECT_THAT(master.links.closed[1], HasSubstr("other pieces of the chief's values"));
  master.Say(2, Announce{next, 0, ""});
  EXPECT_EQ(master.node.parameters().size(), kLayout.size);
  // Who has missed the end of the first is told it in full.
  master.SayHello(3, 1, 7, /*attempt=*/1);
  master.node.HandleLinkEvent(kNow, Up(3));
  master.Say(3, Announce{kLayout, 0, ""});
  ASSERT_TRUE(master.links.Last<Ended>(3));
  EXPECT_EQ(ParametersBytes(master.links, 3, 1), kLayout.size * sizeof(float));
}

TEST(MisbehavingWorkerTest, AnOptionsTextThatNoAnswerCouldQuoteCostsItsSenderTheLink) {
  Master master(2);
  master.Join();
  master.BeginAsChief(1, {kLayout, 0, "short"});
  const std::string longest(static_cast<size_t>(kMaxMessageBytes) - 100, 'x');
  std::vector<uint8_t> message = *EncodeControl(Announce{kLayout, 0, ""});
  constexpr size_t kLengthAt = 1 + 4 * sizeof(uint64_t);  // behind type, layout and counter
  StoreLittleEndian<uint32_t>(&message[kLengthAt], static_cast<uint32_t>(longest.size()));
  message.insert(message.begin() + kLengthAt + sizeof(uint32_t), longest.begin(), longest.end());
  master.node.HandleLinkEvent(kNow, MessageOn(2, Channel::kControl, MakeBuffer(message)));
  EXPECT_THAT(master.links.closed[2], HasSubstr("8192 are the most"));
  EXPECT_FALSE(master.links.closed.contains(1));
}

TEST(MisbehavingWorkerTest, TwoLongestOptionsTextsThatDifferAreBothQuoted) {
  Master master(2);
  master.Join();
  const std::string one(kMaxOptionsBytes, 'x'), other(kMaxOptionsBytes, 'y');
  master.BeginAsChief(1, {kLayout, 0, one});
  master.Say(2, Announce{kLayout, 0, other});
  const auto refused = master.links.Last<Failure>(1);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason, HasSubstr(one));
  EXPECT_THAT(refused->reason, HasSubstr(other));
  EXPECT_THAT(refused->reason, HasSubstr("the same options"));
}

TEST(MisbehavingWorkerTest, AnUpdateInAnotherWorkersNameCostsItsSenderTheLink) {
  Master master(3);
  master.Start();
  master.Update(2, {Master::Origin(1), 1});
  EXPECT_THAT(master.links.closed[2], HasSubstr("in another worker's name"));
  EXPECT_FALSE(master.node.received().contains(Master::Origin(1)));
  EXPECT_EQ(master.links.Updates(1), 0);
  EXPECT_EQ(master.links.Updates(3), 0);
  master.Update(1, {Master::Origin(1), 1});  // whose name it is notices nothing
  EXPECT_EQ(master.links.Updates(3), 1);
  master.Update(3, {Master::Origin(1), 1});  // what was relayed to it may come back
  EXPECT_FALSE(master.links.closed.contains(3));
  EXPECT_FALSE(master.links.closed.contains(1));
}

// A tree that passes each update on by itself.
const MasterNodeOptions kTree = {
    .topology = Topology::kMesh, .max_children = 2, .merging = Merging::kOff};

// Ranks 0 and 1 under the master, 2 under rank 0.
TEST(MisbehavingWorkerTest, InATreeAWorkerSpeaksForThoseBelowItAndForTheLost) {
  Master master(3, kTree);
  master.Start();
  const uint64_t leaf = Master::Origin(3);
  ASSERT_EQ(master.links.Last<TreePlace>(3)->parent, Master::Origin(1));
  master.Update(2, {leaf, 1});
  EXPECT_FALSE(CounterOf(master.node.received(), leaf));
  EXPECT_FALSE(master.links.closed.contains(2)) << "an update may overtake a change of places";
  master.Update(1, {leaf, 1});
  EXPECT_EQ(CounterOf(master.node.received(), leaf), 1u);
  master.Update(2, {leaf, 2});
  EXPECT_EQ(CounterOf(master.node.received(), leaf), 1u);
  // Nobody but who has it can pass it on then.
  master.node.HandleLinkEvent(kNow, Down(3, Code::kMasterLost));
  EXPECT_EQ(CounterOf(master.node.received(), leaf), 2u);
}

MasterNodeOptions WithRoomFor(int64_t updates, MasterNodeOptions options) {
  options.ring_bytes = updates * SizeOf(EmptyUpdate({1, 1}, kLayout));
  return options;
}

// Starts; then 10 updates of an origin come over a link, from counter `first` on.
void FillFrom(LinkId link, uint64_t origin, uint64_t first, Master* master) {
  master->Start();
  for (uint64_t counter = first; counter < first + 10; ++counter) {
    master->Update(link, {origin, counter});
  }
}

TEST(MisbehavingWorkerTest, UpdatesThatAreSetAsideAreBounded) {
  Master master(3, WithRoomFor(10, kTree));
  FillFrom(2, Master::Origin(3), 1, &master);
  EXPECT_FALSE(master.links.closed.contains(2));
  master.Update(2, {Master::Origin(3), 11});
  EXPECT_THAT(master.links.closed[2], HasSubstr("not below it"));
}

TEST(MisbehavingWorkerTest, WhoHasMostSetAsideGoesAndNotWhoComesWhenThereIsNoRoomLeft) {
  Master master(3, WithRoomFor(10, kTree));
  FillFrom(2, Master::Origin(3), 1, &master);
  master.Update(1, {Master::Origin(2), 1});
  EXPECT_FALSE(master.links.closed.contains(1));
  EXPECT_THAT(master.links.closed[2], HasSubstr("not below it"));
}

TEST(MisbehavingWorkerTest, WhoMakesMostWaitForAGapGoesAndNotWhoComesWhenThereIsNoRoomLeft) {
  Master master(3, WithRoomFor(10, {}));
  FillFrom(2, Master::Origin(2), 2, &master);
  EXPECT_TRUE(master.links.closed.empty());
  for (const uint64_t counter : {2, 1}) master.Update(1, {Master::Origin(1), counter});
  EXPECT_FALSE(master.links.closed.contains(1));
  EXPECT_EQ(CounterOf(master.node.received(), Master::Origin(1)), 2u);
  EXPECT_EQ(master.links.Updates(3), 2);
  EXPECT_THAT(master.links.closed[2], HasSubstr("too many updates out of order"));
  for (uint64_t counter = 3; counter <= 14; ++counter) {
    master.Update(3, {Master::Origin(3), counter});
  }
  EXPECT_TRUE(master.links.closed.contains(3)) << "alone it is no better";
}

TEST(MisbehavingWorkerTest, UpdatesThatAreSetAsideCostNoWorkUntilTheTreeChangesOrABeaconIsDue) {
  Master master(3, kTree);
  master.Start();
  const auto checks = [&] {
    const std::string name = "\"set_aside_checks\": ", status = master.node.StatusJson();
    return std::stoi(status.substr(status.find(name) + name.size()));
  };
  const int before = checks();
  for (uint64_t counter = 1; counter <= 100; ++counter) {
    master.Update(2, {Master::Origin(3), counter});
  }
  EXPECT_EQ(checks(), before);
  // Their origin sends them, too: the next beacon finds that they wait for nothing any more.
  for (uint64_t counter = 1; counter <= 100; ++counter) {
    master.Update(1, {Master::Origin(3), counter});
  }
  EXPECT_THAT(master.node.StatusJson(), Not(HasSubstr("\"set_aside_bytes\": 0,")));
  master.node.HandleTimeout(master.node.NextTimeout());
  EXPECT_EQ(checks(), before + 1);
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"set_aside_bytes\": 0,"));
}

TEST(MisbehavingWorkerTest, ManyUpdatesBetweenTwoBeaconsBringTheNextOneEarly) {
  const int64_t bytes = SizeOf(EmptyUpdate({1, 1}, kLayout));
  Master master(2, {.ring_bytes = 10 * bytes});
  master.Start();
  master.node.HandleTimeout(kNow);
  int beacons = 0;
  for (uint64_t counter = 1; counter <= 100; ++counter) {
    master.Update(1, {Master::Origin(1), counter});
    if (master.node.NextTimeout() <= kNow) {
      master.node.HandleTimeout(kNow);
      ++beacons;
    }
    EXPECT_LE(master.node.replication().ring_bytes(), 20 * bytes);
  }
  EXPECT_EQ(beacons, 4) << "one after each 21 updates";
}

std::vector<Buffer> AverageOf(uint64_t key, size_t values) {
  return EncodeBlob({BlobKind::kAverage, 1, key, 0, 0}, std::vector<double>(values, 1));
}

TEST(MisbehavingWorkerTest, ValuesThatNobodyWaitsForAreNotPutTogether) {
  Master master(2);
  master.Start();
  const std::vector<double> values(1 << 20);
  for (const BlobKind kind : {BlobKind::kState, BlobKind::kPieces}) {
    for (const uint64_t generation : {uint64_t{1}, uint64_t{2}}) {
      master.SayBlob(2, EncodeBlob({kind, generation, 0, 0, 0}, values));
    }
  }
  master.SayBlob(2, EncodeBlob({BlobKind::kReplica, 1, 0, 7, 0}, values));  // no question was put
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"values that nobody waits for\": 40"));
  EXPECT_FALSE(master.links.closed.contains(2));
  master.SayBlob(2, EncodeBlob({BlobKind::kParameters, 1, 0, 0, 0}, values));
  EXPECT_THAT(master.links.closed[2], HasSubstr("only a master sends"));
}

TEST(MisbehavingWorkerTest, WhatAMemberHasToBeAveragedIsBounded) {
  Master master(2, {.member_values_bytes = 800});
  master.Start();
  master.SayBlob(1, AverageOf(1, 40));
  master.SayBlob(2, AverageOf(1, 40));
  master.SayBlob(2, AverageOf(2, 40));
  master.SayBlob(2, AverageOf(3, 40));  // the oldest of its own goes
  master.links.sent.clear();
  master.SayBlob(1, AverageOf(1, 40));
  ASSERT_EQ(master.links.sent.size(), 1u);
  BlobChunk mean;
  ASSERT_TRUE(ParseChunk(*master.links.sent[0].message, &mean).ok());
  EXPECT_EQ(mean.name.count, 1u);
  master.SayBlob(2, AverageOf(4, 100));
  EXPECT_FALSE(master.links.closed.contains(2));
  master.SayBlob(2, AverageOf(5, 101));
  EXPECT_THAT(master.links.closed[2], HasSubstr("at most 800"));
}

TEST(MisbehavingWorkerTest, WhatAllMembersHaveToBeAveragedIsBounded) {
  Master master(3, {.values_bytes = 800});
  master.Start();
  master.SayBlob(1, AverageOf(1, 50));
  master.SayBlob(2, AverageOf(1, 50));
  EXPECT_TRUE(master.links.closed.empty());
  master.SayBlob(3, AverageOf(1, 1));
  EXPECT_THAT(master.links.closed[3], HasSubstr("more than the"));
}

// Three workers train in rounds.
void StartRounds(Master* master) {
  master->Join();
  JointPlan plan;
  plan.method.kind = STROM_SPARKNET;
  plan.method.phases = plan.method.steps = 1;
  plan.ranges = {{0, static_cast<int64_t>(kLayout.size)}};
  master->BeginAsChief(1, {kLayout, 0, "", plan});
  for (LinkId link = 2; link <= 3; ++link) master->Say(link, Announce{kLayout, 0, "", plan});
}

TEST(MisbehavingWorkerTest, WhoAsksForManyAveragesTakesNothingFromWhoWaitsForOne) {
  Master master(3);
  StartRounds(&master);
  master.SayBlob(1, AverageOf(1, 3));
  for (uint64_t key = 2; key < 200; ++key) master.SayBlob(2, AverageOf(key, 1));
  master.links.sent.clear();
  master.SayBlob(3, AverageOf(300, 1));  // now all wait
  ASSERT_EQ(master.links.sent.size(), 1u);
  BlobChunk mean;
  ASSERT_TRUE(ParseChunk(*master.links.sent[0].message, &mean).ok());
  EXPECT_EQ(mean.name.kind, BlobKind::kMean);
  EXPECT_EQ(mean.name.key, 1u);
  EXPECT_EQ(mean.name.count, 1u);
}

// The link that it has given up stands still here. Its ATTACH follows on its HELLO.
TEST(MisbehavingWorkerTest, NeitherTheEndNorAnAverageComesBetweenAHelloAndItsAttach) {
  Master alone(3), rounds(3);
  alone.Start();
  StartRounds(&rounds);
  for (LinkId link = 1; link <= 2; ++link) {
    alone.Say(link, Done{1, 0, 0});
    rounds.SayBlob(link, AverageOf(1, 1));
  }
  for (const LinkId before : {LinkId{3}, LinkId{4}}) {
    const LinkId link = before + 1;
    for (Master* master : {&alone, &rounds}) {
      master->links.sent.clear();
      master->SayHello(link, 2, 3);
      master->node.HandleLinkEvent(kNow, Up(link));
      EXPECT_TRUE(master->links.closed.contains(before));
      EXPECT_FALSE(master->links.Last<Final>(1));
      EXPECT_TRUE(master->links.sent.empty());
      master->Say(link, Attach{1, {}});
      EXPECT_FALSE(master->links.Last<Failure>(link));
    }
  }
  alone.Say(5, Done{1, 0, 0});
  EXPECT_TRUE(alone.links.Last<Final>(5));
  rounds.links.sent.clear();
  rounds.SayBlob(5, AverageOf(1, 1));
  ASSERT_EQ(rounds.links.sent.size(), 3u);
  BlobChunk mean;
  ASSERT_TRUE(ParseChunk(*rounds.links.sent[0].message, &mean).ok());
  EXPECT_EQ(mean.name.count, 3u);
}

// Its values under the first key give way to those under the second.
TEST(MisbehavingWorkerTest, WhoAsksForAnotherAverageAfterItsDoneWaitsForTheFirstNoMore) {
  Master master(3, {.member_values_bytes = 800});
  StartRounds(&master);
  master.SayBlob(1, AverageOf(1, 60));
  master.Say(1, Done{1, 0, 0});
  master.links.sent.clear();
  master.SayBlob(1, AverageOf(2, 60));
  ASSERT_EQ(master.links.sent.size(), 1u);
  master.SayBlob(2, AverageOf(1, 1));
  master.SayBlob(3, AverageOf(1, 1));  // now all wait that train
  ASSERT_EQ(master.links.sent.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    BlobChunk mean;
    ASSERT_TRUE(ParseChunk(*master.links.sent[i].message, &mean).ok());
    EXPECT_EQ(mean.name.kind, BlobKind::kMean);
    EXPECT_EQ(mean.name.key, i == 0 ? 2u : 1u);
    EXPECT_EQ(mean.name.count, i == 0 ? 1u : 2u);
  }
}

TEST(MisbehavingWorkerTest, AChiefWhoseValuesAreNotThoseThatItHasAnnouncedIsExpelled) {
  Master master(2);
  master.Join();
  const std::vector<float> values(kLayout.size);
  const PieceGrid grid(kLayout.size);
  const Announce announce{kLayout, 0, "", {}, 0, grid.Hashes(values)};
  master.Say(1, announce);
  const std::optional<AskPieces> asked = master.links.Last<AskPieces>(1);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->indices.size(), grid.count());
  master.SayBlob(1,
                 EncodeBlob({BlobKind::kPieces, 1, 0, asked->number, 0}, std::vector<float>(1000)));
  EXPECT_THAT(master.links.closed[1], HasSubstr("are taken"));
  LinkId link = 3;
  const auto come_back = [&] {
    ++link;
    master.SayHello(link, 0, static_cast<uint8_t>(link), static_cast<int32_t>(link));
    master.node.HandleLinkEvent(kNow, Up(link));
    master.Say(link, announce);
    return *master.links.Last<AskPieces>(link);
  };
  const auto give = [&](const std::vector<float>& other, const AskPieces& ask,
                        const std::vector<uint32_t>& indices) {
    const BlobName name{BlobKind::kPieces, 1, 0, ask.number, 0};
    master.SayBlob(link, EncodeParts(name, grid.Parts(other, indices)));
  };
  AskPieces ask = come_back();
  give(values, ask, {0, 1});
  EXPECT_THAT(master.links.closed[link], HasSubstr("other pieces"));
  ask = come_back();
  give(std::vector<float>(kLayout.size, 1), ask, ask.indices);
  EXPECT_THAT(master.links.closed[link], HasSubstr("other values than it has announced"));
  ask = come_back();
  ask.number -= 1;
  give(std::vector<float>(kLayout.size, 1), ask, ask.indices);  // to the question before
  EXPECT_FALSE(master.links.closed.contains(link));
  ask.number += 1;
  give(values, ask, ask.indices);
  EXPECT_FALSE(master.links.closed.contains(link));
  master.Say(2, Announce{kLayout, 0, ""});
  EXPECT_TRUE(master.links.Last<StartGeneration>(link));
}

TEST(MisbehavingWorkerTest, PiecesThatAModelDoesNotHaveAreRefused) {
  Master master(2);
  master.Join();
  master.Say(1, Announce{kLayout, 0, ""});
  EXPECT_THAT(master.links.Last<Failure>(1)->reason, HasSubstr("names 0 pieces of its values"));
  master.Say(2, Announce{kLayout, 0, "", {}, 0, {1, 2, 3}});
  EXPECT_THAT(master.links.Last<Failure>(2)->reason,
              HasSubstr("worker 1 names 3 pieces of its values, which have 100"));
}

TEST(MisbehavingWorkerTest, WhoTakesNothingOfWhatItAsksForIsExpelled) {
  Master master(2);
  master.Start();
  master.End();
  master.links.queues = true;
  for (int i = 0; i < 3'000'000 && !master.links.closed.contains(2); ++i) {
    master.Say(2, Announce{kLayout, 0, ""});  // each is answered by the parameters
  }
  EXPECT_THAT(master.links.closed[2], HasSubstr("does not take what it is sent"));
  EXPECT_LE(master.links.queued[2], int64_t{300} << 20);
}

TEST(MisbehavingWorkerTest, AnAttemptThatNobodyStartsIsRefused) {
  Master master(1);
  master.SayHello(1, 0, 1);
  master.node.HandleLinkEvent(kNow, Up(1));
  master.SayHello(2, 0, 2, std::numeric_limits<int32_t>::max());
  EXPECT_THAT(master.links.refused[2], HasSubstr("attempt 2147483647 is none"));
  master.SayHello(3, 0, 3, -1);
  EXPECT_THAT(master.links.refused[3], HasSubstr("attempt -1 is none"));
}

// Its rank is not lost with a process that has claimed a high attempt.
TEST(MisbehavingWorkerTest, AFreshProcessFollowsOnAnyThatIsGone) {
  Master master(1);
  master.SayHello(1, 0, 1, 1000);
  master.node.HandleLinkEvent(kNow, Up(1));
  master.SayHello(2, 0, 2, 1);
  EXPECT_THAT(master.links.refused[2], HasSubstr("superseded"));
  master.node.HandleLinkEvent(kNow, Down(1, Code::kClosed));
  master.SayHello(3, 0, 3, 1);
  EXPECT_FALSE(master.links.refused.contains(3));
  Hello woken{.rank = 0, .size = 1, .attempt = 0};
  woken.epoch = 1;
  woken.origin = Master::Origin(9);
  master.node.HandleLinkEvent(kNow, HelloOn(4, EncodeHello(woken)));
  EXPECT_THAT(master.links.refused[4], HasSubstr("superseded"));
}

TEST(MisbehavingWorkerTest, OneWorkersWordOfALaterMasterEndsNobodysJob) {
  Master master(2);
  master.Start();
  const auto say = [&](LinkId link, uint64_t epoch) {
    Hello hello{.rank = 1, .size = 2};
    hello.instance.fill(2);
    hello.epoch = epoch;
    hello.origin = Master::Origin(2);
    master.node.HandleLinkEvent(kNow, HelloOn(link, EncodeHello(hello)));
  };
  say(11, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(master.links.refused[11], HasSubstr("which no master has"));
  say(12, 2);
  EXPECT_TRUE(master.links.closed.empty());
  while (const auto event = master.node.PollEvent()) {
    EXPECT_NE(event->type, MasterEvent::Type::kSuperseded);
  }
  // A master that was stopped has lost all the others by then.
  master.node.HandleLinkEvent(kNow, Down(1, Code::kMasterLost));
  say(13, 2);
  bool superseded = false;
  while (const auto event = master.node.PollEvent()) {
    superseded |= event->type == MasterEvent::Type::kSuperseded;
  }
  EXPECT_TRUE(superseded);
}

TEST(MisbehavingWorkerTest, WhatAWorkerSaysOfOthersThatAreThereHoldsUpNoEnd) {
  for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
    Master master(2, {.topology = topology});
    master.Start();
    const auto place = master.links.Last<TreePlace>(2);
    const uint64_t version = place ? place->version : 0;
    master.Say(2, Placed{version, 1, {{Master::Origin(1), 1'000'000}}});
    master.Say(1, Done{1, 0, 0});
    master.Say(2, Done{1, 0, 0});
    EXPECT_TRUE(master.links.Last<Final>(1)) << static_cast<int>(topology);
  }
}

TEST(MisbehavingWorkerTest, WhatNobodySendsOfALostWorkersUpdatesHoldsUpTheEndForAWhileOnly) {
  Master master(3, {.topology = Topology::kMesh, .max_children = 2});
  master.Start();
  const uint64_t lost = Master::Origin(3);
  master.node.HandleLinkEvent(kNow, Down(3, Code::kMasterLost));
  const auto place = [&](LinkId link) {
    const auto last = master.links.Last<TreePlace>(link);
    return last ? last->version : 0;
  };
  master.Say(1, Placed{place(1), 1, {{lost, 1}}});
  master.Say(2, Placed{place(2), 1, {{lost, 1'000'000}}});
  master.Say(1, Done{1, 0, 0});
  master.Say(2, Done{1, 0, 0});
  // Those that there are may come later than a failure timeout.
  const int64_t timeout_ns = MasterNodeOptions{}.failure_timeout_ns;
  const auto pass = [&](int64_t until_ns) {
    while (master.node.NextTimeout() < until_ns) {
      master.Say(2, Placed{place(2), 1, {{lost, 1'000'000}}});  // saying it again is no help
      master.node.HandleTimeout(master.node.NextTimeout());
    }
  };
  pass(kNow + 2 * timeout_ns);
  EXPECT_FALSE(master.links.Last<Final>(1));
  master.Update(1, {lost, 1});
  pass(kNow + 4 * timeout_ns);
  EXPECT_FALSE(master.links.Last<Final>(1));
  pass(kNow + 6 * timeout_ns);
  const auto final = master.links.Last<Final>(1);
  ASSERT_TRUE(final);
  EXPECT_EQ(CounterOf(final->vector, lost), 1u);
  EXPECT_THAT(master.links.Last<Notice>(1)->text,
              HasSubstr("worker 1 has said that it has updates of a lost worker"));
}

// Vectors name them all, and are to fit into messages. The next START names members alone.
TEST(MisbehavingWorkerTest, AFitThatHasReplacedTooManyWorkersTakesNoOther) {
  Master master(1, {.max_origins = 4});
  master.Start();
  LinkId link = 1;
  for (; link < 10; ++link) {
    master.Update(link, {Master::Origin(link), 1});
    master.node.HandleLinkEvent(kNow, Down(link, Code::kClosed));
    master.SayHello(link + 1, 0, static_cast<uint8_t>(link + 1), static_cast<int32_t>(link));
    if (master.links.refused.contains(link + 1)) break;
    master.node.HandleLinkEvent(kNow, Up(link + 1));
    master.BeginAsChief(link + 1, {kLayout, 0, ""});
  }
  EXPECT_EQ(master.node.received().size(), 4u);
  EXPECT_THAT(master.links.refused[link + 1], HasSubstr("when the next fit has started"));
}

TEST(MisbehavingWorkerTest, EachFitMayReplaceAsManyWorkersAsAVectorHasRoomFor) {
  Master master(1, {.max_origins = 4});
  master.Start();
  LinkId link = 1;
  for (uint64_t fit = 1; fit <= 20; ++fit) {
    const Layout layout = {fit, kLayout.size, kLayout.hash};
    for (const LinkId last = link + 2; link < last; ++link) {
      master.node.HandleLinkEvent(
          kNow, MessageOn(link, Channel::kUpdate, EmptyUpdate({Master::Origin(link), 1}, layout)));
      master.node.HandleLinkEvent(kNow, Down(link, Code::kClosed));
      master.SayHello(link + 1, 0, static_cast<uint8_t>(link + 1), static_cast<int32_t>(link));
      ASSERT_THAT(master.links.refused, Not(Contains(Key(link + 1)))) << "fit " << fit;
      master.node.HandleLinkEvent(kNow, Up(link + 1));
      master.BeginAsChief(link + 1, {layout, 0, ""});
    }
    EXPECT_EQ(master.node.received().size(), 2u);
    master.Say(link, Done{fit, 0, 0});
    master.SayBlob(link, EncodeBlob({BlobKind::kState, fit, 0, 0, 0}, std::vector<double>{}));
    master.Say(link, Verification{fit, 0, 0});
    // The member that begins the next fit has made one update, the others have none in it.
    master.node.HandleLinkEvent(kNow, Down(link, Code::kClosed));
    ++link;
    master.SayHello(link, 0, static_cast<uint8_t>(link), static_cast<int32_t>(link));
    master.node.HandleLinkEvent(kNow, Up(link));
    master.BeginAsChief(link, {{fit + 1, kLayout.size, kLayout.hash}, 1, ""});
    ASSERT_EQ(master.links.Last<StartGeneration>(link)->generation, fit + 1);
    EXPECT_EQ(master.links.Last<StartGeneration>(link)->cut,
              (VersionVector{{Master::Origin(link), 1}}));
    EXPECT_EQ(master.node.received(), (VersionVector{{Master::Origin(link), 1}}));
    master.node.HandleLinkEvent(
        kNow,
        MessageOn(link, Channel::kUpdate,
                  EmptyUpdate({Master::Origin(link), 2}, {fit + 1, kLayout.size, kLayout.hash})));
  }
}

// In a tree anybody may have the last updates of who has no place there any more, but not those of
// who was replaced before the fit began.
TEST(MisbehavingWorkerTest, UpdatesInTheNameOfWhoWasReplacedBeforeTheFitAreDropped) {
  Master master(2, kTree);
  master.Start();
  const uint64_t retired = Master::Origin(2);
  master.Update(2, {retired, 1});
  master.node.HandleLinkEvent(kNow, Down(2, Code::kClosed));
  master.SayHello(3, 1, 3, 1);
  master.node.HandleLinkEvent(kNow, Up(3));
  master.Say(3, Announce{kLayout, 0, ""});
  const std::vector<LinkId> links = {1, 3};
  for (const LinkId link : links) {
    master.Say(link, Placed{master.links.Last<TreePlace>(link)->version, 1, {}});
  }
  for (const LinkId link : links) master.Say(link, Done{1, 0, 0});
  for (const LinkId link : links) {
    master.SayBlob(link, EncodeBlob({BlobKind::kState, 1, 0, 0, 0}, std::vector<double>{}));
  }
  for (const LinkId link : links) master.Say(link, Verification{1, 0, 0});
  const Layout next = {2, kLayout.size, kLayout.hash};
  master.Say(3, Announce{next, 0, ""});
  EXPECT_TRUE(master.node.received().contains(retired));
  master.BeginAsChief(1, {next, 0, ""});
  ASSERT_EQ(master.links.Last<StartGeneration>(1)->generation, 2u);
  EXPECT_TRUE(master.node.received().empty());
  for (const uint64_t counter : {1, 2, 3}) {
    master.node.HandleLinkEvent(
        kNow, MessageOn(1, Channel::kUpdate, EmptyUpdate({retired, counter}, next)));
  }
  EXPECT_TRUE(master.node.received().empty());
  EXPECT_EQ(master.node.replication().hold_bytes(), 0);
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"update of an unknown origin\": 3"));
  EXPECT_THAT(master.node.StatusJson(), HasSubstr("\"set_aside_bytes\": 0,"));
  // Nor does its process come back under that name.
  master.SayHello(4, 1, 2);
  EXPECT_THAT(master.links.refused[4], HasSubstr("superseded by attempt 1"));
}

TEST(MisbehavingWorkerTest, WhatIsHeldOfALostWorkerGoesWithIt) {
  Master master(2);
  master.Start();
  master.Update(2, {Master::Origin(2), 2});  // the first is lost with its link
  ASSERT_GT(master.node.replication().hold_bytes(), 0);
  master.node.HandleLinkEvent(kNow, Down(2, Code::kMasterLost));
  EXPECT_EQ(master.node.replication().hold_bytes(), 0);
  // The same process comes back, and sends again what the master lacks.
  master.SayHello(3, 1, 2);
  master.node.HandleLinkEvent(kNow, Up(3));
  master.Say(3, Attach{1, {{Master::Origin(2), 2}}});
  master.Update(3, {Master::Origin(2), 2});
  master.Update(3, {Master::Origin(2), 1});
  EXPECT_EQ(CounterOf(master.node.received(), Master::Origin(2)), 2u);
}

// Held updates were checked against the flat space of their own generation.
TEST(MisbehavingWorkerTest, AnUpdateThatIsHeldDoesNotComeIntoTheNextGeneration) {
  Master master(1);
  master.Start();
  master.Update(1, {Master::Origin(1), 2});  // the first is missing
  ASSERT_GT(master.node.replication().hold_bytes(), 0);
  master.End();
  const Layout next = {2, kLayout.size + 1, 6};
  master.BeginAsChief(1, {next, 0, ""});
  ASSERT_EQ(master.links.Last<StartGeneration>(1)->generation, 2u);
  EXPECT_EQ(master.node.replication().hold_bytes(), 0);
}

}  // namespace
}  // namespace strom
