// A worker against a master that holds the secret and keeps no rule. The links are scripted: what
// the worker sends is recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/replication/control.h"
#include "core/worker/worker_node.h"
#include "empty_update.h"
#include "link_events.h"
#include "recorded_links.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr int64_t kNow = 1'000'000'000;
constexpr Layout kLayout = {.generation = 1, .size = 100, .hash = 5};
constexpr uint64_t kOrigin = uint64_t{1} << 32 | 1;

// A worker that has joined over link 1 and is training.
class TrainingWorker {
 public:
  explicit TrainingWorker(int32_t max_staleness)
      : node({.max_staleness = max_staleness, .master = {}}, &links) {
    node.Start(kNow);
    node.HandleLinkEvent(kNow, Up(1, EncodeWelcome({kOrigin, 0, 1})));
    const auto seed = std::make_shared<const std::vector<float>>(kLayout.size);
    node.BeginGeneration(kNow, {1, static_cast<int64_t>(kLayout.size), kLayout.hash, "", seed});
    Hear(StartGeneration{1, {}});
    while (node.PollEvent()) {
    }
  }
  void Hear(const ControlMessage& message) { node.HandleLinkEvent(kNow, MessageOn(1, message)); }

  RecordedLinks links;
  WorkerNode node;
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
    const auto seed = std::make_shared<const std::vector<float>>(kLayout.size);
    worker.node.BeginGeneration(kNow, {2, static_cast<int64_t>(next.size), next.hash, "", seed});
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

}  // namespace
}  // namespace strom
