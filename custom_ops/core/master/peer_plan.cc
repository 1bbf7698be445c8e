#include "core/master/peer_plan.h"

#include <algorithm>
#include <utility>

#include "core/master/shard_exchange.h"
#include "core/replication/formatting.h"

namespace strom {

void PeerPlan::Order(int32_t rank, uint8_t where, uint64_t round) const {
  host_->Send(rank, Rounds{generation_, version_, where, round});
}

void PeerPlan::RoundBegins(uint64_t number, const std::vector<int32_t>& members) {
  if (where_ != Where::kAtMaster || !reports_.empty()) return;
  if (members.size() < 2 || members.size() > kMostPeers) return;
  std::vector<Peers::Peer> contacts;
  for (const int32_t rank : members) {
    const std::optional<Peers::Peer> contact = host_->ContactOf(rank);
    if (!contact) return;
    contacts.push_back(*contact);
  }
  if (contacts != named_) {
    named_ = std::move(contacts);
    linked_.clear();
    const Peers peers{generation_, ++peers_version_, named_};
    for (const int32_t rank : members) host_->Send(rank, peers);
    return;
  }
  if (linked_.size() < members.size()) return;
  // The word is at all of them before they have the mean of this round, but for bad luck.
  where_ = Where::kAmongPeers;
  from_ = number + 1;
  members_ = {members.begin(), members.end()};
  given_.clear();
  ++version_;
  for (const int32_t rank : members) Order(rank, Rounds::kAmongPeers, from_);
}

void PeerPlan::Handle(int32_t rank, const Linked& linked) {
  if (linked.generation != generation_ || linked.version != peers_version_) return;
  if (linked.linked != 0) {
    linked_.insert(rank);
  } else {
    linked_.erase(rank);
  }
}

void PeerPlan::Stop(const std::set<int32_t>& here) {
  if (where_ != Where::kAmongPeers) return;
  where_ = Where::kStopping;
  ++version_;
  reports_.clear();
  asked_for_mean_.reset();
  lost_while_stopping_ = false;
  wait_until_ns_.reset();
  for (const int32_t rank : members_) {
    unheard_[rank] = std::nullopt;
    if (!here.contains(rank)) continue;
    reports_[rank] = std::nullopt;
    Order(rank, Rounds::kStopped, 0);
  }
}

void PeerPlan::Leave(int32_t rank) {
  linked_.erase(rank);
  reports_.erase(rank);
  given_.erase(rank);
  if (asked_for_mean_ && asked_for_mean_->rank == rank) asked_for_mean_.reset();
  if (where_ != Where::kStopping || !members_.contains(rank)) return;
  unheard_.try_emplace(rank);
  lost_while_stopping_ = true;
  wait_until_ns_.reset();  // from now on
}

void PeerPlan::Forget(int32_t rank) {
  Leave(rank);
  members_.erase(rank);
  unheard_.erase(rank);
}

// PEERS, too, may have been lost with the link.
void PeerPlan::Return(int32_t rank, uint64_t number) {
  const bool is_named = std::any_of(named_.begin(), named_.end(),
                                    [&](const Peers::Peer& peer) { return peer.rank == rank; });
  if (is_named) host_->Send(rank, Peers{generation_, peers_version_, named_});
  if (unheard_.contains(rank)) {
    reports_[rank] = std::nullopt;
    Order(rank, Rounds::kStopped, 0);
  } else if (where_ == Where::kAtMaster) {
    Order(rank, Rounds::kAtMaster, number);
  }
}

std::optional<PeerPlan::Answer> PeerPlan::Handle(int32_t rank, const AtRound& at) {
  if (at.generation != generation_ || at.version != version_) return std::nullopt;
  const auto report = reports_.find(rank);
  if (report == reports_.end()) {
    if (const auto asked = given_.find(rank); asked != given_.end()) asked->second = at.round;
    return std::nullopt;
  }
  report->second = at.round;
  const auto unheard = unheard_.extract(rank);
  return Answer{at.round, unheard.empty() ? std::nullopt : unheard.mapped()};
}

bool PeerPlan::MaySomebodyReturn() const {
  return std::any_of(unheard_.begin(), unheard_.end(),
                     [](const auto& entry) { return !entry.second.has_value(); });
}

std::optional<PeerPlan::Settlement> PeerPlan::Settle(int64_t now_ns, int64_t patience_ns,
                                                     bool some_train) {
  if (where_ != Where::kStopping || asked_for_mean_) return std::nullopt;
  Settlement settlement;
  uint64_t next_furthest = 0;
  for (const auto& [rank, round] : reports_) {
    if (!round) return std::nullopt;
    if (!settlement.round || *round > *settlement.round) {
      next_furthest = settlement.round.value_or(0);
      settlement = {*round, rank};
    } else {
      next_furthest = std::max(next_furthest, *round);
    }
  }
  // Nobody has a mean to which another has not given. Of two nobody knows which is wrong.
  if (reports_.size() > 2 && *settlement.round > next_furthest + 1) {
    host_->Fail(settlement.furthest, Code::kCorrupt,
                WorkerName(settlement.furthest) + " says that it is in round " +
                    std::to_string(*settlement.round) + ", and no other is further than " +
                    std::to_string(next_furthest));
    return std::nullopt;
  }
  if (MaySomebodyReturn()) {
    const bool all_are_lost = reports_.empty();
    if (all_are_lost && !some_train) {  // nobody is here who would make a round
      wait_until_ns_.reset();
      return std::nullopt;
    }
    const bool waits = lost_while_stopping_ || all_are_lost;
    if (waits && !wait_until_ns_) wait_until_ns_ = now_ns + patience_ns;
    if (wait_until_ns_ && now_ns < *wait_until_ns_) return std::nullopt;
  }
  return settlement;
}

void PeerPlan::AskMean(int32_t rank, uint64_t round) {
  asked_for_mean_ = {rank, round};
  Order(rank, Rounds::kGiveMean, round);
}

void PeerPlan::AskGiven(int32_t rank) {
  if (!IsAmongPeers() || !members_.contains(rank)) return;
  if (given_.try_emplace(rank).second) Order(rank, Rounds::kSayGiven, 0);
}

std::optional<uint64_t> PeerPlan::given(int32_t rank) const {
  const auto found = given_.find(rank);
  return found == given_.end() ? std::nullopt : found->second;
}

void PeerPlan::GoOnAtMaster(uint64_t round, const std::set<int32_t>& here) {
  where_ = Where::kAtMaster;
  for (auto& [rank, agreed] : unheard_) {
    if (!agreed) agreed = round;
  }
  members_.clear();
  reports_.clear();
  asked_for_mean_.reset();
  wait_until_ns_.reset();
  ++version_;
  for (const int32_t rank : here) Order(rank, Rounds::kAtMaster, round);
}

void PeerPlan::GoOnAtMaster(int32_t rank, uint64_t round) {
  reports_.erase(rank);
  Order(rank, Rounds::kAtMaster, round);
}

}  // namespace strom
