// Jobs whose updates are merged on their way: that they are, that a tree loses none with the nodes
// that it loses, and that whoever comes late or falls behind has what the others have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/replication/version_vector.h"
#include "one_fault.h"
#include "share.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;

std::vector<Script> Scripts(int32_t workers, int steps, int64_t think_ns = 10 * kMillisecond) {
  std::vector<Script> scripts(static_cast<size_t>(workers));
  for (size_t rank = 0; rank < scripts.size(); ++rank) {
    scripts[rank].steps = {steps};
    scripts[rank].think_ns = think_ns;
    scripts[rank].state = static_cast<double>(rank);
  }
  return scripts;
}

SimulationOptions Merged(SimulationOptions options) {
  options.topology = Topology::kMesh;
  options.merging = Merging::kOn;
  return options;
}

void ExpectKept(const Simulation& simulation) {
  for (const std::string& violation : simulation.violations()) ADD_FAILURE() << violation;
}

// A number of the master's status; -1 where it says none.
int64_t Status(const Simulation& simulation, const std::string& name) {
  const std::string status = simulation.master().StatusJson(), key = "\"" + name + "\": ";
  const size_t at = status.find(key);
  return at == std::string::npos ? -1 : std::stoll(status.substr(at + key.size()));
}

int64_t Publications(const Simulation& simulation) {
  return static_cast<int64_t>(CounterOf(simulation.master().received(), MasterOrigin(1)));
}

int64_t Accepted(const Simulation& simulation) {
  int64_t accepted = 0;
  for (const auto& [origin, counter] : simulation.master().received()) {
    if (!IsOfMaster(origin)) accepted += static_cast<int64_t>(counter);
  }
  return accepted;
}

TEST(MergingTest, FarFewerMessagesArePublishedThanThereAreUpdatesAndEachOnce) {
  for (const SimulatedLinks links : {SimulatedLinks::kMemory, SimulatedLinks::kDatagrams}) {
    for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
      SimulationOptions options;
      options.links = links;
      options.topology = topology;
      options.max_children = 4;
      options.merging = Merging::kOn;
      options.merging_interval_ns = 5 * kMillisecond;
      Simulation simulation(options, Scripts(24, 40));
      simulation.Run();
      ExpectKept(simulation);
      EXPECT_EQ(Status(simulation, "published_updates"), Accepted(simulation));
      EXPECT_GT(Accepted(simulation), 24 * 40);
      EXPECT_LT(2 * Publications(simulation), Accepted(simulation));
      for (int32_t rank = 0; rank < simulation.size(); ++rank) {
        EXPECT_EQ(simulation.worker(rank).state, State::kFinished);
        EXPECT_EQ(simulation.worker(rank).parameters, simulation.master().parameters());
      }
    }
  }
}

TEST(MergingTest, WhereWorkersMakeATreeUpdatesAreMergedUnasked) {
  for (const auto& [topology, merging, merges] :
       std::vector<std::tuple<Topology, Merging, bool>>{{Topology::kMesh, Merging::kAuto, true},
                                                        {Topology::kMesh, Merging::kOff, false},
                                                        {Topology::kPlain, Merging::kAuto, false},
                                                        {Topology::kPlain, Merging::kOn, true}}) {
    SimulationOptions options;
    options.topology = topology;
    options.merging = merging;
    Simulation simulation(options, Scripts(3, 5));
    simulation.Run();
    ExpectKept(simulation);
    EXPECT_EQ(Status(simulation, "published_updates") > 0, merges);
    EXPECT_EQ(Publications(simulation) > 0, merges);
  }
}

TEST(MergingTest, SynchronousJobsAndStalenessBoundsMergeNothing) {
  for (const int32_t max_staleness : {0, 2}) {
    SimulationOptions options = Merged({});
    options.max_staleness = max_staleness;
    Simulation simulation(options, Scripts(3, 5));
    simulation.Run();
    ExpectKept(simulation);
    EXPECT_EQ(Status(simulation, "published_updates"), -1);
    EXPECT_EQ(Publications(simulation), 0);
  }
}

// Seven workers, of which the first two are the master's children: with one of them goes what it
// was to pass on.
TEST(MergingTest, AnInnerNodeThatDiesTakesNothingOfTheOthersWithIt) {
  for (const SimulatedLinks links : {SimulatedLinks::kMemory, SimulatedLinks::kDatagrams}) {
    for (uint64_t seed = 0; seed < ShareOf(10); ++seed) {
      SCOPED_TRACE(seed);
      SimulationOptions options =
          Merged(WithOneFault(Fault::Kind::kKill, seed, -1, Topology::kMesh, {0}));
      options.links = links;
      options.plan.faults[0].at_ns += static_cast<int64_t>(seed) * kMillisecond;
      Simulation simulation(options, Scripts(7, 100));
      simulation.Run();
      ExpectKept(simulation);
      EXPECT_EQ(simulation.worker(0).state, State::kDead);
      for (int32_t rank = 1; rank < 7; ++rank) {
        const ApplicationRecord& worker = simulation.worker(rank);
        EXPECT_EQ(worker.state, State::kFinished) << rank << ": " << worker.failure.message;
        EXPECT_EQ(worker.parameters, simulation.master().parameters()) << rank;
      }
      EXPECT_EQ(Status(simulation, "published_updates"), Accepted(simulation));
      if (HasFailure()) return;
    }
  }
}

TEST(MergingTest, InnerNodesThatAreReplacedStandStillOrAreCutOffCostNoUpdate) {
  using Kind = Fault::Kind;
  uint64_t compared = 0;
  for (const Kind kind : {Kind::kRestart, Kind::kPause, Kind::kPartition, Kind::kDrain}) {
    for (uint64_t seed = 0; seed < ShareOf(5); ++seed) {
      SCOPED_TRACE(static_cast<int>(kind) * 100 + static_cast<int>(seed));
      SimulationOptions options = Merged(WithOneFault(kind, seed, -1, Topology::kMesh, {0, 3}));
      Simulation simulation(options, Scripts(7, 150));
      simulation.Run();
      ExpectKept(simulation);
      for (int32_t rank = 0; rank < 7; ++rank) {
        const ApplicationRecord& worker = simulation.worker(rank);
        EXPECT_EQ(worker.state, State::kFinished) << rank << ": " << worker.failure.message;
        // Now and then a process takes over that is to begin with the next fit, and there is none.
        if (worker.parameters.empty()) continue;
        ++compared;
        EXPECT_EQ(worker.parameters, simulation.master().parameters()) << rank;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(compared, ShareOf(5) * 4 * 6);
}

}  // namespace
}  // namespace strom
