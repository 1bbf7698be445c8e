// One worker's side of the protocol above the links: its join, its link to the master, and what it
// is made of: core/worker/worker_generation.h (one `fit`), core/worker/tree_links.h (parent and
// children) and core/replication/relay.h (updates). Sans-IO; core/master/master_node.h is its
// counterpart.
#ifndef KERAS_STROM_CORE_WORKER_WORKER_NODE_H_
#define KERAS_STROM_CORE_WORKER_WORKER_NODE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/joint_exchange.h"
#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/replication/replication.h"
#include "core/replication/update.h"
#include "core/worker/worker_generation.h"

namespace strom {

struct WorkerNodeOptions {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t attempt = 0;
  std::array<uint8_t, 16> instance{};  // random: tells a resumed process from another one
  int32_t max_staleness = -1;          // -1 asynchronous, 0 synchronous, k bounded
  Address master;
  PublicKeyBytes master_public_key{};
  // For the workers below this one in a tree: its own key, and the port they reach it at (0 = the
  // one that the master sees).
  PublicKeyBytes public_key{};
  uint16_t port = 0;
  std::array<uint8_t, 16> host{};  // equal for the workers of one machine
  int64_t failure_timeout_ns = 5'000'000'000;
  // > 0: a master that is lost may come back as another one of a higher epoch, within so long;
  // asynchronous mode alone. 0: its loss ends this worker.
  int64_t master_wait_ns = 0;
  int64_t ring_bytes = int64_t{64} << 20;
  int64_t link_queue_bytes = int64_t{32} << 20;
  const UpdateCodec* codec = &MessageCodec();
};

class WorkerNode {
 public:
  WorkerNode(const WorkerNodeOptions& options, LinkLayer* links);
  ~WorkerNode();

  void Start(int64_t now_ns);  // connects; kJoined or kFailed follows
  void HandleLinkEvent(int64_t now_ns, LinkEvent event);
  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;
  std::optional<WorkerEvent> PollEvent();

  // Requests of the application, each answered by one event.
  void BeginGeneration(int64_t now_ns, Generation generation);             // -> kStarted
  void Average(int64_t now_ns, uint64_t key, std::vector<double> values);  // -> kAverage
  void Finish(int64_t now_ns, bool stop);                                  // -> kFinal
  // `values`: this worker's as they are now, as in Generation.
  void SendState(int64_t now_ns, std::vector<double> state,
                 std::shared_ptr<std::vector<float>> values);     // -> kResult
  void Verify(int64_t now_ns, double difference, uint64_t hash);  // -> kEnd
  // Late joiners: another worker's state, as bytes that only applications understand. Once a start.
  void AskDonation(int64_t now_ns);  // -> kDonation
  // Goodbye; no event. "" = its work is done, kDrained = the master holds all that it has made and
  // others go on with its work, anything else = it is lost.
  void Leave(int64_t now_ns, const std::string& reason);

  // Somebody has joined late and asks for this worker's state. Donate answers all who have asked;
  // empty bytes = it has none to give.
  bool DonationWanted() const;
  void Donate(int64_t now_ns, Buffer donation);

  // How many workers are missing to `min_workers`; while it is not 0 this worker makes no step.
  int32_t missing_workers() const;

  // That the joint model has finished, as the master has told last; 0 where there is none.
  uint64_t joint_cycles() const;

  // Whether updates are merged on their way, as START has said; see Exchange.
  bool merges() const;

  // The epoch of the master that it follows; 0 before kJoined.
  uint64_t master_epoch() const;
  // The master is lost, and this worker waits for another: it makes no step meanwhile, but hands
  // its replica over when asked.
  bool WaitsForMaster() const;
  // Another master asks for this worker's parameters, to go on from. They must contain exactly what
  // the latest SetApplied, or kStarted, has said; from BeginGeneration to kStarted they are those
  // with which the last generation has ended.
  bool ReplicaWanted() const;
  void HandOver(int64_t now_ns, const std::vector<float>& parameters);
  // Whether `received` counts updates that reach the application only with a snapshot which it does
  // not have yet (or, where the master was lost meanwhile, will not get).
  bool AwaitsParameters() const;

  // Takes one part of an update, fills its header and sends it. `last_part` ends the step's update.
  // Only between kStarted and Finish, or after kFailed.
  // Counters go on after kFailed, but nothing is sent any more.
  UpdateId Submit(int64_t now_ns, int64_t iteration, bool last_part, std::vector<uint8_t> update);
  // The last own update that the master is known to hold: by its beacons or, where it is the
  // parent, by what it has acknowledged.
  uint64_t LastHeld() const;
  // Bytes towards the parent not yet acknowledged: the producer blocks over its cap.
  int64_t OutgoingBytes() const;

  // Moves out what must be applied now, in order (see Exchange::TakeReceived). Own updates are
  // part of it from a snapshot on, until SnapshotInstalled says that the application's parameters
  // follow on that one.
  Received TakeReceived();
  void SnapshotInstalled();
  // How many of this worker's own contributions (one a step) stand in STEPs released so far in this
  // generation; a STEP is released once it and every update it lists are here. Sequenced modes
  // only.
  int64_t ReleasedSteps() const;

  // Training on a joint model (core/base/joint_exchange.h). Without one, or after the end, nothing
  // is asked, given or there.
  void BeginStepping(int64_t now_ns);
  JointOrders TakeJointOrders();
  JointValues TakeRound();
  void GiveToJoint(int64_t now_ns, uint64_t mark, int64_t iteration, int64_t steps,
                   std::vector<float> values);
  void BeginGradient(int64_t now_ns, int64_t iteration, GrowingGradient values);
  void GivePart(int64_t now_ns, int64_t part);
  void EndGradient(int64_t now_ns, int64_t iteration, GrowingGradient values);
  void AskJoint(int64_t now_ns);  // -> kJoint
  void WithdrawFromJoint();       // of ShardAgent::Withdraw

  const VersionVector& received() const;
  // Ring, hold and vectors, for checks of their bounds.
  const Replication& replication() const;
  void SetApplied(const VersionVector& applied);

  // Whether it is a link to another worker of the same rounds, and so none of the tree's.
  bool IsToPeer(LinkId link) const;
  // Bytes of what was given to a joint model, or in a round of gradients, that the master, or other
  // workers, have not acknowledged.
  int64_t GivenBytes() const;

  // Members, origins, vectors, ring bytes, retained updates, drops by reason: a JSON object.
  std::string StatusJson() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_WORKER_NODE_H_
