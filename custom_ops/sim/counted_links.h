// A host's LinkLayer as its node sees it, with a count of what passes over each link, by direction
// and channel. It changes nothing.
#ifndef KERAS_STROM_SIM_COUNTED_LINKS_H_
#define KERAS_STROM_SIM_COUNTED_LINKS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "core/base/link_layer.h"
#include "sim/forwarded_links.h"

namespace strom {

struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;  // of whole messages; what a packet has around them is not known here
  Traffic& operator+=(const Traffic& other) {
    messages += other.messages;
    bytes += other.bytes;
    return *this;
  }
};

class CountedLinks final : public ForwardedLinks {
 public:
  struct Counted {
    bool initiated = false;  // by this host: it leads upward
    std::array<Traffic, kChannels> sent = {};
    std::array<Traffic, kChannels> received = {};
    // When the first update was sent, and the last.
    int64_t first_sent_ns = kNever, last_sent_ns = kNever;
    Traffic sent_on(Channel channel) const { return sent[static_cast<size_t>(channel)]; }
    Traffic received_on(Channel channel) const { return received[static_cast<size_t>(channel)]; }
  };

  // Counts while *counts is true. `on_sent`, which may be empty, sees each update that is sent.
  CountedLinks(LinkLayer* links, const bool* counts,
               std::function<void(const Buffer& update)> on_sent = {})
      : ForwardedLinks(links), counts_(counts), on_sent_(std::move(on_sent)) {}

  // Every event passes here before the node gets it.
  void Note(const LinkEvent& event) {
    if (event.type != LinkEvent::Type::kMessage || !*counts_) return;
    Add(event.payload, &counted_[event.link].received[static_cast<size_t>(event.channel)]);
  }
  // Every link on which anything was counted, or that this host has made, gone ones too.
  const std::map<LinkId, Counted>& counted() const { return counted_; }

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override {
    const LinkId link = ForwardedLinks::Connect(now_ns, to, key, std::move(hello));
    counted_[link].initiated = true;
    return link;
  }
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override {
    if (!ForwardedLinks::Send(now_ns, link, channel, message)) return false;
    if (!*counts_) return true;
    Counted& counted = counted_[link];
    Add(message, &counted.sent[static_cast<size_t>(channel)]);
    if (channel != Channel::kUpdate) return true;
    counted.first_sent_ns = std::min(counted.first_sent_ns, now_ns);
    counted.last_sent_ns = now_ns;
    if (on_sent_) on_sent_(message);
    return true;
  }

 private:
  static void Add(const Buffer& message, Traffic* traffic) {
    *traffic += {1, static_cast<int64_t>(message->size())};
  }

  const bool* const counts_;
  const std::function<void(const Buffer& update)> on_sent_;
  std::map<LinkId, Counted> counted_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_COUNTED_LINKS_H_
