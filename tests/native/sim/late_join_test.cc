// Workers that are replaced in the middle of a generation: where they go on, who is told, and who
// is refused. tests/native/sim/simulator_test.cc has the promises under hundreds of seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/master/start_rendezvous.h"
#include "one_fault.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;
using testing::HasSubstr;

SimulationOptions Replacing(uint64_t seed, int32_t max_staleness, Topology topology,
                            std::vector<int32_t> ranks) {
  return WithOneFault(Fault::Kind::kRestart, seed, max_staleness, topology, std::move(ranks));
}

std::string EventText(const Simulation& simulation, MasterEvent::Type type) {
  for (const MasterEvent& event : simulation.master_events()) {
    if (event.type == type) return event.text;
  }
  return "";
}

TEST(LateJoinTest, AReplacedWorkerGoesOnWhereItsPredecessorStopped) {
  for (const int32_t max_staleness : {-1, 0, 2}) {
    for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
      int went_on = 0;
      for (uint64_t seed = 0; seed < 10; ++seed) {
        Simulation simulation(Replacing(seed, max_staleness, topology, {1, 3}),
                              std::vector<Script>(5, {.steps = {200}, .think_ns = 10'000'000}));
        simulation.Run();
        EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
        for (int32_t rank = 0; rank < 5; ++rank) {
          EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
              << simulation.worker(rank).failure.message;
        }
        const ApplicationRecord& replacement = simulation.worker(1);
        if (replacement.late_starts == 0) continue;  // it was told to begin the next one
        went_on += replacement.first_step > 5 ? 1 : 0;
        EXPECT_EQ(replacement.step, 200);
        EXPECT_THAT(EventText(simulation, MasterEvent::Type::kRejoined),
                    HasSubstr("(attempt 1) has rejoined generation 1 from 10."));
      }
      EXPECT_GT(went_on, 4) << max_staleness;
    }
  }
}

TEST(LateJoinTest, AGenerationWaitsForThoseWhoReplaceAll) {
  int late = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Simulation simulation(Replacing(seed, -1, Topology::kPlain, {0, 1}),
                          std::vector<Script>(2, {.steps = {100, 20}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
    for (int32_t rank = 0; rank < 2; ++rank) {
      late += simulation.worker(rank).late_starts;
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
          << simulation.worker(rank).failure.message;
    }
  }
  EXPECT_GT(late, 5);
}

// ------------------------------------------------------------------------------- fewer than all

TEST(LateJoinTest, TrainingStartsWithTheLeastNumberAndTakesInWhoComesLater) {
  for (const int32_t max_staleness : {-1, 0}) {
    SimulationOptions options;
    options.max_staleness = max_staleness;
    options.min_workers = 2;
    options.failure_timeout_ns = 400 * kMillisecond;
    options.begins_ns = {{2, 1000 * kMillisecond}, {3, 1500 * kMillisecond}};
    Simulation simulation(options,
                          std::vector<Script>(4, {.steps = {200}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
    for (int32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
      EXPECT_EQ(simulation.worker(rank).late_starts, rank < 2 ? 0 : 1);
    }
    EXPECT_THAT(EventText(simulation, MasterEvent::Type::kStarted), HasSubstr("with 2 workers"));
  }
}

TEST(LateJoinTest, WithoutTheChiefNothingStarts) {
  SimulationOptions options;
  options.min_workers = 2;
  options.begins_ns = {{0, 3000 * kMillisecond}};
  Simulation simulation(options, std::vector<Script>(3, {.steps = {20}}));
  simulation.Run();
  EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
  EXPECT_THAT(EventText(simulation, MasterEvent::Type::kStarted), HasSubstr("with 3 workers"));
}

TEST(LateJoinTest, WithFewerThanTheLeastNumberTrainingWaits) {
  for (const int32_t max_staleness : {-1, 0, 2}) {
    SimulationOptions options = Replacing(3, max_staleness, Topology::kPlain, {1, 3});
    options.min_workers = 4;
    options.plan.faults[0].for_ns = 3000 * kMillisecond;
    Simulation simulation(options,
                          std::vector<Script>(5, {.steps = {100}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
    std::string said;
    for (const MasterEvent& event : simulation.master_events()) {
      if (event.type == MasterEvent::Type::kNotice) said += event.text + "\n";
    }
    EXPECT_THAT(said, HasSubstr("training waits: 3 of the 4 workers are here"));
    EXPECT_THAT(said, HasSubstr("training goes on with 4 workers"));
    // 100 steps of 10 ms on average, and about 3 s in which nobody steps.
    EXPECT_GT(simulation.now_ns(), 3000 * kMillisecond);
    EXPECT_EQ(simulation.worker(0).step, 100);
  }
}

// ------------------------------------------------------------------------------- between two fits

Announce Beginning(uint64_t generation) { return {{generation, 10, 5}, 0, "same"}; }

TEST(LateJoinTest, WhoHasMissedAGenerationsEndMayBeAheadOfTheOthers) {
  StartRendezvous rendezvous;
  EXPECT_TRUE(rendezvous.Add(2, Beginning(5), /*in_step=*/false).empty());
  EXPECT_TRUE(rendezvous.Add(0, Beginning(4), true).empty());
  EXPECT_TRUE(rendezvous.Add(1, Beginning(4), true).empty());
  ASSERT_NE(rendezvous.chiefs_values(), nullptr);
  EXPECT_TRUE(rendezvous.TakeOvertaken().empty());
  EXPECT_EQ(rendezvous.layout().generation, 4u);
  EXPECT_TRUE(rendezvous.TakesPart(0));
  EXPECT_TRUE(rendezvous.IsReady(2));  // it holds up nobody
  EXPECT_FALSE(rendezvous.TakesPart(2));
  rendezvous.Clear();  // 4 has started
  EXPECT_EQ(rendezvous.layout().generation, 5u);
  EXPECT_TRUE(rendezvous.TakesPart(2));
}

TEST(LateJoinTest, TheMostCyclesOfTheJointModelThatOneAtHandKnowsOfCount) {
  StartRendezvous rendezvous;
  EXPECT_EQ(rendezvous.cycles(), 0u);
  const auto after = [](uint64_t generation, uint64_t cycles) {
    Announce announce = Beginning(generation);
    announce.cycles = cycles;
    return announce;
  };
  EXPECT_TRUE(rendezvous.Add(0, after(4, 0), /*in_step=*/true).empty());  // it is a new process
  EXPECT_TRUE(rendezvous.Add(1, after(4, 40), true).empty());
  EXPECT_TRUE(rendezvous.Add(2, after(5, 99), false).empty());
  EXPECT_EQ(rendezvous.cycles(), 40u);
}

TEST(LateJoinTest, WhoIsBehindAllOthersHearsThatTheyHavePassedOn) {
  StartRendezvous rendezvous;
  EXPECT_TRUE(rendezvous.Add(2, Beginning(4), /*in_step=*/false).empty());
  EXPECT_TRUE(rendezvous.TakeOvertaken().empty());  // nobody has passed it yet
  EXPECT_TRUE(rendezvous.Add(0, Beginning(5), true).empty());
  const auto overtaken = rendezvous.TakeOvertaken();
  ASSERT_EQ(overtaken.size(), 1u);
  EXPECT_EQ(overtaken[0].first, 2);
  EXPECT_EQ(overtaken[0].second.generation, 4u);
  EXPECT_EQ(rendezvous.layout().generation, 5u);
}

TEST(LateJoinTest, ThoseInStepHaveToBeginTheSameGeneration) {
  StartRendezvous rendezvous;
  EXPECT_TRUE(rendezvous.Add(0, Beginning(4), true).empty());
  const auto differences = rendezvous.Add(1, Beginning(5), true);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_FALSE(differences[0].misfit);  // nobody knows who is wrong
  EXPECT_THAT(differences[0].text, HasSubstr("call fit equally often"));
}

TEST(LateJoinTest, AReplacementWithAnotherModelIsRefusedAlone) {
  Announce other = Beginning(4);
  other.layout.hash = 6;
  for (const bool comes_first : {true, false}) {
    StartRendezvous rendezvous;
    std::vector<StartRendezvous::Difference> differences;
    if (comes_first) differences = rendezvous.Add(2, other, /*in_step=*/false);
    EXPECT_TRUE(differences.empty());
    differences = rendezvous.Add(0, Beginning(4), true);
    if (!comes_first) differences = rendezvous.Add(2, other, /*in_step=*/false);
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].misfit, 2);
    EXPECT_THAT(differences[0].text, HasSubstr("build the same model"));
    EXPECT_TRUE(rendezvous.TakesPart(0));
    EXPECT_FALSE(rendezvous.TakesPart(2));
  }
}

}  // namespace
}  // namespace strom
