// The three packets before a connection stands (docs/internals/packets.md): HELLO, answered by a
// stateless RETRY with a cookie until the joiner has shown that it owns its address, then by
// WELCOME. Inside runs the Noise pattern NKpsk0 (core/transport/noise.h) with PSK = HKDF(job
// secret, job id).
//
// No clocks and no tables: the endpoint decides when to resend and what to remember.
#ifndef KERAS_STROM_CORE_TRANSPORT_HANDSHAKE_H_
#define KERAS_STROM_CORE_TRANSPORT_HANDSHAKE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/transport/crypto.h"
#include "core/transport/noise.h"
#include "core/transport/packet.h"
#include "core/transport/packet_protection.h"

namespace strom {

// HELLO is always this long, so that no answer is longer than what asked for it.
inline constexpr size_t kHelloBytes = 1200;
inline constexpr size_t kMaxHelloPayload = 1024;
inline constexpr size_t kMaxWelcomePayload = 1024;

inline constexpr size_t kCookieBytes = 16;
using Cookie = std::array<uint8_t, kCookieBytes>;

// The key that only holders of the job's secret have, different for every job.
SecretKey JobKey(Bytes secret, Bytes job_id);

// The joiner's side of one handshake.
class Initiator {
 public:
  // `connection` names the connection in packets to the initiator.
  Initiator(const PublicKeyBytes& responder, const SecretKey& job_key, const SecretKey& ephemeral,
            uint32_t connection, Bytes payload);

  // The HELLO to send now: always the same handshake, with the newest cookie.
  const std::array<uint8_t, kHelloBytes>& hello() const { return hello_; }
  // True once the responder has shown that it is there.
  bool retried() const { return retried_; }

  // Takes the cookie out of a RETRY. False: not an answer to this HELLO.
  [[nodiscard]] bool HandleRetry(Bytes datagram);

  struct Welcome {
    bool accepted = false;
    uint32_t peer_connection = 0;
    std::vector<uint8_t> payload;  // accepted: the welcome; refused: the reason's words
    ConnectionKeys keys;
  };
  // Nothing: not authentic.
  std::optional<Welcome> HandleWelcome(Bytes datagram);

 private:
  Noise noise_;
  PublicKeyBytes ephemeral_;
  std::array<uint8_t, kHelloBytes> hello_{};
  bool retried_ = false;
};

// A HELLO's clear fields, all that is looked at before its cookie has been verified.
struct HelloFields {
  uint32_t peer_connection = 0;
  Cookie cookie{};
  PublicKeyBytes ephemeral{};
};
std::optional<HelloFields> ParseHello(Bytes datagram);

// Proves that a joiner receives at its address without remembering it: a MAC over address,
// ephemeral key and a 10 s slot, valid in its slot and the next.
class CookieJar {
 public:
  explicit CookieJar(const SecretKey& key) : key_(key) {}
  Cookie Make(int64_t now_ns, const Address& from, const PublicKeyBytes& ephemeral) const;
  bool IsValid(int64_t now_ns, const Address& from, const HelloFields& hello) const;

 private:
  Cookie ForSlot(int64_t slot, const Address& from, const PublicKeyBytes& ephemeral) const;
  SecretKey key_;
};

// The answer to a HELLO without a valid cookie; much smaller than it. Whoever saw the HELLO can
// make one, so it proves nothing but that somebody is there; the seal keeps out chance.
std::vector<uint8_t> MakeRetry(const HelloFields& hello, const Cookie& cookie);

// The master's side of one handshake, made once a cookie was valid.
class Responder {
 public:
  // Opens the joiner's HELLO. Nothing: a wrong secret, job or master key.
  static std::optional<Responder> Open(const StaticKey& static_key, const SecretKey& job_key,
                                       const HelloFields& hello, Bytes datagram);

  const std::vector<uint8_t>& payload() const { return payload_; }

  struct Answer {
    std::vector<uint8_t> datagram;  // WELCOME; resend these bytes to a repeated HELLO
    ConnectionKeys keys;            // of no use when refused
  };
  // `connection` names the connection in packets to the responder. Call once.
  Answer Accept(const SecretKey& ephemeral, uint32_t connection, Bytes welcome);
  Answer Refuse(const SecretKey& ephemeral, const std::string& reason);

 private:
  Responder(Noise noise, const HelloFields& hello) : noise_(std::move(noise)), hello_(hello) {}
  Answer Finish(const SecretKey& ephemeral, bool accepted, uint32_t connection, Bytes payload);

  Noise noise_;
  HelloFields hello_;
  std::vector<uint8_t> payload_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_HANDSHAKE_H_
