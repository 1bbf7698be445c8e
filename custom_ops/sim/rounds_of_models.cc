#include "sim/rounds_of_models.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/base/hash.h"
#include "core/joint/bfloat16.h"
#include "sim/combinations.h"

namespace strom {

namespace {

constexpr size_t kRememberedOfRounds = 8;
// What one who was struck has got alone is that of others before so many more rounds are over.
constexpr uint64_t kRoundsToMatch = 4;
// Where there are more ways than that in which a round may have been made, nobody tries them.
constexpr size_t kMostWorlds = 20'000;

bool AreSameBits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float one, float other) {
    return std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
  });
}

float Rounded(float before, float after) {
  std::array<uint8_t, kBfloat16Bytes> change{};
  EncodeChange({&before, 1}, {&after, 1}, change);
  AddChange({&before, 1}, change, {&after, 1});
  return after;
}

std::string InRound(uint64_t number) { return " of round " + std::to_string(number); }

}  // namespace

RoundsOfModels::RoundsOfModels(const JointPlan& plan, std::optional<std::vector<float>> start,
                               StruckRanks* struck, ModelTally* tally)
    : GivenModels(plan, struck, tally), knows_start_(start.has_value()) {
  if (start) Keep(0, *start);
}

void RoundsOfModels::Join(int32_t rank, bool late) {
  trainers_[rank] = {};
  trainers_[rank].is_late = late;
  if (late) struck_->Excuse(rank);
}

void RoundsOfModels::Note(Given given) {
  Trainer& trainer = trainers_[given.rank];
  const auto values = std::make_shared<const std::vector<float>>(std::move(given.values));
  if (given.mark >= kFirstLastMark) {
    trainer.trains = false;
    last_snapshots_[given.rank].push_back({trainer.next_round, values});
    return;
  }
  const bool has_heard =
      trainer.has_given || (knows_start_ && (!trainer.is_late || given.mark > 0));
  trainer.has_given = true;
  trainer.calm_since = struck_->CalmSince(given.rank);
  trainer.round = has_heard ? std::optional(given.mark) : std::nullopt;
  const uint64_t first_round = rounds_.empty() ? 0 : rounds_.begin()->first;
  std::vector<Loose>& loose = loose_[given.rank];
  if (!has_heard) return loose.push_back({values, first_round, UINT64_MAX});
  for (Loose& earlier : loose) earlier.to = std::min(earlier.to, given.mark - 1);
  std::erase_if(loose, [&](const Loose& one) { return one.to < first_round; });
  trainer.next_round = given.mark;
  if (given.mark < first_round) return;
  rounds_[given.mark].by_rank[given.rank].push_back(values);
  if (rounds_.size() > kRememberedOfRounds) rounds_.erase(rounds_.begin());
}

void RoundsOfModels::AddLoose(int32_t rank, uint64_t round, Choice* choice) const {
  const auto found = loose_.find(rank);
  if (found == loose_.end()) return;
  for (const Loose& one : found->second) {
    if (one.from <= round && round <= one.to) choice->push_back(one.values);
  }
}

std::string RoundsOfModels::Take(int32_t rank, std::span<const float> values) {
  Trainer& trainer = trainers_[rank];
  ++tally_->checked;
  const bool is_forgotten =
      trainer.round && !rounds_.empty() && *trainer.round < rounds_.begin()->first;
  if (is_forgotten && !struck_->Has(rank)) return "has got nothing for many rounds";
  if (trainer.round && !is_forgotten) {
    const uint64_t round = *trainer.round;
    std::string wrong = Close(round);
    if (!wrong.empty()) return wrong;
    const int64_t unchecked = tally_->unchecked;
    wrong = Match(round + (IsSparkNet() ? 1 : 0), values);
    if (wrong.empty()) {
      // The first may have come to it when the round was over, or had begun without it.
      const bool is_second = trainer.calm_since && trainer.well_since == trainer.calm_since;
      trainer.well_since = trainer.calm_since;
      if (is_second && unchecked == tally_->unchecked) struck_->Heal(rank, trainer.calm_since);
      trainer.next_round = round + 1;
      return "";
    }
    if (!struck_->Has(rank)) return wrong;
  }
  // Of a round long ago it may have had what it takes before it stood still.
  const uint64_t first = trainer.round ? *trainer.round + (IsSparkNet() ? 1 : 0) : 0;
  return TakeLate(rank, first, values);
}

// What is in it is known once somebody has it: all have given for it by then, and may be struck
// later on.
std::string RoundsOfModels::Close(uint64_t number) {
  Round& round = rounds_[number];
  if (round.may_lack) return "";
  round.may_lack.emplace();
  for (const auto& [rank, trainer] : trainers_) {
    if (struck_->Has(rank)) {
      round.may_lack->insert(rank);
    } else if (trainer.trains && !round.by_rank.contains(rank)) {
      return "has the end" + InRound(number) + ", for which worker " + std::to_string(rank) +
             " has not given anything";
    }
  }
  return "";
}

std::vector<RoundsOfModels::Choice> RoundsOfModels::ChoicesOf(uint64_t number) const {
  std::vector<Choice> choices;
  const auto found = rounds_.find(number);
  const Round round = found == rounds_.end() ? Round{} : found->second;
  for (int32_t rank = 0; rank <= trainers_.rbegin()->first; ++rank) {
    Choice choice;
    const auto given = round.by_rank.find(rank);
    if (given != round.by_rank.end()) choice = given->second;
    const bool may_lack = !round.may_lack || round.may_lack->contains(rank);
    if (may_lack) AddLoose(rank, number, &choice);
    if (choice.empty()) continue;
    if (may_lack) choice.push_back(nullptr);
    choices.push_back(std::move(choice));
  }
  return choices;
}

// Whether they are x~ before round `number`: as it is known, or as it follows.
std::string RoundsOfModels::Match(uint64_t number, std::span<const float> values) {
  const auto known = joint_.find(number);
  if (known != joint_.end()) {
    if (AreSameBits(known->second, values)) return "";
    return "has other bits than others of x~ before round " + std::to_string(number);
  }
  const bool needs_before = !IsSparkNet() || plan_.method.bfloat16 != 0;
  const bool can_follow = number > 0 && (!needs_before || joint_.contains(number - 1));
  if (!can_follow) {
    ++tally_->unchecked;
    Keep(number, values);
    return "";
  }
  std::string wrong = Explain(number, ChoicesOf(number - 1), values);
  if (wrong.empty()) Keep(number, values);
  return wrong;
}

std::string RoundsOfModels::TakeLate(int32_t rank, uint64_t from, std::span<const float> values) {
  // Of another master nobody may have heard of a round by then.
  if (joint_.empty()) return ++tally_->unchecked, "";
  const uint64_t known = joint_.rbegin()->first;
  const uint64_t hash = Hash(AsBytes(values));
  for (auto at = hashes_.lower_bound(from); at != hashes_.end(); ++at) {
    if (at->second == hash) return "";
  }
  if (known + 1 >= from && Explain(known + 1, ChoicesOf(known), values).empty()) {
    Keep(known + 1, values);
    return "";
  }
  late_.push_back({rank, known, {values.begin(), values.end()}});
  for (const Late& late : late_) {
    if (known < late.known + kRoundsToMatch) continue;
    return "has others' models no more: worker " + std::to_string(late.rank) +
           " has got an x~ after round " + std::to_string(late.known) + " that nobody else has";
  }
  return "";
}

void RoundsOfModels::Keep(uint64_t number, std::span<const float> values) {
  std::erase_if(late_, [&](const Late& late) { return AreSameBits(late.values, values); });
  joint_[number].assign(values.begin(), values.end());
  hashes_[number] = Hash(AsBytes(values));
  if (joint_.size() > kRememberedOfRounds) joint_.erase(joint_.begin());
}

std::string RoundsOfModels::Explain(uint64_t number, const std::vector<Choice>& choices,
                                    std::span<const float> values) const {
  const auto before = joint_.find(number - 1);
  const bool knows_before = before != joint_.end();
  std::vector<double> betas = {IsSparkNet() ? 1 : plan_.method.beta};
  // Another master begins with the mean (JointModel::Restart).
  if (!knows_start_ && number == 1) betas.push_back(1);
  for (const ElementRange& part : PartsOf(plan_)) {
    const auto from = knows_before ? Of(before->second, part) : std::span<const float>();
    if (ExplainsPart(choices, part, from, betas, Of(values, part))) continue;
    return "has an x~ that what " + std::to_string(choices.size()) + " workers have given for" +
           InRound(number - 1).substr(3) + " does not make, from element " +
           std::to_string(part.offset) + " on";
  }
  return "";
}

float RoundsOfModels::Made(const Choice& chosen, size_t element, float before, double beta) const {
  if (chosen.empty()) return before;
  double sum = 0;
  for (const Snapshot& one : chosen) sum += static_cast<double>((*one)[element]);
  const double mean = sum / static_cast<double>(chosen.size());
  const double own = before;
  const auto now = static_cast<float>(beta == 1 ? mean : own + beta * (mean - own));
  return plan_.method.bfloat16 != 0 ? Rounded(before, now) : now;
}

// Who has the x~ of the round before gives the rounded change of it, where that is what travels.
bool RoundsOfModels::ExplainsPart(const std::vector<Choice>& choices, const ElementRange& part,
                                  std::span<const float> before, std::span<const double> betas,
                                  std::span<const float> values) const {
  std::vector<Choice> parts;
  for (const Choice& choice : choices) {
    Choice& here = parts.emplace_back();
    for (const Snapshot& one : choice) {
      if (one == nullptr) {
        here.push_back(nullptr);
        continue;
      }
      const std::span<const float> given = Of(*one, part);
      here.push_back(std::make_shared<const std::vector<float>>(given.begin(), given.end()));
      if (plan_.method.bfloat16 == 0) continue;
      std::vector<float> rounded(given.begin(), given.end());
      for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = Rounded(before[i], rounded[i]);
      here.push_back(std::make_shared<const std::vector<float>>(std::move(rounded)));
    }
  }
  return AnyCombinationOfSome(parts, [&](const Choice& chosen) {
    if (chosen.empty() && before.empty()) return false;
    return std::any_of(betas.begin(), betas.end(), [&](double beta) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float made = Made(chosen, i, before.empty() ? 0 : before[i], beta);
        if (std::bit_cast<uint32_t>(made) != std::bit_cast<uint32_t>(values[i])) return false;
      }
      return true;
    });
  });
}

// All that may have become of a part; none where there is too much of it.
std::vector<std::vector<float>> RoundsOfModels::WorldsOf(const std::vector<Choice>& choices,
                                                         const ElementRange& part,
                                                         std::span<const float> before) const {
  size_t ways = 1;
  for (const Choice& choice : choices) ways = std::min(kMostWorlds + 1, ways * choice.size());
  std::vector<std::vector<float>> worlds;
  if (ways > kMostWorlds) return worlds;
  AnyCombinationOfSome(choices, [&](const Choice& chosen) {
    std::vector<float>& world = worlds.emplace_back();
    for (size_t i = 0; i < before.size(); ++i) {
      const size_t element = static_cast<size_t>(part.offset) + i;
      world.push_back(Made(chosen, element, before[i], IsSparkNet() ? 1 : plan_.method.beta));
    }
    return false;
  });
  std::sort(worlds.begin(), worlds.end());
  worlds.erase(std::unique(worlds.begin(), worlds.end()), worlds.end());
  return worlds;
}

std::vector<RoundsOfModels::Choice> RoundsOfModels::LastChoices(uint64_t number) const {
  std::vector<Choice> choices;
  const auto round = rounds_.find(number);
  for (const auto& [rank, trainer] : trainers_) {
    Choice choice;
    const bool is_struck = struck_->Has(rank);
    const auto lasts = last_snapshots_.find(rank);
    if (lasts != last_snapshots_.end()) {
      for (const Last& last : lasts->second) {
        if (is_struck || last.round == number) choice.push_back(last.values);
      }
    }
    if (is_struck) {
      if (round != rounds_.end() && round->second.by_rank.contains(rank)) {
        const std::vector<Snapshot>& given = round->second.by_rank.at(rank);
        choice.insert(choice.end(), given.begin(), given.end());
      }
      AddLoose(rank, number, &choice);
      choice.push_back(nullptr);
    }
    if (!choice.empty()) choices.push_back(std::move(choice));
  }
  return choices;
}

// The round at hand is that of who was in the last one, or a later one that only some have been in
// who were struck.
std::string RoundsOfModels::End(std::span<const float> values) {
  if (!knows_start_ || joint_.empty()) return ++tally_->unchecked, "";
  uint64_t first = 0;
  for (const auto& [rank, lasts] : last_snapshots_) {
    for (const Last& last : lasts) first = std::max(first, last.round);
  }
  ++tally_->checked;
  const std::vector<double> betas = {IsSparkNet() ? 1 : plan_.method.beta};
  const uint64_t most = std::max(first, joint_.rbegin()->first + 1);
  for (uint64_t number = first; number <= most; ++number) {
    const auto known = joint_.find(number);
    const auto before = number == 0 ? joint_.end() : joint_.find(number - 1);
    if (known == joint_.end() && before == joint_.end()) continue;
    const std::vector<Choice> choices = LastChoices(number);
    const std::vector<ElementRange> parts = PartsOf(plan_);
    const bool fits = std::all_of(parts.begin(), parts.end(), [&](const ElementRange& part) {
      if (known != joint_.end()) {
        return ExplainsPart(choices, part, Of(known->second, part), betas, Of(values, part));
      }
      const auto worlds = WorldsOf(ChoicesOf(number - 1), part, Of(before->second, part));
      return worlds.empty() || std::any_of(worlds.begin(), worlds.end(), [&](const auto& world) {
               return ExplainsPart(choices, part, world, betas, Of(values, part));
             });
    });
    if (fits) return "";
  }
  return "has at the end what the last snapshots of all do not make of x~ before round " +
         std::to_string(first);
}

}  // namespace strom
