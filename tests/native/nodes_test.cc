// Master and workers together, over an in-memory network: every promise of the protocol under
// random interleavings, delays, deaths and returns; every refusal; a death in every phase.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/cluster.h"

namespace strom {
namespace {

using State = Cluster::Worker::State;
using testing::HasSubstr;

std::string Report(const Cluster& cluster) {
  std::string text;
  for (const std::string& violation : cluster.violations()) text += violation + "\n";
  return text;
}

void ExpectAllFinish(Cluster* cluster) {
  EXPECT_TRUE(cluster->violations().empty()) << Report(*cluster);
  for (int rank = 0; rank < static_cast<int>(cluster->size()); ++rank) {
    EXPECT_EQ(cluster->worker(rank).state, State::kFinished)
        << rank << ": " << cluster->worker(rank).failure.message;
  }
}

// ------------------------------------------------------------------------------- random runs

struct RandomRun {
  ClusterOptions options;
  std::vector<WorkerScript> scripts;
};

RandomRun MakeRandomRun(uint64_t seed, bool faults) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  RandomRun run;
  run.options.seed = seed;
  run.options.max_staleness = std::vector<int>{-1, -1, 0, 1, 4}[static_cast<size_t>(pick(0, 4))];
  run.scripts.resize(static_cast<size_t>(pick(1, 5)));
  const int generations = pick(1, 3);
  const bool lively = pick(0, 1) == 0;
  for (size_t rank = 0; rank < run.scripts.size(); ++rank) {
    WorkerScript& script = run.scripts[rank];
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

void ExpectSameStepsEverywhere(Cluster* cluster) {
  std::map<uint64_t, std::vector<UpdateId>> reference;
  for (int rank = 0; rank < static_cast<int>(cluster->size()); ++rank) {
    for (const auto& [generation, taken] : cluster->worker(rank).taken_of_generation) {
      const auto [known, fresh] = reference.emplace(generation, taken);
      EXPECT_TRUE(fresh || known->second == taken) << "worker " << rank;
    }
  }
}

TEST(Nodes, AgreeInRandomRunsWithoutFaults) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomRun(seed, false);
    Cluster cluster(run.options, run.scripts);
    cluster.Run();
    ExpectAllFinish(&cluster);
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&cluster);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Nodes, AgreeInRandomRunsWithDeathsAndReturns) {
  int returns = 0;
  for (uint64_t seed = 1000; seed < 1600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run = MakeRandomRun(seed, true);
    Cluster cluster(run.options, run.scripts);
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty()) << Report(cluster);
    for (int rank = 0; rank < static_cast<int>(cluster.size()); ++rank) {
      const Cluster::Worker& worker = cluster.worker(rank);
      if (worker.state == State::kFailed) {
        EXPECT_TRUE(worker.was_cut_off) << rank << ": " << worker.failure.message;
      }
    }
    for (const MasterEvent& event : cluster.master_events()) {
      returns += event.text.ends_with("is back") ? 1 : 0;
    }
    if (run.options.max_staleness >= 0) ExpectSameStepsEverywhere(&cluster);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(returns, 20);
}

// ------------------------------------------------------------------------------- modes

TEST(Nodes, WorkersWithDifferentNumbersOfStepsNeverHang) {
  for (int32_t max_staleness : {-1, 0, 3}) {
    ClusterOptions options;
    options.max_staleness = max_staleness;
    Cluster cluster(options, {{.steps = {0, 3}}, {.steps = {20, 1}}, {.steps = {7, 0}}});
    cluster.Run();
    ExpectAllFinish(&cluster);
  }
}

TEST(Nodes, SynchronousAverageIsABarrierInRankOrder) {
  ClusterOptions options;
  options.max_staleness = 0;
  WorkerScript fast{.steps = {6}, .average_before = {3}, .think_ns = 100'000};
  WorkerScript slow{.steps = {9}, .average_before = {3}, .think_ns = 10'000'000};
  Cluster cluster(options, {fast, slow, fast});
  cluster.Run();
  ExpectAllFinish(&cluster);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(cluster.worker(rank).averages.size(), 1u);
    EXPECT_EQ(cluster.worker(rank).averages[0].contributors, 3);
    EXPECT_EQ(cluster.worker(rank).averages[0].values, (std::vector<double>{1.0, 1.0}));
  }
}

TEST(Nodes, AsynchronousAverageWaitsForNobody) {
  WorkerScript fast{.steps = {3}, .average_before = {0}, .think_ns = 1000};
  WorkerScript slow{.steps = {3}, .average_before = {2}, .think_ns = 500'000'000};
  Cluster cluster({}, {fast, slow});
  cluster.Run();
  ExpectAllFinish(&cluster);
  EXPECT_EQ(cluster.worker(0).averages.at(0).contributors, 1);
}

TEST(Nodes, TheChiefStopsEverybody) {
  for (int32_t max_staleness : {-1, 0}) {
    ClusterOptions options;
    options.max_staleness = max_staleness;
    Cluster cluster(options, {{.steps = {5}, .stop_all = true}, {.steps = {100000}}});
    cluster.Run();
    ExpectAllFinish(&cluster);
    EXPECT_TRUE(cluster.worker(1).stop_heard);
    EXPECT_LT(cluster.worker(1).step, 1000);
  }
}

TEST(Nodes, TheResultIsTheMeanStateAndTheWorstDifference) {
  Cluster cluster({}, {{.state = 1.0}, {.state = 2.0}, {.state = 6.0}});
  cluster.Run();
  ExpectAllFinish(&cluster);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(cluster.worker(rank).results.at(0).values, std::vector<double>{3.0});
    EXPECT_EQ(cluster.worker(rank).worst, 1.0);
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
        ClusterOptions options;
        options.max_staleness = max_staleness;
        std::vector<WorkerScript> scripts(3, {.steps = {8, 4}, .average_before = {2}});
        scripts[static_cast<size_t>(dying)].die_on = phase;
        Cluster cluster(options, scripts);
        cluster.Run();
        EXPECT_TRUE(cluster.violations().empty()) << Report(cluster);
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(cluster.worker(rank).state, rank == dying ? State::kDead : State::kFinished)
              << cluster.worker(rank).failure.message;
        }
        EXPECT_TRUE(std::any_of(cluster.master_events().begin(), cluster.master_events().end(),
                                [&](const MasterEvent& event) {
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
    ClusterOptions options;
    options.seed = seed;
    WorkerScript cut{.steps = {60}, .think_ns = 100'000'000, .cut_off_at = {5}};
    WorkerScript steady{.steps = {60}, .think_ns = 100'000'000};
    Cluster cluster(options, {steady, cut});
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty()) << Report(cluster);
    EXPECT_EQ(cluster.worker(0).state, State::kFinished);
    returned += cluster.worker(1).state == State::kFinished ? 1 : 0;
  }
  EXPECT_GE(returned, 15);
}

TEST(Nodes, ASynchronousWorkerThatWasCutOffFailsInWords) {
  ClusterOptions options;
  options.max_staleness = 0;
  Cluster cluster(options, {{.steps = {9}}, {.steps = {9}, .cut_off_at = {3}}});
  cluster.Run();
  EXPECT_EQ(cluster.worker(0).state, State::kFinished);
  EXPECT_EQ(cluster.worker(1).failure.code, Code::kMasterLost);
  EXPECT_THAT(cluster.worker(1).failure.message, HasSubstr("10.0.0.1:4000 has been silent for"));
}

// ------------------------------------------------------------------------------- refusals

TEST(Nodes, ADifferentModelIsRefusedToAllNamingBoth) {
  Cluster cluster({}, {{}, {.layout_size = 65, .layout_hash = 6}});
  cluster.Run();
  for (int rank = 0; rank < 2; ++rank) {
    const Status& failure = cluster.worker(rank).failure;
    EXPECT_EQ(failure.code, Code::kRefused);
    EXPECT_THAT(failure.message, HasSubstr("64 shared values (layout hash 0000000000000005)"));
    EXPECT_THAT(failure.message, HasSubstr("65 shared values (layout hash 0000000000000006)"));
  }
}

TEST(Nodes, DifferentOptionsAreRefusedToAllNamingBoth) {
  Cluster cluster({}, {{.options_text = "threshold=0.1"}, {.options_text = "threshold=0.2"}});
  cluster.Run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(cluster.worker(rank).failure.message, HasSubstr("threshold=0.1"));
    EXPECT_THAT(cluster.worker(rank).failure.message, HasSubstr("threshold=0.2"));
  }
}

TEST(Nodes, AWrongHashAfterTheResultFailsThatWorkerAlone) {
  Cluster cluster({}, {{}, {.wrong_hash = 1}});
  cluster.Run();
  EXPECT_EQ(cluster.worker(0).state, State::kFinished) << cluster.worker(0).failure.message;
  EXPECT_EQ(cluster.worker(1).state, State::kFailed);
  EXPECT_THAT(cluster.worker(1).failure.message, HasSubstr("differ from the master's"));
}

TEST(Nodes, AnInvalidUpdateIsNotRelayedAndClosesItsOriginInWords) {
  for (int32_t max_staleness : {-1, 0}) {
    ClusterOptions options;
    options.max_staleness = max_staleness;
    Cluster cluster(options, {{}, {.bad_update_at = 4}, {}});
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty()) << Report(cluster);
    EXPECT_EQ(cluster.worker(0).state, State::kFinished) << cluster.worker(0).failure.message;
    EXPECT_EQ(cluster.worker(2).state, State::kFinished) << cluster.worker(2).failure.message;
    EXPECT_THAT(cluster.worker(1).failure.message, HasSubstr("the master refuses worker 1's"));
    EXPECT_THAT(cluster.worker(1).failure.message, HasSubstr("an index beyond the layout"));
  }
}

TEST(Nodes, ANeighbourOverItsQueuesCapIsClosedInWordsAndTheOthersGoOn) {
  ClusterOptions options;
  options.link_queue_bytes = 1;
  Cluster cluster(options, {{.steps = {200}, .think_ns = 1000}, {.steps = {200}}});
  cluster.Run();
  EXPECT_TRUE(cluster.violations().empty()) << Report(cluster);
  EXPECT_EQ(cluster.worker(0).state, State::kFinished) << cluster.worker(0).failure.message;
  EXPECT_THAT(cluster.worker(1).failure.message, HasSubstr("takes its updates too slowly"));
}

}  // namespace
}  // namespace strom
