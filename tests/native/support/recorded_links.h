// Links that go nowhere: what a node does with them is recorded, and its queues are what the test
// says.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_RECORDED_LINKS_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_RECORDED_LINKS_H_

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/link_layer.h"
#include "core/replication/control.h"

namespace strom {

class RecordedLinks final : public LinkLayer {
 public:
  LinkId Connect(int64_t, const Address& to, const PublicKeyBytes&, Buffer) override {
    connected.push_back(to);
    return static_cast<LinkId>(connected.size());
  }
  void Accept(int64_t, LinkId link, Buffer) override { accepted.push_back(link); }
  void Refuse(int64_t, LinkId link, const std::string& reason) override { refused[link] = reason; }
  bool Send(int64_t, LinkId link, Channel channel, Buffer message) override {
    EXPECT_FALSE(message->empty());
    EXPECT_LE(static_cast<int64_t>(message->size()), kMaxMessageBytes);
    if (queues) queued[link] += static_cast<int64_t>(message->size());
    sent.push_back({link, channel, std::move(message)});
    return true;
  }
  int64_t QueuedBytes(LinkId link) const override {
    const auto found = queued.find(link);
    return found == queued.end() ? 0 : found->second;
  }
  std::optional<Address> PeerAddress(LinkId link) const override {
    const auto found = peers.find(link);
    return found == peers.end() ? std::nullopt : std::optional(found->second);
  }
  void Void(int64_t, LinkId link, Channel) override { ++voided[link]; }
  void HoldBack(int64_t, LinkId link, bool hold) override {
    if (hold) {
      held_back.insert(link);
    } else {
      held_back.erase(link);
    }
  }
  void Close(int64_t, LinkId link, const std::string& reason) override { closed[link] = reason; }

  // The last control message of type `Message` that went to `link`.
  template <typename Message>
  std::optional<Message> Last(LinkId link) const {
    for (auto at = sent.rbegin(); at != sent.rend(); ++at) {
      ControlMessage message;
      if (at->link != link || at->channel != Channel::kControl) continue;
      EXPECT_TRUE(ParseControl(*at->message, &message).ok());
      if (const auto* found = std::get_if<Message>(&message)) return *found;
    }
    return std::nullopt;
  }
  // How many updates went to `link`.
  int Updates(LinkId link) const {
    int updates = 0;
    for (const Sent& message : sent) {
      updates += message.link == link && message.channel == Channel::kUpdate ? 1 : 0;
    }
    return updates;
  }

  struct Sent {
    LinkId link;
    Channel channel;
    Buffer message;
  };
  bool queues = false;  // whether what is sent waits in `queued`, until the test takes it out
  std::map<LinkId, int64_t> queued;
  std::map<LinkId, Address> peers;  // where links lead to
  std::vector<Address> connected;
  std::vector<LinkId> accepted;
  std::map<LinkId, std::string> refused, closed;
  std::map<LinkId, int> voided;
  std::set<LinkId> held_back;
  std::vector<Sent> sent;
};

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_RECORDED_LINKS_H_
