#include "core/replication/step_queue.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/replication/version_vector.h"

namespace strom {

void StepQueue::Add(ReceivedUpdate update) {
  if (!sequenced_) {
    if (update.id.origin != own_origin_) ready_.push_back(std::move(update));
    return;
  }
  waiting_.emplace(update.id, std::move(update.update));
  Release();
}

Status StepQueue::AddStep(uint64_t step, std::vector<UpdateId> ids) {
  const uint64_t expected = released_steps_ + steps_.size();
  if (!sequenced_ || step != expected) {
    return {Code::kCorrupt,
            "STEP " + std::to_string(step) + " where " + std::to_string(expected) + " comes next"};
  }
  if (std::set<UpdateId>(ids.begin(), ids.end()).size() != ids.size()) {
    return {Code::kCorrupt, "STEP " + std::to_string(step) + ", which names an update twice"};
  }
  steps_.push_back(std::move(ids));
  Release();
  return {};
}

void StepQueue::Begin() {
  waiting_.clear();
  ready_.clear();
}

void StepQueue::Restart(const VersionVector& cut, uint64_t step) {
  std::erase_if(waiting_, [&](const auto& entry) { return Covers(cut, entry.first); });
  std::erase_if(ready_, [&](const ReceivedUpdate& update) { return Covers(cut, update.id); });
  steps_.clear();
  released_steps_ = step;
  own_released_steps_ = 0;
}

std::vector<ReceivedUpdate> StepQueue::Take() { return std::exchange(ready_, {}); }

void StepQueue::Release() {
  while (!steps_.empty()) {
    const std::vector<UpdateId>& ids = steps_.front();
    const bool all_here = std::all_of(ids.begin(), ids.end(),
                                      [&](const UpdateId& id) { return waiting_.contains(id); });
    if (!all_here) return;
    bool own = false;
    for (const UpdateId& id : ids) {
      own = own || id.origin == own_origin_;
      auto update = waiting_.find(id);
      ready_.push_back({id, std::move(update->second)});
      waiting_.erase(update);
    }
    ++released_steps_;
    own_released_steps_ += own ? 1 : 0;
    steps_.pop_front();
  }
}

}  // namespace strom
