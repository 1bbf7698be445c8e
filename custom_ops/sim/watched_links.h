// A host's LinkLayer as its node sees it, with a record of which links stand and to whom, for the
// checks of queues and trees. It changes nothing.
#ifndef KERAS_STROM_SIM_WATCHED_LINKS_H_
#define KERAS_STROM_SIM_WATCHED_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/base/link_layer.h"
#include "sim/forwarded_links.h"

namespace strom {

class WatchedLinks final : public ForwardedLinks {
 public:
  struct Watched {
    Address to;              // of those that this host has started; else all zero
    bool initiated = false;  // by this host
    bool up = false;
  };

  using ForwardedLinks::ForwardedLinks;

  // Every event passes here before the node gets it.
  void Note(const LinkEvent& event) {
    if (event.type == LinkEvent::Type::kDown) open_.erase(event.link);
    if (event.type == LinkEvent::Type::kUp) open_[event.link].up = true;
  }
  // The links that stand or are being made.
  const std::map<LinkId, Watched>& open() const { return open_; }
  // Of the links that others have made to this host: downward.
  int64_t LongestQueueDown() const {
    int64_t longest = 0;
    for (const auto& [link, watched] : open_) {
      if (!watched.initiated) longest = std::max(longest, QueuedBytes(link));
    }
    return longest;
  }

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override {
    const LinkId link = ForwardedLinks::Connect(now_ns, to, key, std::move(hello));
    open_[link] = {to, true, false};
    return link;
  }
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override {
    open_.erase(link);
    ForwardedLinks::Close(now_ns, link, reason);
  }

 private:
  std::map<LinkId, Watched> open_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_WATCHED_LINKS_H_
