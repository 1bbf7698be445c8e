// Jobs that train on a joint model: without faults every step counts once for each shard, by any
// method; with faults all promises hold over many seeds.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
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

// On lines on which that takes a while. Another worker comes in its place, and all finish.
TEST_P(JointModelTest, WhatADrainedWorkerHasGivenCounts) {
  const auto [kind, phases, bfloat16, gradients] = GetParam();
  Script script = ScriptOf(PlanOf(kind, phases, bfloat16, gradients));
  if (kind != STROM_MPCA) script.plan.method.steps = 1;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.links = seed % 2 == 0 ? SimulatedLinks::kMemory : SimulatedLinks::kDatagrams;
    options.plan.paths.delay_ns = 20 * kMillisecond;
    Fault& drain = options.plan.faults.emplace_back();
    drain.kind = Fault::Kind::kDrain;
    drain.at_ns = static_cast<int64_t>(200 + 7 * seed) * kMillisecond;
    drain.for_ns = 3'000 * kMillisecond;
    drain.ranks = {2};
    Simulation simulation(options, std::vector<Script>(kWorkers, script));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(simulation.drained(), 1);
    for (int32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
    }
  }
}

// It waits for its link, over which it gives again what the master may not have.
TEST_P(JointModelTest, WhatAWorkerHasGivenCountsThoughItIsToDrainWhileItsLinkIsDown) {
  const auto [kind, phases, bfloat16, gradients] = GetParam();
  Script script = ScriptOf(PlanOf(kind, phases, bfloat16, gradients));
  if (gradients != 0) GTEST_SKIP() << "rounds have gone on without it, and it may not come back";
  script.steps = {900};
  if (kind != STROM_MPCA) script.plan.method.steps = 5;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.plan.paths.delay_ns = 5 * kMillisecond;
    Fault& cut = options.plan.faults.emplace_back();
    cut.kind = Fault::Kind::kPartition;
    const int64_t cut_ns = static_cast<int64_t>(300 + 7 * seed) * kMillisecond;
    cut.at_ns = cut_ns;
    cut.for_ns = 900 * kMillisecond;
    cut.ranks = {2};
    Fault& drain = options.plan.faults.emplace_back();
    drain.kind = Fault::Kind::kDrain;
    drain.at_ns = cut_ns + 700 * kMillisecond;
    drain.for_ns = 4'000 * kMillisecond;
    drain.ranks = {2};
    Simulation simulation(options, std::vector<Script>(kWorkers, script));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(simulation.drained(), 1) << "seed " << seed;
    for (int32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, JointModelTest,
    testing::Values(MethodCase{STROM_SPARKNET, 1, 0, 1}, MethodCase{STROM_SPARKNET, 1, 1, 1},
                    MethodCase{STROM_MPCA, 3}, MethodCase{STROM_MPCA, 2}, MethodCase{STROM_MPCA, 1},
                    MethodCase{STROM_SPARKNET, 1}, MethodCase{STROM_SPARKNET, 1, 1},
                    MethodCase{STROM_EASGD, 1}, MethodCase{STROM_EASGD_SYNCHRONOUS, 1}));

// How many have contributed to each of a worker's averages, and what it has got.
using Averages = std::vector<std::pair<int32_t, std::vector<double>>>;

std::vector<Averages> AveragesOf(const SimulationOptions& options,
                                 const std::vector<Script>& scripts) {
  Simulation simulation(options, scripts);
  simulation.Run();
  EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
  std::vector<Averages> of_workers;
  for (int32_t rank = 0; rank < simulation.size(); ++rank) {
    EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
    Averages& averages = of_workers.emplace_back();
    for (const WorkerEvent& average : simulation.worker(rank).averages) {
      averages.emplace_back(average.contributors, average.values);
    }
  }
  return of_workers;
}

class EpochsInRoundsTest : public testing::TestWithParam<MethodCase> {
 protected:
  static std::vector<Script> Scripts() {
    const auto [kind, phases, bfloat16, gradients] = GetParam();
    std::vector<Script> scripts(kWorkers, ScriptOf(PlanOf(kind, phases, bfloat16, gradients)));
    for (Script& script : scripts) script.averages = 3;
    return scripts;
  }
};

TEST_P(EpochsInRoundsTest, AnEpochEndsWhereAllHaveEndedIt) {
  std::vector<Script> scripts = Scripts();
  for (Script& script : scripts) {
    script.average_before = {10, 20, 30, 50};
    script.averages_meet = true;  // so each average is looked at
  }
  scripts[1].validate_before = {20};
  scripts[1].validate_ns = 3'000 * kMillisecond;
  scripts[3].think_ns *= 5;
  for (const auto links : {SimulatedLinks::kMemory, SimulatedLinks::kDatagrams}) {
    SimulationOptions options;
    options.links = links;
    for (const Averages& averages : AveragesOf(options, scripts)) {
      EXPECT_EQ(averages.size(), size_t{3 * (4 + 4)});
    }
  }
}

// Who has ended its epoch goes on where the others need it, and that depends on no time.
TEST_P(EpochsInRoundsTest, EpochsOfAnyLengthAverageAlikeInEveryRun) {
  std::vector<Script> scripts = Scripts();
  for (int step = 0; step < 120; ++step) {
    if (step % 10 == 9) scripts[0].average_before.insert(step);
    if (step % 10 == 9) scripts[1].average_before.insert(step);
    if (step % 13 == 1) scripts[2].average_before.insert(step);
    if (step % 5 == 4) scripts[3].average_before.insert(step);
  }
  scripts[2].steps = {131, 60};
  std::optional<std::vector<Averages>> expected;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.links = seed % 2 == 0 ? SimulatedLinks::kMemory : SimulatedLinks::kDatagrams;
    for (Script& script : scripts) script.think_ns = 4 * kMillisecond;
    scripts[seed % kWorkers].think_ns *= 6;
    const std::vector<Averages> averages = AveragesOf(options, scripts);
    if (!expected) expected = averages;
    EXPECT_EQ(averages, *expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, EpochsInRoundsTest,
                         testing::Values(MethodCase{STROM_SPARKNET, 1, 0, 1},
                                         MethodCase{STROM_SPARKNET, 1, 1, 1},
                                         MethodCase{STROM_SPARKNET, 1},
                                         MethodCase{STROM_SPARKNET, 1, 1},
                                         MethodCase{STROM_EASGD_SYNCHRONOUS, 1}));

using DrawsJob = Job (*)(uint64_t seed, SimulatedLinks links);

// What the runs were like, so that a plan that harms nobody is noticed, and jobs that train
// nothing.
struct Tally {
  uint64_t trained = 0, finished = 0, lost = 0, late = 0, resumed = 0, drained = 0, few = 0;
  int64_t checked = 0, unchecked = 0;  // joint models
};

Tally RunSeeds(uint64_t runs, SimulatedLinks links, DrawsJob draw) {
  Tally tally;
  for (uint64_t seed = 0; seed < runs && !testing::Test::HasFailure(); ++seed) {
    const Job job = draw(seed, links);
    Simulation simulation(job);
    simulation.Run();
    for (const std::string& violation : simulation.violations()) {
      ADD_FAILURE() << violation << "\n" << DescribeJob(job);
    }
    tally.few += simulation.size() < 5 ? 1 : 0;
    tally.drained += static_cast<uint64_t>(simulation.drained());
    tally.checked += simulation.ledger().checked_models();
    tally.unchecked += simulation.ledger().unchecked_models();
    tally.trained += simulation.master().steps_counted() > 0 ? 1 : 0;
    for (int32_t rank = 0; rank < simulation.size(); ++rank) {
      tally.finished += simulation.worker(rank).state == State::kFinished ? 1 : 0;
      for (const ApplicationRecord* process : simulation.processes(rank)) {
        tally.late += static_cast<uint64_t>(process->late_starts);
      }
    }
    for (const MasterEvent& event : simulation.master_events()) {
      tally.lost += event.type == MasterEvent::Type::kLost ? 1 : 0;
      tally.resumed += event.type == MasterEvent::Type::kResumed ? 1 : 0;
    }
  }
  return tally;
}

void ExpectEventful(const Tally& tally, uint64_t runs) {
  EXPECT_EQ(tally.trained, runs);
  EXPECT_GT(tally.finished, 3 * runs);
  EXPECT_GT(tally.lost, runs / 2);
  EXPECT_GT(tally.late, runs / 8);
  EXPECT_GE(tally.drained, runs / 20);
  EXPECT_GE(tally.few, runs / 12);
}

void ExpectJudged(const Tally& tally, uint64_t runs) {
  EXPECT_GT(tally.checked, static_cast<int64_t>(50 * runs));
  EXPECT_GT(tally.checked, tally.unchecked);
}

TEST(JointModelSeedsTest, KeepItsPromisesOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(200);
  const Tally tally = RunSeeds(kRuns, SimulatedLinks::kMemory, DrawJobWithJointModel);
  ExpectEventful(tally, kRuns);
  ExpectJudged(tally, kRuns);
}

TEST(JointModelSeedsTest, KeepItsPromisesOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(60);
  const Tally tally = RunSeeds(kRuns, SimulatedLinks::kDatagrams, DrawJobWithJointModel);
  ExpectEventful(tally, kRuns);
  ExpectJudged(tally, kRuns);
}

TEST(JointModelSeedsTest, KeepOneStateOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(200);
  ExpectEventful(RunSeeds(kRuns, SimulatedLinks::kMemory, DrawJobWithGradients), kRuns);
}

TEST(JointModelSeedsTest, KeepOneStateOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(60);
  ExpectEventful(RunSeeds(kRuns, SimulatedLinks::kDatagrams, DrawJobWithGradients), kRuns);
}

void ExpectOtherMasters(const Tally& tally, uint64_t runs) {
  EXPECT_EQ(tally.trained, runs);
  EXPECT_GT(tally.finished, 3 * runs);
  EXPECT_GT(tally.resumed, runs / 2);
}

TEST(JointModelSeedsTest, OutliveAMasterOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(120);
  ExpectOtherMasters(RunSeeds(kRuns, SimulatedLinks::kMemory, DrawJobWithJointModelAndMasters),
                     kRuns);
}

TEST(JointModelSeedsTest, OutliveAMasterOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(40);
  ExpectOtherMasters(RunSeeds(kRuns, SimulatedLinks::kDatagrams, DrawJobWithJointModelAndMasters),
                     kRuns);
}

}  // namespace
}  // namespace strom
