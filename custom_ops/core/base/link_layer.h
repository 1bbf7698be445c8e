// What the relay needs from the links below it: authenticated connections that deliver whole
// messages. core/transport/endpoint.h implements it over datagrams; tests implement it in memory.
#ifndef KERAS_STROM_CORE_BASE_LINK_LAYER_H_
#define KERAS_STROM_CORE_BASE_LINK_LAYER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/types.h"

namespace strom {

// Delivery: kControl and kState arrive in the order they were sent, each channel by itself;
// kUpdate messages arrive as they complete (the relay orders them per origin).
// Smaller channels go out first when several wait.
enum class Channel : uint8_t { kControl = 0, kState = 1, kUpdate = 2 };
inline constexpr int kChannels = 3;

// Names one connection of this process; never reused while the process lives. 0 = none.
using LinkId = uint32_t;

// An IPv4 (mapped ::ffff:a.b.c.d) or IPv6 address and a port.
struct Address {
  std::array<uint8_t, 16> ip{};
  uint16_t port = 0;
  // Of a link-local IPv6 address: this machine's number of the interface; it means nothing to
  // others.
  uint32_t scope = 0;
  friend auto operator<=>(const Address&, const Address&) = default;
};

struct LinkEvent {
  enum class Type {
    kHello,  // somebody with the job's secret asks to join; payload = its hello. Accept or Refuse.
    kUp,     // the connection stands; payload = the welcome (initiator) or empty (responder)
    kMessage,  // a whole message on `channel`
    kSuspect,  // nothing authentic for 30 % of failure_timeout
    kDown,     // gone: `code` and `reason` say why. No further event of this link follows.
  };
  Type type = Type::kDown;
  LinkId link = 0;
  Channel channel = Channel::kControl;
  Buffer payload;
  // kDown: kUnreachable (no RETRY), kRejectedSecret (RETRY but no WELCOME), kRefused (the peer
  // said why), kMasterLost (silence after kUp), kClosed (the peer closed; reason is its word).
  Code code = Code::kOk;
  std::string reason;
};

class LinkLayer {
 public:
  virtual ~LinkLayer() = default;

  // Starts to join the node at `to`, which proves that it holds the private half of `key`. kUp or
  // kDown follows.
  virtual LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                         Buffer hello) = 0;
  // Answer to kHello: kUp follows once the joiner's first authentic packet has arrived.
  virtual void Accept(int64_t now_ns, LinkId link, Buffer welcome) = 0;
  // Answer to kHello: the joiner gets kDown with kRefused and these words (authenticated).
  virtual void Refuse(int64_t now_ns, LinkId link, const std::string& reason) = 0;
  // Queues one message (1 to kMaxMessageBytes). False: the link is not up; nothing was queued.
  // The queue's bound is the caller's affair: see QueuedBytes.
  virtual bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) = 0;
  // Bytes of messages queued or unacknowledged.
  virtual int64_t QueuedBytes(LinkId link) const = 0;
  // Where the peer is, as seen from here.
  virtual std::optional<Address> PeerAddress(LinkId link) const = 0;
  // Gives up every message of `channel` that is queued or under way; those that the peer has in
  // part it forgets. Others, and what is sent later, are not affected.
  virtual void Void(int64_t now_ns, LinkId link, Channel channel) = 0;
  // Back-pressure: while true the peer may send no more than it has been granted already.
  virtual void HoldBack(int64_t now_ns, LinkId link, bool hold) = 0;
  // Sends what is queued no more; tells the peer `reason` once (best effort).
  virtual void Close(int64_t now_ns, LinkId link, const std::string& reason) = 0;
};

// Another worker's address as the master says it: a link-local one is of the link over which this
// worker reaches the master.
inline Address FromHere(Address worker, const LinkLayer& links, LinkId master) {
  const bool is_link_local = worker.ip[0] == 0xfe && (worker.ip[1] & 0xc0) == 0x80;
  const auto over = links.PeerAddress(master);
  if (is_link_local && over) worker.scope = over->scope;
  return worker;
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_LINK_LAYER_H_
