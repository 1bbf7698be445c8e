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

namespace strom {

class WatchedLinks final : public LinkLayer {
 public:
  struct Watched {
    Address to;              // of those that this host has started; else all zero
    bool initiated = false;  // by this host
    bool up = false;
  };

  explicit WatchedLinks(LinkLayer* links) : links_(links) {}

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
    const LinkId link = links_->Connect(now_ns, to, key, std::move(hello));
    open_[link] = {to, true, false};
    return link;
  }
  void Accept(int64_t now_ns, LinkId link, Buffer welcome) override {
    links_->Accept(now_ns, link, std::move(welcome));
  }
  void Refuse(int64_t now_ns, LinkId link, const std::string& reason) override {
    links_->Refuse(now_ns, link, reason);
  }
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override {
    return links_->Send(now_ns, link, channel, std::move(message));
  }
  int64_t QueuedBytes(LinkId link) const override { return links_->QueuedBytes(link); }
  std::optional<Address> PeerAddress(LinkId link) const override {
    return links_->PeerAddress(link);
  }
  void Void(int64_t now_ns, LinkId link, Channel channel) override {
    links_->Void(now_ns, link, channel);
  }
  void HoldBack(int64_t now_ns, LinkId link, bool hold) override {
    links_->HoldBack(now_ns, link, hold);
  }
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override {
    open_.erase(link);
    links_->Close(now_ns, link, reason);
  }

 private:
  LinkLayer* const links_;
  std::map<LinkId, Watched> open_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_WATCHED_LINKS_H_
