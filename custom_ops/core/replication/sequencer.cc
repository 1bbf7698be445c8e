#include "core/replication/sequencer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace strom {

Sequencer::Sequencer(const std::map<Stepper, uint64_t>& counters, const SequencerBounds& bounds)
    : bounds_(bounds) {
  for (const auto& [who, counter] : counters) members_[who].accepted = counter;
}

void Sequencer::Join(const Stepper& who, uint64_t counter) {
  Member& member = members_[who];
  VoidOpen(&member);  // the same process, back: it begins a contribution anew
  member.is_void = false;
  member.mode = Mode::kJoining;
  member.accepted = counter;
}

void Sequencer::Add(const Stepper& who, ReceivedUpdate update, bool last_part) {
  const auto [at, is_gone] = members_.try_emplace(who);
  Member& member = at->second;
  if (is_gone) member.mode = Mode::kLost;  // nothing of it was left here
  member.accepted = update.id.counter;
  if (member.is_void) {
    member.is_void = !last_part;
    return;
  }
  const int64_t bytes = static_cast<int64_t>(update.update->size());
  queued_bytes_ += bytes;
  member.queued_bytes += bytes;
  member.open_bytes += bytes;
  if (member.mode == Mode::kLost) lost_open_bytes_ += bytes;
  member.open.push_back(std::move(update));
  if (member.open.size() > bounds_.parts) many_parts_ = who;
  if (last_part) {
    if (member.mode == Mode::kLost) lost_open_bytes_ -= member.open_bytes;
    member.open_bytes = 0;
    member.complete.push_back(std::exchange(member.open, {}));
    if (member.mode == Mode::kJoining) member.mode = Mode::kStepping;
  }
  VoidOpenOfLost();
}

void Sequencer::VoidOpen(Member* member) {
  if (member->open.empty()) return;
  if (member->mode == Mode::kLost) lost_open_bytes_ -= member->open_bytes;
  queued_bytes_ -= member->open_bytes;
  member->queued_bytes -= member->open_bytes;
  member->open_bytes = 0;
  member->open.clear();
  member->is_void = true;
}

void Sequencer::VoidOpenOfLost() {
  for (auto at = members_.begin(); lost_open_bytes_ > bounds_.open_bytes && at != members_.end();
       ++at) {
    if (at->second.mode == Mode::kLost) VoidOpen(&at->second);
  }
}

std::optional<Sequencer::Excess> Sequencer::FindExcess() const {
  if (many_parts_) return Excess{*many_parts_, true};
  if (queued_bytes_ <= bounds_.queued_bytes) return std::nullopt;
  const auto most = std::max_element(
      members_.begin(), members_.end(),
      [](const auto& a, const auto& b) { return a.second.queued_bytes < b.second.queued_bytes; });
  return Excess{most->first, false};
}

void Sequencer::Discard(const Stepper& who) {
  Member& member = members_.at(who);
  STROM_CHECK(member.mode == Mode::kLost);
  if (many_parts_ == who) many_parts_.reset();
  VoidOpen(&member);
  queued_bytes_ -= std::exchange(member.queued_bytes, 0);
  member.complete.clear();
}

void Sequencer::Done(const Stepper& who, uint64_t final_counter) {
  Member& member = members_.at(who);
  if (member.mode == Mode::kLost) return;
  member.mode = Mode::kDone;
  member.until = final_counter;
}

void Sequencer::Lose(const Stepper& who) {
  const auto found = members_.find(who);
  if (found == members_.end() || found->second.mode == Mode::kLost) return;
  Member& member = found->second;
  member.mode = Mode::kLost;
  lost_open_bytes_ += member.open_bytes;
  if (many_parts_ == who) {
    many_parts_.reset();
    VoidOpen(&member);
  }
  VoidOpenOfLost();
}

void Sequencer::Wait(const Stepper& who, uint64_t counter) {
  Member& member = members_.at(who);
  if (member.mode == Mode::kLost) return;
  member.mode = Mode::kWaiting;
  member.until = counter;
}

bool Sequencer::Member::Stepping() const {
  switch (mode) {
    case Mode::kStepping:
      return true;
    case Mode::kWaiting:
    case Mode::kDone:
      return !complete.empty() || accepted < until;
    case Mode::kJoining:
    case Mode::kLost:
      return !complete.empty();
  }
  return false;
}

std::optional<Sequencer::Contribution> Sequencer::NextStep() {
  bool any = false;
  for (const auto& [who, member] : members_) {
    if (!member.Stepping()) continue;
    if (member.complete.empty()) return std::nullopt;
    any = true;
  }
  if (!any) return std::nullopt;
  Contribution step;
  for (auto& [who, member] : members_) {
    if (member.complete.empty()) continue;
    Contribution& next = member.complete.front();
    // Of the lost there may be any number: theirs wait for the next STEP.
    if (member.mode == Mode::kLost && !step.empty() &&
        step.size() + next.size() > bounds_.step_ids) {
      continue;
    }
    for (const ReceivedUpdate& update : next) {
      const int64_t bytes = static_cast<int64_t>(update.update->size());
      queued_bytes_ -= bytes;
      member.queued_bytes -= bytes;
    }
    step.insert(step.end(), std::make_move_iterator(next.begin()),
                std::make_move_iterator(next.end()));
    member.complete.pop_front();
  }
  // A job may replace any number of workers.
  std::erase_if(members_, [](const auto& entry) {
    const Member& member = entry.second;
    return member.mode == Mode::kLost && member.queued_bytes == 0 && !member.is_void;
  });
  ++steps_;
  return step;
}

Sequencer::Contribution Sequencer::Waiting() const {
  Contribution waiting;
  for (const auto& [who, member] : members_) {
    for (const Contribution& complete : member.complete) {
      waiting.insert(waiting.end(), complete.begin(), complete.end());
    }
    waiting.insert(waiting.end(), member.open.begin(), member.open.end());
  }
  return waiting;
}

bool Sequencer::BarrierComplete() const {
  bool any = false;
  for (const auto& [who, member] : members_) {
    if (member.mode == Mode::kStepping) return false;
    if (member.mode != Mode::kWaiting) continue;
    if (member.Stepping()) return false;
    any = true;
  }
  return any;
}

void Sequencer::ReleaseBarrier() {
  for (auto& [who, member] : members_) {
    if (member.mode == Mode::kWaiting) member.mode = Mode::kStepping;
  }
}

bool Sequencer::Finished() const {
  for (const auto& [who, member] : members_) {
    if (member.mode != Mode::kDone && member.mode != Mode::kLost) return false;
    if (member.Stepping()) return false;
  }
  return true;
}

}  // namespace strom
