#include "core/replication/upward_queue.h"

#include "core/replication/merged_update.h"

namespace strom {

Buffer UpwardQueue::Take(int64_t now_ns, const UpdateCodec& codec) {
  STROM_CHECK(!waiting_.empty());
  Merger merger;
  Buffer only;
  while (!waiting_.empty() && merger.Add(waiting_.front())) {
    only = merger.updates() == 1 ? waiting_.front() : nullptr;
    bytes_ -= std::ssize(*waiting_.front());
    waiting_.pop_front();
  }
  next_ns_ = now_ns + pace_.interval_ns();
  return only != nullptr ? only : merger.Write({}, layout_, codec);
}

}  // namespace strom
