#include "sim/jobs.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/joint/joint_model.h"
#include "core/replication/blob.h"
#include "sim/random.h"
#include "sim/units.h"

namespace strom {
namespace {

enum class Trouble {
  kAny,
  kReplacements,
  kDrains,
  kMasters,
  kMastersAndDrains,
  kSilences,
  kFits,
  kOneWay,
  kStarts,
  kLongLines
};

// Faults that strike in the middle of what comes at a generation's start and end, which is several
// chunks of a large model on lines that take a while for it.
struct Starts {
  bool are_slow = false;
  bool masters = false;
  bool everybody = false;
};
Starts DrawStarts(uint64_t seed, Trouble trouble) {
  SimulatedRandom random(seed + 6);
  Starts starts;
  starts.are_slow = trouble == Trouble::kStarts;
  starts.masters = starts.are_slow && random.Chance(.3);
  starts.everybody = starts.are_slow && !starts.masters && random.Chance(.4);
  return starts;
}

void MakeStartsSlow(uint64_t seed, Job* job) {
  SimulatedRandom random(seed + 7);
  SimulationOptions& options = job->options;
  options.check_every = 50;  // a look at a large model takes long
  options.chief_is_ahead = .7;
  options.cut_off_at_pieces = random.Chance(.7) ? .1 : 0;
  options.link_queue_bytes = int64_t{64} << 20;
  const int64_t size = random.Between(1, 3) * (kChunkBytes / 4) + random.Below(1000);
  for (Script& script : job->scripts) {
    script.layout_size = size;
    script.trained = 200;
    script.restores = true;
  }
  PathOptions& paths = options.plan.paths;
  paths.rate_bytes = random.Between(5, 20) * 1'000'000;
  // Links in memory have no packets of which a full buffer would lose some.
  paths.buffer_bytes =
      options.links == SimulatedLinks::kMemory ? int64_t{1} << 40 : random.Between(64, 256) << 10;
}

Job DrawAnyJob(uint64_t seed, SimulatedLinks links, Trouble trouble, bool may_be_few = false) {
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
  const bool long_lines = trouble == Trouble::kLongLines;
  // Who lags catches up by as much in a round trip as a queue holds.
  const int64_t least_queue = long_lines ? 4000 : 200;
  if (random.Chance(.25)) options.link_queue_bytes = random.Between(least_queue, 20 * least_queue);
  options.failure_timeout_ns = (long_lines ? 12'000 : 400) * kMillisecond;
  if (random.Chance(.2)) options.first_link_sequence = uint32_t{0} - 300;
  auto workers = static_cast<int32_t>(random.Between(5, 7));
  SimulatedRandom few(seed + 9);
  if (may_be_few && few.Chance(.25)) {
    // Silences strike one of at least three.
    workers = static_cast<int32_t>(few.Between(trouble == Trouble::kSilences ? 3 : 2, 4));
  }
  const int64_t think_ns = random.Between(4, 20) * (long_lines ? 10 : 1) * kMillisecond;
  const Starts starts = DrawStarts(seed, trouble);
  const bool fits = trouble == Trouble::kFits || starts.are_slow;
  if (starts.are_slow) options.failure_timeout_ns = 1200 * kMillisecond;
  const int64_t generations = fits ? random.Between(4, 8) : random.Between(1, 2);
  if (trouble == Trouble::kOneWay) {
    options.packets_per_key_phase = static_cast<uint64_t>(random.Between(20, 200));
  }
  const bool silences = trouble == Trouble::kSilences;
  const bool drains_too = trouble == Trouble::kMastersAndDrains;
  const bool masters = trouble == Trouble::kMasters || drains_too || starts.masters;
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
  SimulatedRandom merging(seed + 3);
  if (options.max_staleness < 0 && merging.Chance(.5)) {
    options.merging = Merging::kOn;
    options.merging_interval_ns = merging.Between(0, 2 * think_ns);
  }
  if (random.Chance(.1)) job.scripts[0].stop_all = true;
  options.plan = FaultPlan::Draw(seed, {.workers = workers,
                                        .span_ns = span_ns,
                                        .failure_timeout_ns = options.failure_timeout_ns,
                                        .master_too = !masters,
                                        .replacements = trouble == Trouble::kReplacements || fits,
                                        .drains = trouble == Trouble::kDrains || drains_too,
                                        .masters = masters,
                                        .silences = silences,
                                        .one_way = trouble == Trouble::kOneWay,
                                        .everybody = starts.everybody,
                                        .long_lines = long_lines});
  if (starts.are_slow) MakeStartsSlow(seed, &job);
  return job;
}

// On a joint model epochs end with several averages. Now and then they are as long on all workers,
// and nothing happens to anybody: where rounds are of given steps, all meet there then.
void DrawEpochs(uint64_t seed, Job* job) {
  SimulatedRandom random(seed + 5);
  const auto averages = static_cast<int>(random.Between(1, 3));
  for (Script& script : job->scripts) script.averages = averages;
  const JointPlan& plan = job->scripts[0].plan;
  if (!plan.HasRounds() || plan.method.steps == 0 || !random.Chance(.25)) return;
  job->options.plan.faults.clear();
  const auto epoch = static_cast<int>(random.Between(1, 40));
  std::set<int> ends;
  for (int step = epoch; step < 110; step += epoch) ends.insert(step);
  for (Script& script : job->scripts) {
    script.steps = job->scripts[0].steps;
    script.average_before = ends;
    script.averages_meet = true;
    script.stop_all = false;
  }
}

JointPlan DrawPlan(uint64_t seed, SimulatedLinks links, int64_t* layout_size) {
  SimulatedRandom random(seed + 2);
  JointPlan plan;
  strom_method& method = plan.method;
  constexpr int32_t kKinds[] = {STROM_MPCA,     STROM_MPCA,  STROM_MPCA,
                                STROM_SPARKNET, STROM_EASGD, STROM_EASGD_SYNCHRONOUS};
  method.kind = kKinds[random.Below(std::size(kKinds))];
  const bool is_mpca = method.kind == STROM_MPCA;
  method.phases = is_mpca ? static_cast<int32_t>(random.Between(1, 3)) : 1;
  method.alpha = static_cast<double>(random.Between(0, 20)) / 20;
  method.beta = static_cast<double>(random.Between(1, 20)) / 20;
  if (is_mpca) {
    method.gamma = static_cast<double>(random.Between(0, 10)) / 10;
    method.delta = static_cast<double>(random.Between(0, 9)) / 10;
    method.weighted = random.Chance(.7) ? 1 : 0;
    method.start_alpha = .5;
    method.free_cycles = random.Between(0, 3);
    method.start_cycles = method.ramp_cycles = random.Between(0, 20);
    method.min_steps = random.Between(1, 8);
  } else if (random.Chance(.7)) {
    method.steps = random.Between(1, 20);
  }
  if (method.kind == STROM_SPARKNET) method.bfloat16 = random.Chance(.5) ? 1 : 0;
  // Now and then of parts of full length, where no line makes them take longer than the laws are
  // patient.
  const bool is_large = random.Chance(.01) && links == SimulatedLinks::kMemory;
  // Of a part of EASGD's what was given is read, and it has to be longer than that is much.
  const int64_t small = random.Between(48, 200) * (method.kind == STROM_EASGD ? 8 : 1);
  const int64_t first = is_large ? 3 * kPartElements + random.Below(1000) : small;
  plan.ranges = {{random.Below(5), first}};
  if (random.Chance(.5)) plan.ranges.push_back({plan.ranges[0].end() + random.Between(1, 5), 7});
  *layout_size = plan.ranges.back().end() + random.Below(4);
  return plan;
}

Job WithJointModel(uint64_t seed, Job job) {
  job.options.max_staleness = -1;
  int64_t layout_size = 0;
  const JointPlan plan = DrawPlan(seed, job.options.links, &layout_size);
  // The snapshots alone are longer than the queues of small ones.
  job.options.link_queue_bytes = int64_t{64} << 20;
  for (Script& script : job.scripts) {
    script.plan = plan;
    script.layout_size = layout_size;
    script.workers = static_cast<int32_t>(job.scripts.size());
  }
  return job;
}

Trouble DrawTroubleWithMasters(uint64_t seed) {
  const bool drains_too = SimulatedRandom(seed + 8).Chance(.3);
  return drains_too ? Trouble::kMastersAndDrains : Trouble::kMasters;
}

Job DrawJobOfModels(uint64_t seed, SimulatedLinks links) {
  const Trouble troubles[] = {Trouble::kAny,  Trouble::kReplacements, Trouble::kSilences,
                              Trouble::kFits, Trouble::kOneWay,       Trouble::kDrains};
  const Trouble trouble = troubles[seed % std::size(troubles)];
  return WithJointModel(seed, DrawAnyJob(seed, links, trouble, /*may_be_few=*/true));
}

}  // namespace

Job DrawJob(uint64_t seed, SimulatedLinks links) { return DrawAnyJob(seed, links, Trouble::kAny); }

Job DrawJobWithReplacements(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kReplacements);
}

Job DrawJobWithDrains(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kDrains);
}

// In some of them workers have to leave, too, perhaps while another master is awaited.
Job DrawJobWithMasters(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, DrawTroubleWithMasters(seed));
}

Job DrawJobWithSilences(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kSilences);
}

Job DrawJobWithFits(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kFits);
}

Job DrawJobWithSlowStarts(uint64_t seed, SimulatedLinks links) {
  Job job = DrawAnyJob(seed, links, Trouble::kStarts);
  if (seed % 3 != 0) return job;
  const int64_t size = job.scripts[0].layout_size;
  job = WithJointModel(seed, std::move(job));
  for (Script& script : job.scripts) script.layout_size += size;  // what nobody trains
  return job;
}

Job DrawJobWithOneWayCuts(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kOneWay);
}

Job DrawJobOnLongLines(uint64_t seed, SimulatedLinks links) {
  return DrawAnyJob(seed, links, Trouble::kLongLines);
}

Job DrawJobWithJointModel(uint64_t seed, SimulatedLinks links) {
  Job job = DrawJobOfModels(seed, links);
  DrawEpochs(seed, &job);
  return job;
}

Job DrawJobWithGradients(uint64_t seed, SimulatedLinks links) {
  Job job = DrawJobOfModels(seed, links);
  SimulatedRandom random(seed + 4);
  const int32_t bfloat16 = random.Chance(.5) ? 1 : 0;
  for (Script& script : job.scripts) {
    script.plan.method = {};
    script.plan.method.kind = STROM_SPARKNET;
    script.plan.method.phases = script.plan.method.gradients = 1;
    script.plan.method.steps = 1;
    script.plan.method.bfloat16 = bfloat16;
    script.donation_bytes = std::max<int64_t>(script.donation_bytes, 0);  // all have something
  }
  DrawEpochs(seed, &job);
  if (!job.scripts[0].averages_meet) job.options.cut_off_at_last = .1;
  return job;
}

Job DrawJobWithJointModelAndMasters(uint64_t seed, SimulatedLinks links) {
  return WithJointModel(seed,
                        DrawAnyJob(seed, links, DrawTroubleWithMasters(seed), /*may_be_few=*/true));
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
                     (job.options.merging == Merging::kOn ? ", merged" : "") +
                     ", failure timeout " +
                     std::to_string(job.options.failure_timeout_ns / kMillisecond) + " ms\n";
  if (const JointPlan& plan = job.scripts.at(0).plan; plan.IsJoint()) {
    text += "a joint model of " + std::to_string(plan.size()) + " elements by method " +
            std::to_string(plan.method.kind) + " in " + std::to_string(plan.method.phases) +
            " phases, steps " + std::to_string(plan.method.steps) +
            (plan.method.bfloat16 != 0 ? ", bfloat16" : "") +
            (plan.IsOfGradients() ? ", of gradients" : "") +
            (job.scripts[0].averages_meet ? ", with epochs as long for all" : "") + "\n";
  }
  for (size_t rank = 0; rank < job.scripts.size(); ++rank) {
    text += "worker " + std::to_string(rank) + ": steps";
    for (const int steps : job.scripts[rank].steps) text += " " + std::to_string(steps);
    text += " of " + std::to_string(job.scripts[rank].think_ns / kMillisecond) + " ms\n";
  }
  return text + job.options.plan.Text();
}

}  // namespace strom
