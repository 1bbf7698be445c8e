// What a replica needs from the network side. net/worker_agent.h implements it; a lone worker has
// none.
#ifndef KERAS_STROM_CORE_BASE_EXCHANGE_H_
#define KERAS_STROM_CORE_BASE_EXCHANGE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/types.h"

namespace strom {

// Bytes of an update's header (core/replication/update.h), which stands before the codec's message.
inline constexpr int64_t kUpdateHeaderBytes = 56;

// An update with its header is so much shorter than the longest message there is, for what stands
// around it where it is passed on as a merged one.
inline constexpr int64_t kMergedRoomBytes = 256;

// The updates (from, to] of one origin, the last of which belongs to that iteration.
struct UpdateRange {
  uint64_t origin = 0;
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t iteration = 0;
  friend bool operator==(const UpdateRange&, const UpdateRange&) = default;
};
using UpdateRanges = std::vector<UpdateRange>;  // by ascending origin, each named once

// The origin under which a master publishes what it has merged (core/replication/merged_update.h);
// those of workers have a sequence in their lower half.
inline constexpr uint64_t MasterOrigin(uint64_t epoch) { return epoch << 32; }
inline constexpr bool IsOfMaster(uint64_t origin) { return origin != 0 && origin << 32 == 0; }

struct ReceivedUpdate {
  UpdateId id;
  Buffer update;  // kUpdateHeaderBytes of header, then a codec message that has been validated
  // Of a merged update's last message: the updates of others that its messages add up to.
  std::shared_ptr<const UpdateRanges> contents = nullptr;
  Bytes message() const { return Bytes(*update).subspan(kUpdateHeaderBytes); }
};

// Calls visit(origin, first, last) for all that a replica has applied once it has applied `update`:
// each counter once, so the messages of a merged update before its last say nothing.
template <typename Visit>
void ForEachApplied(const ReceivedUpdate& update, Visit visit) {
  if (!IsOfMaster(update.id.origin))
    return visit(update.id.origin, update.id.counter, update.id.counter);
  if (update.contents == nullptr) return;
  visit(update.id.origin, update.id.counter, update.id.counter);
  for (const UpdateRange& range : *update.contents) visit(range.origin, range.from + 1, range.to);
}

// No training gets so far (core/codec/message.h): a header that says so is wrong, and counts as if
// it said this.
inline constexpr uint64_t kIterationsEnd = uint64_t{1} << 35;
inline double CountedIteration(uint64_t said) {
  return static_cast<double>(std::min(said, kIterationsEnd));
}

// Calls visit(updates, iteration) for the updates of workers among these, several at once where
// only the last one's iteration is known: what was said of it, which may be any number. `iteration`
// is what the header of `update` says.
template <typename Visit>
void ForEachIteration(const ReceivedUpdate& update, uint64_t iteration, Visit visit) {
  if (!IsOfMaster(update.id.origin)) return visit(int64_t{1}, iteration);
  if (update.contents == nullptr) return;
  for (const UpdateRange& range : *update.contents) {
    visit(static_cast<int64_t>(range.to - range.from), range.iteration);
  }
}

// How many updates of workers a replica has applied once it has applied `update`.
inline int64_t UpdatesIn(const ReceivedUpdate& update) {
  int64_t updates = 0;
  ForEachIteration(update, 0, [&](int64_t more, uint64_t) { updates += more; });
  return updates;
}

// A live worker had fallen behind what anybody keeps (asynchronous mode): the master's parameters
// take the place of its own, and what they contain that of all it has applied.
struct Snapshot {
  std::shared_ptr<const std::vector<float>> parameters;
  VersionVector cut;
};

// Updates of asynchronous mode that had to wait for so long that they were added up
// (core/replication/inbox.h).
struct FoldedUpdates {
  std::vector<float> sum;     // over the flat space
  VersionVector first, last;  // counters of each origin in it
  double iterations = 0;      // the sum of theirs
  int64_t updates = 0;        // of workers
  bool empty() const { return sum.empty() && last.empty(); }
};

// What is to be applied now: the snapshot, the sum, then the updates in their order. After a
// snapshot come all that it lacks of what was applied before, own updates too.
struct Received {
  std::optional<Snapshot> snapshot;
  FoldedUpdates folded;
  std::vector<ReceivedUpdate> updates;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Hands over the parts of one step's update in span order; at least one (perhaps empty of
  // entries). The first kUpdateHeaderBytes of each part are room for the header, filled here.
  // Blocks only under back-pressure, and fails after a deadline. *last gets the last part's id.
  virtual Status Submit(int64_t iteration, std::vector<std::vector<uint8_t>> parts,
                        UpdateId* last) = 0;

  // Moves out what has to be applied now, in order. Asynchronous: the others' updates received so
  // far. Otherwise: the updates of every STEP released so far, own ones included.
  virtual Status TakeReceived(Received* received) = 0;

  // `applied` now names what the variables contain (own updates included).
  virtual void SetApplied(const VersionVector& applied) = 0;

  // Calls `done` once when the own contribution number `step` (0 = the first of this generation)
  // stands in a released STEP, or on failure.
  virtual void AwaitStep(int64_t step, int64_t timeout_ns, std::function<void(Status)> done) = 0;

  // True in synchronous and bounded modes: own messages come back through TakeReceived.
  virtual bool sequenced() const = 0;

  // Whether updates are merged on their way, so that equal values of different workers' entries
  // make them shorter (core/codec/threshold_grid.h). Cheap enough for every step.
  virtual bool merges() const { return false; }
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_EXCHANGE_H_
