#include "core/master/publisher.h"

#include "core/replication/merged_update.h"

namespace strom {

std::pair<UpdateId, Buffer> Publisher::Publish(int64_t now_ns) {
  STROM_CHECK(!waiting_.empty());
  Merger merger;
  while (!waiting_.empty() && merger.Add(waiting_.front())) {
    bytes_ -= std::ssize(*waiting_.front());
    waiting_.pop_front();
  }
  ++last_.counter;
  published_updates_ += merger.contained();
  next_ns_ = now_ns + pace_.interval_ns();
  return {last_, merger.Write(last_, layout_, *codec_)};
}

}  // namespace strom
