// Master and workers together, over an in-memory network: every promise of the protocol under
// random interleavings, delays, deaths and returns; every refusal; a death in every phase.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "share.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;
using testing::HasSubstr;

std::string Report(const Simulation& simulation) {
  std::string text;
  for (const std::string& violation : simulation.violations()) text += violation + "\n";
  return text;
}

void ExpectAllFinish(Simulation* simulation) {
  EXPECT_TRUE(simulation->violations().empty()) << Report(*simulation);
  for (int rank = 0; rank < simulation->size(); ++rank) {
    EXPECT_EQ(simulation->worker(rank).state, State::kFinished)
        << rank << ": " << simulation->worker(rank).failure.message;
  }
}

// ------------------------------------------------------------------------------- random runs

struct RandomRun {
  SimulationOptions options;
  std::vector<Script> scripts;
};

RandomRun MakeRandomRun(uint64_t seed, bool faults) {
  SimulatedRandom random(seed);
  const auto pick = [&](int low, int high) { return static_cast<int>(random.Between(low, high)); };
  RandomRun run;
  run.options.seed = seed;
  run.options.max_staleness = std::vector<int>{-1, -1, 0, 1, 4}[static_cast<size_t>(pick(0, 4))];
  run.scripts.resize(static_cast<size_t>(pick(1, 5)));
  const int generations = pick(1, 3);
  const bool lively = pick(0, 1) == 0;
  for (size_t rank = 0; rank < run.scripts.size(); ++rank) {
    Script& script = run.scripts[rank];
    script.steps.clear();
    for (int i = 0; i < generations; ++i) script.steps.push_back(pick(0, 15));
    script.think_ns = lively ? 200'000 : pick(1, 10) * 1'000'000;
    script.state = static_cast<double>(rank);
    for (int i = pick(0, 3); i > 0; --i) script.average_before.insert(pick(0, 14));
    if (!faults) continue;
    if (pick(0, 3) == 0) {
      static constexpr WorkerEvent::Type kEvents[] = {
          WorkerEvent::Type::kStarted, WorkerEvent::Type::kAverage, WorkerEvent::Type::kFinal,
          WorkerEvent::Type::kResult, WorkerEvent::Type::kEnd};
      if (pick(0, 1) == 0) {
        script.die_on = kEvents[pick(0, 4)];
      } else {
        script.die_after_steps = pick(1, 15);
      }
    }
    if (run.options.max_staleness < 0 && pick(0, 3) == 0) {
      for (int i = pick(1, 3); i > 0; --i) script.cut_off_at.push_back(pick(1, 15));
    }
  }
  return run;
}

void ExpectSameStepsEverywhere(Simulation* simulation) {
  std::map<uint64_t, std::vector<UpdateId>> reference;
  for (int rank = 0; rank < simulation->size(); ++rank) {
    for (const auto& [generation, taken] : simulation->worker(rank).taken_of_generation) {
      const auto [known, fresh] = reference.emplace(generation, taken);
      EXPECT_TRUE(fresh || known->second == taken) << "worker " << rank;
    }
  }
}

TEST(Nodes, AgreeInRandomRunsWithoutFaults) {
  for (uint64_t seed = 0; seed < ShareOf(300); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomRun(seed, false);
    Simulation simulation(run.options, run.scripts);
    simulation.Run();
    ExpectAllFinish(&simulation);
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&simulation);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Nodes, AgreeInRandomRunsWithDeathsAndReturns) {
  uint64_t returns = 0;
  for (uint64_t seed = 1000; seed < 1000 + ShareOf(600); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomRun(seed, true);
    Simulation simulation(run.options, run.scripts);
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
    for (int rank = 0; rank < simulation.size(); ++rank) {
      const ApplicationRecord& worker = simulation.worker(rank);
      if (worker.state == State::kFailed) {
        EXPECT_TRUE(simulation.was_cut_off(rank)) << rank << ": " << worker.failure.message;
      }
    }
    for (const MasterEvent& event : simulation.master_events()) {
      returns += event.text.ends_with("is back") ? 1 : 0;
    }
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&simulation);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(returns, ShareOf(21));
}

// ------------------------------------------------------------------------------- modes

TEST(Nodes, WorkersWithDifferentNumbersOfStepsNeverHang) {
  for (int32_t max_staleness : {-1, 0, 3}) {
    SimulationOptions options;
    options.max_staleness = max_staleness;
    Simulation simulation(options, {{.steps = {0, 3}}, {.steps = {20, 1}}, {.steps = {7, 0}}});
    simulation.Run();
    ExpectAllFinish(&simulation);
  }
}

TEST(Nodes, SynchronousAverageIsABarrierInRankOrder) {
  SimulationOptions options;
  options.max_staleness = 0;
  Script fast{.steps = {6}, .average_before = {3}, .think_ns = 100'000};
  Script slow{.steps = {9}, .average_before = {3}, .think_ns = 10'000'000};
  Simulation simulation(options, {fast, slow, fast});
  simulation.Run();
  ExpectAllFinish(&simulation);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(simulation.worker(rank).averages.size(), 1u);
    EXPECT_EQ(simulation.worker(rank).averages[0].contributors, 3);
    EXPECT_EQ(simulation.worker(rank).averages[0].values, (std::vector<double>{1.0, 1.0}));
  }
}

TEST(Nodes, AsynchronousAverageWaitsForNobody) {
  Script fast{.steps = {3}, .average_before = {0}, .think_ns = 1000};
  Script slow{.steps = {3}, .average_before = {2}, .think_ns = 500'000'000};
  Simulation simulation({}, {fast, slow});
  simulation.Run();
  ExpectAllFinish(&simulation);
  EXPECT_EQ(simulation.worker(0).averages.at(0).contributors, 1);
}

TEST(Nodes, TheChiefStopsEverybody) {
  for (int32_t max_staleness : {-1, 0}) {
    SimulationOptions options;
    options.max_staleness = max_staleness;
    Simulation simulation(options, {{.steps = {5}, .stop_all = true}, {.steps = {100000}}});
    simulation.Run();
    ExpectAllFinish(&simulation);
    EXPECT_TRUE(simulation.worker(1).stop_heard);
    EXPECT_LT(simulation.worker(1).step, 1000);
  }
}

TEST(Nodes, TheResultIsTheMeanStateAndTheWorstDifference) {
  Simulation simulation({}, {{.state = 1.0}, {.state = 2.0}, {.state = 6.0}});
  simulation.Run();
  ExpectAllFinish(&simulation);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(simulation.worker(rank).results.at(0).values, std::vector<double>{3.0});
    EXPECT_EQ(simulation.worker(rank).worst, 1.0);
  }
}

// ------------------------------------------------------------------------------- deaths

TEST(Nodes, ADeathInAnyPhaseHoldsUpNobody) {
  for (int32_t max_staleness : {-1, 0, 2}) {
    for (auto phase : {WorkerEvent::Type::kStarted, WorkerEvent::Type::kAverage,
                       WorkerEvent::Type::kFinal, WorkerEvent::Type::kResult}) {
      for (int dying = 0; dying < 3; ++dying) {
        SCOPED_TRACE(std::to_string(max_staleness) + " " + std::to_string(static_cast<int>(phase)) +
                     " " + std::to_string(dying));
        SimulationOptions options;
        options.max_staleness = max_staleness;
        std::vector<Script> scripts(3, {.steps = {8, 4}, .average_before = {2}});
        scripts[static_cast<size_t>(dying)].die_on = phase;
        Simulation simulation(options, scripts);
        simulation.Run();
        EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
        EXPECT_LE(simulation.now_ns(), 8 * options.failure_timeout_ns);
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(simulation.worker(rank).state, rank == dying ? State::kDead : State::kFinished)
              << simulation.worker(rank).failure.message;
        }
        EXPECT_TRUE(std::any_of(simulation.master_events().begin(),
                                simulation.master_events().end(), [&](const MasterEvent& event) {
                                  return event.type == MasterEvent::Type::kLost &&
                                         event.rank == dying;
                                }));
      }
    }
  }
}

TEST(Nodes, AWorkerThatWasCutOffComesBackWithItsCounters) {
  // The other worker trains on meanwhile, long enough for the return.
  int returned = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    Script cut{.steps = {60}, .think_ns = 100'000'000, .cut_off_at = {5}};
    Script steady{.steps = {60}, .think_ns = 100'000'000};
    Simulation simulation(options, {steady, cut});
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
    EXPECT_EQ(simulation.worker(0).state, State::kFinished);
    returned += simulation.worker(1).state == State::kFinished ? 1 : 0;
  }
  EXPECT_GE(returned, 15);
}

TEST(Nodes, ASynchronousWorkerThatWasCutOffFailsInWords) {
  SimulationOptions options;
  options.max_staleness = 0;
  Simulation simulation(options, {{.steps = {9}}, {.steps = {9}, .cut_off_at = {3}}});
  simulation.Run();
  EXPECT_EQ(simulation.worker(0).state, State::kFinished);
  EXPECT_EQ(simulation.worker(1).failure.code, Code::kMasterLost);
  EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("10.0.0.1:4000 has been silent for"));
  EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("is the master or driver still"));
  EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("--failure-timeout"));
}

// ------------------------------------------------------------------------------- refusals

TEST(Nodes, ADifferentModelIsRefusedToAllNamingBoth) {
  Simulation simulation({}, {{}, {.layout_size = 17, .layout_hash = 6}});
  simulation.Run();
  for (int rank = 0; rank < 2; ++rank) {
    const Status& failure = simulation.worker(rank).failure;
    EXPECT_EQ(failure.code, Code::kRefused);
    EXPECT_THAT(failure.message, HasSubstr("16 shared values (layout hash 0000000000000005)"));
    EXPECT_THAT(failure.message, HasSubstr("17 shared values (layout hash 0000000000000006)"));
  }
}

TEST(Nodes, DifferentOptionsAreRefusedToAllNamingBoth) {
  Simulation simulation({}, {{.options_text = "threshold=0.1"}, {.options_text = "threshold=0.2"}});
  simulation.Run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(simulation.worker(rank).failure.message, HasSubstr("threshold=0.1"));
    EXPECT_THAT(simulation.worker(rank).failure.message, HasSubstr("threshold=0.2"));
  }
}

// As with a threshold and without one: what a worker keeps of itself is a part of the layout.
TEST(Nodes, OptionsThatChangeTheLayoutAreNamedAndNotTheModel) {
  Simulation simulation({}, {{.options_text = "threshold=none"},
                             {.layout_size = 20, .layout_hash = 6, .options_text = "threshold=1"}});
  simulation.Run();
  for (int rank = 0; rank < 2; ++rank) {
    const Status& failure = simulation.worker(rank).failure;
    EXPECT_EQ(failure.code, Code::kRefused);
    EXPECT_THAT(failure.message, HasSubstr("options differ"));
    EXPECT_THAT(failure.message, HasSubstr("threshold=none"));
    EXPECT_THAT(failure.message, HasSubstr("give every worker the same options"));
  }
}

TEST(Nodes, AWrongHashAfterTheResultFailsThatWorkerAlone) {
  Simulation simulation({}, {{}, {.wrong_hash = 1}});
  simulation.Run();
  EXPECT_EQ(simulation.worker(0).state, State::kFinished) << simulation.worker(0).failure.message;
  EXPECT_EQ(simulation.worker(1).state, State::kFailed);
  EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("differ from the master's"));
}

TEST(Nodes, AnInvalidUpdateIsNotRelayedAndClosesItsOriginInWords) {
  for (int32_t max_staleness : {-1, 0}) {
    SimulationOptions options;
    options.max_staleness = max_staleness;
    Simulation simulation(options, {{}, {.bad_update_at = 4}, {}});
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
    EXPECT_EQ(simulation.worker(0).state, State::kFinished) << simulation.worker(0).failure.message;
    EXPECT_EQ(simulation.worker(2).state, State::kFinished) << simulation.worker(2).failure.message;
    EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("the master refuses worker 1's"));
    EXPECT_THAT(simulation.worker(1).failure.message, HasSubstr("an index beyond the layout"));
    for (const MasterEvent& event : simulation.master_events()) {
      EXPECT_TRUE(event.type != MasterEvent::Type::kLost || event.rank == 1) << event.text;
    }
  }
}

// ------------------------------------------------------------------------------- back-pressure

TEST(Nodes, ANeighbourOverItsQueuesCapLagsAndCatchesUpWhileTheOthersGoOn) {
  SimulationOptions options;
  options.link_queue_bytes = 1;
  Simulation simulation(options, {{.steps = {200}, .think_ns = 1000}, {.steps = {200}}});
  simulation.Run();
  ExpectAllFinish(&simulation);
  int lagged = 0, caught_up = 0;
  for (const MasterEvent& event : simulation.master_events()) {
    lagged += event.text.starts_with("worker 1 lags") ? 1 : 0;
    caught_up += event.text == "worker 1 has caught up" ? 1 : 0;
  }
  EXPECT_GT(lagged, 0);
  EXPECT_GT(caught_up, 0);
}

// ------------------------------------------------------------------------------- trees

RandomRun MakeRandomTree(uint64_t seed, bool faults) {
  RandomRun run = MakeRandomRun(seed, faults);
  SimulatedRandom random(seed + 1);
  const auto pick = [&](int low, int high) { return static_cast<int>(random.Between(low, high)); };
  run.options.topology = Topology::kMesh;
  run.options.max_children = pick(1, 3);
  run.options.max_depth = run.options.max_children == 1 ? 12 : 4;
  run.options.machines = pick(1, 3);
  if (pick(0, 3) == 0) run.options.link_queue_bytes = pick(1, 2000);
  // More workers, with the plans that are there.
  const size_t plans = run.scripts.size();
  for (size_t rank = plans; rank < plans + 4; ++rank) {
    run.scripts.push_back(run.scripts[rank % plans]);
    run.scripts.back().state = static_cast<double>(rank);
  }
  return run;
}

TEST(Tree, AgreesInRandomRunsWithoutFaults) {
  for (uint64_t seed = 0; seed < ShareOf(200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomTree(seed, false);
    Simulation simulation(run.options, run.scripts);
    simulation.Run();
    ExpectAllFinish(&simulation);
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&simulation);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Tree, AgreesInRandomRunsWithDeathsAndReturns) {
  uint64_t returns = 0, deaths = 0;
  for (uint64_t seed = 2000; seed < 2000 + ShareOf(300); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomTree(seed, true);
    Simulation simulation(run.options, run.scripts);
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
    for (int rank = 0; rank < simulation.size(); ++rank) {
      const ApplicationRecord& worker = simulation.worker(rank);
      deaths += worker.state == State::kDead ? 1 : 0;
      if (worker.state == State::kFailed) {
        EXPECT_TRUE(simulation.was_cut_off(rank)) << rank << ": " << worker.failure.message;
      }
    }
    for (const MasterEvent& event : simulation.master_events()) {
      returns += event.text.ends_with("is back") ? 1 : 0;
    }
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&simulation);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(deaths, ShareOf(300));
  EXPECT_GE(returns, ShareOf(300) / 20);
}

TEST(Tree, TheMasterSendsEachUpdateOnceToEachOfItsChildrenOnly) {
  SimulationOptions options;
  options.topology = Topology::kMesh;
  Simulation simulation(options, std::vector<Script>(7, {.steps = {20}}));
  simulation.Run();
  ExpectAllFinish(&simulation);
  const std::string status = simulation.master().StatusJson();
  uint64_t updates = 0;
  for (const auto& [origin, counter] : simulation.master().received()) updates += counter;
  const size_t at = status.find("\"relayed_messages\": ");
  ASSERT_NE(at, std::string::npos);
  // Two children: what came from one of them goes to the other.
  EXPECT_EQ(std::stoull(status.substr(at + 20)), updates) << status;
}

TEST(Tree, ADeathOfAnInnerNodeLosesNoLiveWorkersUpdates) {
  int with_orphans = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.topology = Topology::kMesh;
    std::vector<Script> scripts(7, {.steps = {40}, .think_ns = 100'000'000});
    scripts[0].die_after_steps = 5;
    scripts[1].die_after_steps = 9;
    Simulation simulation(options, scripts);
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << Report(simulation);
    for (int rank = 2; rank < 7; ++rank) {
      EXPECT_EQ(simulation.worker(rank).state, State::kFinished)
          << simulation.worker(rank).failure.message;
    }
    const auto& events = simulation.master_events();
    with_orphans += std::any_of(events.begin(), events.end(), [](const MasterEvent& event) {
      return event.text.find("gets another parent") != std::string::npos;
    });
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(with_orphans, 15) << "of 30 in which somebody was below a worker that died";
}

}  // namespace
}  // namespace strom
