// Updates that wait to leave together, where they are merged: at a worker for its parent
// (core/replication/upward_queue.h), at the master to be published (core/master/publisher.h).
//
// The first one after a pause is due at once; those that come within an interval after a message
// (core/replication/pace.h) are due together at its end. So a link gets a bounded number of
// messages a step however many workers there are.
#ifndef KERAS_STROM_CORE_REPLICATION_MERGING_QUEUE_H_
#define KERAS_STROM_CORE_REPLICATION_MERGING_QUEUE_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "core/base/types.h"
#include "core/replication/merged_update.h"
#include "core/replication/pace.h"

namespace strom {

class MergingQueue {
 public:
  explicit MergingQueue(int64_t interval_ns = 0) : pace_(interval_ns) {}

  // A validated update, plain or merged.
  void Add(Buffer update) {
    bytes_ += std::ssize(*update);
    waiting_.push_back(std::move(update));
  }
  // A step of this iteration has been made.
  void NoteStep(int64_t now_ns, uint64_t iteration) { pace_.Note(now_ns, iteration); }

  bool empty() const { return waiting_.empty(); }
  int64_t bytes() const { return bytes_; }
  // When what waits is to leave, if the links have room; kNever where nothing waits.
  int64_t due_ns() const { return waiting_.empty() ? kNever : next_ns_; }

 protected:
  // For the next message: all that waits and fits together, at least one.
  Merger TakeTogether(int64_t now_ns) {
    STROM_CHECK(!waiting_.empty());
    Merger merger;
    while (!waiting_.empty() && merger.Add(waiting_.front())) {
      bytes_ -= std::ssize(*waiting_.front());
      waiting_.pop_front();
    }
    next_ns_ = now_ns + pace_.interval_ns();
    return merger;
  }

 private:
  Pace pace_;
  int64_t next_ns_ = 0;
  std::deque<Buffer> waiting_;
  int64_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_MERGING_QUEUE_H_
