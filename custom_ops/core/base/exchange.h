// What a replica needs from the network side. net/worker_agent.h implements it; a lone worker has
// none.
#ifndef KERAS_STROM_CORE_BASE_EXCHANGE_H_
#define KERAS_STROM_CORE_BASE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/types.h"

namespace strom {

// Bytes of an update's header (core/replication/update.h), which stands before the codec's message.
inline constexpr int64_t kUpdateHeaderBytes = 56;

struct ReceivedUpdate {
  UpdateId id;
  Buffer update;  // kUpdateHeaderBytes of header, then a codec message that has been validated
  Bytes message() const { return Bytes(*update).subspan(kUpdateHeaderBytes); }
};

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
  int64_t iterations = 0;     // the sum of theirs
  int64_t updates = 0;        // 0 = none
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
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_EXCHANGE_H_
