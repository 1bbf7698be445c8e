// Epochs on the wire: a worker follows the latest master alone, and an earlier one gives way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/master/master_node.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/worker/worker_node.h"
#include "link_events.h"
#include "recorded_links.h"
#include "sim/list_codec.h"

namespace strom {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr int64_t kTimeout = 1'000'000'000;
constexpr uint64_t kOrigin = uint64_t{1} << 32 | 1;
constexpr Layout kLayout{1, 4, 5};

LinkEvent Welcomed(LinkId link, const Welcome& welcome) { return Up(link, EncodeWelcome(welcome)); }

// A worker that has joined a master of epoch 1 and trains under it.
class FollowingWorker : public testing::Test {
 protected:
  explicit FollowingWorker(int64_t master_wait_ns = 100 * kTimeout) {
    WorkerNodeOptions options;
    options.size = 2;
    options.failure_timeout_ns = kTimeout;
    options.master_wait_ns = master_wait_ns;
    options.codec = &kListCodec;
    node.emplace(options, &links);
    node->Start(0);
    node->HandleLinkEvent(0, Welcomed(1, {kOrigin, 0, 1}));
    node->BeginGeneration(0, {1, 4, 5, "same", std::make_shared<std::vector<float>>(4, 1.0f)});
    node->HandleLinkEvent(0, MessageOn(1, StartGeneration{1, {{kOrigin, 0}}}));
    while (node->PollEvent()) {
    }
  }

  std::optional<Status> Failure() {
    while (auto event = node->PollEvent()) {
      if (event->type == WorkerEvent::Type::kFailed) return event->status;
    }
    return std::nullopt;
  }

  RecordedLinks links;
  std::optional<WorkerNode> node;
};

class StoppingWorker : public FollowingWorker {
 protected:
  StoppingWorker() : FollowingWorker(0) {}
};

TEST_F(StoppingWorker, EndsWhereAnotherMasterAnswers) {
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 2}));
  const std::optional<Status> failure = Failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Code::kMasterLost);
}

TEST_F(StoppingWorker, TellsThatItSeeksTheMasterAndThatThisAnswersAgain) {
  LinkEvent silent = Down(1, Code::kMasterLost);
  silent.reason = "no authentic packet for 1.0 s";
  node->HandleLinkEvent(kTimeout, silent);
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 1}));
  std::vector<std::string> told;
  while (auto event = node->PollEvent()) {
    if (event->type == WorkerEvent::Type::kNotice) told.push_back(event->text);
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[0], HasSubstr("is out of reach (no authentic packet for 1.0 s); looking for"));
  EXPECT_THAT(told[1], EndsWith("answers again"));
}

TEST_F(StoppingWorker, SaysWhyItLostTheWayToTheMaster) {
  LinkEvent stuck = Down(1, Code::kUnreachable);
  stuck.reason = "long datagrams were lost";
  node->HandleLinkEvent(kTimeout, stuck);
  for (LinkId link = 2; link < 100; ++link) {
    node->HandleLinkEvent(static_cast<int64_t>(link) * kTimeout, Down(link, Code::kUnreachable));
    node->HandleTimeout(static_cast<int64_t>(link) * kTimeout);
    if (const auto failure = Failure()) {
      EXPECT_EQ(failure->code, Code::kMasterLost);
      EXPECT_THAT(failure->message, HasSubstr("is out of reach: long datagrams were lost"));
      return;
    }
  }
  ADD_FAILURE() << "it looks for the master without an end";
}

TEST_F(FollowingWorker, ResumesUnderAMasterOfAHigherEpoch) {
  std::vector<uint8_t> update = ListCodec::Write({{0, 2.0f}});
  node->Submit(0, 7, true, std::move(update));
  node->SetApplied({{kOrigin, 1}});
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  EXPECT_TRUE(node->WaitsForMaster());
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 2}));
  const auto resume = links.Last<AskResume>(2);
  ASSERT_TRUE(resume);
  EXPECT_EQ(resume->layout, kLayout);
  EXPECT_EQ(resume->origin, kOrigin);
  EXPECT_EQ(resume->applied, (VersionVector{{kOrigin, 1}}));
  EXPECT_EQ(resume->kept_after, 0u);
  EXPECT_EQ(resume->iteration, 7);

  node->HandleLinkEvent(kTimeout, MessageOn(2, AskReplica{1, 3}));
  ASSERT_TRUE(node->ReplicaWanted());
  node->HandOver(kTimeout, {3, 1, 1, 1});
  EXPECT_FALSE(node->ReplicaWanted());
  const auto replica = links.Last<ReplicaCut>(2);
  ASSERT_TRUE(replica);
  EXPECT_EQ(replica->number, 3u);
  EXPECT_EQ(replica->cut, (VersionVector{{kOrigin, 1}}));
}

TEST_F(FollowingWorker, HandsOverBeforeItsNextGenerationHasStarted) {
  node->BeginGeneration(kTimeout, {2, 4, 5, "same", std::make_shared<std::vector<float>>(4)});
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 2}));
  EXPECT_FALSE(links.Last<AskResume>(2));
  node->HandleLinkEvent(kTimeout, MessageOn(2, AskReplica{1, 3}));
  EXPECT_FALSE(node->ReplicaWanted());  // that one is over
  node->HandleLinkEvent(kTimeout, MessageOn(2, AskReplica{2, 4}));
  ASSERT_TRUE(node->ReplicaWanted());
  node->HandOver(kTimeout, {3, 1, 4, 1});
  const auto replica = links.Last<ReplicaCut>(2);
  ASSERT_TRUE(replica);
  EXPECT_EQ(replica->generation, 2u);
  EXPECT_EQ(replica->number, 4u);
}

TEST_F(FollowingWorker, SendsAgainWhatTheOtherMasterLacks) {
  node->Submit(0, 0, true, ListCodec::Write({{0, 2.0f}}));
  node->Submit(0, 1, true, ListCodec::Write({{1, 2.0f}}));
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 2}));
  EXPECT_EQ(links.Updates(2), 0);
  StartGeneration start{1, {{kOrigin, 1}, {9, 4}}};
  start.snapshot = 6;
  node->HandleLinkEvent(kTimeout, MessageOn(2, start));
  EXPECT_EQ(links.Updates(2), 1);
  EXPECT_EQ(node->received(), (VersionVector{{kOrigin, 2}, {9, 4}}));
  EXPECT_FALSE(node->WaitsForMaster());
  EXPECT_TRUE(node->AwaitsParameters());

  const std::vector<float> parameters{3, 1, 1, 1};
  for (const Buffer& chunk : EncodeBlob({BlobKind::kParameters, 1, 0, 6, 0}, parameters)) {
    node->HandleLinkEvent(kTimeout, MessageOn(2, Channel::kState, chunk));
  }
  const Received received = node->TakeReceived();
  ASSERT_TRUE(received.snapshot);
  EXPECT_EQ(*received.snapshot->parameters, parameters);
  ASSERT_EQ(received.updates.size(), 1u);  // its own, which the snapshot lacks
  EXPECT_EQ(received.updates[0].id, (UpdateId{kOrigin, 2}));
}

TEST_F(FollowingWorker, TakesNoNoticeOfAnEarlierMaster) {
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  node->HandleLinkEvent(kTimeout, Welcomed(2, {kOrigin, 0, 2}));
  node->HandleLinkEvent(2 * kTimeout, Down(2, Code::kMasterLost));
  node->HandleLinkEvent(2 * kTimeout, Welcomed(3, {kOrigin, 0, 1}));
  EXPECT_TRUE(links.closed.contains(3));
  EXPECT_FALSE(links.Last<AskResume>(3));
  EXPECT_FALSE(Failure());
  EXPECT_TRUE(node->WaitsForMaster());
}

TEST_F(FollowingWorker, EndsWhereNoMasterComesInTime) {
  node->HandleLinkEvent(kTimeout, Down(1, Code::kMasterLost));
  node->HandleTimeout(100 * kTimeout);
  EXPECT_FALSE(Failure());
  node->HandleTimeout(102 * kTimeout);
  const std::optional<Status> failure = Failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Code::kMasterLost);
}

TEST(AnotherMaster, AnEarlierOneGivesWayToIt) {
  RecordedLinks links;
  MasterNodeOptions options;
  options.epoch = 2;
  MasterNode master(options, &links);
  Hello hello;
  hello.epoch = 3;
  hello.origin = kOrigin;
  master.HandleLinkEvent(0, HelloOn(1, EncodeHello(hello)));
  EXPECT_TRUE(links.accepted.empty());
  EXPECT_TRUE(links.refused.empty());  // the worker looks on for its own master
  const auto told = master.PollEvent();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->type, MasterEvent::Type::kSuperseded);
  EXPECT_NE(told->text.find("follows a master of epoch 3, and this one has epoch 2"),
            std::string::npos);
}

LinkEvent Hears(LinkId link, int32_t rank, uint64_t epoch, uint64_t origin) {
  Hello hello;
  hello.rank = rank;
  hello.size = 2;
  hello.instance[0] = static_cast<uint8_t>(link);
  hello.epoch = epoch;
  hello.origin = origin;
  return HelloOn(link, EncodeHello(hello));
}

TEST(AnotherMaster, LearnsHowTheLastGenerationEndedWhereTheChiefIsNew) {
  RecordedLinks links;
  MasterNodeOptions options;
  options.workers = 2;
  options.epoch = 2;
  options.failure_timeout_ns = kTimeout;
  options.codec = &kListCodec;
  MasterNode master(options, &links);
  for (const LinkEvent& event :
       {Hears(1, 1, 1, kOrigin + 1), Up(1), MessageOn(1, Announce{{2, 4, 5}, 0, "same"}),
        Hears(2, 0, 0, 0), Up(2),
        MessageOn(2, Announce{{1, 4, 5}, 0, "same", {}, 0, {1, 2, 3, 4}})}) {
    master.HandleLinkEvent(0, event);
  }
  const std::vector<float> end{3, 1, 4, 1};
  master.HandleTimeout(kTimeout);
  EXPECT_FALSE(links.Last<AskReplica>(1));  // others may come yet
  master.HandleTimeout(2 * kTimeout);
  const auto question = links.Last<AskReplica>(1);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->generation, 2u);
  EXPECT_FALSE(links.Last<AskReplica>(2));
  master.HandleLinkEvent(2 * kTimeout, MessageOn(1, ReplicaCut{2, question->number, {}}));
  for (const Buffer& chunk : EncodeBlob({BlobKind::kReplica, 2, 0, question->number, 0}, end)) {
    master.HandleLinkEvent(2 * kTimeout, MessageOn(1, Channel::kState, chunk));
  }
  const auto ended = links.Last<Ended>(2);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->generation, 1u);
  EXPECT_EQ(master.parameters(), end);
}

}  // namespace
}  // namespace strom
