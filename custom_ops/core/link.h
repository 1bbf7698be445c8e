// One established connection: packets sealed and opened under its keys, the two halves of reliable
// delivery, probes that keep it alive, the watch for a dead peer, and the goodbye.
//
// The endpoint makes a Link when a handshake is through and throws it away when `state` is kOver.
#ifndef KERAS_STROM_CORE_LINK_H_
#define KERAS_STROM_CORE_LINK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/handshake.h"
#include "core/link_receiver.h"
#include "core/link_sender.h"
#include "core/packet.h"
#include "core/types.h"

namespace strom {

struct LinkCounters;

// A link ends before it has sent so many packets: AES-GCM under one key stays far below its limit,
// and a packet number is never used twice. (Key phases will lift it.)
inline constexpr uint64_t kMaxPacketsPerKey = uint64_t{1} << 30;

struct LinkOptions {
  int64_t failure_timeout_ns = 5'000'000'000;
  size_t datagram_bytes = 1200;
  uint32_t first_sequence = 0;  // link sequences start here, on both sides
  uint64_t first_number = 0;    // packet numbers start here (tests of their end)
  uint32_t jitter_seed = 1;     // spreads the keepalives of many links
  bool asks_first = false;      // the initiator: its first packet makes the responder's link stand
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

  // `grants`, which all links of a process share, and `counters` outlive the link.
  Link(int64_t now_ns, const ConnectionKeys& keys, uint32_t peer_connection,
       const LinkOptions& options, Grants* grants, LinkCounters* counters);

  // A datagram with this link's connection id. True: it was authentic.
  bool HandleDatagram(int64_t now_ns, const PacketHeader& header, Bytes datagram, Notice* notice);
  // Writes the next datagram; 0 = nothing to send now.
  size_t PollTransmit(int64_t now_ns, std::span<uint8_t> out, Notice* notice);
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
  // The longest datagram it sends.
  size_t datagram_bytes() const { return options_.datagram_bytes; }

 private:
  void Dispatch(int64_t now_ns, PacketType type, Bytes body, Notice* notice);
  size_t WriteBody(int64_t now_ns, std::span<uint8_t> body, PacketType* type);
  void Break(int64_t now_ns, Code code, const std::string& reason, Notice* notice);
  void ArmKeepalive(int64_t now_ns);

  const LinkOptions options_;
  LinkCounters* const counters_;
  const uint32_t peer_connection_;
  PacketCipher seal_;
  PacketCipher open_;
  uint64_t next_number_;
  ReplayWindow received_numbers_;

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

#endif  // KERAS_STROM_CORE_LINK_H_
