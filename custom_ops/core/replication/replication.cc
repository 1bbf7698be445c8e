#include "core/replication/replication.h"

#include <algorithm>
#include <utility>

#include "core/replication/version_vector.h"

namespace strom {

Replication::Verdict Replication::Receive(int64_t now_ns, LinkId from, const UpdateId& id,
                                          Buffer update, std::vector<Accepted>* accepted) {
  if (closed_.contains(id.origin)) return Verdict::kClosed;
  const uint64_t have = CounterOf(received_, id.origin);
  if (id.counter <= have) return Verdict::kDuplicate;
  if (const auto held = hold_.find(id); held != hold_.end()) {
    std::vector<LinkId>& senders = held->second.from;
    if (std::find(senders.begin(), senders.end(), from) == senders.end()) senders.push_back(from);
    return Verdict::kDuplicate;
  }
  const bool is_known = received_.contains(id.origin);
  if (!is_known && received_.size() >= options_.max_origins) return Verdict::kTooManyOrigins;
  if (id.counter > have + 1) {
    if (hold_bytes_ + SizeOf(update) > options_.hold_bytes) return Verdict::kNoRoom;
    hold_bytes_ += SizeOf(update);
    hold_.emplace(id, Held{std::move(update), {from}, now_ns});
    return Verdict::kHeld;
  }
  Accept(now_ns, from, id, std::move(update), accepted);
  AcceptHeld(now_ns, id.origin, accepted);
  AcceptHeldMerged(now_ns, accepted);
  // What is only old waits for the next beacon: going over every origin here would cost a node of a
  // thousand as much as all the rest.
  if (ring_bytes_ > options_.ring_bytes) Evict(now_ns);
  return Verdict::kAccepted;
}

Replication::Verdict Replication::Judge(const UpdateRanges& ranges) const {
  bool all_here = true, some_here = false, is_early = false;
  for (const auto& [origin, from, to, iteration] : ranges) {
    if (closed_.contains(origin)) return Verdict::kRefused;
    const uint64_t have = CounterOf(received_, origin);
    all_here = all_here && to <= have;
    some_here = some_here || from < have;
    is_early = is_early || from > have;
  }
  if (all_here) return Verdict::kDuplicate;
  if (some_here) return Verdict::kRefused;
  return is_early ? Verdict::kHeld : Verdict::kAccepted;
}

Replication::Verdict Replication::ReceiveMerged(int64_t now_ns, LinkId from, UpdateRanges ranges,
                                                Buffer update, std::vector<Accepted>* accepted) {
  const Verdict verdict = Judge(ranges);
  HeldMerged merged{std::move(ranges), std::move(update), from, now_ns};
  if (verdict == Verdict::kAccepted) {
    AcceptMerged(now_ns, std::move(merged), accepted);
    AcceptHeldMerged(now_ns, accepted);
  } else if (verdict == Verdict::kRefused ||
             (verdict == Verdict::kHeld &&
              hold_bytes_ + SizeOf(merged.update) > options_.hold_bytes)) {
    Refuse(merged.ranges);
    return Verdict::kRefused;
  } else if (verdict == Verdict::kHeld) {
    hold_bytes_ += SizeOf(merged.update);
    hold_merged_.push_back(std::move(merged));
  }
  return verdict;
}

void Replication::AcceptMerged(int64_t now_ns, HeldMerged merged, std::vector<Accepted>* accepted) {
  STROM_CHECK(keeps_of_master_only_);  // else neighbours would have to be told of it
  for (const UpdateRange& range : merged.ranges) received_[range.origin] = range.to;
  const UpdateRange& first = merged.ranges.front();
  accepted->push_back({{first.origin, first.to}, std::move(merged.update), merged.from});
  for (const UpdateRange& range : merged.ranges) AcceptHeld(now_ns, range.origin, accepted);
}

void Replication::AcceptHeldMerged(int64_t now_ns, std::vector<Accepted>* accepted) {
  for (auto held = hold_merged_.begin(); held != hold_merged_.end();) {
    const Verdict verdict = Judge(held->ranges);
    if (verdict == Verdict::kHeld) {
      ++held;
      continue;
    }
    HeldMerged merged = std::move(*held);
    hold_bytes_ -= SizeOf(merged.update);
    hold_merged_.erase(held);
    if (verdict == Verdict::kRefused) Refuse(merged.ranges);
    if (verdict == Verdict::kAccepted) AcceptMerged(now_ns, std::move(merged), accepted);
    held = hold_merged_.begin();  // those before may follow on it
  }
}

void Replication::Refuse(const UpdateRanges& ranges) {
  for (const auto& [origin, from, to, iteration] : ranges) {
    const uint64_t have = CounterOf(received_, origin);
    if (to > have && !closed_.contains(origin))
      refused_.push_back({origin, std::max(from, have), to, iteration});
  }
}

UpdateRanges Replication::Gaps(int64_t before_ns) const {
  VersionVector ends;  // of the gap at each origin
  const auto note = [&](uint64_t origin, uint64_t from) {
    if (from <= CounterOf(received_, origin)) return;
    uint64_t& end = ends.try_emplace(origin, from).first->second;
    end = std::min(end, from);
  };
  for (const auto& [id, held] : hold_) {
    if (held.since_ns <= before_ns) note(id.origin, id.counter - 1);
  }
  for (const HeldMerged& held : hold_merged_) {
    if (held.since_ns > before_ns) continue;
    for (const UpdateRange& range : held.ranges) note(range.origin, range.from);
  }
  UpdateRanges gaps;
  for (const auto& [origin, end] : ends) {
    gaps.push_back({origin, CounterOf(received_, origin), end, 0});
  }
  return gaps;
}

void Replication::RefuseHeld(uint64_t origin) {
  for (auto held = hold_merged_.begin(); held != hold_merged_.end();) {
    const bool waits = std::any_of(held->ranges.begin(), held->ranges.end(), [&](const auto& r) {
      return r.origin == origin && r.from > CounterOf(received_, origin);
    });
    if (!waits) {
      ++held;
      continue;
    }
    hold_bytes_ -= SizeOf(held->update);
    Refuse(held->ranges);
    held = hold_merged_.erase(held);
  }
}

std::vector<Buffer> Replication::Uncovered(uint64_t origin, int64_t before_ns) const {
  std::vector<Buffer> updates;
  const auto ring = ring_.find(origin);
  if (ring == ring_.end()) return updates;
  const uint64_t covered = CounterOf(master_, origin);
  for (const Retained& retained : ring->second) {
    if (retained.counter > covered && retained.accepted_ns < before_ns) {
      updates.push_back(retained.update);
    }
  }
  return updates;
}

void Replication::InstallCut(int64_t now_ns, const VersionVector& cut,
                             std::vector<Accepted>* accepted) {
  for (const auto& [origin, counter] : cut) {
    if (CounterOf(received_, origin) >= counter) continue;
    // The ring must not have a gap: what it holds of this origin lies before the cut.
    DropRing(origin);
    received_[origin] = counter;
  }
  JoinMaster(cut);
  published_ = std::max(published_, CounterOf(cut, own_origin_));
  for (auto held = hold_.begin(); held != hold_.end();) {
    if (!Covers(received_, held->first)) {
      ++held;
      continue;
    }
    hold_bytes_ -= SizeOf(held->second.update);
    held = hold_.erase(held);
  }
  if (hold_.empty()) return;
  for (const auto& [origin, counter] : cut) AcceptHeld(now_ns, origin, accepted);
}

void Replication::Reset(const VersionVector& cut, uint64_t own_origin) {
  std::deque<Retained> own = std::move(ring_[own_origin]);
  while (!own.empty() && own.front().counter <= CounterOf(cut, own_origin)) own.pop_front();
  received_ = master_ = cut;
  published_ = CounterOf(cut, own_origin_);
  ring_.clear();
  DropHeld();
  closed_.clear();
  earlier_.clear();
  kept_beyond_.reset();
  ring_bytes_ = 0;
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
  DropHeld();
  earlier_.clear();
  for (const auto& [origin, counter] : received_) earlier_.push_back(origin);
}

void Replication::Retire(const VersionVector& cut) {
  // Updates overtake START: an origin that is new since the generation began may be in no cut yet.
  for (const uint64_t origin : std::exchange(earlier_, {})) {
    if (cut.contains(origin)) continue;
    DropRing(origin);
    DropHeld(origin);
    received_.erase(origin);
    master_.erase(origin);
  }
  std::erase_if(closed_, [&](uint64_t origin) { return !cut.contains(origin); });
}

void Replication::DropRing(uint64_t origin) {
  const auto ring = ring_.extract(origin);
  if (ring.empty()) return;
  for (const Retained& retained : ring.mapped()) ring_bytes_ -= SizeOf(retained.update);
  retained_ -= std::ssize(ring.mapped());
}

void Replication::DropHeld() {
  hold_.clear();
  hold_merged_.clear();
  refused_.clear();
  hold_bytes_ = 0;
}

void Replication::DropHeld(uint64_t origin) {
  auto held = hold_.lower_bound({origin, 0});
  while (held != hold_.end() && held->first.origin == origin) {
    hold_bytes_ -= SizeOf(held->second.update);
    held = hold_.erase(held);
  }
}

void Replication::ForgetHeldFrom(LinkId link) {
  for (auto held = hold_.begin(); held != hold_.end();) {
    std::erase(held->second.from, link);
    if (!held->second.from.empty()) {
      ++held;
      continue;
    }
    hold_bytes_ -= SizeOf(held->second.update);
    held = hold_.erase(held);
  }
}

LinkId Replication::HoldsMost() const {
  std::map<LinkId, int64_t> bytes;
  for (const auto& [id, held] : hold_) bytes[held.from.front()] += SizeOf(held.update);
  for (const HeldMerged& held : hold_merged_) bytes[held.from] += SizeOf(held.update);
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? 0 : most->first;
}

void Replication::DropHeldFrom(LinkId link) {
  ForgetHeldFrom(link);
  for (auto held = hold_merged_.begin(); held != hold_merged_.end();) {
    if (held->from != link) {
      ++held;
      continue;
    }
    hold_bytes_ -= SizeOf(held->update);
    Refuse(held->ranges);
    held = hold_merged_.erase(held);
  }
}

void Replication::Close(uint64_t origin) { closed_.insert(origin); }

void Replication::SetMasterVector(int64_t now_ns, const VersionVector& vector) {
  JoinMaster(vector);
  Evict(now_ns);
}

bool Replication::Is(uint64_t origin, Origins origins) const {
  switch (origins) {
    case Origins::kAll:
      return true;
    case Origins::kOfMaster:
      return IsOfMaster(origin);
    case Origins::kOfWorkers:
      return !IsOfMaster(origin);
    case Origins::kApplied:
      return IsOfMaster(origin) || origin == own_origin_;
  }
  return false;
}

bool Replication::HasAll(Origins origins, const VersionVector& vector) const {
  return std::all_of(received_.begin(), received_.end(), [&](const auto& entry) {
    return !Is(entry.first, origins) || CounterOf(vector, entry.first) >= entry.second;
  });
}

bool Replication::Replay(Origins origins, int64_t budget_bytes, VersionVector* vector,
                         std::vector<Buffer>* missing) const {
  for (const auto& [origin, counter] : received_) {
    if (!Is(origin, origins)) continue;
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

bool Replication::ReachesBackTo(Origins origins, const VersionVector& vector) const {
  return std::all_of(received_.begin(), received_.end(), [&](const auto& entry) {
    const auto& [origin, counter] = entry;
    if (!Is(origin, origins)) return true;
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

Buffer Replication::Find(const UpdateId& id) const {
  const auto ring = ring_.find(id.origin);
  if (ring == ring_.end() || ring->second.empty()) return nullptr;
  const uint64_t first = ring->second.front().counter;
  if (id.counter < first || id.counter - first >= ring->second.size()) return nullptr;
  return ring->second[id.counter - first].update;
}

std::optional<std::vector<ReceivedUpdate>> Replication::Beyond(const VersionVector& cut,
                                                               Origins origins) const {
  if (!ReachesBackTo(origins, cut)) return std::nullopt;
  std::vector<ReceivedUpdate> updates;
  for (const auto& [origin, ring] : ring_) {
    if (!Is(origin, origins)) continue;
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
  if (!keeps_of_master_only_ || IsOfMaster(id.origin)) {
    ring_bytes_ += SizeOf(update);
    ++retained_;
    ring_[id.origin].push_back({id.counter, now_ns, update});
  }
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
    Accept(now_ns, held.from.front(), id, std::move(held.update), accepted);
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
  uint64_t covered = CounterOf(master_, origin);
  if (origin == own_origin_) covered = std::min(covered, published_);
  return kept_beyond_ ? std::min(covered, CounterOf(*kept_beyond_, origin)) : covered;
}

bool Replication::IsOld(int64_t now_ns, const Retained& retained) const {
  return !keeps_for_neighbours_ && now_ns - retained.accepted_ns > options_.retention_ns;
}

}  // namespace strom
