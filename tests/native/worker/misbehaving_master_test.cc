// A worker against a master that holds the secret and keeps no rule. The links are scripted: what
// the worker sends is recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/replication/control.h"
#include "core/replication/merged_update.h"
#include "core/replication/pieces.h"
#include "core/replication/relay.h"
#include "core/worker/worker_node.h"
#include "empty_update.h"
#include "link_events.h"
#include "merged_updates.h"
#include "recorded_links.h"
#include "scripted_worker.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr uint64_t kOrigin = uint64_t{1} << 32 | 1, kOther = kOrigin + 1, kChild = kOrigin + 2;

// A worker that has joined over link 1 and is training.
class TrainingWorker : public ScriptedWorker {
 public:
  explicit TrainingWorker(int32_t max_staleness, int64_t merging_ns = kNotMerging)
      : ScriptedWorker({.max_staleness = max_staleness, .master = {}},
                       std::make_shared<std::vector<float>>(kLayout.size)) {
    Hear(StartGeneration{1, {}, 0, 0, -1, merging_ns});
    while (node.PollEvent()) {
    }
  }
  void HearUpdate(const Buffer& update, LinkId link = 1) {
    node.HandleLinkEvent(kNow, MessageOn(link, Channel::kUpdate, update));
  }
  // One entry of the first parameter.
  UpdateId Submit() {
    const Buffer update = UpdateWith({kOrigin, 1}, kLayout);
    return node.Submit(kNow, 0, true, *update);
  }
  // A worker below this one has come, over link 7.
  void TakeChild() {
    TreePlace place;
    place.version = 1;
    place.children = {{.origin = kChild, .rank = 3, .instance = {9}}};
    Hear(place);
    node.HandleLinkEvent(kNow, HelloOn(7, EncodeChildHello({kChild, {9}})));
    node.HandleLinkEvent(kNow, Up(7));
    node.HandleLinkEvent(kNow, MessageOn(7, Attach{1, {}}));
  }
  // The words with which it has failed, or "".
  std::string Failure() {
    std::string failure;
    while (auto event = node.PollEvent()) {
      if (event->type == WorkerEvent::Type::kFailed) failure = event->status.message;
    }
    return failure;
  }
  // What it has applied once it has taken what waits.
  float Received() {
    std::vector<float> parameters(kLayout.size);
    for (const ReceivedUpdate& update : node.TakeReceived().updates) {
      MessageCodec().Apply(update.message(), parameters);
    }
    return parameters[0];
  }
};

TEST(MisbehavingMasterTest, AWorkerTakesNoUpdateInItsOwnName) {
  TrainingWorker worker(-1);
  worker.node.HandleLinkEvent(kNow,
                              MessageOn(1, Channel::kUpdate, EmptyUpdate({kOrigin, 1}, kLayout)));
  EXPECT_TRUE(worker.node.received().empty());
  (void)worker.node.Submit(kNow, 0, true, EmptyMessage(kLayout.size));
  EXPECT_EQ(worker.node.received().at(kOrigin), 1u);
  EXPECT_FALSE(worker.node.PollEvent());
}

// What others have made that no STEP has named goes with the fit, and its makers with the next
// START.
TEST(MisbehavingMasterTest, AWorkerKeepsNothingOfWhoHasNoPartInTheNextFit) {
  constexpr uint64_t kRetired = uint64_t{1} << 32 | 2, kStays = uint64_t{1} << 32 | 3;
  for (const int32_t max_staleness : {-1, 0}) {
    TrainingWorker worker(max_staleness);
    const auto hear = [&](const UpdateId& id, const Layout& layout) {
      worker.node.HandleLinkEvent(kNow, MessageOn(1, Channel::kUpdate, EmptyUpdate(id, layout)));
    };
    hear({kRetired, 1}, kLayout);
    hear({kStays, 1}, kLayout);
    const Layout next = {2, kLayout.size, kLayout.hash};
    const auto values = std::make_shared<std::vector<float>>(kLayout.size);
    worker.node.BeginGeneration(kNow, {2, static_cast<int64_t>(next.size), next.hash, "", values});
    hear({kStays, 2}, next);  // overtakes START
    worker.Hear(StartGeneration{2, {{kStays, 1}}});
    EXPECT_EQ(worker.node.received(), (VersionVector{{kStays, 2}}));
    EXPECT_EQ(worker.node.replication().retained(), 2);
    if (max_staleness < 0) {
      const Received received = worker.node.TakeReceived();
      ASSERT_EQ(received.updates.size(), 1u);
      EXPECT_EQ(received.updates[0].id, (UpdateId{kStays, 2}));
    } else {
      EXPECT_THAT(worker.node.StatusJson(), HasSubstr("\"waiting_updates\": 1,"));
    }
  }
}

TEST(MisbehavingMasterTest, ACutWithUpdatesThatAWorkerHasNotMadeEndsItWithWords) {
  TrainingWorker worker(-1);
  worker.Hear(TooFarBehind{1});
  worker.Hear(SnapshotCut{1, {{kOrigin, 5}}, 1});
  (void)worker.node.Submit(kNow, 0, true, EmptyMessage(kLayout.size));
  std::string failure;
  while (auto event = worker.node.PollEvent()) failure = event->status.message;
  EXPECT_THAT(failure, HasSubstr("in this worker's name"));
}

TEST(MisbehavingMasterTest, AStepThatNamesAnUpdateTwiceIsRefused) {
  TrainingWorker worker(0);
  const UpdateId id = worker.node.Submit(kNow, 0, true, EmptyMessage(kLayout.size));
  worker.Hear(Step{1, 0, {id, id}});
  EXPECT_TRUE(worker.node.TakeReceived().updates.empty());
  const auto event = worker.node.PollEvent();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->status.code, Code::kCorrupt) << event->status.message;
}

TEST(MisbehavingMasterTest, AFailureOfAnyCodeEndsTheWorkerWithAnError) {
  for (const int32_t code : {0, 1, -100, static_cast<int32_t>(Code::kRefused)}) {
    TrainingWorker worker(-1);
    worker.Hear(Failure{code, "because"});
    const auto event = worker.node.PollEvent();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, WorkerEvent::Type::kFailed);
    EXPECT_EQ(event->status.code, code == -3 ? Code::kRefused : Code::kInternal) << code;
  }
}

// ------------------------------------------------------------------------------- merging

Buffer PublicationOf(uint64_t counter, const std::vector<UpdateId>& ids, uint64_t epoch = 1) {
  std::vector<Buffer> updates;
  for (const UpdateId& id : ids) updates.push_back(UpdateWith(id, kLayout));
  return MergedOf(updates, kLayout, {MasterOrigin(epoch), counter});
}

TEST(MisbehavingMasterTest, AWorkerAppliesOfAPublicationWhatOthersHaveMade) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  worker.HearUpdate(PublicationOf(1, {{kOrigin, 1}, {kOther, 1}, {kOther, 2}}));
  EXPECT_EQ(worker.node.received(),
            (VersionVector{{MasterOrigin(1), 1}, {kOrigin, 1}, {kOther, 2}}));
  EXPECT_EQ(worker.Received(), 2);
  EXPECT_EQ(worker.Failure(), "");
}

TEST(MisbehavingMasterTest, APublicationWithUpdatesThatTheWorkerHasNotMadeEndsItWithWords) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  worker.HearUpdate(PublicationOf(1, {{kOrigin, 1}, {kOrigin, 2}}));
  EXPECT_THAT(worker.Failure(), HasSubstr("updates of this worker that are not here"));
}

TEST(MisbehavingMasterTest, APublicationOfAnUpdateThatHasBeenPublishedEndsTheWorkerWithWords) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  worker.HearUpdate(PublicationOf(1, {{kOrigin, 1}}));
  EXPECT_EQ(worker.Failure(), "");
  worker.HearUpdate(PublicationOf(2, {{kOrigin, 1}, {kOther, 1}}));
  EXPECT_THAT(worker.Failure(), HasSubstr("updates of this worker twice"));
}

TEST(MisbehavingMasterTest, APublicationThatLeavesOutAnEarlierUpdateEndsTheWorkerWithWords) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  (void)worker.Submit();
  worker.HearUpdate(PublicationOf(1, {{kOrigin, 2}}));
  EXPECT_NE(worker.Failure(), "");
}

TEST(MisbehavingMasterTest, ThePublicationOfAnotherMasterIsNotTaken) {
  TrainingWorker worker(-1, 0);
  for (const uint64_t epoch : {2, 7}) worker.HearUpdate(PublicationOf(1, {{kOther, 1}}, epoch));
  EXPECT_TRUE(worker.node.received().empty());
  EXPECT_EQ(worker.Received(), 0);
  EXPECT_EQ(worker.Failure(), "");
  EXPECT_TRUE(worker.links.closed.empty());
  EXPECT_THAT(worker.node.StatusJson(), HasSubstr("\"publication of another master\": 2"));
}

TEST(MisbehavingMasterTest, APublicationThatComesTwiceCountsOnce) {
  TrainingWorker worker(-1, 0);
  for (int i = 0; i < 2; ++i) worker.HearUpdate(PublicationOf(1, {{kOther, 1}}));
  EXPECT_EQ(worker.Received(), 1);
  EXPECT_EQ(worker.Failure(), "");
}

TEST(MisbehavingMasterTest, PublicationsThatOvertakeOneAnotherAreAppliedInTheirOrder) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  worker.HearUpdate(PublicationOf(2, {{kOther, 2}}));
  EXPECT_FALSE(worker.node.received().contains(kOther));
  worker.HearUpdate(PublicationOf(1, {{kOther, 1}, {kOrigin, 1}}));
  EXPECT_EQ(worker.node.received().at(kOther), 2u);
  EXPECT_EQ(worker.Received(), 2);
}

TEST(MisbehavingMasterTest, WhatGoesUpIsNotTakenFromAbove) {
  TrainingWorker worker(-1, 0);
  worker.HearUpdate(UpdateWith({kOther, 1}, kLayout));
  worker.HearUpdate(
      MergedOf({UpdateWith({kOther, 1}, kLayout), UpdateWith({kChild, 1}, kLayout)}, kLayout));
  EXPECT_TRUE(worker.node.received().empty());
  EXPECT_EQ(worker.Received(), 0);
  EXPECT_EQ(worker.links.Updates(1), 0);
}

// A merged update's bytes are no codec message, and nobody else looks whether they are.
TEST(MisbehavingMasterTest, AMergedUpdateWhereNoneAreMergedIsNotApplied) {
  const Buffer merged =
      MergedOf({UpdateWith({kOther, 1}, kLayout), UpdateWith({kChild, 1}, kLayout)}, kLayout);
  for (const int32_t max_staleness : {-1, 0}) {
    for (const bool from_child : {true, false}) {
      TrainingWorker worker(max_staleness);
      worker.TakeChild();
      const LinkId link = from_child ? 7 : 1;
      worker.HearUpdate(merged, link);
      EXPECT_TRUE(worker.links.closed.contains(link));
      EXPECT_FALSE(worker.node.received().contains(kOther));
      EXPECT_EQ(worker.Received(), 0);
    }
  }
}

TEST(MisbehavingMasterTest, AMergedUpdateThatOvertakesStartIsNotApplied) {
  const Layout next = {2, kLayout.size, kLayout.hash};
  const Buffer merged =
      MergedOf({UpdateWith({kOther, 1}, next), UpdateWith({kChild, 1}, next)}, next);
  for (const LinkId link : {LinkId{1}, LinkId{7}}) {
    TrainingWorker worker(-1);
    worker.TakeChild();
    const auto values = std::make_shared<std::vector<float>>(next.size);
    worker.node.BeginGeneration(kNow, {2, static_cast<int64_t>(next.size), next.hash, "", values});
    worker.HearUpdate(merged, link);
    worker.Hear(StartGeneration{2, {}});
    EXPECT_FALSE(worker.node.received().contains(kOther));
    EXPECT_EQ(worker.Received(), 0);
  }
}

TEST(MisbehavingMasterTest, AChildThatSendsAPublicationIsRejected) {
  TrainingWorker worker(-1, 0);
  worker.TakeChild();
  ASSERT_TRUE(worker.links.Last<Attach>(7));
  worker.HearUpdate(PublicationOf(1, {{kOther, 1}}), 7);
  EXPECT_TRUE(worker.node.received().empty());
  EXPECT_TRUE(worker.links.closed.contains(7));
  EXPECT_FALSE(worker.links.closed.contains(1));
  EXPECT_EQ(worker.Received(), 0);
}

TEST(MisbehavingMasterTest, WhatAChildSendsPassesUpWhateverItsNameAndIsNotApplied) {
  TrainingWorker worker(-1, 0);
  worker.TakeChild();
  worker.HearUpdate(UpdateWith({kChild, 1}, kLayout), 7);
  EXPECT_EQ(worker.links.Updates(1), 1);
  worker.HearUpdate(UpdateWith({kOrigin, 5}, kLayout), 7);  // the master judges
  EXPECT_EQ(worker.links.Updates(1), 2);
  EXPECT_TRUE(worker.node.received().empty());
  EXPECT_EQ(worker.Received(), 0);
}

TEST(MisbehavingMasterTest, WhatIsAskedForAgainIsSaidOnlyIfItIsThisWorkersAndHere) {
  TrainingWorker worker(-1, 0);
  for (int i = 0; i < 3; ++i) (void)worker.Submit();
  constexpr uint64_t kMost = ~uint64_t{0};
  worker.links.sent.clear();
  worker.Hear(SayAgain{1, 1, 3});
  EXPECT_EQ(worker.links.Updates(1), 2);
  for (const SayAgain& again : {SayAgain{2, 0, 3}, SayAgain{1, 3, kMost}, SayAgain{1, kMost, 0},
                                SayAgain{1, 3, 1}, SayAgain{1, 0, 0}}) {
    worker.Hear(again);
  }
  EXPECT_EQ(worker.links.Updates(1), 2);
  worker.Hear(SayAgain{1, 0, kMost});
  EXPECT_EQ(worker.links.Updates(1), 5);
  TrainingWorker alone(-1);
  (void)alone.Submit();
  alone.links.sent.clear();
  alone.Hear(SayAgain{1, 0, 1});
  EXPECT_EQ(alone.links.Updates(1), 0) << "nothing is merged there";
}

// The master asks until it is there, and a slow line takes longer than from one question to the
// next.
TEST(MisbehavingMasterTest, WhatIsOnItsWayIsNotSaidOnceMoreForEachQuestion) {
  TrainingWorker worker(-1, 0);
  for (int i = 0; i < 3; ++i) (void)worker.Submit();
  worker.links.sent.clear();
  worker.links.queued[1] = kBusyLinkBytes + 1;
  for (int i = 0; i < 20; ++i) worker.Hear(SayAgain{1, 0, 3});
  EXPECT_EQ(worker.links.Updates(1), 3);
  worker.Hear(SayAgain{1, 1, 3});  // the first has come
  EXPECT_EQ(worker.links.Updates(1), 3);
  (void)worker.Submit();
  worker.links.sent.clear();
  worker.Hear(SayAgain{1, 2, 4});
  EXPECT_EQ(worker.links.Updates(1), 1) << "this one is new";
  worker.links.queued[1] = 0;
  worker.Hear(SayAgain{1, 2, 4});
  EXPECT_EQ(worker.links.Updates(1), 4) << "and that which had waited for room itself";
  // What was on its way is lost with the link.
  worker.links.queued[2] = kBusyLinkBytes + 1;
  worker.node.HandleLinkEvent(kNow, Down(1, Code::kMasterLost));
  worker.node.HandleLinkEvent(kNow, Up(2, EncodeWelcome({kOrigin, 0, 1})));
  worker.links.sent.clear();
  worker.node.HandleLinkEvent(kNow, MessageOn(2, SayAgain{1, 2, 4}));
  EXPECT_EQ(worker.links.Updates(2), 2);
}

TEST(MisbehavingMasterTest, AnOwnUpdateThatNoBeaconHasNamedForLongIsSaidAgain) {
  TrainingWorker worker(-1, 0);
  (void)worker.Submit();
  (void)worker.Submit();
  worker.links.sent.clear();
  const int64_t timeout_ns = WorkerNodeOptions{.master = {}}.failure_timeout_ns;
  const auto hear = [&](int64_t after_ns, const VersionVector& vector) {
    worker.Hear(Beacon{1, 0, vector}, kNow + after_ns);
  };
  hear(timeout_ns / 2, {});
  hear(timeout_ns, {});
  EXPECT_EQ(worker.links.Updates(1), 0);
  hear(timeout_ns + 1, {{kOrigin, 1}});
  EXPECT_EQ(worker.links.Updates(1), 1);
  hear(timeout_ns + 2, {{kOrigin, 1}});
  EXPECT_EQ(worker.links.Updates(1), 1) << "not with every beacon";
  hear(2 * timeout_ns + 1, {{kOrigin, 1}});
  EXPECT_EQ(worker.links.Updates(1), 2);
  hear(3 * timeout_ns + 1, {{kOrigin, 2}});
  EXPECT_EQ(worker.links.Updates(1), 2);
}

// Worker 1, whose values are 0, 1, 2, ..., waits for the master's.
class StartingWorker : public ScriptedWorker {
 public:
  StartingWorker() : StartingWorker(std::make_shared<std::vector<float>>(Ascending())) {}
  auto Outcome() { return ScriptedWorker::Outcome(WorkerEvent::Type::kStarted); }

  const std::shared_ptr<std::vector<float>> own;

 private:
  explicit StartingWorker(const std::shared_ptr<std::vector<float>>& values)
      : ScriptedWorker({.rank = 1, .master = {}}, values), own(values) {
    Hear(StartGeneration{1, {}});
  }
  static std::vector<float> Ascending() {
    std::vector<float> values(kLayout.size);
    std::iota(values.begin(), values.end(), 0.0f);
    return values;
  }
};

TEST(MisbehavingMasterTest, PiecesGoIntoAWorkersOwnValuesAsTheyCome) {
  for (const int64_t chunk_bytes : {int64_t{804}, kChunkBytes}) {
    StartingWorker worker;
    std::vector<float> wanted = *worker.own;
    wanted[3] = wanted[98] = -1;
    worker.HearBlob(PiecesOf(wanted, {3, 98}, wanted, chunk_bytes));
    const auto [parameters, failure] = worker.Outcome();
    ASSERT_TRUE(parameters) << failure;
    EXPECT_EQ(parameters, worker.own);
    EXPECT_EQ(*parameters, wanted);
  }
}

TEST(MisbehavingMasterTest, PiecesThatDoNotMakeTheMastersValuesEndTheWorker) {
  StartingWorker worker;
  std::vector<float> wanted = *worker.own;
  wanted[3] = -1;
  const auto failure = [](const std::vector<Buffer>& chunks) {
    StartingWorker other;
    other.HearBlob(chunks);
    return other.Outcome().second;
  };
  const auto pieces = [&](const std::vector<uint32_t>& indices, int64_t chunk_bytes = kChunkBytes) {
    return PiecesOf(wanted, indices, wanted, chunk_bytes);
  };
  EXPECT_EQ(failure(pieces({3})), "");
  EXPECT_THAT(failure(pieces({})), HasSubstr("other pieces than this worker lacks"));
  EXPECT_THAT(failure(pieces({3, 4})), HasSubstr("other pieces than this worker lacks"));
  EXPECT_THAT(failure(pieces({4})), HasSubstr("other values than its hash says"));
  EXPECT_THAT(failure(pieces({3}, 400)), HasSubstr("pieces without their hashes"));
  std::vector<Buffer> late = pieces({3}, 801);
  late.erase(late.begin());
  EXPECT_THAT(failure(late), HasSubstr("does not follow"));
}

}  // namespace
}  // namespace strom
