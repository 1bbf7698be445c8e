// What a worker says again after a lost link: its last snapshots too, whatever has come meanwhile.
// Of gradients one gives its last snapshot when the master asks for it.
#include "core/worker/shard_agent.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace strom {
namespace {

constexpr uint64_t kGeneration = 5;
constexpr int64_t kSize = 64;

class Host final : public ShardAgentHost {
 public:
  void Send(const ControlMessage& message) override {
    asked_joint += std::holds_alternative<AskJoint>(message) ? 1 : 0;
  }
  void SendBlob(const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) {
      BlobChunk parsed;
      ASSERT_TRUE(ParseChunk(*chunk, &parsed).ok());
      if (parsed.name.kind == BlobKind::kShard) marks.insert(parsed.name.mark);
    }
  }
  int64_t QueuedBytes() const override { return queued; }
  std::set<uint64_t> marks;
  int64_t queued = 0;
  int asked_joint = 0;
};

JointPlan PlanOf(int32_t kind, int32_t phases, int32_t gradients = 0) {
  JointPlan plan;
  plan.method.kind = kind;
  plan.method.phases = phases;
  plan.method.steps = 1;
  plan.method.gradients = gradients;
  plan.ranges = {{0, kSize}};
  return plan;
}

std::set<uint64_t> SaidAgain(Host* host, ShardAgent* agent) {
  agent->LinkDown();
  host->marks.clear();
  agent->Register();
  for (int64_t now = 0; now < 4; ++now) agent->Advance(now);
  return host->marks;
}

// What the agent makes of values of the joint model from the master.
JointValues Hear(ShardAgent* agent, const BlobName& name, float value) {
  JointValues joint;
  for (const Buffer& chunk : EncodeBlob(name, std::vector<float>(kSize, value))) {
    BlobChunk parsed;
    EXPECT_TRUE(ParseChunk(*chunk, &parsed).ok());
    EXPECT_TRUE(agent->HandleChunk(parsed, &joint).ok());
  }
  return joint;
}

TEST(ShardAgent, LastSnapshotsOutlastATickThatCrossesThem) {
  Host host;
  DropCounters drops;
  ShardAgent agent(PlanOf(STROM_MPCA, 2), kGeneration, 0, &host, &drops);
  for (int32_t shard = 0; shard < 2; ++shard) {
    agent.Give(LastMark(shard), 9, 3, std::vector<float>(kSize / 2, 1.0f));
  }
  Tick tick{kGeneration, 7};
  tick.asks = 1;
  agent.Handle(tick);  // was sent before the master has heard of the end
  EXPECT_EQ(SaidAgain(&host, &agent), (std::set<uint64_t>{LastMark(0), LastMark(1)}));
}

TEST(ShardAgent, ALastSnapshotOutlastsTheMeanThatItsWorkerWaitsForNoMore) {
  Host host;
  DropCounters drops;
  ShardAgent agent(PlanOf(STROM_SPARKNET, 1, 1), kGeneration, 0, &host, &drops);
  agent.EndGradient(0, std::make_shared<std::vector<float>>(kSize + 1, 1.0f));
  agent.Advance(0);
  agent.Give(LastMark(0), 0, 1, std::vector<float>(kSize, 1.0f));  // the wait ran out
  Hear(&agent, {BlobKind::kTarget, kGeneration, 0, 0, 0}, 2.0f);
  EXPECT_EQ(agent.rounds_in_last(), 0u) << "the mean is no part of it";
  EXPECT_FALSE(SaidAgain(&host, &agent).contains(LastMark(0))) << "nobody has asked for it";
  const Rounds please{kGeneration, 0, Rounds::kGiveLast, 0};
  ASSERT_TRUE(agent.Handle(please, {0}, 0).ok());
  EXPECT_TRUE(host.marks.contains(LastMark(0)));
}

TEST(ShardAgent, OfGradientsWhoseLastSnapshotIsNotFiniteHasNoneToGive) {
  Host host;
  DropCounters drops;
  ShardAgent agent(PlanOf(STROM_SPARKNET, 1, 1), kGeneration, 0, &host, &drops);
  EXPECT_EQ(agent.rounds_in_last(), Done::kNone) << "it has not ended";
  agent.Give(LastMark(0), 0, 1, {});
  EXPECT_EQ(agent.rounds_in_last(), Done::kNone);
  ASSERT_TRUE(agent.Handle(Rounds{kGeneration, 0, Rounds::kGiveLast, 0}, {0}, 0).ok());
  EXPECT_TRUE(host.marks.empty());
}

TEST(ShardAgent, TheJointModelIsAskedForOnceTheMasterHasTheDifferenceBefore) {
  Host host;
  DropCounters drops;
  ShardAgent agent(PlanOf(STROM_EASGD, 1), kGeneration, 0, &host, &drops);
  agent.Give(0, 0, 1, std::vector<float>(kSize, 1.0f));
  host.queued = int64_t{1} << 30;  // on a slow line up
  agent.AskJoint();                // would overtake it, on the other channel
  agent.Advance(0);
  EXPECT_EQ(host.asked_joint, 0);
  EXPECT_EQ(SaidAgain(&host, &agent), (std::set<uint64_t>{0}));
  EXPECT_EQ(host.asked_joint, 0);
  host.queued = 0;
  agent.Advance(agent.NextTimeout());
  EXPECT_EQ(host.asked_joint, 1);
  ASSERT_TRUE(Hear(&agent, {BlobKind::kJoint, kGeneration, 0, 1, 0}, 2.0f));
  agent.Give(1, 1, 1, std::vector<float>(kSize, 1.0f));
  EXPECT_EQ(SaidAgain(&host, &agent), (std::set<uint64_t>{1}));
}

}  // namespace
}  // namespace strom
