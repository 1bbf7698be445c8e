#include "core/replication/replication.h"

#include <algorithm>
#include <utility>

#include "core/replication/version_vector.h"

namespace strom {

Replication::Verdict Replication::Receive(int64_t now_ns, LinkId from, const UpdateId& id,
                                          Buffer update, std::vector<Accepted>* accepted) {
  if (closed_.contains(id.origin)) return Verdict::kClosed;
  const uint64_t have = CounterOf(received_, id.origin);
  if (id.counter <= have || hold_.contains(id)) return Verdict::kDuplicate;
  const bool is_known = received_.contains(id.origin);
  if (!is_known && received_.size() >= options_.max_origins) return Verdict::kTooManyOrigins;
  if (id.counter > have + 1) {
    if (hold_bytes_ + SizeOf(update) > options_.hold_bytes) return Verdict::kNoRoom;
    hold_bytes_ += SizeOf(update);
    hold_.emplace(id, Held{std::move(update), from});
    return Verdict::kHeld;
  }
  Accept(now_ns, from, id, std::move(update), accepted);
  AcceptHeld(now_ns, id.origin, accepted);
  // What is only old waits for the next beacon: going over every origin here would cost a node of a
  // thousand as much as all the rest.
  if (ring_bytes_ > options_.ring_bytes) Evict(now_ns);
  return Verdict::kAccepted;
}

void Replication::InstallCut(int64_t now_ns, const VersionVector& cut,
                             std::vector<Accepted>* accepted) {
  for (const auto& [origin, counter] : cut) {
    if (CounterOf(received_, origin) >= counter) continue;
    // The ring must not have a gap: what it holds of this origin lies before the cut.
    for (const Retained& retained : ring_[origin]) ring_bytes_ -= SizeOf(retained.update);
    retained_ -= static_cast<int64_t>(ring_[origin].size());
    ring_.erase(origin);
    received_[origin] = counter;
  }
  JoinMaster(cut);
  for (auto held = hold_.begin(); held != hold_.end();) {
    if (!Covers(received_, held->first)) {
      ++held;
      continue;
    }
    hold_bytes_ -= SizeOf(held->second.update);
    held = hold_.erase(held);
  }
  for (const auto& [origin, counter] : cut) AcceptHeld(now_ns, origin, accepted);
}

void Replication::Reset(const VersionVector& cut, uint64_t own_origin) {
  std::deque<Retained> own = std::move(ring_[own_origin]);
  while (!own.empty() && own.front().counter <= CounterOf(cut, own_origin)) own.pop_front();
  received_ = master_ = cut;
  ring_.clear();
  hold_.clear();
  closed_.clear();
  earlier_.clear();
  kept_beyond_.reset();
  ring_bytes_ = hold_bytes_ = 0;
  retained_ = static_cast<int64_t>(own.size());
  for (const Retained& kept : own) {
    received_[own_origin] = kept.counter;
    ring_bytes_ += SizeOf(kept.update);
  }
  ring_[own_origin] = std::move(own);
}

uint64_t Replication::KeptAfter(uint64_t origin) const {
  const auto ring = ring_.find(origin);
  return CounterOf(received_, origin) - (ring == ring_.end() ? 0 : ring->second.size());
}

void Replication::BeginGeneration() {
  hold_.clear();
  hold_bytes_ = 0;
  earlier_.clear();
  for (const auto& [origin, counter] : received_) earlier_.push_back(origin);
}

void Replication::Retire(const VersionVector& cut) {
  // Updates overtake START: an origin that is new since the generation began may be in no cut yet.
  for (const uint64_t origin : std::exchange(earlier_, {})) {
    if (cut.contains(origin)) continue;
    if (const auto ring = ring_.extract(origin)) {
      for (const Retained& retained : ring.mapped()) ring_bytes_ -= SizeOf(retained.update);
      retained_ -= std::ssize(ring.mapped());
    }
    ForgetHeld(origin);
    received_.erase(origin);
    master_.erase(origin);
  }
  std::erase_if(closed_, [&](uint64_t origin) { return !cut.contains(origin); });
}

void Replication::ForgetHeld(uint64_t origin) {
  auto held = hold_.lower_bound({origin, 0});
  while (held != hold_.end() && held->first.origin == origin) {
    hold_bytes_ -= SizeOf(held->second.update);
    held = hold_.erase(held);
  }
}

void Replication::Close(uint64_t origin) { closed_.insert(origin); }

void Replication::SetMasterVector(int64_t now_ns, const VersionVector& vector) {
  JoinMaster(vector);
  Evict(now_ns);
}

bool Replication::Replay(int64_t budget_bytes, VersionVector* vector,
                         std::vector<Buffer>* missing) const {
  for (const auto& [origin, counter] : received_) {
    const uint64_t theirs = CounterOf(*vector, origin);
    if (theirs >= counter) continue;
    auto ring = ring_.find(origin);
    if (ring == ring_.end() || ring->second.empty()) return false;
    const uint64_t first = ring->second.front().counter;
    if (first > theirs + 1) return false;
    for (uint64_t next = theirs + 1; next <= counter; ++next) {
      const Buffer& update = ring->second[next - first].update;
      if (!missing->empty() && budget_bytes < SizeOf(update)) return true;
      budget_bytes -= SizeOf(update);
      missing->push_back(update);
      (*vector)[origin] = next;
    }
  }
  return true;
}

bool Replication::ReachesBackTo(const VersionVector& vector) const {
  return std::all_of(received_.begin(), received_.end(), [&](const auto& entry) {
    const auto& [origin, counter] = entry;
    const uint64_t theirs = CounterOf(vector, origin);
    if (theirs >= counter) return true;
    const auto ring = ring_.find(origin);
    return ring != ring_.end() && !ring->second.empty() &&
           ring->second.front().counter <= theirs + 1;
  });
}

void Replication::KeepBeyond(int64_t now_ns, std::optional<VersionVector> vector) {
  kept_beyond_ = std::move(vector);
  Evict(now_ns);
}

std::optional<std::vector<ReceivedUpdate>> Replication::Beyond(const VersionVector& cut) const {
  if (!ReachesBackTo(cut)) return std::nullopt;
  std::vector<ReceivedUpdate> updates;
  for (const auto& [origin, ring] : ring_) {
    const uint64_t covered = CounterOf(cut, origin);
    for (const Retained& retained : ring) {
      if (retained.counter > covered) {
        updates.push_back({{origin, retained.counter}, retained.update});
      }
    }
  }
  return updates;
}

int64_t Replication::UncoveredBytes(uint64_t origin) const {
  const auto ring = ring_.find(origin);
  return ring == ring_.end() ? 0 : BytesAfter(CounterOf(master_, origin), ring->second);
}

int64_t Replication::UncoveredBytes() const {
  int64_t bytes = 0;
  for (const auto& [origin, ring] : ring_) bytes += UncoveredBytes(origin);
  return bytes;
}

int64_t Replication::PinnedBytes() const {
  int64_t bytes = 0;
  for (const auto& [origin, ring] : ring_) bytes += BytesAfter(MayGo(origin), ring);
  return bytes;
}

int64_t Replication::BytesAfter(uint64_t counter, const std::deque<Retained>& ring) const {
  int64_t bytes = 0;
  for (auto it = ring.rbegin(); it != ring.rend() && it->counter > counter; ++it) {
    bytes += SizeOf(it->update);
  }
  return bytes;
}

void Replication::Accept(int64_t now_ns, LinkId from, const UpdateId& id, Buffer update,
                         std::vector<Accepted>* accepted) {
  received_[id.origin] = id.counter;
  ring_bytes_ += SizeOf(update);
  ++retained_;
  ring_[id.origin].push_back({id.counter, now_ns, update});
  accepted->push_back({id, std::move(update), from});
}

void Replication::AcceptHeld(int64_t now_ns, uint64_t origin, std::vector<Accepted>* accepted) {
  for (;;) {
    auto next = hold_.find({origin, CounterOf(received_, origin) + 1});
    if (next == hold_.end()) return;
    hold_bytes_ -= SizeOf(next->second.update);
    Held held = std::move(next->second);
    const UpdateId id = next->first;
    hold_.erase(next);
    Accept(now_ns, held.from, id, std::move(held.update), accepted);
  }
}

void Replication::JoinMaster(const VersionVector& vector) {
  for (const auto& [origin, counter] : vector) {
    if (!received_.contains(origin)) continue;
    uint64_t& held = master_[origin];
    held = std::max(held, counter);
  }
}

void Replication::Evict(int64_t now_ns) {
  // What the master lacks stays whatever it costs; the rest goes when it is old, and oldest first
  // when there is too much of it.
  for (auto& [origin, ring] : ring_) {
    const uint64_t may_go = MayGo(origin);
    while (!ring.empty() && ring.front().counter <= may_go &&
           (ring_bytes_ > options_.ring_bytes || IsOld(now_ns, ring.front()))) {
      ring_bytes_ -= SizeOf(ring.front().update);
      --retained_;
      ring.pop_front();
    }
  }
}

uint64_t Replication::MayGo(uint64_t origin) const {
  const uint64_t covered = CounterOf(master_, origin);
  return kept_beyond_ ? std::min(covered, CounterOf(*kept_beyond_, origin)) : covered;
}

bool Replication::IsOld(int64_t now_ns, const Retained& retained) const {
  return !keeps_for_neighbours_ && now_ns - retained.accepted_ns > options_.retention_ns;
}

}  // namespace strom
