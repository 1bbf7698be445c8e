// What the master has accepted and not passed on yet, where it publishes the sum of several updates
// instead of each (core/replication/merged_update.h).
#ifndef KERAS_STROM_CORE_MASTER_PUBLISHER_H_
#define KERAS_STROM_CORE_MASTER_PUBLISHER_H_

#include <cstdint>
#include <utility>

#include "core/base/types.h"
#include "core/replication/merging_queue.h"
#include "core/replication/update.h"

namespace strom {

// What is added has been accepted, of each origin in order.
class Publisher final : public MergingQueue {
 public:
  // A generation begins. `origin` is the master's, `counter` its last publication's.
  Publisher(const Layout& layout, uint64_t origin, uint64_t counter, int64_t interval_ns,
            const UpdateCodec* codec)
      : MergingQueue(interval_ns), layout_(layout), codec_(codec), last_{origin, counter} {}

  // The next publication: of all that waits, or of as much as one message holds.
  std::pair<UpdateId, Buffer> Publish(int64_t now_ns) {
    const Merger merger = TakeTogether(now_ns);
    ++last_.counter;
    published_updates_ += merger.contained();
    return {last_, merger.Write(last_, layout_, *codec_)};
  }

  int64_t published_updates() const { return published_updates_; }

 private:
  const Layout layout_;
  const UpdateCodec* const codec_;
  UpdateId last_;
  int64_t published_updates_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PUBLISHER_H_
