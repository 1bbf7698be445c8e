#include "sim/jobs.h"

#include <algorithm>
#include <iterator>

#include "sim/random.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

enum class Trouble { kAny, kReplacements, kMasters, kSilences, kFits, kOneWay };

Job DrawAnyJob(uint64_t seed, SimulatedLinks links, Trouble trouble) {
  SimulatedRandom random(seed);
  Job job;
  SimulationOptions& options = job.options;
  options.seed = seed;
  options.links = links;
  constexpr int32_t kModes[] = {-1, -1, -1, 0, 0, 1, 4};
  options.max_staleness = kModes[random.Below(std::size(kModes))];
  if (random.Chance(.6)) options.topology = Topology::kMesh;
  options.max_children = static_cast<int32_t>(random.Between(2, 3));
  options.machines = static_cast<int32_t>(random.Between(1, 3));
  if (random.Chance(.25)) options.link_queue_bytes = random.Between(200, 4000);
  options.failure_timeout_ns = 400 * kMillisecond;
  if (random.Chance(.2)) options.first_link_sequence = uint32_t{0} - 300;
  const int32_t workers = static_cast<int32_t>(random.Between(5, 7));
  const int64_t think_ns = random.Between(4, 20) * kMillisecond;
  const bool fits = trouble == Trouble::kFits;
  const int64_t generations = fits ? random.Between(4, 8) : random.Between(1, 2);
  if (trouble == Trouble::kOneWay) {
    options.packets_per_key_phase = static_cast<uint64_t>(random.Between(20, 200));
  }
  const bool silences = trouble == Trouble::kSilences;
  const bool masters = trouble == Trouble::kMasters;
  if (silences || masters) options.max_staleness = -1;
  if (masters) options.master_wait_ns = 60'000 * kMillisecond;
  const int64_t patience = silences ? 3 : 1;  // others are to train still when somebody comes back
  int64_t span_ns = 0;
  for (int32_t rank = 0; rank < workers; ++rank) {
    Script& script = job.scripts.emplace_back();
    script.steps.clear();
    // Two updates a step on average.
    for (int64_t i = 0; i < generations; ++i) {
      script.steps.push_back(static_cast<int>(patience * random.Between(115, 140) / generations));
    }
    script.think_ns = think_ns * random.Between(70, 130) / 100;
    script.state = rank;
    for (int64_t i = random.Between(0, 3); i > 0; --i) {
      script.average_before.insert(static_cast<int>(random.Below(110)));
    }
    if (rank == 0 && random.Chance(.5)) {
      script.validate_before = {static_cast<int>(random.Below(60))};
      script.validate_ns = options.failure_timeout_ns * random.Between(5, 50) / 10;
    }
    span_ns = std::max(span_ns, 120 * script.think_ns);
  }
  SimulatedRandom givers(seed + 1);
  for (Script& script : job.scripts) {
    script.donation_bytes = givers.Chance(.2) ? givers.Between(-1, 0) : givers.Between(1, 20'000);
  }
  if (random.Chance(.1)) job.scripts[0].stop_all = true;
  options.plan = FaultPlan::Draw(seed, {.workers = workers,
                                        .span_ns = span_ns,
                                        .failure_timeout_ns = options.failure_timeout_ns,
                                        .master_too = !masters,
                                        .replacements = trouble == Trouble::kReplacements || fits,
                                        .masters = masters,
                                        .silences = silences,
                                        .one_way = trouble == Trouble::kOneWay});
  return job;
}

}  // namespace

Job DrawJob(uint64_t seed, SimulatedLinks links) { return DrawAnyJob(seed, links, Trouble::kAny); }

Job DrawJobWithReplacements(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kReplacements);
}

Job DrawJobWithMasters(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kMasters);
}

Job DrawJobWithSilences(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kSilences);
}

Job DrawJobWithFits(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kFits);
}

Job DrawJobWithOneWayCuts(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kOneWay);
}

std::string DescribeJob(const Job& job) {
  const int32_t staleness = job.options.max_staleness;
  std::string text = "seed " + std::to_string(job.options.seed) + ": " +
                     std::to_string(job.scripts.size()) + " workers, " +
                     (staleness < 0    ? std::string("asynchronous")
                      : staleness == 0 ? std::string("synchronous")
                                       : "staleness " + std::to_string(staleness)) +
                     (job.options.topology == Topology::kMesh ? ", mesh" : ", plain") +
                     ", queues of " + std::to_string(job.options.link_queue_bytes) + " bytes" +
                     ", failure timeout " +
                     std::to_string(job.options.failure_timeout_ns / kMillisecond) + " ms\n";
  for (size_t rank = 0; rank < job.scripts.size(); ++rank) {
    text += "worker " + std::to_string(rank) + ": steps";
    for (const int steps : job.scripts[rank].steps) text += " " + std::to_string(steps);
    text += " of " + std::to_string(job.scripts[rank].think_ns / kMillisecond) + " ms\n";
  }
  return text + job.options.plan.Text();
}

}  // namespace strom
