// The master's side of one generation (one `fit`): updates into its parameters, STEPs, averages and
// the ending. It knows members by rank only; core/master/master_node.h owns links and membership.
#ifndef KERAS_STROM_CORE_MASTER_MASTER_GENERATION_H_
#define KERAS_STROM_CORE_MASTER_MASTER_GENERATION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/joint/joint_plan.h"
#include "core/master/pieces_for_members.h"
#include "core/master/shard_exchange.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/master_event.h"
#include "core/replication/replication.h"
#include "core/replication/sequencer.h"
#include "core/replication/update.h"

namespace strom {

// What a generation asks of the node that runs it. None of these calls back before it returns.
class GenerationHost : public ShardExchangeHost {
 public:
  // Tells the worker why it cannot go on; MasterGeneration::Lose follows.
  void Fail(int32_t rank, Code code, const std::string& reason) override = 0;
  virtual void Report(MasterEvent event) = 0;
  virtual const VersionVector& received() const = 0;
  // What one member's values, that are averaged or on their way to it, may hold.
  virtual int64_t MostValuesBytes() const = 0;
  // False while updates of a lost member may be on their way through the tree.
  virtual bool Settled() const = 0;
  // A member that is lost may be back as the process that it was.
  virtual bool IsAway(int32_t rank) const = 0;
  // Where updates are merged: all that has been accepted is published when this returns.
  virtual void PublishAll() = 0;
};

class MasterGeneration {
 public:
  enum class Phase { kTraining, kFinal, kResult, kEnded };

  // `plan`: valid for the layout. `cycles`: see Announce. `sequenced`: of the synchronous and
  // bounded modes. `origins`: rank -> origin of the members; `parameters` and `host` outlive this.
  MasterGeneration(const Layout& layout, const JointPlan& plan, uint64_t cycles,
                   const std::optional<SequencerBounds>& sequenced,
                   const std::map<int32_t, uint64_t>& origins, const UpdateCodec& codec,
                   std::vector<float>* parameters, GenerationHost* host);

  // An update that this node has accepted.
  void HandleAccepted(const Replication::Accepted& accepted);
  void HandleDone(int32_t rank, const Done& done);
  void HandleAverage(int32_t rank, const BlobName& name, std::vector<double> values);
  // Before its state: hashes of the pieces of the values with which it ends. After RESULT: of what
  // it has made of values that were not near.
  void HandleHashes(int32_t rank, std::vector<uint64_t> hashes);
  void HandleState(int32_t rank, std::vector<double> state);
  void HandleVerification(int32_t rank, const Verification& verification);

  // Training on a joint model. "" or why the member has to go.
  std::string HandleShard(int64_t now_ns, int32_t rank, const BlobChunk& chunk);
  void HandleHave(int64_t now_ns, int32_t rank, const Have& have);
  void HandleAsk(int32_t rank, const AskJoint& ask);
  void HandleStepping(int32_t rank, const Stepping& stepping);
  void HandleLinked(int32_t rank, const Linked& linked);
  // False: see ShardExchange.
  [[nodiscard]] bool HandleAtRound(int32_t rank, const AtRound& at);
  void AdvanceExchange(int64_t now_ns);
  int64_t NextTimeout() const;
  // The parameters are to be looked at: they become what the joint model is now.
  void Refresh();
  const ShardExchange* exchange() const { return exchange_ ? &*exchange_ : nullptr; }

  // Settled may be true by now.
  void Resume() { Advance(); }

  // The member is gone: nobody waits for it any more. `returning`: the origin of the process that
  // is back over another link, by which it says at once whether it still takes part; 0 = it is not.
  // Neither the end nor a round comes before that word or the loss of that link.
  void Lose(int32_t rank, uint64_t returning = 0);
  // A process that joins late, in place of the rank's earlier one where there was one.
  void Join(int32_t rank, uint64_t origin);
  // A process that was in the middle of this generation under an earlier master.
  void GoOn(int32_t rank, uint64_t origin, const AskResume& resume);
  // Whose state a late joiner may get: a member that has one, none of `asked`. Those that train
  // come before those that are done and wait for the others; of them the lowest rank, so the chief
  // where it can.
  std::optional<int32_t> FindDonor(const std::set<int32_t>& asked) const;
  bool MayDonate(int32_t rank) const;
  // Whether somebody who has a state is lost, and may be back with it.
  bool MayBeBackWithState() const;
  // False: no late joiner, or it has asked over this link before. In rounds of gradients whoever
  // has another state than the chief asks; no round waits for it until HoldRound.
  bool BeginToAsk(int32_t rank);
  void HasState(int32_t rank);
  // Rounds of gradients: the state on its way to `rank` is that with which `round` begins, and that
  // waits for it. False: it is not the one at hand.
  [[nodiscard]] bool HoldRound(int32_t rank, uint64_t round);
  void ReleaseRound(int32_t rank);
  bool IsOfGradients() const { return exchange_ && exchange_->plan().IsOfGradients(); }
  // The mean of the members' state at the end; empty before RESULT.
  const std::vector<double>& final_state() const { return final_state_; }
  // The process that owns `origin` is back. False: too late, or this mode does not allow it.
  bool Reinstate(int32_t rank, uint64_t origin);

  const Layout& layout() const { return layout_; }
  Phase phase() const { return phase_; }
  const char* phase_name() const;
  bool sequenced() const { return sequencer_.has_value(); }
  bool IsLiveMember(int32_t rank) const;
  // Sequenced modes: what has been accepted and is not in `parameters`, as it stands in no STEP
  // yet.
  Sequencer::Contribution Waiting() const {
    return sequencer_ ? sequencer_->Waiting() : Sequencer::Contribution{};
  }
  // Sequenced modes: from here on STEPs are kept with their updates, for who begins with parameters
  // of now. Once they have more than `most_bytes` none are kept.
  void KeepSteps(int64_t most_bytes);
  void KeepNoSteps() { kept_steps_.reset(); }
  struct KeptStep {
    Step step;
    Sequencer::Contribution updates;
  };
  struct KeptSteps {
    uint64_t first = 0;
    int64_t bytes_left = 0;
    std::vector<KeptStep> steps;
  };
  // Whether who has the parameters before STEP `step` can be told all since.
  bool HasStepsFrom(uint64_t step) const {
    return step == steps() || (kept_steps_ && kept_steps_->first == step);
  }
  const std::optional<KeptSteps>& kept_steps() const { return kept_steps_; }
  // A worker has ended training for all: the chief, or one that failed or met a NaN.
  bool stopped() const { return stopped_; }
  // Still training, but nobody is left.
  bool IsAbandoned() const { return phase_ == Phase::kTraining && !AnyLive(); }
  int32_t live_members() const;
  // Of all processes of a rank.
  struct Progress {
    int64_t last_iteration = -1;  // of an accepted update; -1 = none
    int64_t updates = 0;
  };
  Progress progress(int32_t rank) const;
  // Whether values of this kind are awaited from the member now.
  bool AwaitsAverage(int32_t rank) const {
    return IsLiveMember(rank) && phase_ == Phase::kTraining;
  }
  bool AwaitsState(int32_t rank) const {
    return IsLiveMember(rank) && phase_ == Phase::kFinal && !members_.at(rank).state;
  }
  bool AwaitsHashes(int32_t rank) const {
    return AwaitsState(rank) ||
           (IsLiveMember(rank) && phase_ == Phase::kResult && members_.at(rank).has_near);
  }
  // What is kept here of its values.
  int64_t ValuesBytes(int32_t rank) const;
  uint64_t steps() const { return sequencer_ ? sequencer_->steps() : 0; }
  // Sequenced modes: who keeps no bound, and why it has to go. One that is lost already only loses
  // what it has queued.
  struct Excess {
    int32_t rank = -1;
    std::string why;
  };
  std::optional<Excess> FindExcess();

 private:
  struct Member {
    uint64_t origin = 0;
    bool lost = false;
    bool returns = false;   // lost, but it is back and has not said yet whether it takes part
    bool late = false;      // it has joined a generation that ran
    bool has_state = true;  // false: late, and nobody has given it one yet
    bool asks = false;      // ... but it has asked, over the link at hand
    Progress progress;
    std::optional<uint64_t> final_counter;                            // DONE
    std::optional<std::pair<BlobName, std::vector<double>>> average;  // waits in one (sequenced)
    std::optional<BlobName> asked;  // ... or, in rounds, under this name; its values are in latest_
    std::vector<uint64_t> hashes;   // of its values at the end; empty = it has told none
    bool has_near = false;          // it was sent what is near to those, and no more
    std::optional<std::vector<double>> state;
    std::optional<double> difference;  // verified
  };
  using Vectors = std::map<int32_t, std::vector<double>>;

  // Whatever the last event has made possible: STEPs, averages, FINAL, RESULT, END.
  void Advance();
  void NoteStep(int32_t rank, int64_t iteration);
  void EmitSteps();
  void Keep(Step step, Sequencer::Contribution updates);
  void CompleteBarrier();
  void AnswerHeldUp();
  bool HasRounds() const { return exchange_ && exchange_->plan().HasRounds(); }
  Stepper StepperOf(int32_t rank) const { return {rank, members_.at(rank).origin}; }
  bool AllDone() const;
  void SendFinal();
  void SendResult();
  void SendEnd();
  void AnswerAverage(int32_t rank, const BlobName& asked, const Vectors& by_rank);
  Vectors& LatestUnder(uint64_t key);
  template <typename Visit>
  void ForLive(Visit visit);
  template <typename Test>
  bool AllLive(Test test) const;
  bool AnyLive() const;
  bool AnyReturns() const;
  // Rounds wait for who is back and has not said yet whether it takes part.
  bool ExchangeGoesOn() const;

  const Layout layout_;
  const UpdateCodec& codec_;
  std::vector<float>* const parameters_;
  GenerationHost* const host_;
  Phase phase_ = Phase::kTraining;
  std::map<int32_t, Member> members_;
  std::map<uint64_t, int32_t> rank_of_origin_;
  std::optional<Sequencer> sequencer_;
  std::optional<ShardExchange> exchange_;
  std::optional<KeptSteps> kept_steps_;
  bool stopped_ = false;
  std::deque<std::pair<uint64_t, Vectors>> latest_;  // averages by key, newest last (not sequenced)
  std::optional<uint64_t> parameters_hash_;          // after RESULT
  std::vector<double> final_state_;
  std::optional<PiecesForMembers> final_pieces_;  // between RESULT and END
};

// The mean of the vectors that are as long as `size`, summed in rank order so that its bits do not
// depend on timing; *contributors gets how many they were.
std::vector<double> MeanInRankOrder(const std::map<int32_t, std::vector<double>>& by_rank,
                                    size_t size, uint32_t* contributors);

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MASTER_GENERATION_H_
