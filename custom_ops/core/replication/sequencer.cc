#include "core/replication/sequencer.h"

#include <iterator>
#include <utility>

namespace strom {

Sequencer::Sequencer(const std::map<Stepper, uint64_t>& counters) {
  for (const auto& [who, counter] : counters) members_[who].accepted = counter;
}

void Sequencer::Join(const Stepper& who, uint64_t counter) {
  Member& member = members_[who];
  member = {};
  member.mode = Mode::kJoining;
  member.accepted = counter;
}

void Sequencer::Add(const Stepper& who, ReceivedUpdate update, bool last_part) {
  Member& member = members_.at(who);
  member.accepted = update.id.counter;
  queued_bytes_ += static_cast<int64_t>(update.update->size());
  member.open.push_back(std::move(update));
  if (!last_part) return;
  member.complete.push_back(std::exchange(member.open, {}));
  if (member.mode == Mode::kJoining) member.mode = Mode::kStepping;
}

void Sequencer::Done(const Stepper& who, uint64_t final_counter) {
  Member& member = members_.at(who);
  if (member.mode == Mode::kLost) return;
  member.mode = Mode::kDone;
  member.until = final_counter;
}

void Sequencer::Lose(const Stepper& who) { members_.at(who).mode = Mode::kLost; }

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
    for (const ReceivedUpdate& update : next) {
      queued_bytes_ -= static_cast<int64_t>(update.update->size());
    }
    step.insert(step.end(), std::make_move_iterator(next.begin()),
                std::make_move_iterator(next.end()));
    member.complete.pop_front();
  }
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
