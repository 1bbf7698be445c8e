// The master's side of the protocol above the links: membership, relaying, its own copy of the
// parameters, STEPs, averages and the ending. Sans-IO; needs no TensorFlow.
#ifndef KERAS_STROM_CORE_MASTER_MASTER_NODE_H_
#define KERAS_STROM_CORE_MASTER_MASTER_NODE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/replication/master_event.h"
#include "core/replication/replication.h"
#include "core/replication/update.h"

namespace strom {

// How the workers hang under the master; the values are those of the C interface.
enum class Topology : int32_t {
  kAuto = 0,   // by the number of workers
  kPlain = 1,  // all under the master
  kMesh = 2    // a tree
};

// Whether the master publishes the sum of several updates instead of passing each on, in
// asynchronous mode; the values are those of the C interface.
enum class Merging : int32_t {
  kAuto = 0,  // where the workers make a tree
  kOff = 1,
  kOn = 2
};

struct MasterNodeOptions {
  int32_t workers = 1;  // the ranks are 0 to workers - 1; training starts when all have joined
  // > 0: so many are enough to start, and with fewer of them training waits. 0: it starts with all
  // and then goes on with those that are left.
  int32_t min_workers = 0;
  uint64_t epoch = 1;  // the upper 32 bits of every origin
  Topology topology = Topology::kAuto;
  int32_t max_children = 8;        // of a node of a tree
  int32_t max_depth = 5;           // levels below the master
  std::array<uint8_t, 16> host{};  // equal for the workers of the master's machine
  Merging merging = Merging::kAuto;
  int64_t merging_interval_ns = 5'000'000;  // between two publications at most
  int64_t failure_timeout_ns = 5'000'000'000;
  int64_t ring_bytes = int64_t{64} << 20;
  int64_t link_queue_bytes = int64_t{32} << 20;
  // Processes whose updates are in a generation, of all ranks; then no other is taken until the
  // next one has started.
  int64_t max_origins = static_cast<int64_t>(kMaxOrigins);
  // What is not trained and averaged: the most of one worker, on its way here and kept, and of all.
  int64_t member_values_bytes = int64_t{1} << 30;
  int64_t values_bytes = int64_t{8} << 30;
  const UpdateCodec* codec = &MessageCodec();
};

class MasterNode {
 public:
  MasterNode(const MasterNodeOptions& options, LinkLayer* links);
  ~MasterNode();

  void HandleLinkEvent(int64_t now_ns, LinkEvent event);
  void HandleTimeout(int64_t now_ns);  // beacons
  int64_t NextTimeout() const;
  std::optional<MasterEvent> PollEvent();

  // The process of this rank has ended in order. Where it never came, who waits for it is told so.
  void WorkerHasEnded(int64_t now_ns, int32_t rank);
  // Tells every worker to end with `reason`, and every one that comes later.
  void Shutdown(int64_t now_ns, const std::string& reason);

  const VersionVector& received() const;
  // Ring, hold and vectors, for checks of their bounds.
  const Replication& replication() const;
  const std::vector<float>& parameters() const;
  // Training on a joint model: see ShardExchange::steps_counted; of the latest generation.
  int64_t steps_counted() const;

  std::string StatusJson() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MASTER_NODE_H_
