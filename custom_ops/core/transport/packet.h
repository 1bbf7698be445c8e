// The layout of every datagram (docs/internals/packets.md has the tables): a clear header, a sealed
// body, a tag.
//
// Bodies are parsed once into values whose every field has been checked against its neighbours; a
// body that fails any check is no packet. Nothing here owns memory or allocates.
#ifndef KERAS_STROM_CORE_TRANSPORT_PACKET_H_
#define KERAS_STROM_CORE_TRANSPORT_PACKET_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/transport/crypto.h"

namespace strom {

inline constexpr uint8_t kWireVersion = 1;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kLeastDatagramBytes = 1200;  // passes on every path
inline constexpr size_t kMaxDatagramBytes = 9000;    // more than that was never sent by this code

enum class PacketType : uint8_t {
  kHello = 1,
  kRetry = 2,
  kWelcome = 3,
  kData = 4,
  kStatus = 5,
  kProbe = 6,
  kClose = 7,
  kChallenge = 8,
  kEcho = 9,
};

struct PacketHeader {
  PacketType type = PacketType::kData;
  bool key_phase = false;    // lowest bit of the phase whose keys seal it
  bool heard_phase = false;  // ... and of the phase the sender receives in
  uint32_t connection = 0;   // chosen by the receiver; 0 in HELLO
  uint64_t number = 0;       // the nonce: never used twice under one key
};

void WriteHeader(const PacketHeader& header, uint8_t* out);
std::optional<PacketHeader> ParseHeader(Bytes datagram);

// Link sequences, message numbers and timestamps wrap around: `a` comes before `b` when it is less
// than half the circle behind.
inline bool Before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

// One fragment of a message, or (is_void) the place of one that will never come.
struct DataPacket {
  static constexpr size_t kFieldBytes = 24;
  uint32_t sequence = 0;  // link sequence, stable across retransmits
  uint32_t message = 0;   // counts per channel
  uint32_t length = 0;    // of the whole message, 1 to kMaxMessageBytes
  uint32_t offset = 0;    // of this fragment; 0 when void
  uint32_t timestamp_us = 0;
  Channel channel = Channel::kControl;
  bool is_void = false;
  bool is_bundle = false;  // the message is several (core/transport/bundle.h)
  Bytes payload{};         // lies within the message; empty when void
};
// Writes the fields and the payload; returns the body's size.
size_t WriteData(const DataPacket& packet, std::span<uint8_t> out);
std::optional<DataPacket> ParseData(Bytes body);

// Sequences [offset, offset + length) past the cumulative one are missing.
struct Gap {
  uint32_t offset = 0;
  uint16_t length = 0;
};

// What the receiver has. Everything in [cumulative + untold, complete_up_to) that no gap covers has
// arrived; nothing is said of what lies beside it. (More gaps than fit are told in turns.)
struct StatusPacket {
  static constexpr size_t kFieldBytes = 24;
  static constexpr size_t kGapBytes = 6;
  static constexpr size_t kMaxGaps = 100;
  static constexpr uint16_t kNoEcho = 0xffff;  // the delay did not fit or nothing was to be echoed
  uint32_t cumulative = 0;                     // the first sequence not received
  uint32_t complete_up_to = 0;
  uint32_t grant_edge = 0;  // sequences before this one may be sent; never moves back
  uint32_t echo_timestamp_us = 0;
  uint16_t echo_delay_us = kNoEcho;
  uint16_t gap_count = 0;
  uint32_t untold = 0;
  std::array<Gap, kMaxGaps> gaps{};  // ascending and disjoint
};
size_t WriteStatus(const StatusPacket& packet, std::span<uint8_t> out);
// False: malformed. (An out-parameter because the value is large and reused.)
[[nodiscard]] bool ParseStatus(Bytes body, StatusPacket* packet);

// Asks for a STATUS at once and says where the sender stands, so that lost tails show as gaps.
struct ProbePacket {
  static constexpr size_t kFieldBytes = 8;
  uint32_t next_sequence = 0;
  uint32_t timestamp_us = 0;
};
size_t WriteProbe(const ProbePacket& packet, std::span<uint8_t> out);
std::optional<ProbePacket> ParseProbe(Bytes body);

// Asks whether a datagram of this length reaches this address: the peer sends the token back from
// there. Zeros make it as long as it is.
struct ChallengePacket {
  static constexpr size_t kFieldBytes = 8;
  uint64_t token = 0;
  size_t body_bytes = kFieldBytes;  // the whole body's length
};
size_t WriteChallenge(const ChallengePacket& packet, std::span<uint8_t> out);
std::optional<ChallengePacket> ParseChallenge(Bytes body);

// The answer to a CHALLENGE, to where that came from.
struct EchoPacket {
  static constexpr size_t kFieldBytes = 8;
  uint64_t token = 0;
};
size_t WriteEcho(const EchoPacket& packet, std::span<uint8_t> out);
std::optional<EchoPacket> ParseEcho(Bytes body);

// The link is over; `reason` is for people.
inline constexpr size_t kMaxReasonBytes = 512;
// The reason's first kMaxReasonBytes at most, without half a character at its end.
std::string_view CutReason(std::string_view reason);
size_t WriteClose(std::string_view reason, std::span<uint8_t> out);  // cuts what is too long
std::optional<std::string_view> ParseClose(Bytes body);

// One direction's packet protection: AES-128-GCM, the clear header as associated data, nonce =
// initialisation vector xor packet number (little-endian, in the last 8 bytes).
class PacketCipher {
 public:
  struct Keys {
    Secret<16> key;
    Secret<kNonceBytes> initial;
  };

  PacketCipher(Aead::Use use, const Keys& keys)
      : aead_(use, keys.key.bytes()), initial_(keys.initial) {}

  // `datagram` is header, body and room for the tag.
  void Seal(uint64_t number, std::span<uint8_t> datagram);
  // Writes the body to `out`, which has room for datagram.size() bytes. False: not authentic.
  [[nodiscard]] bool Open(uint64_t number, Bytes datagram, uint8_t* out);

 private:
  std::array<uint8_t, kNonceBytes> Nonce(uint64_t number) const;

  Aead aead_;
  Secret<kNonceBytes> initial_;
};

// Which packet numbers have arrived: accepts each one once, and none that is too old to tell.
class ReplayWindow {
 public:
  static constexpr uint64_t kNumbers = 32768;

  // True when `number` may be new. Ask before decrypting; Add only what was authentic.
  bool MayBeNew(uint64_t number) const;
  void Add(uint64_t number);
  // One more than the highest number added.
  uint64_t end() const { return end_; }

 private:
  std::array<uint64_t, kNumbers / 64> seen_{};
  uint64_t end_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_PACKET_H_
