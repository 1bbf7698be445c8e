// What a worker has received and its training step has not taken yet, in bounded memory.
//
// A chief that validates for minutes takes nothing meanwhile. Beyond a bound the oldest updates are
// added up in one vector over the flat space (docs/internals/replication.md, "Threads and
// back-pressure", rule 4), so that what waits never needs more than the bound and one copy of the
// parameters.
#ifndef KERAS_STROM_CORE_REPLICATION_INBOX_H_
#define KERAS_STROM_CORE_REPLICATION_INBOX_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "core/base/exchange.h"
#include "core/replication/update.h"

namespace strom {

class Inbox {
 public:
  // Folds what is beyond `fold_bytes`; kNever = nothing. Only for asynchronous mode: elsewhere the
  // order of additions shows in the bits.
  Inbox(int64_t fold_bytes, const UpdateCodec& codec) : fold_bytes_(fold_bytes), codec_(codec) {}

  // Drops all that waits: `snapshot` and what is added from now on take its place.
  void Restart(Snapshot snapshot);
  void Add(ReceivedUpdate update);
  Received Take();

  bool empty() const { return !snapshot_ && updates_.empty() && folded_.empty(); }
  bool has_snapshot() const { return snapshot_.has_value(); }
  // Of the updates that wait as they came.
  int64_t bytes() const { return bytes_; }
  // Since the last Take.
  int64_t folded_updates() const { return folded_.updates; }

 private:
  bool FoldOldest();

  const int64_t fold_bytes_;
  const UpdateCodec& codec_;
  std::optional<Snapshot> snapshot_;
  FoldedUpdates folded_;
  std::deque<ReceivedUpdate> updates_;
  int64_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_INBOX_H_
