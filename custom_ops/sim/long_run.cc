#include "sim/long_run.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "sim/units.h"

namespace strom {
namespace {

constexpr int32_t kWorkers = 3;
// No vector has room for all who are replaced; it has for those of one generation.
constexpr size_t kMostOrigins = 40;

// Rank 0 begins every generation and lives.
Fault Restart(int64_t number, int64_t period_ns, int64_t gone_ns) {
  Fault fault;
  fault.kind = Fault::Kind::kRestart;
  fault.at_ns = (number + 1) * period_ns;
  fault.for_ns = gone_ns;
  fault.ranks = {static_cast<int32_t>(1 + number % (kWorkers - 1))};
  return fault;
}

}  // namespace

Job RejoinsJob(int64_t rejoins, int32_t max_staleness) {
  constexpr int64_t kPeriodNs = 80 * kMillisecond, kGoneNs = 20 * kMillisecond;
  constexpr int64_t kThinkNs = 8 * kMillisecond;
  constexpr int kSteps = 40;
  Job job;
  SimulationOptions& options = job.options;
  options.links = SimulatedLinks::kDatagrams;
  options.max_staleness = max_staleness;
  options.failure_timeout_ns = 400 * kMillisecond;
  options.max_origins = kMostOrigins;
  options.forgets = true;
  for (int64_t i = 0; i < rejoins; ++i) {
    options.plan.faults.push_back(Restart(i, kPeriodNs, kGoneNs));
  }
  // A generation takes at least its steps' thinking, so the last of these begin after the last
  // fault.
  const int64_t generations = 1 + rejoins * kPeriodNs / (kSteps * kThinkNs);
  job.scripts.assign(kWorkers, {.steps = std::vector<int>(static_cast<size_t>(generations), kSteps),
                                .think_ns = kThinkNs});
  return job;
}

Job HoursJob(int64_t hours) {
  constexpr int64_t kHour = 3600 * kSecond;
  constexpr int64_t kThinkNs = 5 * kSecond;
  Job job;
  SimulationOptions& options = job.options;
  options.links = SimulatedLinks::kDatagrams;
  options.failure_timeout_ns = 5 * kSecond;
  options.forgets = true;
  options.plan.paths.loss = .01;
  for (int64_t i = 0; i < hours / 3; ++i) {
    options.plan.faults.push_back(Restart(i, 3 * kHour, kSecond));
  }
  job.scripts.assign(kWorkers, {.steps = std::vector<int>(static_cast<size_t>(hours),
                                                          static_cast<int>(kHour / kThinkNs)),
                                .think_ns = kThinkNs});
  return job;
}

LongRun RunLong(const Job& job) {
  Simulation simulation(job);
  const int64_t began_ns = simulation.now_ns();
  simulation.Run(/*limit_ns=*/kNever / 2);
  LongRun run;
  run.replaced = simulation.replaced();
  run.rejoined = simulation.rejoined();
  run.generations = static_cast<int64_t>(simulation.holdings().size());
  run.ticks = simulation.ticks();
  run.hours = static_cast<double>(simulation.now_ns() - began_ns) / (3600.0 * kSecond);
  // What comes after the last fault is another job, in which nobody is replaced.
  std::vector<Holdings> holdings = simulation.holdings();
  while (holdings.size() > 1 && holdings.back().replaced == run.replaced) holdings.pop_back();
  const size_t tenth = std::max<size_t>(1, holdings.size() / 10);
  run.first_tenth = MostOf(holdings, 0, std::min(tenth, holdings.size()));
  run.last_tenth =
      MostOf(holdings, holdings.size() - std::min(tenth, holdings.size()), holdings.size());
  run.broken = simulation.violations().empty() ? StaysFlat(run.first_tenth, run.last_tenth)
                                               : simulation.violations().front();
  return run;
}

int64_t ResidentBytes() {
  int64_t pages = 0;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::ifstream("/proc/self/statm") >> pages >> pages;
#endif
  return pages * sysconf(_SC_PAGESIZE);
}

Holdings MostOf(const std::vector<Holdings>& holdings, size_t from, size_t to) {
  Holdings most;
  for (size_t i = from; i < to; ++i) {
    const Holdings& one = holdings[i];
    most.origins = std::max(most.origins, one.origins);
    most.update_bytes = std::max(most.update_bytes, one.update_bytes);
    most.status_bytes = std::max(most.status_bytes, one.status_bytes);
    most.resident_bytes = std::max(most.resident_bytes, one.resident_bytes);
  }
  return most;
}

std::string StaysFlat(const Holdings& first, const Holdings& last) {
  const auto grown = [](const char* what, int64_t before, int64_t now,
                        int64_t most) -> std::string {
    if (now <= most) return "";
    return std::string(what) + " grew from " + std::to_string(before) + " to " +
           std::to_string(now);
  };
  // A few more of whatever chance brings together in so many generations; longer counters in the
  // status; what the allocator keeps.
  for (const std::string& broken :
       {grown("origins in a vector", first.origins, last.origins, first.origins * 3 / 2 + 4),
        grown("bytes of updates that nodes hold", first.update_bytes, last.update_bytes,
              first.update_bytes * 3 / 2 + (8 << 10)),
        grown("bytes of a node's status", first.status_bytes, last.status_bytes,
              first.status_bytes * 5 / 4 + (2 << 10)),
        grown("resident bytes", first.resident_bytes, last.resident_bytes,
              first.resident_bytes + (8 << 20))}) {
    if (!broken.empty()) return broken;
  }
  return "";
}

}  // namespace strom
