// A worker's side of one generation (one `fit`): from the announcement over START, STEPs, averages
// and the ending to END. It knows the master as one partner; core/worker/worker_node.h owns the
// links, and core/master/master_generation.h is the counterpart.
#ifndef KERAS_STROM_CORE_WORKER_WORKER_GENERATION_H_
#define KERAS_STROM_CORE_WORKER_WORKER_GENERATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/joint_exchange.h"
#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/near_values.h"
#include "core/replication/node_status.h"
#include "core/replication/pieces.h"
#include "core/replication/replication.h"
#include "core/replication/step_queue.h"
#include "core/replication/update.h"
#include "core/worker/shard_agent.h"

namespace strom {

// What one `fit` agrees on before its first step.
struct Generation {
  uint64_t number = 0;  // 1, 2, ...
  int64_t layout_size = 0;
  uint64_t layout_hash = 0;
  std::string options_text;  // equal on all workers, else refused
  // This worker's values, of which only what is not the chief's has to come; null = it has none.
  // The chief has some. Nobody else reads or writes them up to the start.
  std::shared_ptr<std::vector<float>> values;
  JointPlan plan = {};  // likewise equal; update sharing has none
  uint64_t cycles = 0;  // see Announce
};

// How a generation began for this worker.
struct Beginning {
  bool late = false;   // the others train already: it takes a lost worker's place, or is one more
  bool ended = false;  // it is over: there is nothing to train, the parameters are its result
  // Late: the last iteration that the master has accepted of this rank's earlier process; -1 =
  // none.
  int64_t resume_iteration = -1;
};

struct WorkerEvent {
  enum class Type {
    kJoined,    // the master has welcomed us; `origin` is ours
    kStarted,   // `parameters` are the master's, `beginning` says how it began
    kDonation,  // answer to AskDonation: `donation`, null where there is none to be had
    kAverage,   // answer to Average: `key`, `values`, `contributors`
    kJoint,     // answer to AskJoint: `parameters` are the joint model
    kFinal,     // everything any member sent is here: apply, then SendState
    kResult,    // `values` = averaged state, `parameters` = the master's
    kEnd,       // all members verified; values[0] = the worst difference
    kStop,      // a worker has ended training for all
    kNotice,    // something a user should read (member lost, suspect, ...): `text`
    kFailed     // this worker cannot go on: `status`
  };
  Type type = Type::kNotice;
  Status status;
  std::string text;
  uint64_t origin = 0;
  uint64_t key = 0;
  int32_t contributors = 0;
  std::vector<double> values;
  std::shared_ptr<const std::vector<float>> parameters;
  Beginning beginning;
  VersionVector cut;  // kStarted: what `parameters` contain
  Buffer donation;
};

// What a generation asks of the node that runs it. Nothing of this calls back, but after Fail the
// generation is over.
class WorkerGenerationHost : public ShardAgentHost {
 public:
  virtual void Raise(WorkerEvent event) = 0;
  virtual void Fail(Code code, const std::string& message) = 0;
  virtual const VersionVector& received() const = 0;
  virtual uint64_t last_own_counter() const = 0;
};

class WorkerGeneration {
 public:
  enum class Phase {
    kIdle,      // none has begun, or the last one has ended
    kStarting,  // announced, waiting for START and the snapshot
    kTraining,
    kFinishing,  // DONE is said, waiting for FINAL and all it names
    kFinal,      // the application applies what is left
    kResult,     // STATE is sent, waiting for RESULT
    kVerify      // the application compares, then waits for END
  };

  // `host` and `drops` outlive this.
  WorkerGeneration(bool sequenced, bool is_chief, uint64_t own_origin, WorkerGenerationHost* host,
                   DropCounters* drops)
      : sequenced_(sequenced),
        is_chief_(is_chief),
        host_(host),
        drops_(drops),
        queue_(sequenced, own_origin) {}

  // --- requests of the application; see WorkerNode
  void Begin(Generation generation);
  void Average(uint64_t key, std::vector<double> values);
  void Finish(bool stop);
  void SendState(const std::vector<double>& state, std::shared_ptr<std::vector<float>> values);
  void Verify(double difference, uint64_t hash);
  // At most once after each start: a worker that joined late, or in whose method all must have one
  // state, asks for another's, one that came after the end for the mean of the members' final
  // states. In every other case an empty kDonation follows at once. `is_up`: the link to the master
  // stands.
  void AskDonation(int32_t own_rank, bool is_up);
  // Training on a joint model; null otherwise.
  ShardAgent* joint() { return joint_ ? &*joint_ : nullptr; }
  const ShardAgent* joint() const { return joint_ ? &*joint_ : nullptr; }

  // --- the link to the master
  // The master counts on this worker over the link at hand: what it waits for is said (again).
  void Register();
  void LinkDown();
  // Another master, which knows nothing of this generation. Before START it is announced anew.
  void MasterChanged();
  // The other master goes on with this generation; in asynchronous mode alone.
  void GoOn();
  // Says again what the generation is about to be.
  void Announce();
  bool registered() const { return registered_; }

  // --- what the master says
  // False: not the START that this worker waits for.
  [[nodiscard]] bool HandleStart(const StartGeneration& start);
  void Handle(const Ended& ended);
  void Handle(const AskPieces& ask);
  void Handle(const Step& step);
  void Handle(const Final& final);
  void Handle(const End& end);
  void Handle(const Stop& stop);
  void Handle(const Tick& tick);
  // kCorrupt where the master may not say so.
  Status Handle(const Rounds& rounds, std::vector<int32_t> ranks, int32_t rank);
  // Of the joint model.
  void HandleJointChunk(const BlobChunk& chunk);
  // Of the values with which it starts or ends.
  void HandlePieces(const BlobChunk& chunk);
  void HandleBlob(Blob blob);
  void Add(ReceivedUpdate update) { queue_.Add(std::move(update)); }
  // Late: the updates that the snapshot `number` lacks though START's cut covers them.
  void AddPending(uint64_t number, std::vector<ReceivedUpdate> updates);
  // Raises the events whose conditions now hold.
  void Advance();

  std::vector<ReceivedUpdate> TakeReceived() { return queue_.Take(); }
  // How many bytes of the run `name` may be here; nullopt = nobody waits for it. What another
  // worker has made, and the master only passes on, has a bound of its own.
  std::optional<int64_t> MostBytes(const BlobName& name) const;
  // kCorrupt where they are not as many as those of this layout.
  Status TakeParameters(Blob blob, std::shared_ptr<const std::vector<float>>* parameters) const;
  const StepQueue& queue() const { return queue_; }
  Phase phase() const { return phase_; }
  const char* phase_name() const;
  const Layout& layout() const { return layout_; }
  // True in the phases and modes in which a worker may lose the master for a while.
  bool MayPause() const;
  // The same for a master that another one follows; what FINAL has said is void then.
  bool MayOutliveMaster() const {
    return !sequenced_ && (phase_ == Phase::kIdle || phase_ == Phase::kStarting || IsTraining());
  }
  // It has joined late, and no other's state has come yet.
  bool lacks_state() const { return beginning_.late && (!has_asked_ || asks_as_); }
  const std::string& options_text() const { return generation_.options_text; }
  const JointPlan& plan() const { return generation_.plan; }
  bool IsTraining() const { return phase_ == Phase::kTraining || phase_ == Phase::kFinishing; }

 private:
  void HandleDonation(Blob blob);
  const std::vector<uint64_t>& TakeHashes();
  bool AwaitsPieces(BlobKind kind) const {
    if (kind == BlobKind::kNearPieces) return phase_ == Phase::kResult && !asks_far_;
    return phase_ == Phase::kResult || (phase_ == Phase::kStarting && !is_chief_);
  }
  Status BeginPieces(const BlobChunk& first, Bytes* values);
  void EndPieces();
  void ForgetPieces() {
    pieces_order_ = {};
    pieces_.reset();
  }
  bool HasSnapshot() const;
  void Start();
  void AskAverage();
  void SayDone();
  void RaiseAverage();
  void RaiseResult();

  const bool sequenced_;
  const bool is_chief_;
  WorkerGenerationHost* const host_;
  DropCounters* const drops_;
  Phase phase_ = Phase::kIdle;
  StepQueue queue_;
  Generation generation_;
  Layout layout_;
  bool registered_ = false;
  bool started_ = false;   // START or ENDED is here, perhaps not yet the snapshot
  Beginning beginning_;    // as they said
  uint64_t snapshot_ = 0;  // of the PARAMETERS that they named; 0 = of an ordinary start
  VersionVector cut_;
  std::vector<uint64_t> hashes_;  // of the pieces of this worker's values, as the master knows them
  ChunkOrder pieces_order_;
  std::unique_ptr<PieceTaker> pieces_;  // they go into this worker's values
  bool asks_far_ = false;               // some were not near, and come whole
  std::shared_ptr<const std::vector<float>> parameters_;
  uint64_t parameters_snapshot_ = 0;                                         // which they are
  std::optional<std::pair<uint64_t, std::vector<ReceivedUpdate>>> pending_;  // snapshot, updates
  std::optional<std::pair<uint64_t, std::vector<double>>> asked_;  // an average: key, values
  std::optional<Blob> mean_;
  std::optional<int32_t> asks_as_;  // for a state, as this rank, until it is here
  bool has_asked_ = false;
  bool stop_ = false;
  std::optional<Final> final_;
  std::optional<Blob> result_;
  std::optional<ShardAgent> joint_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_WORKER_GENERATION_H_
