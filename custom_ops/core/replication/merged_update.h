// Several updates as one: what they add up to, and which they are. Workers pass such up
// (core/replication/upward_queue.h), and a master publishes them under its own origin
// (core/master/publisher.h), so that a link carries one message where as many would pass as there
// are workers; docs/internals/replication.md, "Merging".
//
// Behind an update's header stand the contents, and then codec messages: the exact sum, and as they
// came those that cannot be summed.
#ifndef KERAS_STROM_CORE_REPLICATION_MERGED_UPDATE_H_
#define KERAS_STROM_CORE_REPLICATION_MERGED_UPDATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/types.h"
#include "core/replication/update.h"

namespace strom {

// A merged update's parts; borrows its bytes.
struct MergedUpdate {
  UpdateRanges contents;
  std::vector<Bytes> sums;
  std::vector<std::pair<UpdateId, Bytes>> whole;  // those that are in no sum
};

// `body` is what stands behind the header; kCorrupt names the first check that failed. What the
// messages hold is looked at by CheckMerged only.
Status ParseMerged(Bytes body, MergedUpdate* merged);
Status CheckMerged(Bytes body, uint64_t size, const UpdateCodec& codec);

// Puts validated updates together, plain ones and such as are merged themselves.
class Merger {
 public:
  // False: it does not follow on what is here of its origins, or makes the whole too long; nothing
  // was added. The first one is always taken.
  bool Add(const Buffer& update);
  int64_t updates() const { return std::ssize(updates_); }
  const Buffer& first() const { return updates_.front(); }
  // Of workers, that are in them.
  int64_t contained() const;
  // The merged update; `id` is the master's, or {} for one that goes up, which takes its first
  // origin's name.
  Buffer Write(UpdateId id, const Layout& layout, const UpdateCodec& codec) const;

 private:
  std::vector<Buffer> updates_;
  std::map<uint64_t, UpdateRange> ranges_;
  int64_t bytes_ = 0;
};

// What a validated update contains, plain or merged, and the messages that it consists of.
UpdateRanges ContentsOf(const Buffer& update);
void ForEachMessage(const Buffer& update, const std::function<void(Bytes message)>& visit);

// What a worker has to apply of a validated merged update: all but what `origin`, it itself, has
// made, and has applied as it made it. `own(counter)` is such an update; where one is null there is
// no result, and else at least one. The last one has the contents.
std::vector<ReceivedUpdate> WithoutOwn(const Buffer& merged, uint64_t origin,
                                       const std::function<Buffer(uint64_t counter)>& own,
                                       const UpdateCodec& codec);

// The last counter of each origin in them.
VersionVector EndsOf(const UpdateRanges& ranges);

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_MERGED_UPDATE_H_
