#include "sim/ledger.h"

#include <algorithm>

#include "core/replication/version_vector.h"
#include "sim/list_codec.h"

namespace strom {

namespace {

// Generations at one master.
constexpr size_t kRememberedModels = 4;

}  // namespace

bool Ledger::Start(uint64_t generation, const std::vector<float>& parameters) {
  return initial_.try_emplace(generation, parameters).first->second == parameters;
}

void Ledger::Submit(const UpdateId& id, uint64_t generation, Bytes message) {
  Origin& origin = origins_[id.origin];
  STROM_CHECK(id.counter == origin.last() + 1);
  origin.before.try_emplace(generation, id.counter - 1);
  origin.messages.emplace_back(message.begin(), message.end());
  std::vector<float> sum = origin.sums.back();
  // What no node may take adds nothing.
  if (kListCodec.Check(message, initial_.at(generation).size()).ok()) {
    sum.resize(std::max<size_t>(sum.size(), ListCodec::EndOf(message)));
    kListCodec.Apply(message, sum);
  }
  origin.sums.push_back(std::move(sum));
  submitted_[id.origin] = id.counter;
}

// Another master goes on from what some worker has.
GivenModels* Ledger::Models(const JointPlan& plan, uint64_t generation, uint64_t epoch) {
  if (!plan.IsJoint() || plan.IsOfGradients()) return nullptr;
  const auto found = models_.find({generation, epoch});
  if (found != models_.end()) return found->second.get();
  std::optional<std::vector<float>> start;
  if (epoch == 1 && HasStarted(generation)) Gather(plan, initial_.at(generation), &start.emplace());
  if (models_.size() == kRememberedModels) models_.erase(models_.begin());
  std::unique_ptr<GivenModels> made = GivenModels::Make(plan, std::move(start), &struck_, &tally_);
  const GivenModels* earlier = nullptr;
  for (const auto& [name, models] : models_) {
    if (name.first == generation) earlier = models.get();
  }
  if (earlier != nullptr) {
    for (const GivenModels::Given& last : earlier->lasts()) made->Give(last);
  }
  return (models_[{generation, epoch}] = std::move(made)).get();
}

const std::vector<uint8_t>* Ledger::Find(const UpdateId& id) const {
  const auto origin = origins_.find(id.origin);
  if (origin == origins_.end() || id.counter == 0) return nullptr;
  const Origin& known = origin->second;
  if (id.counter > known.last() || id.counter <= known.forgotten) return nullptr;
  return &known.messages[id.counter - known.forgotten - 1];
}

void Ledger::ForgetBefore(uint64_t generation, const VersionVector& known) {
  initial_.erase(initial_.begin(), initial_.lower_bound(generation));
  for (auto at = origins_.begin(); at != origins_.end();) {
    auto& [id, origin] = *at;
    const uint64_t base = Base(generation, id);
    const auto count = static_cast<ptrdiff_t>(base - origin.forgotten);
    origin.messages.erase(origin.messages.begin(), origin.messages.begin() + count);
    origin.sums.erase(origin.sums.begin(), origin.sums.begin() + count);
    origin.forgotten = base;
    origin.before.erase(origin.before.begin(), origin.before.lower_bound(generation));
    const bool stays = !origin.before.empty() || known.contains(id);
    if (!stays) submitted_.erase(id);
    at = stays ? std::next(at) : origins_.erase(at);
  }
}

uint64_t Ledger::Base(uint64_t generation, uint64_t origin) const {
  const auto found = origins_.find(origin);
  if (found == origins_.end()) return 0;
  const auto before = found->second.before.lower_bound(generation);
  return before == found->second.before.end() ? found->second.last() : before->second;
}

std::vector<float> Ledger::Replica(uint64_t generation, const VersionVector& vector) const {
  std::vector<float> replica = initial_.at(generation);
  for (const auto& [id, origin] : origins_) {
    const auto before = origin.before.find(generation);
    if (before == origin.before.end()) continue;
    const auto next = std::next(before);
    const uint64_t last = next == origin.before.end() ? origin.last() : next->second;
    const uint64_t applied = std::min(CounterOf(vector, id), last);
    if (applied <= before->second) continue;
    const std::vector<float>& from = origin.SumUpTo(before->second);
    const std::vector<float>& to = origin.SumUpTo(applied);
    for (size_t i = 0; i < to.size(); ++i) replica[i] += to[i] - (i < from.size() ? from[i] : 0);
  }
  return replica;
}

}  // namespace strom
