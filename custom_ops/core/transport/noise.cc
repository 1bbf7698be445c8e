#include "core/transport/noise.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace strom {
namespace {

constexpr std::string_view kProtocolName = "Noise_NKpsk0_25519_AESGCM_SHA256";
static_assert(kProtocolName.size() == kDigestBytes, "a name of this length is its own first hash");

constexpr std::array<uint8_t, kNonceBytes> kFirstNonce{};

// Noise's HKDF: two or three outputs of 32 bytes, one after the other.
template <size_t N>
Secret<N * kKeyBytes> Derive(const SecretKey& chaining_key, Bytes key_material) {
  Secret<N * kKeyBytes> out;
  Hkdf(chaining_key.bytes(), key_material, {}, out.bytes());
  return out;
}

template <size_t N>
void Take(const Secret<N>& from, size_t index, std::span<uint8_t> to) {
  std::copy_n(from.data() + index * kKeyBytes, kKeyBytes, to.begin());
}

}  // namespace

Noise::Noise(Bytes prologue, const PublicKeyBytes& responder, const SecretKey& pre_shared_key)
    : responder_(responder), pre_shared_key_(pre_shared_key) {
  std::copy(kProtocolName.begin(), kProtocolName.end(), hash_.begin());
  std::copy(hash_.begin(), hash_.end(), chaining_key_.bytes().begin());
  MixHash(prologue);
  MixHash(responder_);
}

bool Noise::WriteFirst(const SecretKey& ephemeral, std::span<uint8_t> payload,
                       std::span<uint8_t, kTagBytes> tag) {
  own_ephemeral_ = ephemeral;
  MixPreSharedKey(pre_shared_key_);
  MixEphemeral(DerivePublicKey(ephemeral));
  SecretKey shared;
  if (!Agree(ephemeral, responder_, &shared)) return false;
  MixKey(shared.bytes());
  Seal(payload, tag);
  return true;
}

bool Noise::ReadFirst(const StaticKey& responder_static, const PublicKeyBytes& ephemeral,
                      Bytes sealed, uint8_t* out) {
  peer_ephemeral_ = ephemeral;
  MixPreSharedKey(pre_shared_key_);
  MixEphemeral(ephemeral);
  SecretKey shared;
  if (!responder_static.Agree(ephemeral, &shared)) return false;
  MixKey(shared.bytes());
  return Open(sealed, out);
}

bool Noise::WriteSecond(const SecretKey& ephemeral, std::span<uint8_t> payload,
                        std::span<uint8_t, kTagBytes> tag) {
  MixEphemeral(DerivePublicKey(ephemeral));
  SecretKey shared;
  if (!Agree(ephemeral, peer_ephemeral_, &shared)) return false;
  MixKey(shared.bytes());
  Seal(payload, tag);
  return true;
}

bool Noise::ReadSecond(const PublicKeyBytes& ephemeral, Bytes sealed, uint8_t* out) {
  MixEphemeral(ephemeral);
  SecretKey shared;
  if (!Agree(own_ephemeral_, ephemeral, &shared)) return false;
  MixKey(shared.bytes());
  return Open(sealed, out);
}

std::pair<SecretKey, SecretKey> Noise::Split() const {
  const auto keys = Derive<2>(chaining_key_, {});
  std::pair<SecretKey, SecretKey> out;
  Take(keys, 0, out.first.bytes());
  Take(keys, 1, out.second.bytes());
  return out;
}

void Noise::MixHash(Bytes bytes) { hash_ = Sha256({hash_, bytes}); }

void Noise::MixKey(Bytes bytes) {
  const auto keys = Derive<2>(chaining_key_, bytes);
  Take(keys, 0, chaining_key_.bytes());
  Take(keys, 1, cipher_key_.bytes());
}

void Noise::MixPreSharedKey(const SecretKey& key) {
  const auto keys = Derive<3>(chaining_key_, key.bytes());
  Take(keys, 0, chaining_key_.bytes());
  MixHash(Bytes(keys.data() + kKeyBytes, kKeyBytes));
  Take(keys, 2, cipher_key_.bytes());
}

// In patterns with a pre-shared key an ephemeral key goes into the key as well (section 9.2).
void Noise::MixEphemeral(const PublicKeyBytes& ephemeral) {
  MixHash(ephemeral);
  MixKey(ephemeral);
}

void Noise::Seal(std::span<uint8_t> payload, std::span<uint8_t, kTagBytes> tag) {
  Aead(Aead::Use::kSeal, cipher_key_.bytes()).Seal(kFirstNonce, hash_, payload, tag);
  hash_ = Sha256({hash_, payload, tag});
}

bool Noise::Open(Bytes sealed, uint8_t* out) {
  const Digest after = Sha256({hash_, sealed});
  if (!Aead(Aead::Use::kOpen, cipher_key_.bytes()).Open(kFirstNonce, hash_, sealed, out)) {
    return false;
  }
  hash_ = after;
  return true;
}

}  // namespace strom
