// Rounds of gradients among the workers themselves: each is where a share of the gradient's parts
// is added up (a reduce-scatter), and sends their means to all (an all-gather). A line carries 2 (K
// - 1) / K models in each direction, whatever K is, where that of a master carries K - 1. The bits
// are those of the master's rounds: float64 sums in the order of ranks.
//
// Nobody is waited for but by name, and nothing here outlives a loss: whoever is lost makes the
// master stop these rounds (core/master/peer_plan.h), and what belonged to the one at hand is
// forgotten. A thread's, that of the network.
#ifndef KERAS_STROM_CORE_WORKER_PEER_ROUNDS_H_
#define KERAS_STROM_CORE_WORKER_PEER_ROUNDS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"

namespace strom {

// The links to the other workers.
class PeerHost {
 public:
  virtual ~PeerHost() = default;
  virtual void SendToPeer(int32_t /*rank*/, const Buffer& /*chunk*/) {}
  virtual int64_t QueuedToPeer(int32_t /*rank*/) const { return 0; }
};

class PeerRounds {
 public:
  // `ranks`: of all workers of the rounds, ascending, this one's among them. `host` outlives this.
  PeerRounds(const JointPlan& plan, const Rounds& order, std::vector<int32_t> ranks, int32_t rank,
             PeerHost* host);

  // Whether the round is one of these.
  bool Has(uint64_t round) const { return round >= order_.round; }

  // This worker's gradient is coming, with its learning rate behind it, and the mean goes here,
  // likewise. Both stay until TakeWhole. The rate is there; parts are as GivePart says, or with
  // GiveRest all of them. The first part, without which nobody has a mean, leaves with the rest.
  void Begin(uint64_t round, std::span<const float> values, std::span<float> mean);
  void GivePart(int64_t part);
  void GiveRest();
  // A piece of another's gradient, or of the mean. kCorrupt where it belongs to no round that this
  // worker may be in, or is here already.
  Status Handle(int32_t rank, const BlobChunk& chunk);
  // The mean of the round at hand is here; it was given to the caller, and the next one may be
  // given.
  bool TakeWhole();

  // After every event, and when NextTimeout is over: the gradient leaves part by part, as the lines
  // take it.
  void Advance(int64_t now_ns);
  int64_t NextTimeout() const { return next_ns_; }

 private:
  // A part that is added up here: what the workers have given, by their place in `ranks_`.
  struct Gathered {
    std::vector<std::vector<float>> values;
    std::vector<bool> is_here;
    size_t here = 0;
    uint32_t rate = 0;  // of the lowest rank
  };

  std::optional<size_t> PlaceOf(int32_t rank) const;
  int64_t parts() const;
  size_t OwnerOf(int64_t part) const { return static_cast<size_t>(part) % ranks_.size(); }
  ElementRange RangeOf(int64_t part) const;
  Gathered& GatheredAt(uint64_t round, int64_t part);
  // nullopt: no part, or one of another size.
  std::optional<int64_t> PartOf(const BlobChunk& chunk) const;
  void Decode(Bytes bytes, std::span<float> values) const;
  Buffer Encode(BlobKind kind, int64_t part, uint32_t count, std::span<const float> values) const;
  void SendPart(int64_t part);
  void Give(int64_t part);
  void GiveOwn(int64_t part);
  void CloseIfWhole(uint64_t round, int64_t part);

  const JointPlan plan_;
  const Rounds order_;
  const std::vector<int32_t> ranks_;
  const size_t place_;  // this worker's
  PeerHost* const host_;
  const int64_t part_elements_;
  const bool is_rounded_;

  std::map<uint64_t, std::map<int64_t, Gathered>> gathered_;  // by round and part
  bool is_given_ = false;
  uint64_t round_ = 0;
  std::span<const float> values_;
  std::span<float> mean_;
  std::vector<bool> is_written_;              // by part
  std::vector<std::deque<int64_t>> leaving_;  // by place: parts that it adds up
  std::vector<bool> arrived_;                 // by part
  int64_t left_ = 0;                          // parts of the mean that are not here
  int64_t next_ns_ = kNever;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_PEER_ROUNDS_H_
