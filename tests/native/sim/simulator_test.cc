// Whole jobs by their seeds: every promise of sim/invariants.h after every tick, under every fault
// that sim/fault_plan.h knows. A failure names its seed; `simulator --verbose SEED` replays it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "share.h"
#include "sim/jobs.h"
#include "sim/simulation.h"

namespace strom {
namespace {

using State = ApplicationRecord::State;

// What the runs were like, so that a plan that harms nobody is noticed.
struct Tally {
  int finished = 0, failed = 0, dead = 0, returned = 0, replaced = 0;
  int64_t drained = 0;
  int late = 0, ended = 0, donations = 0;  // how processes have begun a generation
  int snapshots = 0;                       // of live workers that were too far behind
  int handed_over = 0, resumed = 0;        // replicas to other masters, generations that went on
  int merged = 0;                          // jobs whose last master has published updates
  int interrupted_pieces = 0, asked_again = 0;  // see WatchedLinks

  void Add(const Simulation& simulation) {
    for (int32_t rank = 0; rank < simulation.size(); ++rank) {
      const State state = simulation.worker(rank).state;
      finished += state == State::kFinished ? 1 : 0;
      failed += state == State::kFailed ? 1 : 0;
      dead += state == State::kDead ? 1 : 0;
      for (const ApplicationRecord* process : simulation.processes(rank)) {
        late += process->late_starts;
        ended += process->ended_starts;
        donations += process->donations;
        snapshots += process->snapshots;
        handed_over += process->handed_over;
      }
    }
    drained += simulation.drained();
    interrupted_pieces += simulation.interrupted_pieces();
    asked_again += simulation.asked_again();
    for (const auto& [origin, counter] : simulation.master().received()) {
      merged += IsOfMaster(origin) ? 1 : 0;
    }
    std::vector<int32_t> joined;
    for (const MasterEvent& event : simulation.master_events()) {
      resumed += event.type == MasterEvent::Type::kResumed ? 1 : 0;
      if (event.type != MasterEvent::Type::kJoined) continue;
      const bool is_back = event.text.ends_with("is back");
      const bool before = std::find(joined.begin(), joined.end(), event.rank) != joined.end();
      returned += is_back ? 1 : 0;
      replaced += before && !is_back ? 1 : 0;
      joined.push_back(event.rank);
    }
  }
};

using DrawsJob = Job (*)(uint64_t seed, SimulatedLinks links);

// Runs the jobs of [first, last) and stops at the first that breaks a promise.
Tally RunSeeds(uint64_t first, uint64_t last, SimulatedLinks links, DrawsJob draw = DrawJob) {
  Tally tally;
  for (uint64_t seed = first; seed < last; ++seed) {
    const Job job = draw(seed, links);
    Simulation simulation(job);
    simulation.Run();
    for (const std::string& violation : simulation.violations()) {
      ADD_FAILURE() << violation << "\n" << DescribeJob(job);
    }
    if (testing::Test::HasFailure()) break;
    tally.Add(simulation);
  }
  return tally;
}

void ExpectEventful(const Tally& tally, int runs) {
  EXPECT_GT(tally.finished, 3 * runs);
  EXPECT_GT(tally.failed, runs / 10);
  EXPECT_GT(tally.dead, runs / 10);
  EXPECT_GT(tally.returned, runs / 20);
  EXPECT_GT(tally.replaced, runs / 20);
  EXPECT_GT(tally.merged, runs / 10);
}

TEST(SimulatorTest, KeepsItsPromisesOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(1000);
  ExpectEventful(RunSeeds(0, kRuns, SimulatedLinks::kMemory), kRuns);
}

TEST(SimulatorTest, KeepsItsPromisesOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(400);
  ExpectEventful(RunSeeds(0, kRuns, SimulatedLinks::kDatagrams), kRuns);
}

void ExpectReplacements(const Tally& tally, int runs) {
  EXPECT_GT(tally.finished, 3 * runs);
  EXPECT_GT(tally.replaced, runs);
  EXPECT_GT(tally.late, runs / 2);
  EXPECT_GT(tally.ended, runs / 20);
  EXPECT_GT(tally.donations, runs / 3);
}

TEST(SimulatorTest, ReplacedWorkersComeBackOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(300);
  ExpectReplacements(RunSeeds(0, kRuns, SimulatedLinks::kMemory, DrawJobWithReplacements), kRuns);
}

TEST(SimulatorTest, ReplacedWorkersComeBackOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(100);
  constexpr uint64_t kFirst = 4;  // In the least share, too, one comes after the end.
  ExpectReplacements(
      RunSeeds(kFirst, kFirst + kRuns, SimulatedLinks::kDatagrams, DrawJobWithReplacements), kRuns);
}

// What a worker has made that drains is with the others; the laws look for that.
TEST(SimulatorTest, NothingIsLostOfWorkersThatDrainOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(300);
  const Tally tally = RunSeeds(0, kRuns, SimulatedLinks::kMemory, DrawJobWithDrains);
  ExpectReplacements(tally, kRuns);
  EXPECT_GT(tally.drained, static_cast<int>(kRuns));
}

TEST(SimulatorTest, NothingIsLostOfWorkersThatDrainOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(100);
  const Tally tally = RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobWithDrains);
  ExpectReplacements(tally, kRuns);
  EXPECT_GT(tally.drained, static_cast<int>(kRuns));
}

void ExpectSnapshots(const Tally& tally, int runs) {
  EXPECT_GT(tally.snapshots, 2 * runs);
  EXPECT_GT(tally.finished, 4 * runs);
  EXPECT_GT(tally.merged, runs / 4);
  EXPECT_EQ(tally.dead, 0);
}

TEST(SimulatorTest, SilentWorkersGoOnFromSnapshotsOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(100);
  ExpectSnapshots(RunSeeds(0, kRuns, SimulatedLinks::kMemory, DrawJobWithSilences), kRuns);
}

TEST(SimulatorTest, SilentWorkersGoOnFromSnapshotsOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(30);
  ExpectSnapshots(RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobWithSilences), kRuns);
}

// Origins of the replaced are retired at every start; the laws look for that.
TEST(SimulatorTest, VectorsShrinkWithEveryFitOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(100);
  ExpectReplacements(RunSeeds(0, kRuns, SimulatedLinks::kMemory, DrawJobWithFits), kRuns);
}

TEST(SimulatorTest, VectorsShrinkWithEveryFitOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(100);
  ExpectReplacements(RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobWithFits), kRuns);
}

void ExpectStruckStarts(const Tally& tally, int runs) {
  EXPECT_GT(tally.finished, 2 * runs);
  EXPECT_GT(tally.interrupted_pieces, runs / 4);
}

// Of the values with which a `fit` starts or ends a part has come when the line is cut; and the
// master's change after the chief was asked for those that it lacked.
TEST(SimulatorTest, StartsAndEndsAreStruckInTheirMiddleOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(100);
  constexpr uint64_t kFirst = 45;  // the first one whose chief is asked again
  const Tally tally =
      RunSeeds(kFirst, kFirst + kRuns, SimulatedLinks::kMemory, DrawJobWithSlowStarts);
  ExpectStruckStarts(tally, kRuns);
  EXPECT_GT(tally.asked_again, 0);
}

TEST(SimulatorTest, StartsAndEndsAreStruckInTheirMiddleOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(40);
  constexpr uint64_t kFirst = 2;  // the first one with pieces that are interrupted
  ExpectStruckStarts(
      RunSeeds(kFirst, kFirst + kRuns, SimulatedLinks::kDatagrams, DrawJobWithSlowStarts), kRuns);
}

// One direction of a path is cut, the other is not, and the keys change all the while.
TEST(SimulatorTest, WhoIsHeardAndDoesNotHearComesBackOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(100);
  const Tally tally = RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobWithOneWayCuts);
  EXPECT_GT(tally.finished, 3 * static_cast<int>(kRuns));
  EXPECT_GT(tally.returned, static_cast<int>(kRuns) / 4);
}

// Sites far from each other: queues of seconds, policers, packets that overtake each other.
TEST(SimulatorTest, WorkersFarAwayTrainOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(60);
  const Tally tally = RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobOnLongLines);
  EXPECT_GT(tally.finished, 3 * static_cast<int>(kRuns));
}

void ExpectMasters(const Tally& tally, int runs) {
  EXPECT_GT(tally.resumed, runs / 2);
  EXPECT_GT(tally.handed_over, runs / 2);
  EXPECT_GT(tally.merged, runs / 4);
  EXPECT_GT(tally.finished, 3 * runs);
}

TEST(SimulatorTest, TrainingGoesOnUnderAnotherMasterOverMemoryLinks) {
  constexpr uint64_t kRuns = ShareOf(300);
  ExpectMasters(RunSeeds(0, kRuns, SimulatedLinks::kMemory, DrawJobWithMasters), kRuns);
}

TEST(SimulatorTest, TrainingGoesOnUnderAnotherMasterOverDatagrams) {
  constexpr uint64_t kRuns = ShareOf(60);
  ExpectMasters(RunSeeds(0, kRuns, SimulatedLinks::kDatagrams, DrawJobWithMasters), kRuns);
}

TEST(SimulatorTest, TheSameSeedGivesTheSameRun) {
  for (const SimulatedLinks links : {SimulatedLinks::kMemory, SimulatedLinks::kDatagrams}) {
    Simulation first(DrawJob(7, links)), second(DrawJob(7, links));
    first.Run();
    second.Run();
    EXPECT_EQ(first.ticks(), second.ticks());
    EXPECT_EQ(first.now_ns(), second.now_ns());
    EXPECT_EQ(first.master().StatusJson(), second.master().StatusJson());
  }
}

// Seeds that have found something, and what.
struct KeptSeed {
  uint64_t seed;
  SimulatedLinks links;
  const char* found;
  DrawsJob draw = DrawJob;
};
constexpr KeptSeed kKeptSeeds[] = {
    {34, SimulatedLinks::kDatagrams,
     "a worker that was catching up lost the race against the ring's age limit"},
    {107, SimulatedLinks::kDatagrams,
     "the master dropped relayed updates of a dead process whose rank another had taken"},
    {2041, SimulatedLinks::kDatagrams, "a live worker lacked what nobody kept"},
    {3320, SimulatedLinks::kDatagrams, "a live worker lacked what nobody kept"},
    {4176, SimulatedLinks::kDatagrams,
     "after a silence of half the failure timeout one lost probe cost the other half"},
    {770046, SimulatedLinks::kMemory,
     "a worker went from one late joiner to another, of which none had what it lacked",
     DrawJobWithReplacements},
    {771062, SimulatedLinks::kMemory,
     "FINAL left out what a worker held of a lost one behind a gap, and accepted later"},
    {3150, SimulatedLinks::kMemory,
     "FINAL left out what a worker held of a lost one behind a gap, and accepted later",
     DrawJobOnLongLines},
};

TEST(SimulatorTest, SeedsThatFoundSomethingStayFixed) {
  for (const KeptSeed& kept : kKeptSeeds) {
    SCOPED_TRACE(kept.found);
    RunSeeds(kept.seed, kept.seed + 1, kept.links, kept.draw);
  }
}

// Every link sequence begins just before it wraps around.
TEST(SimulatorTest, LinkSequencesWrapAround) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Job job = DrawJob(seed, SimulatedLinks::kDatagrams);
    job.options.first_link_sequence = uint32_t{0} - 100 - static_cast<uint32_t>(seed);
    Simulation simulation(job);
    simulation.Run();
    EXPECT_TRUE(simulation.violations().empty()) << simulation.violations().front();
  }
}

}  // namespace
}  // namespace strom
