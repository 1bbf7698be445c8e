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
constexpr double kRoundingTolerance = 1e-4;

bool IsNear(double expected, float value) {
  return std::abs(expected - value) <= kRoundingTolerance * (1 + std::abs(expected));
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
    shard.is_known = start && shard.range.size <= kMostJudged;
    if (!shard.is_known) continue;
    const std::span<const float> joint = Of(*start, shard.range);
    for (const ElementRange& range : PartsOfShard(plan, shard.range.size)) {
      Part& part = shard.parts.emplace_back();
      part.range = range;
      const std::span<const float> here = Of(joint, part.range);
      part.joint.assign(here.begin(), here.end());
      part.trajectory.resize(part.joint.size());
    }
    shard.targets[Hash(AsBytes(joint))] = INT64_MIN;
  }
}

void CyclesOfShards::Join(int32_t rank, bool late) {
  if (late) struck_->Excuse(rank);
  for (Shard& shard : shards_) shard.had.erase(rank);
  ended_.erase(rank);
}

void CyclesOfShards::Drain(int64_t now_ns, int32_t rank) {
  for (Shard& shard : shards_) {
    for (Part& part : shard.parts) {
      for (Snapshot& snapshot : part.pending) {
        if (snapshot.rank == rank && !snapshot.held_ns) snapshot.held_ns = now_ns;
      }
    }
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
                    std::make_shared<const std::vector<float>>(std::move(given.values)),
                    struck_->CalmSince(given.rank),
                    struck_->Has(given.rank),
                    std::nullopt};
  if (is_last) {
    ended_.insert(given.rank);
  } else {
    snapshot.tick = static_cast<int64_t>(given.mark);
    shard.asked_ns.try_emplace(*snapshot.tick, given.now_ns);
  }
  for (Part& part : shard.parts) {
    std::erase_if(part.pending, [&](const Snapshot& earlier) {
      return earlier.given_ns < given.now_ns - kComesNoMoreNs && struck_->Has(earlier.rank);
    });
    if (snapshot.weight > 0) part.pending.push_back(snapshot);
  }
}

std::string CyclesOfShards::Take(int32_t /*rank*/, std::span<const float> /*values*/) {
  return "waits for a joint model as no method with ticks does";
}

double CyclesOfShards::Ramp(int64_t cycles) const {
  const auto length = static_cast<double>(plan_.method.ramp_cycles);
  return length <= 0 ? 1 : std::min(static_cast<double>(cycles) / length, 1.0);
}

CyclesOfShards::Course CyclesOfShards::Course::First(int64_t cycles) const {
  Course first{{changes.begin(), changes.begin() + cycles}, of_parts};
  for (Assignment& assignment : first.of_parts) {
    for (int64_t& cycle : assignment) cycle = cycle < cycles ? cycle : -1;
  }
  return first;
}

double CyclesOfShards::GammaAfter(const Shard& shard, const Changes& changes) const {
  const int64_t more = std::count(changes.begin(), changes.end(), true);
  return more == 0 ? shard.gamma : plan_.method.gamma * Ramp(shard.cycles + more - 1);
}

// An element of a part after these cycles: (8), (9) and (4).
CyclesOfShards::Element CyclesOfShards::Advance(const Shard& shard, const Part& part,
                                                const Changes& changes,
                                                const Assignment& assignment,
                                                size_t element) const {
  Element now{part.joint[element], part.trajectory[element]};
  const size_t in_shard = static_cast<size_t>(part.range.offset) + element;
  int64_t finished = shard.cycles;
  for (size_t cycle = 0; cycle < changes.size(); ++cycle) {
    double sum = 0, weight = 0;
    for (size_t i = 0; i < assignment.size(); ++i) {
      if (assignment[i] != static_cast<int64_t>(cycle)) continue;
      const Snapshot& snapshot = part.pending[i];
      sum += snapshot.weight * static_cast<double>((*snapshot.values)[in_shard]);
      weight += snapshot.weight;
    }
    if (weight > 0) {
      const double beta = std::pow(plan_.method.beta, Ramp(finished));
      const double change = beta * (sum / weight - now.joint), delta = plan_.method.delta;
      now.trajectory = static_cast<float>(delta * now.trajectory + (1 - delta) * change);
      now.joint = static_cast<float>(now.joint + change);
    }
    finished += changes[cycle] ? 1 : 0;
  }
  return now;
}

bool CyclesOfShards::Fits(const Shard& shard, const Part& part, const Changes& changes,
                          const Assignment& assignment, bool is_target,
                          std::span<const float> values) const {
  for (const int64_t cycle : assignment) {
    if (cycle >= 0 && !changes[static_cast<size_t>(cycle)]) return false;
  }
  const double gamma = is_target ? GammaAfter(shard, changes) : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const Element made = Advance(shard, part, changes, assignment, i);
    if (!IsNear(made.joint + gamma * made.trajectory, values[i])) return false;  // (5)
  }
  return true;
}

void CyclesOfShards::NoteStruck(Shard* shard) {
  for (Part& part : shard->parts) {
    for (Snapshot& snapshot : part.pending) snapshot.may_be_lost |= struck_->Has(snapshot.rank);
  }
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
    if (snapshot.may_be_lost && !snapshot.held_ns) continue;
    if (ticks[cycle] == kEnd) return allowed;
    if (asked == shard.asked_ns.end()) continue;
    // What may have been lost, and be given again, is there at last when its worker leaves.
    if (snapshot.may_be_lost && *snapshot.held_ns > asked->second - kOnTimeNs) continue;
    // Nobody waits for one that comes late or has ended; what it has given is there if it was given
    // well before.
    const bool is_awaited =
        snapshot.tick == ticks[cycle] && !snapshot.held_ns && !ended_.contains(snapshot.rank);
    const int64_t patience_ns = is_awaited ? kOnTimeNs : -kOnTimeNs;
    if (snapshot.given_ns <= asked->second + patience_ns) return allowed;
  }
  allowed.push_back(-1);
  return allowed;
}

void CyclesOfShards::Install(Shard* shard, const Course& course) {
  // Who is as good as new may have lost what it has given before.
  for (Shard& one : shards_) NoteStruck(&one);
  for (size_t p = 0; p < shard->parts.size(); ++p) {
    Part& part = shard->parts[p];
    const Assignment& assignment = course.of_parts[p];
    for (size_t i = 0; i < part.joint.size(); ++i) {
      const Element made = Advance(*shard, part, course.changes, assignment, i);
      part.joint[i] = static_cast<float>(made.joint);
      part.trajectory[i] = static_cast<float>(made.trajectory);
    }
    std::vector<Snapshot> left;
    for (size_t i = 0; i < assignment.size(); ++i) {
      if (assignment[i] < 0) {
        left.push_back(std::move(part.pending[i]));
      } else if (p + 1 == shard->parts.size()) {  // parts come in order
        struck_->Heal(part.pending[i].rank, part.pending[i].calm_since);
      }
    }
    part.pending = std::move(left);
  }
  shard->gamma = GammaAfter(*shard, course.changes);
  shard->cycles += std::count(course.changes.begin(), course.changes.end(), true);
}

// The targets of all of these cycles but the last.
void CyclesOfShards::NoteUnseen(Shard* shard, const Course& course) {
  for (int64_t cycles = 1; cycles < std::ssize(course.changes); ++cycles) {
    const Course first = course.First(cycles);
    const double gamma = GammaAfter(*shard, first.changes);
    std::vector<double>& target = shard->unseen[2 * shard->last_tick + cycles];
    target.clear();
    for (size_t p = 0; p < shard->parts.size(); ++p) {
      const Part& part = shard->parts[p];
      for (size_t i = 0; i < part.joint.size(); ++i) {
        const Element made = Advance(*shard, part, first.changes, first.of_parts[p], i);
        target.push_back(made.joint + gamma * made.trajectory);
      }
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

// One in which these cycles have changed it, and only these; nullopt = there is none. `allowed`:
// of each part the cycles of each snapshot.
std::optional<CyclesOfShards::Course> CyclesOfShards::CourseTo(
    const Shard& shard, const Changes& changes, const std::vector<std::vector<Assignment>>& allowed,
    bool is_target, std::span<const float> values) const {
  const auto fits = [&](size_t p, const Assignment& assignment) {
    const Part& part = shard.parts[p];
    return Fits(shard, part, changes, assignment, is_target, Of(values, part.range));
  };
  const auto complete = [&](Course course) -> std::optional<Course> {
    Changes seen(changes.size());
    for (const Assignment& assignment : course.of_parts) {
      for (const int64_t cycle : assignment) {
        if (cycle >= 0) seen[static_cast<size_t>(cycle)] = true;
      }
    }
    return seen == changes ? std::optional(std::move(course)) : std::nullopt;
  };
  // Mostly whole snapshots are in a cycle. A part may be so short, or what is given so near to what
  // is there, that several ways fit it: that of all of them counts first.
  std::optional<Course> found;
  const bool are_alike = std::all_of(shard.parts.begin(), shard.parts.end(), [&](const Part& part) {
    return IsPendingAlike(part, shard.parts.front());
  });
  if (are_alike) {
    AnyCombination(allowed.front(), [&](const Assignment& assignment) {
      for (size_t p = 0; p < shard.parts.size(); ++p) {
        if (!fits(p, assignment)) return false;
      }
      found = complete({changes, std::vector<Assignment>(shard.parts.size(), assignment)});
      return found.has_value();
    });
  }
  if (found) return found;
  Course course{changes, {}};
  for (size_t p = 0; p < shard.parts.size(); ++p) {
    const bool any = AnyCombination(allowed[p], [&](const Assignment& assignment) {
      if (fits(p, assignment)) course.of_parts.push_back(assignment);
      return course.of_parts.size() > p;
    });
    if (!any) return std::nullopt;
  }
  return complete(std::move(course));
}

bool CyclesOfShards::IsPendingAlike(const Part& a, const Part& b) {
  return std::equal(
      a.pending.begin(), a.pending.end(), b.pending.begin(), b.pending.end(),
      [](const Snapshot& one, const Snapshot& other) { return one.values == other.values; });
}

// Whether they follow from what is known, by cycles for which these ticks have asked; nullopt where
// there are too many ways in which they may.
std::optional<bool> CyclesOfShards::Explain(Shard* shard, std::span<const int64_t> ticks,
                                            bool is_target, std::span<const float> values) {
  NoteStruck(shard);
  std::vector<std::vector<Assignment>> allowed;
  Changes may(ticks.size()), must(ticks.size());  // change the shard
  double most_ways = 1;
  for (const Part& part : shard->parts) {
    std::vector<Assignment>& of_part = allowed.emplace_back();
    double ways = 1;
    for (const Snapshot& snapshot : part.pending) {
      const Assignment& cycles = of_part.emplace_back(Allowed(*shard, snapshot, ticks));
      ways *= static_cast<double>(cycles.size());
      for (const int64_t cycle : cycles) {
        if (cycle < 0) continue;
        may[static_cast<size_t>(cycle)] = true;
        if (cycles.size() == 1) must[static_cast<size_t>(cycle)] = true;
      }
    }
    most_ways = std::max(most_ways, ways);
  }
  std::vector<std::vector<bool>> choices;
  for (size_t cycle = 0; cycle < ticks.size(); ++cycle) {
    std::vector<bool>& choice = choices.emplace_back();
    if (may[cycle]) choice.push_back(true);
    if (!must[cycle]) choice.push_back(false);
    most_ways *= static_cast<double>(choice.size());
  }
  if (most_ways > kMostAssignments) return std::nullopt;
  return AnyCombination(choices, [&](const Changes& changes) {
    const auto course = CourseTo(*shard, changes, allowed, is_target, values);
    if (!course) return false;
    NoteUnseen(shard, *course);
    Install(shard, *course);
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
           std::to_string(shard.parts.front().pending.size()) +
           " snapshots which were given do not make";
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
      return "has an x~ at the end that the " + std::to_string(shard.parts.front().pending.size()) +
             " last snapshots which were given do not make";
    }
  }
  return "";
}

}  // namespace strom
