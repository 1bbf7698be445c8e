// The cryptography the packets and the handshake need, as thin owners of OpenSSL's objects: X25519,
// AES-GCM, SHA-256, HMAC and HKDF. Of the product nothing else includes OpenSSL (the benchmark's
// TLS, custom_ops/bench/relay_tls.cc, does).
//
// Keys are `Secret`; what OpenSSL allocates is in no core dump either. A failure of OpenSSL itself
// is a bug (STROM_CHECK); only what depends on bytes from outside is a result.
#ifndef KERAS_STROM_CORE_TRANSPORT_CRYPTO_H_
#define KERAS_STROM_CORE_TRANSPORT_CRYPTO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "core/base/types.h"
#include "core/transport/secret.h"

struct evp_cipher_ctx_st;
struct evp_pkey_st;

namespace strom {

inline constexpr size_t kDigestBytes = 32;  // SHA-256
inline constexpr size_t kTagBytes = 16;     // AES-GCM's authentication tag
inline constexpr size_t kNonceBytes = 12;

using Digest = std::array<uint8_t, kDigestBytes>;

// The public half of an X25519 private key.
PublicKeyBytes DerivePublicKey(const SecretKey& private_key);

// X25519. False: `peer` is a point of small order, whose shared secret anybody knows.
[[nodiscard]] bool Agree(const SecretKey& private_key, const PublicKeyBytes& peer,
                         SecretKey* shared);

// A private key that is used again and again, made ready once: its public half, and what OpenSSL
// computes from it. Copies share that.
class StaticKey {
 public:
  StaticKey() = default;  // none
  explicit StaticKey(const SecretKey& private_key);

  const PublicKeyBytes& public_key() const { return public_key_; }
  // As above.
  [[nodiscard]] bool Agree(const PublicKeyBytes& peer, SecretKey* shared) const;

 private:
  PublicKeyBytes public_key_{};
  std::shared_ptr<evp_pkey_st> key_;  // wiped with the last copy
};

// SHA-256 over the parts, one after the other.
Digest Sha256(std::initializer_list<Bytes> parts);

// HMAC-SHA256 over the parts, one after the other.
Digest HmacSha256(Bytes key, std::initializer_list<Bytes> parts);

// HKDF-SHA256 (RFC 5869), extract and expand; at most 255 * 32 bytes.
void Hkdf(Bytes salt, Bytes key_material, Bytes info, std::span<uint8_t> out);

// True when equal; takes the same time wherever the first difference is.
bool EqualInConstantTime(Bytes a, Bytes b);

// AES-GCM under one key, for one direction of use. Sealing and opening allocate nothing.
class Aead {
 public:
  enum class Use { kSeal, kOpen };

  // `key` has 16 (AES-128) or 32 (AES-256) bytes.
  Aead(Use use, Bytes key);
  ~Aead();
  Aead(Aead&& other) noexcept;
  Aead& operator=(Aead&& other) noexcept;

  // Encrypts `text` in place and writes its tag. The same nonce never comes twice.
  void Seal(std::span<const uint8_t, kNonceBytes> nonce, Bytes associated, std::span<uint8_t> text,
            std::span<uint8_t, kTagBytes> tag);

  // Decrypts `sealed` (the text, then its tag) to `out`, which has room for the text and may start
  // where `sealed` does. False: not authentic, and what stands in `out` is worthless.
  [[nodiscard]] bool Open(std::span<const uint8_t, kNonceBytes> nonce, Bytes associated,
                          Bytes sealed, uint8_t* out);

 private:
  evp_cipher_ctx_st* context_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_CRYPTO_H_
