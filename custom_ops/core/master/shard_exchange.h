// Training on a joint model at the master: asks the workers for snapshots of a shard, takes their
// mean into the joint model and sends the target out, three shards at once (MPCA SGD's phases); or
// rounds of all workers (SparkNet, synchronous EASGD); or each worker's own exchanges (EASGD).
// Rounds of gradients (exact mode) leave the model to the workers, who have the same: the master
// asks one who has ended for its last snapshot, and nobody may miss a round. Once they are linked
// they make these rounds among themselves (core/master/peer_plan.h). The arithmetic is
// core/joint/joint_model.h's. Sans-IO; core/worker/shard_agent.h is the counterpart.
//
// Nothing waits for one worker for ever: a tick ends after a time at the latest, and a snapshot
// that comes later counts in its shard's next cycle. What has to be computed or sent is done part
// by part, so that the thread serves others in between; in a round a part's mean goes out as soon
// as all have given that part, while they give the next.
#ifndef KERAS_STROM_CORE_MASTER_SHARD_EXCHANGE_H_
#define KERAS_STROM_CORE_MASTER_SHARD_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/json.h"
#include "core/base/recent.h"
#include "core/joint/joint_model.h"
#include "core/joint/joint_plan.h"
#include "core/master/peer_plan.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"

namespace strom {

// What an exchange asks of the generation that it belongs to.
class ShardExchangeHost {
 public:
  virtual ~ShardExchangeHost() = default;
  virtual void Send(int32_t rank, const ControlMessage& message) = 0;
  virtual void SendBlob(int32_t rank, const std::vector<Buffer>& chunks) = 0;
  virtual int64_t QueuedBytes(int32_t rank) const = 0;
  // It cannot go on. Leave follows, but not before this returns.
  virtual void Fail(int32_t /*rank*/, Code /*code*/, const std::string& /*reason*/) {}
  // Of silence after which a peer is lost, in nanoseconds.
  virtual int64_t FailureTimeout() const { return 5'000'000'000; }
  // Where other workers reach it; nullopt: nowhere.
  virtual std::optional<Peers::Peer> ContactOf(int32_t /*rank*/) const { return std::nullopt; }
};

class ShardExchange {
 public:
  // `flat` are the parameters of the generation's whole layout. `host` outlives this. `cycles`: see
  // JointModel::BeginAfter; 0 = training begins.
  ShardExchange(const JointPlan& plan, uint64_t generation, const std::vector<float>& flat,
                uint64_t cycles, ShardExchangeHost* host);

  // A worker trains from here on; `late`: the others do already. Rounds wait for a late one only
  // from its first snapshot on, and averages too, unless it has trained before (at a lost master).
  void Join(int32_t rank, bool late, bool has_trained = false);
  // It is back over another link.
  void Return(int32_t rank);
  // Its link is gone.
  void Leave(int32_t rank);
  // It makes no step any more; its last snapshots follow, of gradients once it is asked. `stop`: it
  // has ended training for all. `rounds`: see Done.
  void Finish(int32_t rank, bool stop = false, uint64_t rounds = Done::kNone);

  // --- averages, where there are rounds
  // Whether it waits in one, and others in theirs for it. Not so who joins others in the middle,
  // until it makes its first round.
  bool IsAwaited(int32_t rank) const;
  // It waits in one, and gives for `round` next (of gradients); or waits no more.
  void Wait(int32_t rank, uint64_t round);
  void EndWait(int32_t rank) { waiting_.erase(rank); }
  // Those who wait can be joined by nobody: all others for whom rounds wait have given for the one
  // at hand, which lacks what those who wait would give. Or there are no others.
  bool IsHeldUp() const;

  // --- rounds of gradients; elsewhere nothing is held, and whoever was away may come back
  // It has no state, or has to get it again: no round waits for it.
  void Release(int32_t rank);
  // What it will have is the state with which `round` begins: that is the one at hand, and waits
  // for it. False: it is not.
  [[nodiscard]] bool Hold(int32_t rank, uint64_t round);
  // Of those who have ended and can give their parameters nobody has better ones than are here.
  bool HasLast() const { return !BetterLast(); }
  // False: rounds have gone on without it since Leave, and it lacks what they have brought.
  bool MayReturn(int32_t rank) const;

  // A piece of what a member gives. "" or why the member has to go. *whole: the last one of it.
  std::string HandleShard(int64_t now_ns, int32_t rank, const BlobChunk& chunk, bool* whole);
  // True: of a round among the workers, so that this is all that is heard of its step.
  bool Handle(int64_t now_ns, int32_t rank, const Have& have);
  void Handle(int32_t rank, const AskJoint& ask);
  void Handle(int32_t rank, const Stepping& stepping);
  void Handle(int32_t rank, const Linked& linked);
  // False: the others have gone on without it, and it has to go.
  [[nodiscard]] bool Handle(int32_t rank, const AtRound& at);

  // After every event, and when NextTimeout is over.
  void Advance(int64_t now_ns);
  int64_t NextTimeout() const { return next_ns_; }

  // All last snapshots are here: they become a part of the joint model, of models in rounds those
  // from which no later round has been made. No tick follows.
  void Close();
  // A master that another one follows is lost: see JointModel::Restart.
  void Restart(uint64_t cycles) { joint_.Restart(static_cast<int64_t>(cycles)); }
  // Writes the joint model over its places in the parameters; before Close there is none in rounds
  // of gradients.
  void WriteTo(std::vector<float>* flat) const;

  const JointPlan& plan() const { return plan_; }
  const JointModel& joint() const { return joint_; }
  // So many steps of workers were counted so far, each once for each shard.
  int64_t steps_counted() const { return steps_counted_; }
  void AddStatus(JsonObject* json) const;

 private:
  struct Member {
    bool here = false;             // over a link
    bool trains = false;           // has not said DONE
    bool steps = false;            // has made its first step
    bool in_rounds = false;        // rounds wait for it
    bool in_round = false;         // so does the one at hand, of which parts have gone out
    bool awaited = false;          // averages wait for it
    std::optional<uint64_t> owes;  // MPCA: the tick that has asked it
    std::optional<uint64_t> mark;  // of what it gives, or has given last
    uint64_t received = 0;         // bytes of that
    std::optional<uint64_t> gave;  // the latest whole mark
    std::optional<uint64_t> has;   // HAVE
    bool gets_target = false;      // of the tick at hand, or of the round's parts
    bool gets_change = false;      // of the round: as it has given
    std::vector<float> last;       // rounds: its last snapshot, as far as it is here
    bool has_last = false;         // ... and it is whole
    uint64_t ended_before = 0;     // the first round of models that it has not given for
    // Of gradients.
    bool begins_again = false;    // what is under way of it may be from before
    uint32_t rate = 0;            // the bits of its learning rate
    uint64_t next_round = 0;      // that it gives something for, when its link was lost
    std::optional<uint64_t> ran;  // rounds in its last snapshot, once it has ended
    bool asked_last = false;      // ... for which it was asked over this link
    // To estimate how long its steps take.
    std::optional<std::pair<int64_t, int64_t>> at;  // iteration, when
    double step_ns = 0;                             // 0 = not known

    bool MakesRounds() const { return here && in_rounds; }
  };
  struct Stream {  // the joint model for one worker
    uint64_t mark = 0;
    int64_t part = 0;
  };
  struct Work {  // on a shard, part by part
    std::optional<int32_t> shard;
    int64_t part = 0, end = 0;  // the next one, and behind the last
    bool IsLeft() const { return part < end; }
  };

  std::optional<ElementRange> RangeOf(const Member& member, uint64_t mark) const;
  std::string Take(int32_t rank, const BlobChunk& chunk, const ElementRange& range);
  std::string TakeOfRound(int32_t rank, const BlobChunk& chunk, const ElementRange& range);
  uint64_t NextRoundOf(const Member& member) const;
  std::string TakeLast(const BlobChunk& chunk, Member* member);
  void KeepLast();
  using Worth = std::tuple<bool, uint64_t, bool>;
  Worth WorthOfLast(const Member& member) const;
  std::optional<int32_t> BetterLast() const;
  void AskForLast();
  void KeepOneLast(Member* member);
  void NoteSteps(int64_t now_ns, const BlobName& name, Member* member);

  void AdvanceTicks(int64_t now_ns);
  void StartTick(int64_t now_ns);
  bool IsReduced() const;
  bool IsBroadcast() const;
  void PlanWork();
  void DoWork();
  bool HasWork() const { return update_.IsLeft() || target_.IsLeft(); }
  Work WorkOn(std::optional<int32_t> shard) const;
  void SendTargetPart();
  int64_t Patience() const;
  int64_t NotBefore() const;

  void AdvanceRounds(int64_t now_ns);
  std::set<int32_t> Here() const;
  void PlanPeers();
  void StopPeers();
  bool AdvancePeers(int64_t now_ns);
  bool HasOneEnded() const;
  void Settle(const PeerPlan::Settlement& settlement);
  uint64_t FurthestRound() const;
  bool SomebodyLacksMeanBefore(uint64_t round) const;
  void GoOnAtMaster(uint64_t round);
  void BeginAgain(Member* member, uint64_t round);
  std::string TakeMean(int32_t rank, const BlobChunk& chunk);
  bool NotePeerRound(const Have& have, Member* member);
  bool MayGoBackTo(uint64_t round) const;
  void GoBackTo(uint64_t round);
  bool HasGiven(const Member& member, int64_t part) const;
  bool AwaitsWaiting(int32_t rank, const Member& member) const;
  void AskWhoHasGiven();
  bool IsPartGiven() const;
  void TakeRate();
  void ClosePart();
  void CloseRound(int64_t now_ns);
  void MeasureRound(int64_t now_ns);
  void SendRound(int32_t rank, uint64_t round);
  void AdvanceStreams(int64_t now_ns);
  Tick CurrentTick() const;

  const JointPlan plan_;
  const uint64_t generation_;
  ShardExchangeHost* const host_;
  JointModel joint_;
  const int64_t part_elements_;  // in a chunk of a snapshot, but for the last
  std::map<int32_t, Member> members_;
  bool closed_ = false;
  int64_t next_ns_ = 0;
  int64_t steps_counted_ = 0;

  // The tick or round at hand.
  uint64_t number_ = 0;
  bool runs_ = false;  // MPCA: a tick has begun
  int64_t started_ns_ = 0;
  std::set<int32_t> asked_;           // in this tick
  bool sent_last_ = false;            // a target, in the tick before
  bool reduced_ = false;              // P < 3: the stage after it has been planned
  Work update_, target_;              // what is updated, and whose target is sent
  Recent<int64_t> tick_ns_;           // the latest ticks' durations
  std::vector<int64_t> asked_ns_;     // when a shard was asked for last; kNever = never
  int64_t next_part_ = 0;             // rounds: the first whose mean has not gone out
  int64_t steps_ = 0;                 // rounds: own steps from one to the next
  std::map<int32_t, uint64_t> late_;  // by rank: the round that has ended without it
  int64_t round_ended_ns_ = 0;
  std::optional<int64_t> round_filled_ns_;  // when the last of the round has begun to give
  int64_t filled_ns_ = 0;                   // of the round before
  Recent<double> ratios_;                   // exchange over step, of the latest rounds
  std::map<int32_t, Stream> streams_;       // by rank
  uint32_t rate_ = 0;                       // of gradients: what goes out with the mean
  bool has_mean_before_ = true;             // ... and joint_ has that of the round before
  std::set<uint64_t> stopped_after_;        // of gradients: rounds, the training for all
  PeerPlan peers_;                          // of gradients
  bool stops_peers_ = false;                // once the round at hand has ended here
  int64_t rounds_among_peers_ = 0;
  std::vector<float> fetched_;  // the mean that some lack, as far as it is here
  // In an average, by rank: the round that it gives for next.
  std::map<int32_t, uint64_t> waiting_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_SHARD_EXCHANGE_H_
