// One established connection: packets under its keys (core/transport/packet_protection) along its
// path (core/transport/link_path.h), the two halves of reliable delivery, probes that keep it
// alive, the watch for a dead peer, and the goodbye.
//
// The endpoint makes a Link when a handshake is through and throws it away when `state` is kOver.
#ifndef KERAS_STROM_CORE_TRANSPORT_LINK_H_
#define KERAS_STROM_CORE_TRANSPORT_LINK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/base/types.h"
#include "core/transport/link_path.h"
#include "core/transport/link_receiver.h"
#include "core/transport/link_sender.h"
#include "core/transport/packet.h"
#include "core/transport/packet_protection.h"

namespace strom {

struct LinkCounters;

struct LinkOptions {
  int64_t failure_timeout_ns = 5'000'000'000;
  // UDP payload of a datagram: what passes everywhere, and how far to search upwards; equal = that
  // length and no search.
  size_t least_datagram_bytes = kLeastDatagramBytes;
  size_t most_datagram_bytes = kLeastDatagramBytes;
  uint32_t first_sequence = 0;  // link sequences start here, on both sides
  PacketProtection::Options keys{};
  uint32_t jitter_seed = 1;  // spreads the keepalives of many links
  bool asks_first = false;   // the initiator: its first packet makes the responder's link stand
  CongestionControl congestion = {};
};

class Link {
 public:
  // kOpen: messages flow. kClosing: only the goodbye is still being sent. kOver: nothing is.
  enum class State { kOpen, kClosing, kOver };

  // Something the owner must hear of, at most one a call.
  struct Notice {
    enum class Type { kNone, kSuspect, kDown };
    Type type = Type::kNone;
    Code code = Code::kOk;
    std::string reason;
  };

  // Who is at the other end of a link, as the handshake has found out.
  struct Peer {
    Address address;
    uint32_t connection = 0;  // names the link in packets to it
    ConnectionKeys keys;
  };

  // `random`, `grants`, which all links of a process share, and `counters` outlive the link.
  Link(int64_t now_ns, const Peer& peer, const LinkOptions& options, RandomSource* random,
       Grants* grants, LinkCounters* counters);

  // A datagram with this link's connection id. True: it was authentic.
  bool HandleDatagram(int64_t now_ns, const Address& from, const PacketHeader& header,
                      Bytes datagram, Notice* notice);
  // Writes the next datagram (at most kMaxDatagramBytes) and where it goes; 0 = nothing to send
  // now.
  size_t PollTransmit(int64_t now_ns, std::span<uint8_t> out, Address* to, Notice* notice);
  void HandleTimeout(int64_t now_ns, Notice* notice);
  int64_t NextTimeout() const;

  void Send(int64_t now_ns, Channel channel, Buffer message);
  // Gives up what is queued and started on `channel`; the peer skips it.
  void Void(int64_t now_ns, Channel channel) { sender_.Void(now_ns, channel); }
  // While true the peer is granted nothing more.
  void HoldBack(bool hold) { receiver_.HoldBack(hold); }
  std::optional<DeliveredMessage> PollMessage() { return receiver_.PollMessage(); }
  void Close(int64_t now_ns, const std::string& reason);

  State state() const { return state_; }
  int64_t queued_bytes() const { return sender_.queued_bytes(); }
  int64_t reassembly_bytes() const { return receiver_.reassembly_bytes(); }
  // Smoothed round trip; 0 before the first sample.
  int64_t round_trip_ns() const;
  const LinkSender& sender() const { return sender_; }
  const LinkPath& path() const { return path_; }
  // How often the keys of what it sends have changed.
  uint64_t key_phase() const { return keys_.send_phase(); }

 private:
  bool CountDrop(PacketProtection::Verdict verdict);
  void Dispatch(int64_t now_ns, const Address& from, PacketType type, Bytes body, Notice* notice);
  // What a body means for the link. Nothing: it is malformed; false: no honest peer sends it.
  std::optional<bool> Take(int64_t now_ns, const Address& from, PacketType type, Bytes body,
                           Notice* notice);
  size_t WriteBody(int64_t now_ns, std::span<uint8_t> body, PacketType* type, Address* to);
  size_t WriteAlongPath(const LinkPath::Outgoing& outgoing, std::span<uint8_t> body);
  size_t BodyBytes() const { return path_.datagram_bytes() - kHeaderBytes - kTagBytes; }
  void Break(int64_t now_ns, Code code, const std::string& reason, Notice* notice);
  void ArmKeepalive(int64_t now_ns);

  const LinkOptions options_;
  LinkCounters* const counters_;
  const uint32_t peer_connection_;
  PacketProtection keys_;
  LinkPath path_;

  LinkSender sender_;
  LinkReceiver receiver_;
  StatusPacket status_;  // scratch

  State state_ = State::kOpen;
  bool heard_;  // an authentic packet has come
  bool suspected_ = false;
  int64_t heard_ns_;
  int64_t keepalive_ns_ = kNever;
  uint32_t jitter_;
  bool probe_wanted_ = false;

  std::string close_reason_;
  int closes_sent_ = 0;
  int64_t close_ns_ = kNever;  // when the next CLOSE goes out
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_LINK_H_
