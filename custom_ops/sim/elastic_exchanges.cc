#include "sim/elastic_exchanges.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace strom {

namespace {

constexpr size_t kRememberedAnswers = 30;
constexpr size_t kSettledAtOnce = 32;
constexpr double kCoefficientTolerance = .02;
// Of the sum of a few roundings of numbers below some thousands, and of larger ones.
constexpr double kElementTolerance = 1e-2;
constexpr double kRelativeTolerance = 1e-6;
constexpr double kSingular = 1e-9;
constexpr double kLeastShare = .05;

// The coefficients of `columns` whose sum comes nearest to `values`; nullopt where there are
// several such, or nearly so: where errors of `tolerance` in the values may change one by much.
std::optional<std::vector<double>> Solve(const std::vector<std::vector<double>>& columns,
                                         const std::vector<double>& values, double tolerance) {
  const size_t size = columns.size();
  const auto product = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const double least =
      static_cast<double>(values.size()) * std::pow(tolerance / kCoefficientTolerance, 2);
  std::vector<std::vector<double>> rows;
  for (const std::vector<double>& column : columns) {
    std::vector<double>& row = rows.emplace_back();
    for (const std::vector<double>& other : columns) row.push_back(product(column, other));
    row.push_back(product(column, values));
  }
  for (size_t at = 0; at < size; ++at) {
    size_t pivot = at;
    for (size_t row = at; row < size; ++row) {
      if (std::abs(rows[row][at]) > std::abs(rows[pivot][at])) pivot = row;
    }
    if (std::abs(rows[pivot][at]) <
        std::max(least, kSingular * product(columns[at], columns[at]))) {
      return std::nullopt;
    }
    rows[at].swap(rows[pivot]);
    for (size_t other = 0; other < size; ++other) {
      if (other == at) continue;
      const double factor = rows[other][at] / rows[at][at];
      for (size_t j = at; j <= size; ++j) rows[other][j] -= factor * rows[at][j];
    }
  }
  std::vector<double> coefficients;
  for (size_t at = 0; at < size; ++at) coefficients.push_back(rows[at][size] / rows[at][at]);
  return coefficients;
}

double FurthestOff(const std::vector<std::vector<double>>& columns,
                   const std::vector<double>& coefficients, const std::vector<double>& values) {
  double furthest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    double made = 0;
    for (size_t j = 0; j < columns.size(); ++j) made += coefficients[j] * columns[j][i];
    furthest = std::max(furthest, std::abs(made - values[i]));
  }
  return furthest;
}

bool IsAbout(double value, double expected) {
  return std::abs(value - expected) <= kCoefficientTolerance;
}

}  // namespace

ElasticExchanges::ElasticExchanges(const JointPlan& plan, std::optional<std::vector<float>> start,
                                   StruckRanks* struck, ModelTally* tally)
    : GivenModels(plan, struck, tally), is_known_(start.has_value()) {
  if (start) answers_.push_back({{}, std::move(*start)});
}

void ElasticExchanges::Join(int32_t rank, bool /*late*/) {
  ++attempts_[rank];
  questions_.erase(rank);
}

void ElasticExchanges::Note(Given given) {
  const bool is_last = given.mark >= kFirstLastMark;
  given_lasts_ += is_last ? 1 : 0;
  const bool moves = is_last ? plan_.method.alpha > 0
                             : std::any_of(given.values.begin(), given.values.end(),
                                           [](float v) { return v != 0; });
  given_.push_back(
      {given.rank, attempts_[given.rank], is_last, moves, false, std::move(given.values), false});
}

void ElasticExchanges::Drain(int64_t /*now_ns*/, int32_t rank) {
  for (Thing& thing : given_) {
    thing.is_held |= thing.rank == rank && thing.attempt == attempts_[rank];
  }
}

void ElasticExchanges::Ask(int32_t rank) {
  questions_[rank] = {is_known_ ? answers_.back() : Answer{}, given_.size()};
}

std::string ElasticExchanges::Name(size_t number) const {
  return (given_[number].is_last ? "the last snapshot of worker " : "a difference of worker ") +
         std::to_string(given_[number].rank);
}

// What x~ has moved away from by nearly all cannot be seen in it any more.
bool ElasticExchanges::CanRead() const {
  return std::pow(1 - plan_.method.alpha, static_cast<double>(given_lasts_)) > kLeastShare;
}

// What moves nothing is in everything.
ElasticExchanges::Numbers ElasticExchanges::Candidates(const Answer& before) const {
  Numbers numbers;
  auto contained = before.contains.begin();
  for (size_t number = first_open_; number < given_.size(); ++number) {
    if (given_[number].is_settled) continue;
    if (contained != before.contains.end() && *contained == number) {
      ++contained;
    } else if (given_[number].moves) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// What is wrong; nullopt where it cannot be said.
std::optional<std::string> ElasticExchanges::Read(const Answer& before,
                                                  std::span<const float> values,
                                                  Answer* answer) const {
  const Numbers candidates = Candidates(before);
  std::vector<std::vector<double>> columns;
  bool any_last = false;
  for (const size_t number : candidates) {
    const std::vector<float>& thing = given_[number].values;
    columns.emplace_back(thing.begin(), thing.end());
    any_last |= given_[number].is_last;
  }
  std::vector<double> moved(values.begin(), values.end());
  if (any_last) {
    columns.emplace_back(before.values.begin(), before.values.end());
  } else {
    for (size_t i = 0; i < moved.size(); ++i) moved[i] -= before.values[i];
  }
  if (columns.size() > values.size() / 2) return std::nullopt;
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  for (const std::vector<double>& column : columns) {
    for (const double value : column) largest = std::max(largest, std::abs(value));
  }
  const double tolerance = std::max(kElementTolerance, kRelativeTolerance * largest);
  const auto coefficients = Solve(columns, moved, tolerance);
  if (!coefficients) return std::nullopt;
  if (FurthestOff(columns, *coefficients, moved) > tolerance) {
    return "has an x~ that is no sum of what was given, and of what others have got before";
  }
  *answer = {before.contains, {values.begin(), values.end()}};
  return ReadCoefficients(candidates, *coefficients, any_last ? coefficients->back() : 1, answer);
}

std::string ElasticExchanges::ReadCoefficients(const Numbers& candidates,
                                               std::span<const double> coefficients,
                                               double of_before, Answer* answer) const {
  const double stays = 1 - plan_.method.alpha;
  std::vector<double> of_lasts;
  size_t at = 0;
  for (const size_t number : candidates) {
    const double coefficient = coefficients[at++];
    if (IsAbout(coefficient, 0)) continue;
    answer->contains.push_back(number);
    if (given_[number].is_last) {
      of_lasts.push_back(coefficient);
      continue;
    }
    bool is_once = false;
    for (size_t later = 0; later <= given_lasts_; ++later) {
      is_once |= IsAbout(coefficient, std::pow(stays, static_cast<double>(later)));
    }
    if (is_once) continue;
    return "has an x~ that has " + Name(number) + " in it " + std::to_string(coefficient) +
           " times";
  }
  std::sort(answer->contains.begin(), answer->contains.end());
  std::sort(of_lasts.begin(), of_lasts.end(), std::greater<>());
  for (size_t i = 0; i < of_lasts.size(); ++i) {
    const double once = plan_.method.alpha * std::pow(stays, static_cast<double>(i));
    if (IsAbout(of_lasts[i], once)) continue;
    return "has an x~ that has moved by " + std::to_string(of_lasts[i]) +
           " towards a last snapshot instead of " + std::to_string(once);
  }
  if (IsAbout(of_before, std::pow(stays, static_cast<double>(of_lasts.size())))) return "";
  return "has an x~ with " + std::to_string(of_before) + " of what it was in it";
}

std::string ElasticExchanges::Take(int32_t rank, std::span<const float> values) {
  const auto asked = questions_.find(rank);
  if (asked == questions_.end() || !CanRead()) return ++tally_->unchecked, "";
  const Question question = std::move(asked->second);
  questions_.erase(asked);
  if (!is_known_) {
    is_known_ = true;
    first_certain_ = given_.size();
    answers_.push_back({{}, {values.begin(), values.end()}});
    return ++tally_->unchecked, "";
  }
  if (question.before.values.empty()) return ++tally_->unchecked, "";
  Answer answer;
  const std::optional<std::string> wrong = Read(question.before, values, &answer);
  if (!wrong) return ++tally_->unchecked, "";
  ++tally_->checked;
  if (!wrong->empty()) return *wrong;
  for (const size_t number : Candidates(question.before)) {
    const Thing& thing = given_[number];
    const bool is_own = thing.rank == rank && thing.attempt == attempts_[rank];
    if (is_own && number >= first_certain_ && number < question.given &&
        !std::binary_search(answer.contains.begin(), answer.contains.end(), number)) {
      return "has an x~ that lacks what it has itself given before";
    }
  }
  auto at = answers_.begin();
  for (; at != answers_.end(); ++at) {
    const bool is_before = at->contains.size() <= answer.contains.size();
    const Numbers& less = is_before ? at->contains : answer.contains;
    const Numbers& more = is_before ? answer.contains : at->contains;
    if (!std::includes(more.begin(), more.end(), less.begin(), less.end())) {
      return "has an x~ that lacks something which is in another's, which lacks something in its";
    }
    if (!is_before) break;
  }
  answers_.insert(at, std::move(answer));
  if (answers_.size() > kRememberedAnswers) answers_.pop_front();
  Settle();
  return "";
}

// What is in every answer that anything is compared with is in all that come.
void ElasticExchanges::Settle() {
  const Numbers* least = &answers_.front().contains;
  for (const auto& [rank, question] : questions_) {
    if (question.before.values.empty()) return;
    if (question.before.contains.size() < least->size()) least = &question.before.contains;
  }
  if (least->size() < kSettledAtOnce) return;
  const Numbers settled = *least;
  const auto forget = [&](Numbers* numbers) {
    Numbers rest;
    std::set_difference(numbers->begin(), numbers->end(), settled.begin(), settled.end(),
                        std::back_inserter(rest));
    *numbers = std::move(rest);
  };
  for (Answer& answer : answers_) forget(&answer.contains);
  for (auto& [rank, question] : questions_) forget(&question.before.contains);
  for (const size_t number : settled) given_[number].is_settled = true;
  while (first_open_ < given_.size() && given_[first_open_].is_settled) ++first_open_;
}

std::string ElasticExchanges::End(std::span<const float> values) {
  if (!is_known_ || !CanRead()) return ++tally_->unchecked, "";
  Answer answer;
  const std::optional<std::string> wrong = Read(answers_.back(), values, &answer);
  if (!wrong) return ++tally_->unchecked, "";
  ++tally_->checked;
  if (!wrong->empty()) return "at the end " + *wrong;
  for (const size_t number : Candidates(answer)) {
    const Thing& thing = given_[number];
    if (number < first_certain_ || (struck_->Has(thing.rank) && !thing.is_held)) continue;
    return "has an x~ at the end that lacks " + Name(number);
  }
  return "";
}

}  // namespace strom
