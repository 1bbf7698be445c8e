#include "core/sequencer.h"

#include <iterator>
#include <utility>

namespace strom {

Sequencer::Sequencer(const std::map<int32_t, uint64_t>& counters) {
  for (const auto& [rank, counter] : counters) members_[rank].accepted = counter;
}

void Sequencer::Add(int32_t rank, ReceivedUpdate update, bool last_part) {
  Member& member = members_.at(rank);
  member.accepted = update.id.counter;
  queued_bytes_ += static_cast<int64_t>(update.update->size());
  member.open.push_back(std::move(update));
  if (last_part) member.complete.push_back(std::exchange(member.open, {}));
}

void Sequencer::Done(int32_t rank, uint64_t final_counter) {
  Member& member = members_.at(rank);
  if (member.mode == Mode::kLost) return;
  member.mode = Mode::kDone;
  member.until = final_counter;
}

void Sequencer::Lose(int32_t rank) { members_.at(rank).mode = Mode::kLost; }

void Sequencer::Wait(int32_t rank, uint64_t counter) {
  Member& member = members_.at(rank);
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
    case Mode::kLost:
      return !complete.empty();
  }
  return false;
}

std::optional<Sequencer::Contribution> Sequencer::NextStep() {
  bool any = false;
  for (const auto& [rank, member] : members_) {
    if (!member.Stepping()) continue;
    if (member.complete.empty()) return std::nullopt;
    any = true;
  }
  if (!any) return std::nullopt;
  Contribution step;
  for (auto& [rank, member] : members_) {
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

bool Sequencer::BarrierComplete() const {
  bool any = false;
  for (const auto& [rank, member] : members_) {
    if (member.mode == Mode::kStepping) return false;
    if (member.mode != Mode::kWaiting) continue;
    if (member.Stepping()) return false;
    any = true;
  }
  return any;
}

void Sequencer::ReleaseBarrier() {
  for (auto& [rank, member] : members_) {
    if (member.mode == Mode::kWaiting) member.mode = Mode::kStepping;
  }
}

bool Sequencer::Finished() const {
  for (const auto& [rank, member] : members_) {
    if (member.mode == Mode::kStepping || member.mode == Mode::kWaiting) return false;
    if (member.Stepping()) return false;
  }
  return true;
}

}  // namespace strom
