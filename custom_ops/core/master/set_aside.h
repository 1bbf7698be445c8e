// Trees: checked updates that have come to the master from where their origin is not, as from a
// worker that has just moved. They wait for the tree to change, or for the same ones to come from
// where it is. The caller bounds them: over that it drops what the sender of most has sent.
#ifndef KERAS_STROM_CORE_MASTER_SET_ASIDE_H_
#define KERAS_STROM_CORE_MASTER_SET_ASIDE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/replication/replication.h"

namespace strom {

class SetAside {
 public:
  void Add(const UpdateId& id, LinkId from, const Buffer& update) {
    const bool added = updates_[{id.origin, from}].emplace(id.counter, update).second;
    if (added) bytes_ += SizeOf(update);
  }
  int64_t bytes() const { return bytes_; }
  int64_t looks() const { return looks_; }  // so far, at an origin's from one sender

  // `stays` says of each update, by origin in counter order, whether it waits on, and with it those
  // behind it; else it goes to `take`.
  void Look(
      const std::function<bool(LinkId from, const UpdateId& id)>& stays,
      const std::function<void(LinkId from, const UpdateId& id, const Buffer& update)>& take) {
    for (auto at = updates_.begin(); at != updates_.end();) {
      ++looks_;
      const auto [origin, from] = at->first;
      auto& waiting = at->second;
      while (!waiting.empty()) {
        const UpdateId id = {origin, waiting.begin()->first};
        if (stays(from, id)) break;
        const Buffer update = std::move(waiting.extract(waiting.begin()).mapped());
        bytes_ -= SizeOf(update);
        take(from, id, update);
      }
      at = waiting.empty() ? updates_.erase(at) : std::next(at);
    }
  }

  // 0 = nothing is here.
  LinkId SenderOfMost() const {
    std::map<LinkId, int64_t> bytes;
    std::pair<int64_t, LinkId> most = {0, 0};
    for (const auto& [key, waiting] : updates_) {
      int64_t& sent = bytes[key.second];
      for (const auto& [counter, update] : waiting) sent += SizeOf(update);
      most = std::max(most, {sent, key.second});
    }
    return most.second;
  }
  void DropFrom(LinkId from) {
    for (auto at = updates_.begin(); at != updates_.end();) {
      const bool goes = at->first.second == from;
      for (const auto& [counter, update] : at->second) bytes_ -= goes ? SizeOf(update) : 0;
      at = goes ? updates_.erase(at) : std::next(at);
    }
  }

 private:
  std::map<std::pair<uint64_t, LinkId>, std::map<uint64_t, Buffer>> updates_;  // origin, sender
  int64_t bytes_ = 0;
  int64_t looks_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_SET_ASIDE_H_
