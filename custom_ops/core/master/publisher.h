// What the master has accepted and not passed on yet, where it publishes the sum of several updates
// instead of each (core/replication/merged_update.h).
//
// The first update after a pause goes out at once; those that come within an interval after a
// publication (core/replication/pace.h) wait for its end and go out together. So a link gets a
// bounded number of messages a step however many workers there are.
#ifndef KERAS_STROM_CORE_MASTER_PUBLISHER_H_
#define KERAS_STROM_CORE_MASTER_PUBLISHER_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/replication/pace.h"
#include "core/replication/update.h"

namespace strom {

class Publisher {
 public:
  // A generation begins. `origin` is the master's, `counter` its last publication's.
  Publisher(const Layout& layout, uint64_t origin, uint64_t counter, int64_t interval_ns,
            const UpdateCodec* codec)
      : layout_(layout), codec_(codec), last_{origin, counter}, pace_(interval_ns) {}

  // An update that has been accepted, of each origin in order.
  void Add(Buffer update) {
    bytes_ += std::ssize(*update);
    waiting_.push_back(std::move(update));
  }
  // Of what waits.
  int64_t bytes() const { return bytes_; }
  // Some worker has made a step.
  void NoteStep(int64_t now_ns, uint64_t iteration) { pace_.Note(now_ns, iteration); }
  bool empty() const { return waiting_.empty(); }
  // When what waits is to go out; kNever where nothing does.
  int64_t due_ns() const { return waiting_.empty() ? kNever : next_ns_; }
  // The next publication: of all that waits, or of as much as one message holds.
  std::pair<UpdateId, Buffer> Publish(int64_t now_ns);

  int64_t published_updates() const { return published_updates_; }

 private:
  const Layout layout_;
  const UpdateCodec* const codec_;
  UpdateId last_;
  Pace pace_;
  int64_t next_ns_ = 0;
  std::deque<Buffer> waiting_;
  int64_t bytes_ = 0;
  int64_t published_updates_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PUBLISHER_H_
