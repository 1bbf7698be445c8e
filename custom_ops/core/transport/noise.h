// The Noise handshake NKpsk0 (The Noise Protocol Framework, revision 34): the initiator knows the
// responder's static key, both know a pre-shared key, one message each way.
//
//   <- s
//   ...
//   -> psk, e, es
//   <- e, ee
#ifndef KERAS_STROM_CORE_TRANSPORT_NOISE_H_
#define KERAS_STROM_CORE_TRANSPORT_NOISE_H_

#include <cstdint>
#include <span>
#include <utility>

#include "core/base/types.h"
#include "core/transport/crypto.h"

namespace strom {

// One side of one handshake. Each step consumes or produces an ephemeral key and a sealed payload.
// After a step has failed the object is worthless.
class Noise {
 public:
  // `prologue` is what both sides must agree on besides.
  Noise(Bytes prologue, const PublicKeyBytes& responder, const SecretKey& pre_shared_key);

  // The first message, from the initiator. `payload` is sealed in place.
  [[nodiscard]] bool WriteFirst(const SecretKey& ephemeral, std::span<uint8_t> payload,
                                std::span<uint8_t, kTagBytes> tag);
  // The responder's view of it: opens `sealed` (payload and tag) to `out`.
  [[nodiscard]] bool ReadFirst(const StaticKey& responder_static, const PublicKeyBytes& ephemeral,
                               Bytes sealed, uint8_t* out);

  // The second message, from the responder.
  [[nodiscard]] bool WriteSecond(const SecretKey& ephemeral, std::span<uint8_t> payload,
                                 std::span<uint8_t, kTagBytes> tag);
  [[nodiscard]] bool ReadSecond(const PublicKeyBytes& ephemeral, Bytes sealed, uint8_t* out);

  // The keys of what the initiator sends and of what the responder sends.
  std::pair<SecretKey, SecretKey> Split() const;

  // Equal on both sides, and different for every handshake.
  const Digest& transcript() const { return hash_; }

 private:
  void MixHash(Bytes bytes);
  void MixKey(Bytes bytes);
  void MixPreSharedKey(const SecretKey& key);
  void MixEphemeral(const PublicKeyBytes& ephemeral);
  void Seal(std::span<uint8_t> payload, std::span<uint8_t, kTagBytes> tag);
  [[nodiscard]] bool Open(Bytes sealed, uint8_t* out);

  PublicKeyBytes responder_;
  SecretKey pre_shared_key_;
  Digest hash_{};
  SecretKey chaining_key_;
  SecretKey cipher_key_;     // every key seals one payload, so the nonce is always 0
  SecretKey own_ephemeral_;  // the initiator's, between its two steps
  PublicKeyBytes peer_ephemeral_{};
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_NOISE_H_
