// One node's part in the replication rules (docs/internals/replication.md, "What a replica
// is"), the same at the master, at a worker and at a relay between them:
//   - each origin's updates are accepted in counter order, once; later ones are held, bounded;
//   - what has been accepted is kept until the master's vector covers it and, within the ring's
//     bound, for `retention_ns` more, so that a neighbour that attaches anew can be told;
//   - a vector says what is here, and two vectors say what one neighbour lacks of the other.
// Where a master publishes what it has merged, updates of workers go up alone and the master's down
// alone; what those contain is here by them (InstallCut).
// The caller validates updates before and relays, applies and queues the accepted ones after.
#ifndef KERAS_STROM_CORE_REPLICATION_REPLICATION_H_
#define KERAS_STROM_CORE_REPLICATION_REPLICATION_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/link_layer.h"
#include "core/base/types.h"

namespace strom {

inline int64_t SizeOf(const Buffer& update) { return static_cast<int64_t>(update->size()); }

struct ReplicationOptions {
  int64_t ring_bytes = int64_t{64} << 20;
  int64_t hold_bytes = int64_t{64} << 20;
  int64_t retention_ns = 15'000'000'000;
  // Of so many processes updates are accepted: a vector that names them all fits into a message.
  size_t max_origins = kMaxOrigins;
};

class Replication {
 public:
  enum class Verdict {
    kAccepted,   // it, and perhaps held ones after it, are in *accepted
    kHeld,       // an earlier one is missing
    kDuplicate,  // here already
    kRefused,    // a part of it is here already
    kClosed,     // its origin has been closed
    kNoRoom,     // too much is held; who has sent the most of that has to go
    kTooManyOrigins
  };
  struct Accepted {
    UpdateId id;
    Buffer update;
    LinkId from = 0;  // relay to all neighbours but this one; 0 = an own update
  };

  // Of whose updates a question is.
  enum class Origins {
    kAll,
    kOfMaster,   // what a master has published
    kOfWorkers,  // all but that
    kApplied     // what a worker applies where a master publishes: that, and its own
  };

  explicit Replication(const ReplicationOptions& options) : options_(options) {}

  bool Is(uint64_t origin, Origins origins) const;

  // Of this origin, the worker's own, all is kept that is in no cut and no published update yet:
  // what is published is applied without it.
  void KeepUnpublished(uint64_t origin) { own_origin_ = origin; }
  // The last own update that is in one.
  uint64_t published() const { return published_; }
  // At a master that publishes nobody asks for workers' updates.
  void KeepOfMasterOnly(bool only) { keeps_of_master_only_ = only; }

  Verdict Receive(int64_t now_ns, LinkId from, const UpdateId& id, Buffer update,
                  std::vector<Accepted>* accepted);

  // The same for a merged update on its way up, at the master: it is accepted whole, once all of
  // its ranges begin where this vector ends. What overlaps what is here is refused.
  Verdict ReceiveMerged(int64_t now_ns, LinkId from, UpdateRanges ranges, Buffer update,
                        std::vector<Accepted>* accepted);
  // What was refused, and is not here otherwise, since the last call: its origins are to say it
  // again, each range by itself.
  UpdateRanges TakeRefused() { return std::exchange(refused_, {}); }
  // What is missing before that which has been held since `before_ns`: an origin's updates (from,
  // to].
  UpdateRanges Gaps(int64_t before_ns) const;
  // Nobody is left who could say what is missing of `origin`: held merged updates that wait for it
  // are refused.
  void RefuseHeld(uint64_t origin);
  bool holds_any() const { return !hold_.empty() || !hold_merged_.empty(); }
  // Updates of `origin` that the master is not known to hold, and that were made before that time.
  std::vector<Buffer> Uncovered(uint64_t origin, int64_t before_ns) const;

  // Everything up to `cut` is here by way of a snapshot: received joins it, what it covers is no
  // longer held, and held updates that now follow without a gap are accepted.
  void InstallCut(int64_t now_ns, const VersionVector& cut, std::vector<Accepted>* accepted);

  // While a neighbour catches up, no update is evicted for its age alone: what the ring held when
  // the neighbour attached must still be there when it is sent.
  void KeepForNeighbours(bool keep) { keeps_for_neighbours_ = keep; }

  // While a snapshot is on its way that will cover `vector`, all that is beyond stays; nullopt =
  // none is.
  void KeepBeyond(int64_t now_ns, std::optional<VersionVector> vector);
  const std::optional<VersionVector>& kept_beyond() const { return kept_beyond_; }
  // Everything here of these origins that `cut` does not cover, per origin in counter order;
  // nullopt where some of it has gone.
  std::optional<std::vector<ReceivedUpdate>> Beyond(const VersionVector& cut,
                                                    Origins origins) const;
  // An update that is kept; null where it is not.
  Buffer Find(const UpdateId& id) const;

  // Another master goes on from `cut`: of what is here only that counts, and what `own_origin` has
  // made beyond it.
  void Reset(const VersionVector& cut, uint64_t own_origin);
  // The updates of `origin` beyond this one are kept here.
  uint64_t KeptAfter(uint64_t origin) const;

  // Another generation begins: what is held belongs to an earlier one, whose flat space may be
  // another, and has come too late. What is accepted from now on belongs to the new one.
  void BeginGeneration();
  // It has started at `cut`: origins of earlier generations that the cut does not name are of
  // processes that are gone, and are no longer known here.
  void Retire(const VersionVector& cut);
  // The link is closed: what is held and has come by no other is forgotten. It comes again with
  // what is missing before it, from whoever has accepted it.
  void ForgetHeldFrom(LinkId link);
  // By which link the most of what is held came first; 0 = nothing is held.
  LinkId HoldsMost() const;
  // ForgetHeldFrom, and merged updates that came by the link are refused. It is to be closed.
  void DropHeldFrom(LinkId link);

  // No update of `origin` is accepted from now on.
  void Close(uint64_t origin);

  // The master holds `vector` (its beacon; at the master itself what it has received). It counts
  // for origins that are known here, so nobody's word makes this grow.
  void SetMasterVector(int64_t now_ns, const VersionVector& vector);

  // What a neighbour at `*vector` lacks of these origins, per origin in counter order, into
  // *missing until it is `budget_bytes` long, but at least one update; *vector advances to what the
  // neighbour then has. False where the ring no longer reaches back so far: the neighbour then
  // needs a snapshot.
  bool Replay(Origins origins, int64_t budget_bytes, VersionVector* vector,
              std::vector<Buffer>* missing) const;
  // Whether a neighbour at `vector` lacks nothing of these origins.
  bool HasAll(Origins origins, const VersionVector& vector) const;

  // Whether Replay can tell a neighbour at `vector` all that it lacks.
  bool ReachesBackTo(Origins origins, const VersionVector& vector) const;

  const VersionVector& received() const { return received_; }
  // What the master is known to hold.
  const VersionVector& master() const { return master_; }
  int64_t ring_bytes() const { return ring_bytes_; }
  int64_t hold_bytes() const { return hold_bytes_; }
  int64_t retained() const { return retained_; }
  // Bytes of `origin`'s updates, or of all, that the master is not known to hold.
  int64_t UncoveredBytes(uint64_t origin) const;
  int64_t UncoveredBytes() const;
  // Bytes of the retained updates that may not be evicted, however many they are.
  int64_t PinnedBytes() const;

 private:
  struct Retained {
    uint64_t counter;
    int64_t accepted_ns;
    Buffer update;
  };
  struct Held {
    Buffer update;
    std::vector<LinkId> from;  // each link that it has come by, in order
    int64_t since_ns;
  };
  struct HeldMerged {
    UpdateRanges ranges;
    Buffer update;
    LinkId from;
    int64_t since_ns;
  };

  void Accept(int64_t now_ns, LinkId from, const UpdateId& id, Buffer update,
              std::vector<Accepted>* accepted);
  void AcceptHeld(int64_t now_ns, uint64_t origin, std::vector<Accepted>* accepted);
  Verdict Judge(const UpdateRanges& ranges) const;
  void AcceptMerged(int64_t now_ns, HeldMerged merged, std::vector<Accepted>* accepted);
  void AcceptHeldMerged(int64_t now_ns, std::vector<Accepted>* accepted);
  void Refuse(const UpdateRanges& ranges);
  void JoinMaster(const VersionVector& vector);
  void Evict(int64_t now_ns);
  int64_t BytesAfter(uint64_t counter, const std::deque<Retained>& ring) const;
  void DropRing(uint64_t origin);
  void DropHeld();
  void DropHeld(uint64_t origin);
  // The last counter of `origin` that may go.
  uint64_t MayGo(uint64_t origin) const;
  bool IsOld(int64_t now_ns, const Retained& retained) const;

  const ReplicationOptions options_;
  VersionVector received_;
  VersionVector master_;
  std::map<uint64_t, std::deque<Retained>> ring_;  // per origin, without gaps, ends at received_
  std::map<UpdateId, Held> hold_;
  std::list<HeldMerged> hold_merged_;
  UpdateRanges refused_;
  std::set<uint64_t> closed_;
  std::vector<uint64_t> earlier_;  // origins that were known when the generation at hand began
  uint64_t own_origin_ = 0;        // 0: nothing is published
  uint64_t published_ = 0;
  bool keeps_of_master_only_ = false;
  bool keeps_for_neighbours_ = false;
  std::optional<VersionVector> kept_beyond_;
  int64_t ring_bytes_ = 0;
  int64_t hold_bytes_ = 0;
  int64_t retained_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_REPLICATION_H_
