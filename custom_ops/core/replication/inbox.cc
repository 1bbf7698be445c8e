#include "core/replication/inbox.h"

#include <iterator>
#include <utility>
#include <vector>

namespace strom {

void Inbox::Restart(Snapshot snapshot) {
  snapshot_ = std::move(snapshot);
  folded_ = {};
  updates_.clear();
  bytes_ = 0;
}

void Inbox::Add(ReceivedUpdate update) {
  bytes_ += static_cast<int64_t>(update.update->size());
  updates_.push_back(std::move(update));
  // As much is folded as comes in, so that no call takes long.
  while (bytes_ > fold_bytes_ && FoldOldest()) continue;
}

Received Inbox::Take() {
  Received taken;
  taken.snapshot = std::exchange(snapshot_, std::nullopt);
  taken.folded = std::exchange(folded_, {});
  taken.updates.assign(std::move_iterator(updates_.begin()), std::move_iterator(updates_.end()));
  updates_.clear();
  bytes_ = 0;
  return taken;
}

// False: the oldest one is of another flat space than the sum.
bool Inbox::FoldOldest() {
  const ReceivedUpdate& oldest = updates_.front();
  UpdateHeader header;
  STROM_CHECK(ParseUpdateHeader(*oldest.update, &header).ok());  // validated when it came
  if (folded_.empty()) folded_.sum.assign(header.layout.size, 0.0f);
  if (folded_.sum.size() != header.layout.size) return false;
  codec_.Apply(oldest.message(), folded_.sum);
  ForEachApplied(oldest, [this](uint64_t origin, uint64_t first, uint64_t last) {
    folded_.first.try_emplace(origin, first);
    folded_.last[origin] = last;
  });
  ForEachIteration(oldest, header.iteration, [this](int64_t updates, uint64_t iteration) {
    folded_.iterations += static_cast<double>(updates) * CountedIteration(iteration);
    folded_.updates += updates;
  });
  bytes_ -= static_cast<int64_t>(oldest.update->size());
  updates_.pop_front();
  return true;
}

}  // namespace strom
