// All connections of one process over one datagram socket, sans-IO: joins
// (core/transport/handshake.h), packets (core/transport/packet.h) and links
// (core/transport/link.h), multiplexed by connection id.
//
// The caller reads the clock and owns the socket: it feeds datagrams and timeouts in, sends what
// PollTransmit gives, and drains PollEvent after every call. Nothing here blocks or allocates per
// datagram after start-up.
#ifndef KERAS_STROM_CORE_TRANSPORT_ENDPOINT_H_
#define KERAS_STROM_CORE_TRANSPORT_ENDPOINT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/random_source.h"
#include "core/base/types.h"
#include "core/transport/congestion.h"
#include "core/transport/counters.h"
#include "core/transport/grants.h"
#include "core/transport/joiners.h"
#include "core/transport/secret.h"

namespace strom {

struct EndpointOptions {
  SecretKey secret = {};  // the job's
  std::array<uint8_t, 16> job_id{};
  SecretKey private_key = {};  // responders: their static key
  bool accepts = false;        // answers HELLO
  int64_t failure_timeout_ns = 5'000'000'000;
  int64_t join_timeout_ns = 0;  // of Connect; 0 = failure_timeout, at least 3 s
  // UDP payload of a datagram, 1200 to kMaxDatagramBytes; 0 = from 1200 up to what each path turns
  // out to carry.
  int64_t datagram_bytes = 0;
  uint64_t packets_per_key_phase = 0;  // 0 = kPacketsPerPhase (core/transport/packet_protection)
  uint32_t first_link_sequence = 0;    // equal on both sides; tests of the wrap-around
  CongestionControl congestion = {};
  GrantOptions grants = {};
};

class Endpoint final : public LinkLayer {
 public:
  Endpoint(const EndpointOptions& options, RandomSource* random);
  ~Endpoint() override;

  // --- the network's side
  void HandleDatagram(int64_t now_ns, const Address& from, Bytes datagram);
  // Writes the next datagram into `out` (at least kMaxDatagramBytes long); 0 = nothing to send now.
  size_t PollTransmit(int64_t now_ns, std::span<uint8_t> out, Address* to);
  int64_t NextTimeout() const;  // kNever = none; pacing delays count too
  void HandleTimeout(int64_t now_ns);

  // --- the relay's side
  std::optional<LinkEvent> PollEvent();
  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override;
  void Accept(int64_t now_ns, LinkId link, Buffer welcome) override;
  void Refuse(int64_t now_ns, LinkId link, const std::string& reason) override;
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override;
  int64_t QueuedBytes(LinkId link) const override;
  void Void(int64_t now_ns, LinkId link, Channel channel) override;
  void HoldBack(int64_t now_ns, LinkId link, bool hold) override;
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override;

  // Wipes every key and forgets every connection, without a word to anybody; nothing can be joined
  // any more. For the child of a fork, which must not use its parent's keys.
  void Forget();

  // True while a goodbye is still being repeated; the last word of a process waits for it.
  bool SaysGoodbye() const;

  // Of every connection there is and was.
  EndpointCounters counters() const;
  // How every established link stands.
  std::vector<LinkReport> Links() const;
  // Who has tried to join here.
  const Joiners& joiners() const;
  std::optional<Address> PeerAddress(LinkId link) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_ENDPOINT_H_
