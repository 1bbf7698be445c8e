// Live workers that have been silent for longer than anybody keeps updates: they go on from a
// snapshot. tests/native/sim/simulator_test.cc has the promises under hundreds of seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/worker/snapshot_request.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;
using testing::HasSubstr;

constexpr int64_t kMillisecond = 1'000'000;

// Five workers, of which some stand still for five failure timeouts; updates are kept for three.
SimulationOptions Silencing(uint64_t seed, Topology topology, std::vector<int32_t> ranks) {
  SimulationOptions options;
  options.seed = seed;
  options.topology = topology;
  options.failure_timeout_ns = 200 * kMillisecond;
  options.plan.faults = {
      {Fault::Kind::kPause, 200 * kMillisecond, 1000 * kMillisecond, std::move(ranks)}};
  return options;
}

TEST(SnapshotTest, AWorkerThatWasSilentForLongGoesOnFromASnapshot) {
  for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Simulation simulation(Silencing(seed, topology, {1, 3}),
                            std::vector<Script>(5, {.steps = {200}, .think_ns = 10'000'000}));
      simulation.Run();
      EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
      for (int32_t rank = 0; rank < 5; ++rank) {
        EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
            << simulation.worker(rank).failure.message;
        EXPECT_EQ(simulation.worker(rank).step, 200);
      }
      EXPECT_GE(simulation.worker(1).snapshots, 1) << seed;
      EXPECT_EQ(simulation.processes(1).size(), 1u);
      std::string said;
      for (const MasterEvent& event : simulation.master_events()) {
        if (event.type == MasterEvent::Type::kSnapshot) said += event.text + "\n";
      }
      EXPECT_THAT(said, HasSubstr("worker 1 lacked updates that are kept no longer"));
    }
  }
}

TEST(SnapshotTest, ARequestEndsWithTheParametersThatTheMasterHasNamed) {
  const auto values = std::make_shared<const std::vector<float>>(3);
  SnapshotRequest request;
  EXPECT_FALSE(request.Name({1, {{7, 5}}, 2}));  // nobody asked
  EXPECT_TRUE(request.Begin());
  EXPECT_FALSE(request.Begin());
  EXPECT_TRUE(request.behind_again());
  request.AddParameters(1, values);  // of an earlier answer
  EXPECT_TRUE(request.Name({1, {{7, 5}}, 2}));
  EXPECT_TRUE(request.has_fast_forwarded());
  EXPECT_FALSE(request.TakeWhole());
  request.AddParameters(2, values);
  const auto whole = request.TakeWhole();
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->cut, (VersionVector{{7, 5}}));
  EXPECT_FALSE(request.is_outstanding());
  EXPECT_FALSE(request.has_fast_forwarded());
}

TEST(SnapshotTest, OverANewLinkItIsAskedForAgain) {
  SnapshotRequest request;
  request.Begin();
  EXPECT_TRUE(request.Name({1, {}, 2}));
  request.AskAgain();
  EXPECT_TRUE(request.is_outstanding());
  EXPECT_TRUE(request.has_fast_forwarded());  // what came since still needs a snapshot before it
  EXPECT_TRUE(request.Name({1, {}, 3}));
}

}  // namespace
}  // namespace strom
