#include "sim/fault_plan.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "sim/units.h"

namespace strom {
namespace {

// Nobody is given up after less than this part of the failure timeout: beacons come ten times in
// it, and the slowest paths here cost less than the rest.
constexpr double kHarmless = .5;

const char* NameOf(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kPause:
      return "pause";
    case Fault::Kind::kKill:
      return "kill";
    case Fault::Kind::kRestart:
      return "restart";
    case Fault::Kind::kDrain:
      return "drain";
    case Fault::Kind::kPartition:
      return "partition";
    case Fault::Kind::kDeaf:
      return "deafness";
    case Fault::Kind::kMute:
      return "muteness";
    case Fault::Kind::kHarm:
      return "harm";
  }
  return "";
}

// Paths that a training job meets on a bad day; every kind of harm now and then.
PathOptions DrawPaths(SimulatedRandom* random, double share) {
  PathOptions paths;
  const auto some = [&](double most) {
    return random->Chance(share) ? most * static_cast<double>(random->Below(100)) / 100 : 0;
  };
  paths.loss = some(.15);
  paths.burst = some(.01);
  paths.burst_ns = random->Between(1, 10) * kMillisecond;
  paths.duplication = some(.1);
  paths.corruption = some(.05);
  paths.delay_ns = random->Between(20, 1000) * 1000;
  paths.jitter_ns = random->Chance(share) ? random->Between(1, 4000) * 1000 : 0;
  if (random->Chance(share / 2)) {
    paths.rate_bytes = random->Between(1, 20) * 1'000'000;
    paths.buffer_bytes = random->Between(16, 256) << 10;
  }
  return paths;
}

// Paths between sites: up to 300 ms away, with queues of seconds, policers, and packets that
// overtake each other.
PathOptions DrawLongPaths(SimulatedRandom* random) {
  PathOptions paths;
  paths.delay_ns = random->Between(2, 300) * kMillisecond;
  if (random->Chance(.5)) paths.loss = static_cast<double>(random->Below(50)) / 1000;
  if (random->Chance(.3)) {
    paths.burst = static_cast<double>(random->Below(5)) / 1000;
    paths.burst_ns = random->Between(1, 50) * kMillisecond;
  }
  if (random->Chance(.1)) paths.duplication = .02;
  if (random->Chance(.5)) paths.jitter_ns = random->Between(1, 100) * kMillisecond;
  if (random->Chance(.6)) {
    paths.rate_bytes = random->Between(2, 125) * 100'000;
    paths.buffer_bytes = paths.rate_bytes * random->Between(5, 2000) / 1000;
  }
  if (random->Chance(.2)) {
    paths.policed_bytes = random->Between(2, 50) * 100'000;
    paths.bucket_bytes = random->Between(16, 512) << 10;
  }
  return paths;
}

// Long enough to be noticed, or not, around the failure timeout.
int64_t DrawSilence(SimulatedRandom* random, int64_t failure_timeout_ns) {
  return failure_timeout_ns * random->Between(10, 260) / 100;
}

// Workers that stand still for several failure timeouts, some of them together.
Fault DrawLongSilence(SimulatedRandom* random, const FaultBounds& bounds,
                      const std::set<int32_t>& expendable) {
  Fault fault;
  fault.at_ns = random->Below(bounds.span_ns);
  fault.for_ns = bounds.failure_timeout_ns * random->Between(300, 700) / 100;
  for (const int32_t rank : expendable) {
    if (random->Chance(.4)) fault.ranks.push_back(rank);
  }
  if (fault.ranks.empty()) fault.ranks = {*expendable.begin()};
  return fault;
}

// One direction between some and all others, or between them and one other node.
Fault DrawOneWay(SimulatedRandom* random, const FaultBounds& bounds,
                 const std::set<int32_t>& expendable) {
  Fault fault;
  fault.kind = random->Chance(.5) ? Fault::Kind::kDeaf : Fault::Kind::kMute;
  fault.at_ns = random->Below(bounds.span_ns);
  fault.for_ns = DrawSilence(random, bounds.failure_timeout_ns);
  for (const int32_t rank : expendable) {
    if (random->Chance(.4)) fault.ranks.push_back(rank);
  }
  if (fault.ranks.empty()) fault.ranks = {*expendable.begin()};
  const int32_t other = static_cast<int32_t>(random->Below(bounds.workers + 1)) - 1;
  const bool is_struck =
      std::find(fault.ranks.begin(), fault.ranks.end(), other) != fault.ranks.end();
  if (random->Chance(.6) && !is_struck) fault.only = other;
  return fault;
}

Fault DrawFault(SimulatedRandom* random, const FaultBounds& bounds, std::set<int32_t>* expendable) {
  Fault fault;
  fault.at_ns = random->Below(bounds.span_ns);
  fault.for_ns = DrawSilence(random, bounds.failure_timeout_ns);
  const bool may_end = static_cast<double>(fault.for_ns) >
                       kHarmless * static_cast<double>(bounds.failure_timeout_ns);
  const int64_t choice = random->Below(10);
  if (choice < 3 || expendable->empty()) {
    fault.kind = Fault::Kind::kHarm;
    fault.paths = bounds.long_lines ? DrawLongPaths(random) : DrawPaths(random, .6);
    const bool all = random->Chance(.3);
    for (int32_t rank = all ? kMasterRank : 0; all && rank < bounds.workers; ++rank) {
      fault.ranks.push_back(rank);
    }
    if (!all) fault.ranks = {static_cast<int32_t>(random->Below(bounds.workers))};
    return fault;
  }
  if (choice == 3 && bounds.master_too && !may_end) {
    fault.kind = Fault::Kind::kPause;
    fault.ranks = {kMasterRank};
    return fault;
  }
  // The others may end whom they strike.
  std::vector<int32_t> victims(expendable->begin(), expendable->end());
  const int32_t victim =
      victims[static_cast<size_t>(random->Below(static_cast<int64_t>(victims.size())))];
  fault.ranks = {victim};
  if ((bounds.replacements || bounds.drains) && choice > 4) {
    const bool drains = bounds.drains && random->Chance(.8);
    fault.kind = drains ? Fault::Kind::kDrain : Fault::Kind::kRestart;
    for (const int32_t other : victims) {
      if (other != victim && random->Chance(.3)) fault.ranks.push_back(other);
    }
    for (const int32_t rank : fault.ranks) expendable->erase(rank);
    return fault;
  }
  if (choice < 6) {
    fault.kind = Fault::Kind::kPause;
  } else if (choice < 8) {
    fault.kind = Fault::Kind::kPartition;
    for (const int32_t other : victims) {
      if (other != victim && random->Chance(.3)) fault.ranks.push_back(other);
    }
  } else {
    fault.kind = choice == 8 ? Fault::Kind::kKill : Fault::Kind::kRestart;
    if (fault.kind == Fault::Kind::kKill) fault.for_ns = 0;
    expendable->erase(victim);  // a process dies once
  }
  return fault;
}

// One after the other, and none while another one is gone.
void AddMasters(SimulatedRandom* random, const FaultBounds& bounds, std::vector<Fault>* faults) {
  int64_t from_ns = 0;
  for (int64_t left = random->Between(1, 2); left > 0; --left) {
    Fault& fault = faults->emplace_back();
    fault.kind = Fault::Kind::kRestart;
    fault.ranks = {kMasterRank};
    fault.at_ns = from_ns + random->Below(bounds.span_ns * 3 / 4);
    fault.for_ns = bounds.failure_timeout_ns * random->Between(1, 400) / 100;
    from_ns = fault.at_ns + fault.for_ns + 1;
  }
}

// The chief may come back when the master has given up all others, and they after it.
void AddEverybody(SimulatedRandom* random, const FaultBounds& bounds, std::vector<Fault>* faults) {
  const int64_t at_ns = random->Below(bounds.span_ns);
  for (int32_t rank = 0; rank < bounds.workers; ++rank) {
    Fault& fault = faults->emplace_back();
    fault.kind = Fault::Kind::kRestart;
    fault.ranks = {rank};
    fault.at_ns = at_ns;
    const int64_t least = rank == 0 ? 100 : 120, most = rank == 0 ? 200 : 350;
    fault.for_ns = bounds.failure_timeout_ns * random->Between(least, most) / 100;
  }
}

}  // namespace

FaultPlan FaultPlan::Draw(uint64_t seed, const FaultBounds& bounds) {
  SimulatedRandom random(~seed);
  FaultPlan plan;
  plan.paths = bounds.long_lines ? DrawLongPaths(&random) : DrawPaths(&random, .3);
  // Two stay untouched by what may end a process.
  std::set<int32_t> expendable;
  for (int32_t rank = 0; rank < bounds.workers; ++rank) expendable.insert(rank);
  for (int spared = 0; spared < 2; ++spared) {
    expendable.erase(
        std::next(expendable.begin(), random.Below(static_cast<int64_t>(expendable.size()))));
  }
  if (bounds.everybody) {
    AddEverybody(&random, bounds, &plan.faults);
    expendable.clear();  // a process dies once
  }
  for (int64_t left = random.Between(3, 6); left > 0; --left) {
    const bool one_way = bounds.one_way && !expendable.empty() && random.Chance(.7);
    plan.faults.push_back(one_way           ? DrawOneWay(&random, bounds, expendable)
                          : bounds.silences ? DrawLongSilence(&random, bounds, expendable)
                                            : DrawFault(&random, bounds, &expendable));
  }
  if (bounds.masters) AddMasters(&random, bounds, &plan.faults);
  std::sort(plan.faults.begin(), plan.faults.end(),
            [](const Fault& a, const Fault& b) { return a.at_ns < b.at_ns; });
  return plan;
}

bool FaultPlan::MayEnd(int32_t rank, bool is_replacement, int64_t failure_timeout_ns) const {
  // Silences that follow each other closely count as one.
  int64_t silent_ns = 0;
  for (const Fault& fault : faults) {
    const bool strikes =
        std::find(fault.ranks.begin(), fault.ranks.end(), rank) != fault.ranks.end();
    if (!strikes) continue;
    const bool kills = fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kRestart ||
                       fault.kind == Fault::Kind::kDrain;
    if (kills && !is_replacement) return true;  // a process dies once
    if (!kills && fault.kind != Fault::Kind::kHarm) silent_ns += fault.for_ns;
  }
  return static_cast<double>(silent_ns) > kHarmless * static_cast<double>(failure_timeout_ns);
}

std::string FaultPlan::Text() const {
  std::string text = "paths: " + Describe(paths) + "\n";
  for (const Fault& fault : faults) {
    char line[128];
    std::snprintf(line, sizeof(line), "%7.1f ms: %s for %.1f ms of",
                  static_cast<double>(fault.at_ns) / kMillisecond, NameOf(fault.kind),
                  static_cast<double>(fault.for_ns) / kMillisecond);
    text += line;
    for (const int32_t rank : fault.ranks) {
      text += rank == kMasterRank ? " master" : " " + std::to_string(rank);
    }
    if (fault.only) {
      text +=
          " towards " + (*fault.only == kMasterRank ? "the master" : std::to_string(*fault.only));
    }
    if (fault.kind == Fault::Kind::kHarm) text += ": " + Describe(fault.paths);
    text += "\n";
  }
  return text;
}

}  // namespace strom
