#include "sim/cycles_of_shards.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/hash.h"
#include "core/joint/joint_model.h"
#include "sim/combinations.h"
#include "sim/units.h"

namespace strom {

namespace {

// A tick waits for a second at least for whoever it has asked.
constexpr int64_t kOnTimeNs = 300 * kMillisecond;
// Where snapshots may be in cycles in more ways than that, nobody tries them.
constexpr double kMostAssignments = 100'000;
// So many cycles may be over of which nobody has installed the target.
constexpr int64_t kMostUnseen = 4;
// So many cycles at the end, for which no tick has asked, may be made of last snapshots alone.
constexpr int64_t kMostUnasked = 2;
// Of the cycle that ends the generation.
constexpr int64_t kEnd = INT64_MAX;
// What has been given so long ago comes no more.
constexpr int64_t kComesNoMoreNs = 60'000 * kMillisecond;
constexpr double kRelativeTolerance = 1e-4;

bool IsNear(double expected, float value) {
  return std::abs(expected - value) <= kRelativeTolerance * (1 + std::abs(expected));
}

bool AreNear(std::span<const double> expected, std::span<const float> values) {
  return std::equal(expected.begin(), expected.end(), values.begin(), values.end(), IsNear);
}

}  // namespace

CyclesOfShards::CyclesOfShards(const JointPlan& plan, std::optional<std::vector<float>> start,
                               StruckRanks* struck, ModelTally* tally)
    : GivenModels(plan, struck, tally) {
  for (int32_t number = 0; number < plan.method.phases; ++number) {
    Shard& shard = shards_.emplace_back();
    shard.range = ShardOf(plan.size(), plan.method.phases, number);
    shard.last_tick = number - plan.method.phases;
    shard.is_known = start && shard.range.size <= kPartElements;
    if (!shard.is_known) continue;
    const auto from = start->begin() + shard.range.offset;
    shard.joint.assign(from, from + shard.range.size);
    shard.trajectory.resize(shard.joint.size());
    shard.targets[Hash(AsBytes(std::span<const float>(shard.joint)))] = INT64_MIN;
  }
}

void CyclesOfShards::Join(int32_t rank, bool late) {
  if (late) struck_->Excuse(rank);
  for (Shard& shard : shards_) shard.had.erase(rank);
  ended_.erase(rank);
}

void CyclesOfShards::Drain(int32_t rank) {
  for (Shard& shard : shards_) {
    for (Snapshot& snapshot : shard.pending) snapshot.is_held |= snapshot.rank == rank;
  }
}

// (9)
double CyclesOfShards::WeightOf(int64_t steps) const {
  if (plan_.method.weighted != 0) return static_cast<double>(steps);
  return steps > 0 ? 1 : 0;
}

void CyclesOfShards::Note(Given given) {
  const bool is_last = given.mark >= kFirstLastMark;
  const uint64_t number = is_last ? given.mark - kFirstLastMark : given.mark;
  Shard& shard = shards_[number % shards_.size()];
  Snapshot snapshot{given.rank,
                    std::nullopt,
                    given.now_ns,
                    WeightOf(given.steps),
                    std::move(given.values),
                    struck_->CalmSince(given.rank),
                    struck_->Has(given.rank),
                    false};
  if (is_last) {
    ended_.insert(given.rank);
  } else {
    snapshot.tick = static_cast<int64_t>(given.mark);
    shard.asked_ns.try_emplace(*snapshot.tick, given.now_ns);
  }
  std::erase_if(shard.pending, [&](const Snapshot& earlier) {
    return earlier.given_ns < given.now_ns - kComesNoMoreNs && struck_->Has(earlier.rank);
  });
  if (snapshot.weight > 0 && shard.is_known) shard.pending.push_back(std::move(snapshot));
}

std::string CyclesOfShards::Take(int32_t /*rank*/, std::span<const float> /*values*/) {
  return "waits for a joint model as no method with ticks does";
}

double CyclesOfShards::Ramp(int64_t cycles) const {
  const auto length = static_cast<double>(plan_.method.ramp_cycles);
  return length <= 0 ? 1 : std::min(static_cast<double>(cycles) / length, 1.0);
}

// An element after so many cycles more: (8), (9) and (4).
CyclesOfShards::Element CyclesOfShards::Advance(const Shard& shard, const Assignment& assignment,
                                                int64_t cycles, size_t element,
                                                double* gamma) const {
  Element now{shard.joint[element], shard.trajectory[element]};
  int64_t finished = shard.cycles;
  *gamma = shard.gamma;
  for (int64_t cycle = 0; cycle < cycles; ++cycle) {
    double sum = 0, weight = 0;
    for (size_t i = 0; i < assignment.size(); ++i) {
      if (assignment[i] != cycle) continue;
      const Snapshot& snapshot = shard.pending[i];
      sum += snapshot.weight * static_cast<double>(snapshot.values[element]);
      weight += snapshot.weight;
    }
    if (weight == 0) continue;
    const double beta = std::pow(plan_.method.beta, Ramp(finished));
    const double change = beta * (sum / weight - now.joint), delta = plan_.method.delta;
    now.trajectory = static_cast<float>(delta * now.trajectory + (1 - delta) * change);
    now.joint = static_cast<float>(now.joint + change);
    *gamma = plan_.method.gamma * Ramp(finished);
    ++finished;
  }
  return now;
}

bool CyclesOfShards::Fits(const Shard& shard, const Assignment& assignment, int64_t cycles,
                          bool is_target, std::span<const float> values) const {
  for (size_t i = 0; i < values.size(); ++i) {
    double gamma = 0;
    const Element made = Advance(shard, assignment, cycles, i, &gamma);
    const double expected = made.joint + (is_target ? gamma * made.trajectory : 0);  // (5)
    if (!IsNear(expected, values[i])) return false;
  }
  return true;
}

void CyclesOfShards::NoteStruck(Shard* shard) {
  for (Snapshot& snapshot : shard->pending) snapshot.may_be_lost |= struck_->Has(snapshot.rank);
}

// The cycles that a snapshot may be in, of those for which these ticks have asked.
CyclesOfShards::Assignment CyclesOfShards::Allowed(const Shard& shard, const Snapshot& snapshot,
                                                   std::span<const int64_t> ticks) const {
  Assignment allowed;
  for (size_t cycle = 0; cycle < ticks.size(); ++cycle) {
    if (snapshot.tick && *snapshot.tick > ticks[cycle]) continue;
    const auto next = shard.asked_ns.upper_bound(ticks[cycle]);
    if (next != shard.asked_ns.end() && snapshot.given_ns > next->second) continue;
    allowed.push_back(static_cast<int64_t>(cycle));
    const auto asked = shard.asked_ns.find(ticks[cycle]);
    if (snapshot.may_be_lost && !snapshot.is_held) continue;
    if (ticks[cycle] == kEnd) return allowed;
    if (asked == shard.asked_ns.end()) continue;
    // Nobody waits for one that comes late or has ended; what it has given is there if it was given
    // well before.
    const bool is_awaited =
        snapshot.tick == ticks[cycle] && !snapshot.is_held && !ended_.contains(snapshot.rank);
    const int64_t patience_ns = is_awaited ? kOnTimeNs : -kOnTimeNs;
    if (snapshot.given_ns <= asked->second + patience_ns) return allowed;
  }
  allowed.push_back(-1);
  return allowed;
}

void CyclesOfShards::Install(Shard* shard, const Assignment& assignment, int64_t cycles) {
  // Who is as good as new may have lost what it has given before.
  for (Shard& one : shards_) NoteStruck(&one);
  for (size_t i = 0; i < shard->joint.size(); ++i) {
    double gamma = 0;
    const Element made = Advance(*shard, assignment, cycles, i, &gamma);
    // The number of cycles is that of before until the last element.
    shard->joint[i] = static_cast<float>(made.joint);
    shard->trajectory[i] = static_cast<float>(made.trajectory);
    if (i + 1 == shard->joint.size()) shard->gamma = gamma;
  }
  std::vector<Snapshot> left;
  for (int64_t cycle = 0; cycle < cycles; ++cycle) {
    const bool any = std::find(assignment.begin(), assignment.end(), cycle) != assignment.end();
    shard->cycles += any ? 1 : 0;
  }
  for (size_t i = 0; i < assignment.size(); ++i) {
    if (assignment[i] < 0)
      left.push_back(std::move(shard->pending[i]));
    else
      struck_->Heal(shard->pending[i].rank, shard->pending[i].calm_since);
  }
  shard->pending = std::move(left);
}

// The targets of all of these cycles but the last.
void CyclesOfShards::NoteUnseen(Shard* shard, const Assignment& assignment, int64_t cycles) {
  for (int64_t first = 1; first < cycles; ++first) {
    Assignment of_first = assignment;
    for (int64_t& cycle : of_first) cycle = cycle < first ? cycle : -1;
    std::vector<double>& target = shard->unseen[2 * shard->last_tick + first];
    target.clear();
    for (size_t i = 0; i < shard->joint.size(); ++i) {
      double gamma = 0;
      const Element made = Advance(*shard, of_first, first, i, &gamma);
      target.push_back(made.joint + gamma * made.trajectory);
    }
  }
}

// Whether it is a target that is known, and which.
std::optional<int64_t> CyclesOfShards::Find(Shard* shard, std::span<const float> values) {
  const uint64_t hash = Hash(AsBytes(values));
  const auto known = shard->targets.find(hash);
  if (known != shard->targets.end()) return known->second;
  for (const auto& [order, target] : shard->unseen) {
    if (!AreNear(target, values)) continue;
    shard->unseen.erase(order);
    return shard->targets[hash] = order;
  }
  return std::nullopt;
}

// Whether they follow from what is known, by cycles for which these ticks have asked; nullopt where
// there are too many ways in which they may.
std::optional<bool> CyclesOfShards::Explain(Shard* shard, std::span<const int64_t> ticks,
                                            bool is_target, std::span<const float> values) {
  NoteStruck(shard);
  std::vector<Assignment> allowed;
  double ways = 1;
  for (const Snapshot& snapshot : shard->pending) {
    allowed.push_back(Allowed(*shard, snapshot, ticks));
    ways *= static_cast<double>(allowed.back().size());
  }
  if (ways > kMostAssignments) return std::nullopt;
  const auto cycles = std::ssize(ticks);
  return AnyCombination(allowed, [&](const Assignment& assignment) {
    if (!Fits(*shard, assignment, cycles, is_target, values)) return false;
    NoteUnseen(shard, assignment, cycles);
    Install(shard, assignment, cycles);
    shard->last_tick = ticks.back();
    return true;
  });
}

// Tick n + 1 has workers install the target that tick n has sent: with three phases that of the
// shard for which tick n - 2 has asked, with two n - 1, with one n.
std::string CyclesOfShards::TakeTarget(int32_t rank, int32_t number, uint64_t tick,
                                       std::span<const float> values) {
  Shard& shard = shards_[static_cast<size_t>(number)];
  if (!shard.is_known) return ++tally_->unchecked, "";
  if (const auto known = Find(&shard, values)) {
    ++tally_->checked;
    int64_t& latest = shard.had.try_emplace(rank, INT64_MIN).first->second;
    const int64_t had = std::exchange(latest, *known);
    return *known < had ? "installs an older target than before" : "";
  }
  const auto phases = static_cast<int64_t>(shards_.size());
  int64_t latest = static_cast<int64_t>(tick) - phases;
  while ((latest - number) % phases != 0) --latest;
  std::vector<int64_t> ticks;
  for (int64_t at = shard.last_tick + phases; at <= latest; at += phases) ticks.push_back(at);
  const bool may_be_unseen = std::ssize(ticks) > 1 + kMostUnseen;
  std::optional<bool> fits = false;
  for (size_t cycles = 1; cycles <= ticks.size() && fits == false; ++cycles) {
    if (cycles > 1 + kMostUnseen) break;
    fits = Explain(&shard, std::span(ticks).first(cycles), true, values);
  }
  if (!fits || (!*fits && may_be_unseen)) {
    shard.is_known = false;
    return ++tally_->unchecked, "";
  }
  ++tally_->checked;
  if (!*fits) {
    return "installs a target of shard " + std::to_string(number) + " that the " +
           std::to_string(shard.pending.size()) + " snapshots which were given do not make";
  }
  const int64_t order = 2 * shard.last_tick;
  shard.had[rank] = shard.targets[Hash(AsBytes(values))] = order;
  return "";
}

// The last cycles' targets nobody may have installed, and the last one of them may not have been
// made apart from the end.
std::string CyclesOfShards::End(std::span<const float> values) {
  const uint64_t hash = Hash(AsBytes(values));
  if (std::exchange(end_, hash) == hash) return "";
  for (Shard& shard : shards_) {
    if (!shard.is_known) {
      ++tally_->unchecked;
      continue;
    }
    std::vector<int64_t> ticks;
    const auto after = shard.asked_ns.upper_bound(shard.last_tick);
    for (auto at = after; at != shard.asked_ns.end(); ++at) ticks.push_back(at->first);
    const std::span<const float> of_shard = Of(values, shard.range);
    std::optional<bool> fits = false;
    for (int64_t more = -1; more <= kMostUnasked && fits == false; ++more) {
      if (more < 0 && ticks.empty()) continue;
      std::vector<int64_t> of_all = ticks;
      if (more < 0) of_all.pop_back();
      for (int64_t i = 0; i < more; ++i) of_all.push_back(kEnd - 1);
      of_all.push_back(kEnd);
      fits = Explain(&shard, of_all, false, of_shard);
    }
    ++(fits ? tally_->checked : tally_->unchecked);
    shard.is_known = false;  // Who has stood still may install an old target yet.
    if (fits == false) {
      return "has an x~ at the end that the " + std::to_string(shard.pending.size()) +
             " last snapshots which were given do not make";
    }
  }
  return "";
}

}  // namespace strom
