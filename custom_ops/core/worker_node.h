// One worker's side of the protocol above the links: join, generations, updates in order, the
// synchronous STEPs, averages and the ending. Sans-IO; core/master_node.h is its counterpart and
// core/replication.h holds the rules both share.
#ifndef KERAS_STROM_CORE_WORKER_NODE_H_
#define KERAS_STROM_CORE_WORKER_NODE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/exchange.h"
#include "core/link_layer.h"
#include "core/replication.h"
#include "core/types.h"
#include "core/update.h"

namespace strom {

struct WorkerNodeOptions {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t attempt = 0;
  std::array<uint8_t, 16> instance{};  // random: tells a resumed process from another one
  int32_t max_staleness = -1;          // -1 asynchronous, 0 synchronous, k bounded
  Address master;
  PublicKeyBytes master_public_key{};
  int64_t failure_timeout_ns = 5'000'000'000;
  int64_t ring_bytes = int64_t{64} << 20;
  const UpdateCodec* codec = &MessageCodec();
};

// What one `fit` agrees on before its first step.
struct Generation {
  uint64_t number = 0;  // 1, 2, ...
  int64_t layout_size = 0;
  uint64_t layout_hash = 0;
  std::string options_text;                        // equal on all workers, else refused
  std::shared_ptr<const std::vector<float>> seed;  // the chief's values; null elsewhere
};

struct WorkerEvent {
  enum class Type {
    kJoined,   // the master has welcomed us; `origin` is ours
    kStarted,  // all members have the same layout; `parameters` are the master's
    kAverage,  // answer to Average: `key`, `values`, `contributors`
    kFinal,    // everything any member sent is here: apply, then SendState
    kResult,   // `values` = averaged state, `parameters` = the master's
    kEnd,      // all members verified; values[0] = the worst difference
    kStop,     // the chief has ended training for all
    kNotice,   // something a user should read (member lost, suspect, ...): `text`
    kFailed    // this worker cannot go on: `status`
  };
  Type type = Type::kNotice;
  Status status;
  std::string text;
  uint64_t origin = 0;
  uint64_t key = 0;
  int32_t contributors = 0;
  std::vector<double> values;
  std::shared_ptr<const std::vector<float>> parameters;
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
  void SendState(int64_t now_ns, std::vector<double> state);               // -> kResult
  void Verify(int64_t now_ns, double difference, uint64_t hash);           // -> kEnd
  void Leave(int64_t now_ns, const std::string& reason);                   // goodbye; no event

  // Takes one part of an update, fills its header and sends it. `last_part` ends the step's update.
  // Only between kStarted and Finish, or after kFailed.
  // Counters go on after kFailed, but nothing is sent any more.
  UpdateId Submit(int64_t now_ns, int64_t iteration, bool last_part, std::vector<uint8_t> update);
  // Bytes towards the master not yet acknowledged: the producer blocks over its cap.
  int64_t OutgoingBytes() const;

  // Moves out what must be applied now, in order (see Exchange::TakeReceived).
  std::vector<ReceivedUpdate> TakeReceived();
  // How many of this worker's own contributions (one a step) stand in STEPs released so far in this
  // generation; a STEP is released once it and every update it lists are here. Sequenced modes
  // only.
  int64_t ReleasedSteps() const;

  const VersionVector& received() const;
  // Ring, hold and vectors, for checks of their bounds.
  const Replication& replication() const;
  void SetApplied(const VersionVector& applied);

  // Members, origins, vectors, ring bytes, retained updates, drops by reason: a JSON object.
  std::string StatusJson() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_NODE_H_
