// Jobs that train on a joint model: without faults every step counts once for each shard, by any
// method; with faults all promises hold over many seeds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "share.h"
#include "sim/jobs.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int32_t kWorkers = 4;

JointPlan PlanOf(int32_t kind, int32_t phases, int32_t bfloat16, int32_t gradients) {
  JointPlan plan;
  plan.method.kind = kind;
  plan.method.phases = phases;
  plan.method.bfloat16 = bfloat16;
  plan.method.alpha = .05;
  plan.method.beta = .9;
  if (kind == STROM_MPCA) {
    plan.method.weighted = 1;
    plan.method.gamma = .7;
    plan.method.delta = .8;
    plan.method.start_alpha = .5;
    plan.method.free_cycles = 2;
    plan.method.start_cycles = plan.method.ramp_cycles = 20;
    plan.method.min_steps = 2;
  } else {
    plan.method.steps = gradients != 0 ? 1 : 7;
    plan.method.gradients = gradients;
  }
  plan.ranges = {{3, 70}, {75, 90}};
  return plan;
}

Script ScriptOf(const JointPlan& plan) {
  Script script;
  script.steps = {120, 60};
  script.think_ns = 4 * kMillisecond;
  script.layout_size = 170;
  script.plan = plan;
  script.workers = kWorkers;
  return script;
}

struct MethodCase {
  int32_t kind;
  int32_t phases;
  int32_t bfloat16 = 0;
  int32_t gradients = 0;
};

class JointModelTest : public testing::TestWithParam<MethodCase> {};

TEST_P(JointModelTest, EveryStepCountsOnceForEachShard) {
  const auto [kind, phases, bfloat16, gradients] = GetParam();
  SimulationOptions options;
  options.links = SimulatedLinks::kDatagrams;
  Simulation simulation(
      options, std::vector<Script>(kWorkers, ScriptOf(PlanOf(kind, phases, bfloat16, gradients))));
  simulation.Run();
  EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
  int64_t steps = 0;
  for (int32_t rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
    steps += simulation.worker(rank).joint_steps;
  }
  EXPECT_EQ(steps, kWorkers * 60);
  EXPECT_EQ(simulation.master().steps_counted(), phases * steps);
}

TEST_P(JointModelTest, OneWhoStandsStillHoldsUpNobodyForLong) {
  const auto [kind, phases, bfloat16, gradients] = GetParam();
  std::vector<Script> scripts(kWorkers, ScriptOf(PlanOf(kind, phases, bfloat16, gradients)));
  scripts[2].validate_before = {20};
  scripts[2].validate_ns = 20'000 * kMillisecond;
  Simulation simulation(SimulationOptions{}, scripts);
  simulation.Run();
  EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
  for (int32_t rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, JointModelTest,
    testing::Values(MethodCase{STROM_SPARKNET, 1, 0, 1}, MethodCase{STROM_SPARKNET, 1, 1, 1},
                    MethodCase{STROM_MPCA, 3}, MethodCase{STROM_MPCA, 2}, MethodCase{STROM_MPCA, 1},
                    MethodCase{STROM_SPARKNET, 1}, MethodCase{STROM_SPARKNET, 1, 1},
                    MethodCase{STROM_EASGD, 1}, MethodCase{STROM_EASGD_SYNCHRONOUS, 1}));

using DrawsJob = Job (*)(uint64_t seed, SimulatedLinks links);

void RunSeeds(uint64_t runs, SimulatedLinks links, DrawsJob draw) {
  for (uint64_t seed = 0; seed < runs && !testing::Test::HasFailure(); ++seed) {
    const Job job = draw(seed, links);
    Simulation simulation(job);
    simulation.Run();
    for (const std::string& violation : simulation.violations()) {
      ADD_FAILURE() << violation << "\n" << DescribeJob(job);
    }
  }
}

TEST(JointModelSeedsTest, KeepItsPromisesOverMemoryLinks) {
  RunSeeds(ShareOf(200), SimulatedLinks::kMemory, DrawJobWithJointModel);
}

TEST(JointModelSeedsTest, KeepItsPromisesOverDatagrams) {
  RunSeeds(ShareOf(60), SimulatedLinks::kDatagrams, DrawJobWithJointModel);
}

TEST(JointModelSeedsTest, KeepOneStateOverMemoryLinks) {
  RunSeeds(ShareOf(200), SimulatedLinks::kMemory, DrawJobWithGradients);
}

TEST(JointModelSeedsTest, KeepOneStateOverDatagrams) {
  RunSeeds(ShareOf(60), SimulatedLinks::kDatagrams, DrawJobWithGradients);
}

TEST(JointModelSeedsTest, OutliveAMasterOverMemoryLinks) {
  RunSeeds(ShareOf(120), SimulatedLinks::kMemory, DrawJobWithJointModelAndMasters);
}

TEST(JointModelSeedsTest, OutliveAMasterOverDatagrams) {
  RunSeeds(ShareOf(40), SimulatedLinks::kDatagrams, DrawJobWithJointModelAndMasters);
}

}  // namespace
}  // namespace strom
