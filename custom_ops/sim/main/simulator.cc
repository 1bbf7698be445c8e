// Runs simulated jobs by their seeds and says which break a promise:
//
//   simulator --seeds 0-999 [--links memory|datagrams|both] [--seconds N]
//             [--jobs
//             any|replacements|drains|masters|silences|fits|starts|one-way|long-lines|joint|both|
//             all]
//   simulator --verbose 123 [--links ...]    one job, with its plan and every event
//   simulator --seeds 0-99 --expect-violation    ends well only where a promise is broken (mutants)
//   simulator --long rejoins:N|hours:N    N processes are replaced in synchronous mode, or N hours
//             of virtual time pass; memory has to stay flat
//
// Exit status: 0 as expected, 1 not so, 2 for wrong arguments.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/jobs.h"
#include "sim/long_run.h"
#include "sim/simulation.h"

namespace strom {
namespace {

struct Arguments {
  uint64_t first = 0, last = 99;
  bool memory = true, datagrams = true;
  bool any = true, replacements = true;  // which jobs
  bool drains = false, masters = false, silences = false, fits = false, starts = false;
  bool one_way = false;
  bool long_lines = false, joint = false;
  std::optional<uint64_t> verbose;
  bool expect_violation = false;
  std::optional<Job> long_job;
  double seconds = 0;  // stops after so long; 0 = never
};

int Usage() {
  std::fprintf(stderr,
               "usage: simulator [--seeds A-B] [--links memory|datagrams|both]\n"
               "                 [--jobs "
               "any|replacements|drains|masters|silences|fits|starts|one-way|long-lines|joint|both|"
               "all]\n"
               "                 [--seconds N]\n"
               "                 [--expect-violation] | --verbose SEED [--links ...] [--jobs ...]\n"
               "                 | --long rejoins:N|hours:N\n");
  return 2;
}

bool Parse(int count, char** words, Arguments* arguments) {
  for (int i = 1; i < count; ++i) {
    const std::string_view option = words[i];
    if (option == "--expect-violation") {
      arguments->expect_violation = true;
      continue;
    }
    if (++i == count) return false;
    char* end = nullptr;
    if (option == "--seeds") {
      arguments->first = arguments->last = std::strtoull(words[i], &end, 10);
      if (*end == '-') arguments->last = std::strtoull(end + 1, &end, 10);
    } else if (option == "--verbose") {
      arguments->verbose = std::strtoull(words[i], &end, 10);
    } else if (option == "--long") {
      const std::string_view job = words[i], name = job.substr(0, job.find(':') + 1);
      const int64_t amount = std::strtoll(words[i] + name.size(), &end, 10);
      if (amount <= 0 || (name != "rejoins:" && name != "hours:")) return false;
      arguments->long_job =
          name == "hours:" ? HoursJob(amount) : RejoinsJob(amount, /*max_staleness=*/0);
    } else if (option == "--seconds") {
      arguments->seconds = std::strtod(words[i], &end);
    } else if (option == "--links") {
      const std::string_view links = words[i];
      arguments->memory = links != "datagrams";
      arguments->datagrams = links != "memory";
      if (links == "memory" || links == "datagrams" || links == "both") continue;
      return false;
    } else if (option == "--jobs") {
      const std::string_view jobs = words[i];
      const bool all = jobs == "all";
      arguments->any = all || jobs == "any" || jobs == "both";
      arguments->replacements = all || jobs == "replacements" || jobs == "both";
      arguments->drains = all || jobs == "drains";
      arguments->masters = all || jobs == "masters";
      arguments->silences = all || jobs == "silences";
      arguments->fits = all || jobs == "fits";
      arguments->starts = all || jobs == "starts";
      arguments->one_way = all || jobs == "one-way";
      arguments->long_lines = all || jobs == "long-lines";
      arguments->joint = all || jobs == "joint";
      if (arguments->any || arguments->replacements || arguments->drains || arguments->masters ||
          arguments->silences || arguments->fits || arguments->starts || arguments->one_way ||
          arguments->long_lines || arguments->joint) {
        continue;
      }
      return false;
    }
    if (end == nullptr || *end != 0) return false;
  }
  return arguments->first <= arguments->last;
}

const char* NameOf(SimulatedLinks links) {
  return links == SimulatedLinks::kMemory ? "memory" : "datagrams";
}

// What jobs were looked at for.
struct Looks {
  int64_t ticks = 0;
  int64_t models = 0, unknown_models = 0;  // that were installed; of which too little is known
};

// Runs one job; true where every promise was kept.
bool RunJob(const Job& job, bool verbose, Looks* looks) {
  if (verbose) std::printf("%s", DescribeJob(job).c_str());
  Simulation simulation(job);
  if (verbose) {
    simulation.SetLog([](const std::string& line) { std::printf("%s\n", line.c_str()); });
  }
  simulation.Run();
  looks->ticks += simulation.ticks();
  looks->models += simulation.ledger().checked_models();
  looks->unknown_models += simulation.ledger().unchecked_models();
  if (simulation.violations().empty()) return true;
  std::printf("%s: %s\n", NameOf(job.options.links), simulation.violations().front().c_str());
  return false;
}

int MainOfLong(const Job& job) {
  const auto started = std::chrono::steady_clock::now();
  const LongRun run = RunLong(job);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  const auto held = [](const Holdings& most) {
    return std::to_string(most.origins) + " origins, " + std::to_string(most.update_bytes) +
           " bytes of updates, a status of " + std::to_string(most.status_bytes) + " bytes, " +
           std::to_string(most.resident_bytes >> 10) + " KiB resident";
  };
  if (!run.broken.empty()) std::printf("%s\n", run.broken.c_str());
  std::printf("first tenth: at most %s\nlast tenth: at most %s\n", held(run.first_tenth).c_str(),
              held(run.last_tenth).c_str());
  std::printf(
      "%lld replaced, %lld of them in a generation that ran, %lld generations, %.1f hours, "
      "%lld ticks, %.1f s\n",
      static_cast<long long>(run.replaced), static_cast<long long>(run.rejoined),
      static_cast<long long>(run.generations), run.hours, static_cast<long long>(run.ticks),
      seconds.count());
  return run.broken.empty() ? 0 : 1;
}

int Main(const Arguments& arguments) {
  if (arguments.long_job) return MainOfLong(*arguments.long_job);
  std::vector<SimulatedLinks> speeds;
  if (arguments.memory) speeds.push_back(SimulatedLinks::kMemory);
  if (arguments.datagrams) speeds.push_back(SimulatedLinks::kDatagrams);
  int64_t runs = 0, broken = 0;
  Looks looks;
  const auto started = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  const uint64_t first = arguments.verbose.value_or(arguments.first);
  const uint64_t last = arguments.verbose.value_or(arguments.last);
  for (uint64_t seed = first; seed <= last; ++seed) {
    if (arguments.seconds > 0 && seconds() > arguments.seconds) break;
    for (const SimulatedLinks links : speeds) {
      std::vector<Job> jobs;
      if (arguments.any) jobs.push_back(DrawJob(seed, links));
      if (arguments.replacements) jobs.push_back(DrawJobWithReplacements(seed, links));
      if (arguments.drains) jobs.push_back(DrawJobWithDrains(seed, links));
      if (arguments.masters) jobs.push_back(DrawJobWithMasters(seed, links));
      if (arguments.silences) jobs.push_back(DrawJobWithSilences(seed, links));
      if (arguments.fits) jobs.push_back(DrawJobWithFits(seed, links));
      if (arguments.starts) jobs.push_back(DrawJobWithSlowStarts(seed, links));
      if (arguments.one_way) jobs.push_back(DrawJobWithOneWayCuts(seed, links));
      if (arguments.long_lines) jobs.push_back(DrawJobOnLongLines(seed, links));
      if (arguments.joint) jobs.push_back(DrawJobWithJointModel(seed, links));
      if (arguments.joint) jobs.push_back(DrawJobWithGradients(seed, links));
      if (arguments.joint) jobs.push_back(DrawJobWithJointModelAndMasters(seed, links));
      for (const Job& job : jobs) {
        ++runs;
        broken += RunJob(job, arguments.verbose.has_value(), &looks) ? 0 : 1;
      }
    }
    if (arguments.expect_violation && broken > 0) break;
    std::fflush(stdout);
  }
  std::printf(
      "%lld runs, %lld broken, %lld ticks, %lld joint models checked and %lld not, %.1f s\n",
      static_cast<long long>(runs), static_cast<long long>(broken),
      static_cast<long long>(looks.ticks), static_cast<long long>(looks.models),
      static_cast<long long>(looks.unknown_models), seconds());
  return (broken > 0) == arguments.expect_violation ? 0 : 1;
}

}  // namespace
}  // namespace strom

int main(int count, char** words) {
  strom::Arguments arguments;
  if (!strom::Parse(count, words, &arguments)) return strom::Usage();
  return strom::Main(arguments);
}
