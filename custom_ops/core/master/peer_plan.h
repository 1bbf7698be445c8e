// Where rounds of gradients are made: at the master, or among the workers, each of which adds up a
// share of the parts (core/worker/peer_rounds.h). Among the workers once all have links to each
// other; at the master again as soon as one of them is lost, ends, or another comes. Then all are
// stopped first and say how far they are. Nobody has made a step of a round whose mean some of them
// lack, but where one has that mean, and from it the others get theirs: so all have one state.
// Sans-IO; core/master/shard_exchange.h asks and tells.
#ifndef KERAS_STROM_CORE_MASTER_PEER_PLAN_H_
#define KERAS_STROM_CORE_MASTER_PEER_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/types.h"
#include "core/replication/control.h"

namespace strom {

class ShardExchangeHost;

class PeerPlan {
 public:
  // `host` outlives this.
  PeerPlan(uint64_t generation, ShardExchangeHost* host) : generation_(generation), host_(host) {}

  enum class Where { kAtMaster, kAmongPeers, kStopping };
  // Of a round that begins, or is at hand.
  Where where(uint64_t round) const {
    return where_ == Where::kAmongPeers && round < from_ ? Where::kAtMaster : where_;
  }

  // Round `number` begins at the master, with these members and no other that trains: those of the
  // next rounds are to be linked, or are and go on by themselves from the next one on.
  void RoundBegins(uint64_t number, const std::vector<int32_t>& members);
  void Handle(int32_t rank, const Linked& linked);
  // Whether it is of the rounds among the workers, or was and has not been heard since.
  bool Has(int32_t rank) const { return members_.contains(rank); }
  bool IsUnheard(int32_t rank) const { return unheard_.contains(rank); }
  bool IsAmongPeers() const { return where_ == Where::kAmongPeers; }
  // Among those of the latest of such rounds, until all go on at the master.
  bool HasMade(uint64_t round) const { return !members_.empty() && round >= from_; }
  const std::set<int32_t>& members() const { return members_; }

  // Rounds among the workers end; `here`: whose links stand.
  void Stop(const std::set<int32_t>& here);
  // A link is lost, or another process takes the rank: nothing more is heard of it.
  void Leave(int32_t rank);
  void Forget(int32_t rank);
  // It is back over another link: it is asked how far it is, or told where round `number` is made.
  void Return(int32_t rank, uint64_t number);
  // nullopt: an answer to another question. `agreed`: it was away, and the others have gone on at
  // the master from that round on, so that it has no part in the training if it is further.
  struct Answer {
    uint64_t round = 0;
    std::optional<uint64_t> agreed;
  };
  std::optional<Answer> Handle(int32_t rank, const AtRound& at);
  // While stopping, once all have answered who could: the round that comes next, and who has the
  // mean of the one before. nullopt: they have not.
  // Where links have been lost meanwhile, too, as when the master was cut off, those who may come
  // back are waited for, but no longer than `patience_ns`, when NextTimeout is over. Where all of
  // them are lost they are waited for until `some_train`: there are others who have their state.
  struct Settlement {
    std::optional<uint64_t> round;  // nullopt: nobody of them is left
    int32_t furthest = -1;          // who has said so
  };
  std::optional<Settlement> Settle(int64_t now_ns, int64_t patience_ns, bool some_train);
  int64_t NextTimeout() const { return wait_until_ns_.value_or(kNever); }
  // While one waits in an average: another is to say when it has given for a round, unless it has
  // been asked since it waited last; what it has said latest; and that it waits itself.
  void AskGiven(int32_t rank);
  std::optional<uint64_t> given(int32_t rank) const;
  void ForgetGiven(int32_t rank) { given_.erase(rank); }
  // The mean of `round` is to come from this one.
  void AskMean(int32_t rank, uint64_t round);
  struct Asked {
    int32_t rank = -1;
    uint64_t round = 0;
  };
  const std::optional<Asked>& asked_for_mean() const { return asked_for_mean_; }
  void HasMean() { asked_for_mean_.reset(); }
  // All, or one that was away, go on at the master with `round`.
  void GoOnAtMaster(uint64_t round, const std::set<int32_t>& here);
  void GoOnAtMaster(int32_t rank, uint64_t round);
  const std::map<int32_t, std::optional<uint64_t>>& reports() const { return reports_; }

 private:
  void Order(int32_t rank, uint8_t where, uint64_t round) const;
  bool MaySomebodyReturn() const;

  const uint64_t generation_;
  ShardExchangeHost* const host_;
  Where where_ = Where::kAtMaster;
  uint64_t version_ = 0;            // of ROUNDS
  uint64_t peers_version_ = 0;      // of PEERS
  uint64_t from_ = 0;               // the first among the workers
  std::vector<Peers::Peer> named_;  // in the latest PEERS
  std::set<int32_t> linked_;        // of those
  std::set<int32_t> members_;  // of the rounds among the workers, until all go on at the master
  // Of the members who has not said how far it is, and from where the others have gone on.
  std::map<int32_t, std::optional<uint64_t>> unheard_;
  std::map<int32_t, std::optional<uint64_t>> reports_;  // of whom something is to be heard
  std::map<int32_t, std::optional<uint64_t>> given_;    // of whom AskGiven has asked
  std::optional<Asked> asked_for_mean_;
  bool lost_while_stopping_ = false;
  std::optional<int64_t> wait_until_ns_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PEER_PLAN_H_
