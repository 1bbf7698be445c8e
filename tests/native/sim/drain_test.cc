// Workers that drain: they hand over what they have not sent, leave, and another goes on exactly
// there. tests/native/sim/simulator_test.cc has the promises under hundreds of seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "one_fault.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;

SimulationOptions Draining(uint64_t seed, int32_t max_staleness, Topology topology,
                           std::vector<int32_t> ranks) {
  return WithOneFault(Fault::Kind::kDrain, seed, max_staleness, topology, std::move(ranks));
}

int64_t Count(const Simulation& simulation, MasterEvent::Type type) {
  return std::ranges::count(simulation.master_events(), type, &MasterEvent::type);
}

// All finish, and each replacement has made the step that follows on its predecessor's last, unless
// it has begun with another generation. Returns how many have.
int ExpectToGoOn(const Simulation& simulation, const std::vector<int32_t>& drained) {
  EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
  for (int32_t rank = 0; rank < simulation.size(); ++rank) {
    EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
        << simulation.worker(rank).failure.message;
  }
  int went_on = 0;
  for (const int32_t rank : drained) {
    const auto processes = simulation.processes(rank);
    EXPECT_EQ(processes.size(), 2u);
    EXPECT_EQ(processes[0]->state, State::kDrained);
    if (processes.back()->late_starts == 0) continue;
    ++went_on;
    EXPECT_EQ(processes.back()->first_step, processes[0]->step);
  }
  return went_on;
}

TEST(DrainTest, AReplacementGoesOnExactlyWhereADrainedWorkerStopped) {
  for (const int32_t max_staleness : {-1, 0, 2}) {
    for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
      int went_on = 0;
      for (uint64_t seed = 0; seed < 10; ++seed) {
        Simulation simulation(Draining(seed, max_staleness, topology, {1, 3}),
                              std::vector<Script>(5, {.steps = {200}, .think_ns = 10'000'000}));
        simulation.Run();
        went_on += ExpectToGoOn(simulation, {1, 3});
        EXPECT_EQ(simulation.drained(), 2);
        EXPECT_EQ(Count(simulation, MasterEvent::Type::kDrained), 2);
        EXPECT_EQ(Count(simulation, MasterEvent::Type::kLost), 0);
      }
      EXPECT_GT(went_on, 10);
    }
  }
}

TEST(DrainTest, TheChiefMayDrain) {
  for (const int32_t max_staleness : {-1, 0}) {
    Simulation simulation(Draining(3, max_staleness, Topology::kPlain, {0}),
                          std::vector<Script>(3, {.steps = {200}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_EQ(ExpectToGoOn(simulation, {0}), 1);
  }
}

TEST(DrainTest, AllWorkersMayDrainAtOnce) {
  for (const int32_t max_staleness : {-1, 0, 2}) {
    Simulation simulation(Draining(5, max_staleness, Topology::kPlain, {0, 1, 2}),
                          std::vector<Script>(3, {.steps = {200}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_GT(ExpectToGoOn(simulation, {0, 1, 2}), 0);
  }
}

TEST(DrainTest, AWorkerDrainsWhileAnotherJoins) {
  for (const int32_t max_staleness : {-1, 0}) {
    SimulationOptions options = Draining(4, max_staleness, Topology::kPlain, {1});
    options.plan.faults[0].for_ns = 150 * kMillisecond;
    options.plan.faults.push_back(
        {Fault::Kind::kDrain, 350 * kMillisecond, 300 * kMillisecond, {2}});
    Simulation simulation(options,
                          std::vector<Script>(4, {.steps = {200}, .think_ns = 10'000'000}));
    simulation.Run();
    EXPECT_GT(ExpectToGoOn(simulation, {1, 2}), 0);
  }
}

TEST(DrainTest, AWorkerThatWaitsForOthersLeavesWhenItMay) {
  // It is told to drain while all wait in an average, in which it has a part.
  SimulationOptions options = Draining(1, 0, Topology::kPlain, {2});
  std::vector<Script> scripts(3, {.steps = {60}, .think_ns = 10'000'000});
  for (Script& script : scripts) script.average_before = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  scripts[0].validate_before = {15};
  scripts[0].validate_ns = 300 * kMillisecond;
  Simulation simulation(options, scripts);
  simulation.Run();
  EXPECT_EQ(ExpectToGoOn(simulation, {2}), 1);
}

}  // namespace
}  // namespace strom
