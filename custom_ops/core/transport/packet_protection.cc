#include "core/transport/packet_protection.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace strom {
namespace {

// Packets of the phase before may be so long under way.
constexpr int64_t kPreviousKeysNs = 3'000'000'000;
// Far from the end of the numbers, which no connection lives to see.
constexpr uint64_t kMostNumber = uint64_t{1} << 62;

void Derive(const SecretKey& secret, std::string_view purpose, std::span<uint8_t> out) {
  Hkdf({}, secret.bytes(), {reinterpret_cast<const uint8_t*>(purpose.data()), purpose.size()}, out);
}

PacketCipher Cipher(Aead::Use use, const SecretKey& secret) {
  PacketCipher::Keys keys;
  Derive(secret, "strom packets: key", keys.key.bytes());
  Derive(secret, "strom packets: initial nonce", keys.initial.bytes());
  return PacketCipher(use, keys);
}

SecretKey NextSecret(const SecretKey& secret) {
  SecretKey next;
  Derive(secret, "strom packets: next phase", next.bytes());
  return next;
}

bool IsOdd(uint64_t phase) { return (phase & 1) != 0; }

}  // namespace

PacketProtection::PacketProtection(const ConnectionKeys& keys, const Options& options)
    : options_(options),
      send_secret_(keys.send),
      seal_(Cipher(Aead::Use::kSeal, keys.send)),
      next_number_(options.first_number),
      next_receive_secret_(NextSecret(keys.receive)),
      open_(Cipher(Aead::Use::kOpen, keys.receive)),
      next_open_(Cipher(Aead::Use::kOpen, next_receive_secret_)) {}

PacketProtection::Verdict PacketProtection::Open(int64_t now_ns, const PacketHeader& header,
                                                 Bytes datagram, uint8_t* body) {
  if (header.number >= kMostNumber) return Verdict::kMalformed;
  if (!numbers_.MayBeNew(header.number)) return Verdict::kReplayed;
  if (previous_open_ && now_ns >= previous_end_ns_) previous_open_.reset();
  const Phase phase = PhaseOf(header);
  PacketCipher* const opener = OpenerOf(phase);
  if (opener == nullptr || !opener->Open(header.number, datagram, body)) {
    return Verdict::kUnauthentic;
  }
  if (phase == Phase::kNext) AdvanceReceiving(now_ns);
  if (phase != Phase::kPrevious) {
    lowest_ = opened_ == 0 ? header.number : std::min(lowest_, header.number);
    ++opened_;
  }
  newest_ = header.number >= numbers_.end();
  // A straggler may speak of the phase before the last, which has the same lowest bit.
  if (newest_ && header.heard_phase == IsOdd(send_phase_)) confirmed_ = true;
  numbers_.Add(header.number);
  return Verdict::kAuthentic;
}

// With the other flag, a number below all of this phase belongs to the phase before.
PacketProtection::Phase PacketProtection::PhaseOf(const PacketHeader& header) const {
  if (header.key_phase == IsOdd(receive_phase_)) return Phase::kPresent;
  return opened_ > 0 && header.number < lowest_ ? Phase::kPrevious : Phase::kNext;
}

PacketCipher* PacketProtection::OpenerOf(Phase phase) {
  switch (phase) {
    case Phase::kPrevious:
      return previous_open_ ? &*previous_open_ : nullptr;
    case Phase::kPresent:
      return &open_;
    case Phase::kNext:
      return peer_may_know_ ? &next_open_ : nullptr;  // an honest peer goes on only when told
  }
  return nullptr;
}

void PacketProtection::Seal(PacketType type, uint32_t connection, std::span<uint8_t> datagram) {
  if (sealed_ >= options_.packets_per_phase && confirmed_) AdvanceSending();
  ++sealed_;
  peer_may_know_ = true;
  const uint64_t number = next_number_++;
  WriteHeader({.type = type,
               .key_phase = IsOdd(send_phase_),
               .heard_phase = IsOdd(receive_phase_),
               .connection = connection,
               .number = number},
              datagram.data());
  seal_.Seal(number, datagram);
}

void PacketProtection::AdvanceReceiving(int64_t now_ns) {
  previous_open_ = std::move(open_);
  previous_end_ns_ = now_ns + kPreviousKeysNs;
  open_ = std::move(next_open_);
  next_receive_secret_ = NextSecret(next_receive_secret_);
  next_open_ = Cipher(Aead::Use::kOpen, next_receive_secret_);
  ++receive_phase_;
  opened_ = 0;
  peer_may_know_ = false;
  if (send_phase_ < receive_phase_) AdvanceSending();
}

void PacketProtection::AdvanceSending() {
  send_secret_ = NextSecret(send_secret_);
  seal_ = Cipher(Aead::Use::kSeal, send_secret_);
  ++send_phase_;
  sealed_ = 0;
  confirmed_ = false;
}

}  // namespace strom
