// Paths of which one direction is cut for a while: who is heard and does not hear, or the other way
// round, while the links' keys change. tests/native/sim/simulator_test.cc has drawn ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int32_t kStruck = 3;
constexpr int32_t kWorkers = 5;

struct OneWayCase {
  Fault::Kind kind;
  Topology topology;
};

class OneWayTest : public testing::TestWithParam<OneWayCase> {
 protected:
  // Twice, for longer than the failure timeout, the struck worker does not hear, or is not heard:
  // by everybody, or by `only`.
  void Run(std::optional<int32_t> only) {
    SimulationOptions options;
    options.links = SimulatedLinks::kDatagrams;
    options.topology = GetParam().topology;
    options.failure_timeout_ns = 400 * kMillisecond;
    options.packets_per_key_phase = 30;
    for (const int64_t at_ms : {200, 2000}) {
      Fault fault;
      fault.kind = GetParam().kind;
      fault.at_ns = at_ms * kMillisecond;
      fault.for_ns = 600 * kMillisecond;
      fault.ranks = {kStruck};
      fault.only = only;
      options.plan.faults.push_back(fault);
    }
    Simulation simulation(
        options, std::vector<Script>(kWorkers, {.steps = {350}, .think_ns = 10 * kMillisecond}));
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
    for (int32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
          << "worker " << rank << ": " << simulation.worker(rank).failure.message;
      EXPECT_EQ(simulation.worker(rank).step, 350);
      for (const std::string& notice : simulation.worker(rank).notices) {
        parents_lost_ += notice.find("parent in the tree, is lost") != std::string::npos ? 1 : 0;
      }
    }
    for (const MasterEvent& event : simulation.master_events()) {
      lost_ += event.type == MasterEvent::Type::kLost && event.rank == kStruck ? 1 : 0;
      const bool is_back = event.text.ends_with("is back");
      back_ += event.type == MasterEvent::Type::kJoined && is_back && event.rank == kStruck ? 1 : 0;
    }
  }

  // Who is not heard is lost. Who does not hear looks for the master anew before that is due.
  void ExpectToHaveComeBack() const {
    EXPECT_EQ(back_, 2);
    if (GetParam().kind == Fault::Kind::kMute) {
      EXPECT_EQ(lost_, 2);
    }
  }

  int lost_ = 0, back_ = 0, parents_lost_ = 0;
};

TEST_P(OneWayTest, WhoIsCutOffFromTheMasterComesBack) {
  Run(kMasterRank);
  ExpectToHaveComeBack();
}

TEST_P(OneWayTest, WhoIsCutOffFromAllComesBack) {
  Run(std::nullopt);
  ExpectToHaveComeBack();
}

// The master reaches both: in a tree a child gets another place.
TEST_P(OneWayTest, WhoIsCutOffFromAnotherWorkerStays) {
  for (int32_t other = 0; other < kWorkers; ++other) {
    if (other != kStruck) Run(other);
  }
  EXPECT_EQ(lost_, 0);
  const bool has_parents = GetParam().topology == Topology::kMesh;
  EXPECT_EQ(parents_lost_ > 0, has_parents);
}

// The others wait for the end when it comes back, and the link that it has given up stands still at
// the master.
TEST(OneWay, WhoComesBackWhileAllOthersAreDoneIsWaitedFor) {
  for (const Topology topology : {Topology::kPlain, Topology::kMesh}) {
    SimulationOptions options;
    options.links = SimulatedLinks::kDatagrams;
    options.topology = topology;
    options.failure_timeout_ns = 400 * kMillisecond;
    Fault fault;
    fault.kind = Fault::Kind::kDeaf;
    fault.at_ns = 2000 * kMillisecond;
    fault.for_ns = 600 * kMillisecond;
    fault.ranks = {kStruck};
    fault.only = kMasterRank;
    options.plan.faults.push_back(fault);
    std::vector<Script> scripts(kWorkers, {.steps = {100}, .think_ns = 10 * kMillisecond});
    scripts[kStruck].steps = {350};
    Simulation simulation(options, scripts);
    simulation.Run();
    EXPECT_EQ(simulation.violations(), std::vector<std::string>{});
    for (int32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
          << "worker " << rank << ": " << simulation.worker(rank).failure.message;
    }
    EXPECT_EQ(simulation.worker(kStruck).step, 350);
    const auto is_back = [](const MasterEvent& event) { return event.text.ends_with("is back"); };
    const auto events = simulation.master_events();
    EXPECT_EQ(std::count_if(events.begin(), events.end(), is_back), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OneWayTest,
                         testing::Values(OneWayCase{Fault::Kind::kDeaf, Topology::kPlain},
                                         OneWayCase{Fault::Kind::kMute, Topology::kPlain},
                                         OneWayCase{Fault::Kind::kDeaf, Topology::kMesh},
                                         OneWayCase{Fault::Kind::kMute, Topology::kMesh}),
                         [](const auto& info) {
                           return std::string(info.param.kind == Fault::Kind::kDeaf ? "Deaf"
                                                                                    : "Mute") +
                                  (info.param.topology == Topology::kPlain ? "Plain" : "Mesh");
                         });

}  // namespace
}  // namespace strom
