#include "core/master/master_resumption.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/replication/version_vector.h"

namespace strom {

namespace {

uint64_t UpdatesIn(const VersionVector& vector) {
  return std::accumulate(vector.begin(), vector.end(), uint64_t{0},
                         [](uint64_t sum, const auto& entry) { return sum + entry.second; });
}

}  // namespace

void Resumption::Add(int64_t now_ns, int32_t rank, const AskResume& resume) {
  Withdraw(rank);  // what it has sent over an earlier link does not go on
  resumes_[rank] = resume;
  const bool is_new = seen_.insert(rank).second;  // who comes again and again holds nobody up
  if (resumes_.size() == static_cast<size_t>(workers_)) {
    next_question_ns_ = now_ns;
  } else if (is_new) {
    next_question_ns_ = now_ns + kTimeoutsToComeBack * failure_timeout_ns_;
  }
}

void Resumption::Withdraw(int32_t rank) {
  resumes_.erase(rank);
  answers_.erase(rank);
  asked_.erase(rank);
}

void Resumption::Clear() {
  seen_.clear();
  resumes_.clear();
  answers_.clear();
  asked_.clear();
}

std::optional<Resumption::Question> Resumption::TakeQuestion(int64_t now_ns) {
  if (resumes_.empty() || now_ns < next_question_ns_) return std::nullopt;
  if (asked_.size() == resumes_.size()) asked_.clear();
  const std::pair<const int32_t, AskResume>* best = nullptr;
  for (const auto& candidate : resumes_) {
    if (asked_.contains(candidate.first)) continue;
    if (best == nullptr || IsBetter(candidate.second, best->second)) best = &candidate;
  }
  asked_.insert(best->first);
  next_question_ns_ = now_ns + failure_timeout_ns_;
  return Question{best->first, {best->second.layout.generation, ++last_number_}};
}

void Resumption::AddCut(int32_t rank, const ReplicaCut& replica) {
  const auto found = resumes_.find(rank);
  if (found == resumes_.end() || found->second.layout.generation != replica.generation) return;
  answers_[rank].cut = replica;
}

void Resumption::AddParameters(int32_t rank, uint64_t number, std::vector<float> parameters) {
  const auto found = resumes_.find(rank);
  if (found == resumes_.end() || found->second.layout.size != parameters.size()) return;
  Answer& answer = answers_[rank];
  answer.number = number;
  answer.parameters = std::move(parameters);
}

std::optional<Resumption::Whole> Resumption::TakeWhole() {
  for (auto& [rank, answer] : answers_) {
    if (!answer.cut || answer.cut->number != answer.number) continue;
    return Whole{rank, resumes_.at(rank), answer.cut->cut, std::move(answer.parameters)};
  }
  return std::nullopt;
}

uint64_t Resumption::DroppedBeyond(const VersionVector& cut,
                                   const std::set<uint64_t>& resumed) const {
  VersionVector known;
  for (const auto& [rank, resume] : resumes_) Join(resume.applied, &known);
  uint64_t dropped = 0;
  for (const auto& [origin, counter] : known) {
    if (!resumed.contains(origin)) {
      dropped += counter - std::min(counter, CounterOf(cut, origin));
    }
  }
  return dropped;
}

// The later generation, then who can do without another's state and would leave nobody behind, then
// who is further on.
bool Resumption::IsBetter(const AskResume& one, const AskResume& other) const {
  const auto rated = [this](const AskResume& resume) {
    return std::tuple(resume.layout.generation, resume.lacks_state == 0, LeavesNobodyBehind(resume),
                      UpdatesIn(resume.applied));
  };
  return rated(one) > rated(other);
}

// Everybody can send again what of its own the donor lacks.
bool Resumption::LeavesNobodyBehind(const AskResume& donor) const {
  return std::all_of(resumes_.begin(), resumes_.end(), [&](const auto& entry) {
    const AskResume& other = entry.second;
    return CounterOf(donor.applied, other.origin) >= other.kept_after;
  });
}

}  // namespace strom
