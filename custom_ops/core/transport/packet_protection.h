// The keys of one connection, which change as packets are sent: seals and opens packets, counts
// their numbers, and moves both directions on to the next phase.
//
// A phase's keys come from a secret, and the next secret from it alone; what is left behind is
// wiped. Each direction has its own phase. Headers carry the lowest bit of the phase that seals the
// packet and of the one its sender receives in. Who has sent enough packets under one key goes on
// to the next phase, but only once the other side has said that it receives in the present one; the
// other side's packets then follow at once. So the two are never more than one phase apart, and
// flag and packet number together say which keys a packet needs: one attempt each.
#ifndef KERAS_STROM_CORE_TRANSPORT_PACKET_PROTECTION_H_
#define KERAS_STROM_CORE_TRANSPORT_PACKET_PROTECTION_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/types.h"
#include "core/transport/crypto.h"
#include "core/transport/packet.h"

namespace strom {

// The secrets that both sides hold once a handshake is through.
struct ConnectionKeys {
  SecretKey send;
  SecretKey receive;
};

// AES-GCM may seal 2^35 blocks of 16 bytes under one key (RFC 9001, appendix B.1.1): 2^28 packets
// of 2048 bytes, but less than 2^26 of 9000. Four times as many packets as a phase has, after which
// a link ends (IsSpent), stay below that, too.
inline constexpr uint64_t kPacketsPerPhase = uint64_t{1} << 23;

class PacketProtection {
 public:
  // However few packets a phase has: a peer may be slow to follow.
  static constexpr uint64_t kLeastBeforeSpent = uint64_t{1} << 16;

  struct Options {
    uint64_t packets_per_phase = kPacketsPerPhase;
    uint64_t first_number = 0;  // packet numbers start here, on both sides
  };
  PacketProtection(const ConnectionKeys& keys, const Options& options);

  enum class Verdict { kAuthentic, kMalformed, kReplayed, kUnauthentic };
  // Opens a packet once: its body goes to `body`, which has room for the datagram.
  Verdict Open(int64_t now_ns, const PacketHeader& header, Bytes datagram, uint8_t* body);
  // True when the packet opened last has the highest number so far.
  bool newest() const { return newest_; }

  // Completes a datagram whose body stands in its place: header, encryption, tag.
  void Seal(PacketType type, uint32_t connection, std::span<uint8_t> datagram);
  // True when nothing more may be sealed: a peer that has not followed into a phase after so many
  // packets never will.
  bool IsSpent() const {
    return sealed_ >= std::max(4 * options_.packets_per_phase, kLeastBeforeSpent);
  }

  uint64_t send_phase() const { return send_phase_; }

 private:
  // Of the packets that arrive.
  enum class Phase { kPrevious, kPresent, kNext };

  Phase PhaseOf(const PacketHeader& header) const;
  PacketCipher* OpenerOf(Phase phase);
  void AdvanceReceiving(int64_t now_ns);
  void AdvanceSending();

  const Options options_;

  SecretKey send_secret_;
  PacketCipher seal_;
  uint64_t send_phase_ = 0;
  uint64_t sealed_ = 0;     // in this phase
  bool confirmed_ = false;  // the peer receives in it
  uint64_t next_number_;

  SecretKey next_receive_secret_;
  std::optional<PacketCipher> previous_open_;
  PacketCipher open_;
  PacketCipher next_open_;
  int64_t previous_end_ns_ = 0;  // when the previous keys go
  uint64_t receive_phase_ = 0;
  bool peer_may_know_ = false;  // the peer may know that we receive in this phase
  uint64_t opened_ = 0;         // in this phase
  uint64_t lowest_ = 0;         // number opened in this phase
  bool newest_ = false;
  ReplayWindow numbers_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_PACKET_PROTECTION_H_
