// A worker's side of training on a joint model, on the thread of the network: what the master asks
// of it and has sent, until the training thread takes it; and what the training thread gives, until
// the master asks for something newer. core/master/shard_exchange.h is the counterpart. Rounds of
// gradients may be made among the workers instead (core/worker/peer_rounds.h), as ROUNDS says.
#ifndef KERAS_STROM_CORE_WORKER_SHARD_AGENT_H_
#define KERAS_STROM_CORE_WORKER_SHARD_AGENT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/joint_exchange.h"
#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/node_status.h"
#include "core/worker/peer_rounds.h"

namespace strom {

// What a shard agent asks of the generation that it belongs to.
class ShardAgentHost : public PeerHost {
 public:
  virtual void Send(const ControlMessage& message) = 0;
  virtual void SendBlob(const std::vector<Buffer>& chunks) = 0;
  virtual int64_t QueuedBytes() const = 0;  // on their way to the master
};

class ShardAgent {
 public:
  // `host` and `drops` outlive this. `cycles`: that the joint model has finished at the start.
  ShardAgent(const JointPlan& plan, uint64_t generation, uint64_t cycles, ShardAgentHost* host,
             DropCounters* drops)
      : plan_(plan), generation_(generation), host_(host), drops_(drops), cycles_(cycles) {}

  // --- the link to the master
  // It counts on this worker over the link at hand: what was asked and given is said again.
  void Register();
  void LinkDown();
  // Another master, which begins to count anew.
  void MasterChanged();

  // --- what the master says
  void Handle(const Tick& tick);
  // `ranks`: those of the latest PEERS, `rank` this worker's.
  // kCorrupt where that cannot be.
  Status Handle(const Rounds& rounds, std::vector<int32_t> ranks, int32_t rank);
  // kCorrupt where the chunk does not fit. *joint gets the answer to AskJoint.
  Status HandleChunk(const BlobChunk& chunk, JointValues* joint);

  // What another worker says in a round among the workers. kCorrupt where it does not fit.
  Status HandlePeerChunk(int32_t rank, const BlobChunk& chunk);

  // After every event, and when NextTimeout is over: a round's snapshot leaves part by part, as the
  // line takes it.
  void Advance(int64_t now_ns);
  int64_t NextTimeout() const {
    return peers_ ? std::min(next_ns_, peers_->NextTimeout()) : next_ns_;
  }

  // --- the training thread
  // It has made its first step.
  void BeginStepping();
  void Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values);
  // See JointExchange.
  void BeginGradient(int64_t iteration, GrowingGradient values);
  void GivePart(int64_t part);
  void EndGradient(int64_t iteration, GrowingGradient values);
  // Answered once by HandleChunk. EASGD: the question leaves once the master has all that was
  // given.
  void AskJoint();
  // It waits no longer for the joint model or for its round, and gives a newer snapshot next.
  void Withdraw();
  // See JointOrders::Take.
  JointOrders TakeOrders() { return orders_.Take(); }
  // The target of a round, once.
  JointValues TakeRound() { return std::exchange(round_target_, nullptr); }
  // Rounds of gradients: this worker has the state with which the round begins, or is about to.
  // What it gives next belongs to that round.
  void BeginAt(uint64_t round) { next_round_ = round; }
  uint64_t next_round() const { return next_round_; }
  // It waits in an average from here on.
  void BeginToWait() { says_given_ = false; }
  // Of gradients, of which the last snapshot is made, or Done::kNone. The master asks one of those
  // who have ended for it, for all have the same.
  uint64_t rounds_in_last() const;
  // Of what was given and is on no link: that leaves part by part, and while the master's is down.
  int64_t BytesToGive() const;
  // That the joint model has finished, as the master has told last.
  uint64_t cycles() const { return cycles_; }

 private:
  struct Given {
    uint64_t mark = 0;
    int64_t iteration = 0;
    int64_t steps = 0;  // of the last snapshot of gradients: rounds
    GrowingGradient values;
    bool is_whole = true;        // else a gradient that is being written
    std::vector<int64_t> parts;  // of which these are there
  };
  void SendGiven(const Given& given);
  Given* Growing();
  void BeginAmongPeers(const Given& given);
  bool IsHeld(const Given& given) const;
  void SayGiven();
  void GiveMean(uint64_t round);
  void SendNextPart();
  void AskWhenGiven();
  Status HandleRoundChunk(const BlobChunk& chunk);
  std::shared_ptr<std::vector<float>> MemoryOfTarget();
  BlobName NameOf(const Given& given) const;
  void ForgetGiven();     // the master has it
  void EraseSnapshots();  // all but the last ones
  void EraseGiven();
  ElementRange RangeOf(uint64_t number) const;
  void HandleTarget(const Blob& blob);
  void HandleRoundTarget(uint64_t number);
  void InstallTarget(uint64_t number, JointValues values);

  const JointPlan plan_;
  const uint64_t generation_;
  bool steps_ = false;
  ShardAgentHost* const host_;
  DropCounters* const drops_;
  bool registered_ = true;
  JointOrders orders_;
  std::optional<uint64_t> tick_;                          // the latest
  std::optional<std::pair<uint64_t, JointValues>> next_;  // the target that no tick has named yet
  std::optional<uint64_t> last_have_;
  int64_t had_iteration_ = -1;  // of the step whose values were given for that
  JointValues round_target_;
  uint64_t cycles_;
  std::vector<Given> given_;            // that the master may lack, should the link be lost
  std::optional<uint64_t> last_given_;  // its mark
  uint64_t asked_ = 0;                  // questions for the joint model so far
  bool awaits_joint_ = false;
  bool asks_joint_ = false;        // ... and has not said so yet
  std::optional<uint64_t> taken_;  // the mark of the target that comes
  BlobAssembler targets_, joints_;

  // Rounds: the snapshot that leaves, by its mark, and the part of it that is next.
  std::optional<uint64_t> leaving_;
  int64_t next_part_ = 0;
  bool leaves_as_change_ = false;
  int64_t next_ns_ = kNever;
  // The target that comes, in memory that is used again, and its elements that are here.
  std::array<std::shared_ptr<std::vector<float>>, 2> memory_;
  std::shared_ptr<std::vector<float>> coming_;
  int64_t arrived_ = 0;
  // bfloat16: the target of the round `last_have_`, to which changes are made.
  JointValues base_;
  uint64_t next_round_ = 0;

  // Rounds of gradients: where they are made, by the latest ROUNDS.
  uint64_t rounds_version_ = 0;
  bool stopped_ = false;             // nowhere, until another ROUNDS
  bool says_given_ = false;          // another waits in an average
  std::optional<PeerRounds> peers_;  // among the workers, from a round on
  struct Early {
    int32_t rank = -1;
    BlobName name;
    uint64_t total = 0, offset = 0;
    std::vector<uint8_t> bytes;
  };
  std::vector<Early> early_;  // of rounds for which the word has not come yet
  // While there are rounds among the workers: the mean of the last round, which others may lack.
  JointValues last_mean_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_SHARD_AGENT_H_
