// Of a ShardExchange: who waits in an average, as at an epoch's end, while others make rounds. Who
// waits gives nothing, so that with epochs of unequal length rounds would wait for one that waits
// for who is in them. Whether that is so follows from how many steps each has made, and from no
// time: two runs of a job see it at the same steps.
#include <algorithm>

#include "core/master/shard_exchange.h"

namespace strom {

bool ShardExchange::IsAwaited(int32_t rank) const {
  const auto found = members_.find(rank);
  if (found == members_.end()) return false;
  const Member& member = found->second;
  return member.here && member.trains && (member.awaited || member.in_round);
}

void ShardExchange::Wait(int32_t rank, uint64_t round) {
  waiting_[rank] = round;
  peers_.ForgetGiven(rank);
  next_ns_ = 0;
}

// Of a round among the workers the master hears only when it is over.
void ShardExchange::AskWhoHasGiven() {
  if (waiting_.empty()) return;
  for (const int32_t rank : peers_.members()) {
    const Member& member = members_.at(rank);
    if (member.here && member.trains && !waiting_.contains(rank)) peers_.AskGiven(rank);
  }
}

bool ShardExchange::IsHeldUp() const {
  if (waiting_.empty()) return false;
  bool all_wait = true;
  for (const auto& [rank, member] : members_) {
    if (!IsAwaited(rank) || waiting_.contains(rank)) continue;
    all_wait = false;
    if (!AwaitsWaiting(rank, member)) return false;
  }
  if (all_wait || peers_.where(number_) != PeerPlan::Where::kAtMaster) return true;
  // A round that lacks nothing goes on by itself.
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    const Member& member = members_.at(entry.first);
    return member.in_rounds && !HasGiven(member, next_part_);
  });
}

// It has given for a round that those who wait have not given for. Where that is made among the
// workers, HAVE may come later than what they wait in, so they say themselves where they are.
bool ShardExchange::AwaitsWaiting(int32_t rank, const Member& member) const {
  switch (peers_.where(number_)) {
    case PeerPlan::Where::kAtMaster:
      return HasGiven(member, next_part_);
    case PeerPlan::Where::kStopping:
      return false;
    case PeerPlan::Where::kAmongPeers:
      break;
  }
  const std::optional<uint64_t> given = peers_.given(rank);
  return given && std::any_of(waiting_.begin(), waiting_.end(),
                              [&](const auto& entry) { return entry.second <= *given; });
}

}  // namespace strom
