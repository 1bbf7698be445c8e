// What waits at a worker for its parent, where the master publishes what it has merged: its own
// updates and what comes from below it, which go up together.
//
// A worker knows of the others' updates only what the master publishes; what it passes up leaves no
// trace here. Where a piece is lost with a node, its origins say it again (docs/internals/
// replication.md, "Merging").
#ifndef KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_
#define KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "core/base/types.h"
#include "core/replication/pace.h"
#include "core/replication/update.h"

namespace strom {

class UpwardQueue {
 public:
  // What waits leaves after the interval at the latest, if the link has room. All is dropped.
  void Restart(const Layout& layout, int64_t interval_ns) {
    *this = {};
    layout_ = layout;
    pace_ = Pace(interval_ns);
  }
  // This worker has made a step.
  void NoteStep(int64_t now_ns, uint64_t iteration) { pace_.Note(now_ns, iteration); }

  // A validated update, plain or merged.
  void Add(Buffer update) {
    bytes_ += std::ssize(*update);
    waiting_.push_back(std::move(update));
  }

  bool empty() const { return waiting_.empty(); }
  int64_t bytes() const { return bytes_; }
  // When the next message is to leave, if the link has room; kNever where nothing waits.
  int64_t due_ns() const { return waiting_.empty() ? kNever : next_ns_; }
  // The next message: of all that waits and fits together. A single update leaves as it came.
  Buffer Take(int64_t now_ns, const UpdateCodec& codec);

 private:
  Layout layout_;
  Pace pace_;
  int64_t next_ns_ = 0;
  std::deque<Buffer> waiting_;
  int64_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_
