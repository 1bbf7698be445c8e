// What waits at a worker for its parent, where the master publishes what it has merged: its own
// updates and what comes from below it, which go up together.
//
// A worker knows of the others' updates only what the master publishes; what it passes up leaves no
// trace here. Where a piece is lost with a node, its origins say it again (docs/internals/
// replication.md, "Merging").
#ifndef KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_
#define KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_

#include <cstdint>

#include "core/base/types.h"
#include "core/replication/merging_queue.h"
#include "core/replication/update.h"

namespace strom {

class UpwardQueue final : public MergingQueue {
 public:
  UpwardQueue() = default;

  // Another generation, whose messages are at most the interval apart. What waits is dropped.
  void Restart(const Layout& layout, int64_t interval_ns) {
    static_cast<MergingQueue&>(*this) = MergingQueue(interval_ns);
    layout_ = layout;
  }

  // The next message. A single update leaves as it came.
  Buffer Take(int64_t now_ns, const UpdateCodec& codec) {
    const Merger merger = TakeTogether(now_ns);
    return merger.updates() == 1 ? merger.first() : merger.Write({}, layout_, codec);
  }

 private:
  Layout layout_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_UPWARD_QUEUE_H_
