// Of a ShardExchange, rounds of gradients among the workers: when they begin and end, and how all
// come to have one state again. core/master/peer_plan.h keeps the book.
#include <algorithm>
#include <utility>

#include "core/master/shard_exchange.h"

namespace strom {

std::set<int32_t> ShardExchange::Here() const {
  std::set<int32_t> here;
  for (const auto& [rank, member] : members_) {
    if (member.here) here.insert(rank);
  }
  return here;
}

// As a round begins here. While one that trains has no state yet, rounds stay here.
void ShardExchange::PlanPeers() {
  if (!plan_.IsOfGradients()) return;
  std::vector<int32_t> ranks;
  for (const auto& [rank, member] : members_) {
    if (!member.here || !member.trains) continue;
    if (!member.in_rounds) return;
    ranks.push_back(rank);
  }
  peers_.RoundBegins(number_, ranks);
}

void ShardExchange::StopPeers() {
  if (!peers_.IsAmongPeers()) return;
  next_ns_ = 0;
  // The round before the first of them ends here first: who has its mean may make that first one
  // before any word reaches it.
  stops_peers_ = peers_.where(number_) == PeerPlan::Where::kAtMaster;
  if (!stops_peers_) peers_.Stop(Here());
}

// False: no round is made here.
bool ShardExchange::AdvancePeers(int64_t now_ns) {
  if (peers_.where(number_) == PeerPlan::Where::kAmongPeers && (stops_peers_ || HasOneEnded())) {
    StopPeers();
  }
  const int64_t patience_ns = 3 * host_->FailureTimeout() / 2;
  const bool some_train = std::any_of(members_.begin(), members_.end(),
                                      [](const auto& entry) { return entry.second.MakesRounds(); });
  if (const auto settlement = peers_.Settle(now_ns, patience_ns, some_train)) Settle(*settlement);
  if (peers_.NextTimeout() > now_ns) next_ns_ = std::min(next_ns_, peers_.NextTimeout());
  return peers_.where(number_) == PeerPlan::Where::kAtMaster;
}

// One makes no more steps, and all who do have the means of the rounds to which it has given.
bool ShardExchange::HasOneEnded() const {
  std::optional<uint64_t> latest;  // that one who has ended has
  for (const int32_t rank : peers_.members()) {
    const Member& member = members_.at(rank);
    if (member.here && !member.trains) latest = std::max(latest, member.has);
  }
  return latest && std::all_of(peers_.members().begin(), peers_.members().end(), [&](int32_t rank) {
           const Member& member = members_.at(rank);
           return !member.here || !member.trains || member.has >= latest;
         });
}

void ShardExchange::Settle(const PeerPlan::Settlement& settlement) {
  // What was made here is here, too, and may have reached one who cannot say so.
  const uint64_t round = std::max(settlement.round.value_or(FurthestRound()), number_);
  const bool mean_is_here = has_mean_before_ && round == number_;
  if (settlement.round == round && !mean_is_here && SomebodyLacksMeanBefore(round)) {
    fetched_.clear();
    return peers_.AskMean(settlement.furthest, round - 1);
  }
  has_mean_before_ = mean_is_here;
  GoOnAtMaster(round);
}

// Where nobody is left whom the rounds among the workers have had: of those who have got a state
// from one of them.
uint64_t ShardExchange::FurthestRound() const {
  uint64_t furthest = 0;
  for (const auto& [rank, member] : members_) {
    if (member.MakesRounds()) furthest = std::max(furthest, NextRoundOf(member));
  }
  return furthest;
}

// Be it one who has got a state from another, which has made a step since.
bool ShardExchange::SomebodyLacksMeanBefore(uint64_t round) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const auto& [rank, member] = entry;
    const auto report = peers_.reports().find(rank);
    const uint64_t next =
        report == peers_.reports().end() ? NextRoundOf(member) : report->second.value_or(0);
    return member.MakesRounds() && next < round;
  });
}

// A piece of the mean of the round before the one with which all go on.
std::string ShardExchange::TakeMean(int32_t rank, const BlobChunk& chunk) {
  const auto& asked = peers_.asked_for_mean();
  const uint64_t round = chunk.name.mark - kFirstMeanMark;
  if (!asked || asked->rank != rank || asked->round != round) return "";  // of an earlier question
  const auto size = static_cast<size_t>(joint_.size());
  const size_t elements = chunk.bytes.size() / sizeof(float);
  if (chunk.total != size * sizeof(float) || chunk.offset != fetched_.size() * sizeof(float) ||
      chunk.bytes.size() % sizeof(float) != 0) {
    return "no mean of a round, though it has said that it has it";
  }
  fetched_.resize(fetched_.size() + elements);
  std::copy(chunk.bytes.begin(), chunk.bytes.end(),
            reinterpret_cast<uint8_t*>(fetched_.data() + fetched_.size() - elements));
  if (fetched_.size() < size) return "";
  rate_ = chunk.name.count;
  joint_.Install(std::exchange(fetched_, {}));
  has_mean_before_ = true;
  number_ = round + 1;
  peers_.HasMean();
  next_ns_ = 0;
  return "";
}

void ShardExchange::GoOnAtMaster(uint64_t round) {
  // Of what is under way of anybody, but for last snapshots, pieces were passed over meanwhile.
  for (auto& [rank, member] : members_) {
    if (member.mark && *member.mark >= kFirstLastMark) continue;
    member.mark.reset();
    member.received = 0;
    member.begins_again = true;
  }
  for (const auto& [rank, at] : peers_.reports()) {
    Member& member = members_.at(rank);
    if (at && member.trains) BeginAgain(&member, *at);
  }
  for (auto& [rank, member] : members_) {
    const bool is_new = member.MakesRounds() && !member.gave;
    if (is_new && member.next_round > round) {
      host_->Fail(rank, Code::kMasterLost,
                  "the worker whose state it has got is lost, and the others have gone on from an "
                  "earlier one; start it anew");
    }
    // What is made again is no part of what anybody else ends with.
    if (!member.here && member.ran > round) {
      member.ran.reset();
      member.has_last = false;
      member.last = {};
    }
  }
  std::erase_if(stopped_after_, [&](uint64_t rounds) {
    return rounds > round && std::none_of(members_.begin(), members_.end(), [&](const auto& one) {
             return one.second.ran == rounds;
           });
  });
  number_ = round;
  stops_peers_ = false;
  next_part_ = 0;
  round_filled_ns_.reset();
  peers_.GoOnAtMaster(round, Here());
  for (const auto& [rank, member] : members_) {
    if (member.here && member.trains) host_->Send(rank, CurrentTick());
  }
  next_ns_ = 0;
}

// It gives for `round` next, or has given for it here, and has the means of all before.
void ShardExchange::BeginAgain(Member* member, uint64_t round) {
  member->mark.reset();
  member->received = 0;
  member->has.reset();
  if (round > 0) member->has = round - 1;
  member->gave = std::max(member->gave, member->has);
  member->next_round = round;
  member->begins_again = true;
  member->gets_target = false;
}

// What counts is where somebody has ended the training, or else what most rounds have made; of such
// that are equal, one that is here.
ShardExchange::Worth ShardExchange::WorthOfLast(const Member& member) const {
  return {stopped_after_.contains(*member.ran), *member.ran, member.has_last};
}

// Once nobody trains: who can give better parameters than are here. All who have made as many
// rounds have the same, but for processors that compute otherwise: it is the lowest rank's.
std::optional<int32_t> ShardExchange::BetterLast() const {
  std::optional<int32_t> best;
  for (const auto& [rank, member] : members_) {
    if (member.here && member.trains) return std::nullopt;
    if (!member.ran || !(member.here || member.has_last)) continue;
    if (!best || WorthOfLast(members_.at(*best)) < WorthOfLast(member)) best = rank;
  }
  return best && !members_.at(*best).has_last ? best : std::nullopt;
}

void ShardExchange::AskForLast() {
  const std::optional<int32_t> rank = BetterLast();
  if (!rank) return;
  Member& best = members_.at(*rank);
  const bool comes = std::any_of(members_.begin(), members_.end(), [&](const auto& one) {
    return one.second.asked_last && one.second.ran == best.ran;
  });
  if (comes) return;
  best.asked_last = true;
  best.mark.reset();
  best.received = 0;
  if (best.gave >= kFirstLastMark) best.gave.reset();  // it was forgotten for a better one
  host_->Send(*rank, Rounds{generation_, 0, Rounds::kGiveLast, 0});
}

// `member` has given what it was asked for.
void ShardExchange::KeepOneLast(Member* member) {
  member->asked_last = false;
  if (!member->has_last) member->ran.reset();  // it had said that there is something
  Member* worse = member;
  for (auto& [rank, other] : members_) {
    if (&other == member || !other.has_last) continue;
    if (member->has_last && WorthOfLast(other) < WorthOfLast(*member)) worse = &other;
    worse->has_last = false;
    worse->last = {};
  }
}

bool ShardExchange::NotePeerRound(const Have& have, Member* member) {
  next_ns_ = 0;
  if (member->has && *member->has >= have.number) return false;  // it says it again
  member->gave = member->has = have.number;
  ++steps_counted_;
  std::optional<uint64_t> all_have = have.number;
  for (const int32_t rank : peers_.members()) all_have = std::min(all_have, members_.at(rank).has);
  if (peers_.HasMade(number_) && all_have >= number_) {
    rounds_among_peers_ += static_cast<int64_t>(*all_have + 1 - number_);
    number_ = *all_have + 1;
    has_mean_before_ = false;
  }
  return true;
}

void ShardExchange::Handle(int32_t rank, const Linked& linked) {
  if (!members_.contains(rank)) return;
  peers_.Handle(rank, linked);
  if (linked.generation == generation_ && linked.linked == 0 && peers_.Has(rank)) StopPeers();
}

bool ShardExchange::Handle(int32_t rank, const AtRound& at) {
  const auto found = members_.find(rank);
  const auto answer = found == members_.end() ? std::nullopt : peers_.Handle(rank, at);
  if (!answer) return true;
  next_ns_ = 0;
  if (!answer->agreed) return true;
  if (!found->second.trains) {  // it has no part in the rounds any more
    peers_.GoOnAtMaster(rank, number_);
    return true;
  }
  const bool mean_is_here = has_mean_before_ && next_part_ == 0;
  const bool is_near = answer->round == number_ || (answer->round + 1 == number_ && mean_is_here);
  if (!is_near || answer->round > *answer->agreed) return false;
  BeginAgain(&found->second, answer->round);
  peers_.GoOnAtMaster(rank, number_);
  return true;
}

}  // namespace strom
