// A host's LinkLayer as its node sees it: all goes on to the links below. Those that look at what
// passes say what they look at.
#ifndef KERAS_STROM_SIM_FORWARDED_LINKS_H_
#define KERAS_STROM_SIM_FORWARDED_LINKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/base/link_layer.h"

namespace strom {

class ForwardedLinks : public LinkLayer {
 public:
  explicit ForwardedLinks(LinkLayer* links) : links_(links) {}

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override {
    return links_->Connect(now_ns, to, key, std::move(hello));
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
    links_->Close(now_ns, link, reason);
  }

 private:
  LinkLayer* const links_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_FORWARDED_LINKS_H_
