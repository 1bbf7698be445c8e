#include "core/transport/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace strom {
namespace {

// All that OpenSSL allocates, key schedules and private keys among it. It has allocated nothing
// before the program's first function runs, and libstrom.so has a copy of its own.
[[maybe_unused]] const int kIsUndumped = CRYPTO_set_mem_functions(
    [](size_t bytes, const char*, int) { return AllocateUndumped(bytes); },
    [](void* block, size_t bytes, const char*, int) { return ReallocateUndumped(block, bytes); },
    [](void* block, const char*, int) { FreeUndumped(block); });

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeKeyContext {
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};
struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

Key PrivateKey(const SecretKey& bytes) {
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, bytes.data(), kKeyBytes));
  STROM_CHECK(key != nullptr);
  return key;
}

bool AgreeWith(EVP_PKEY* own, const PublicKeyBytes& peer, SecretKey* shared) {
  const Key other(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, peer.data(), peer.size()));
  STROM_CHECK(other != nullptr);
  const std::unique_ptr<EVP_PKEY_CTX, FreeKeyContext> context(EVP_PKEY_CTX_new(own, nullptr));
  STROM_CHECK(context != nullptr && EVP_PKEY_derive_init(context.get()) == 1);
  size_t size = kKeyBytes;
  return EVP_PKEY_derive_set_peer(context.get(), other.get()) == 1 &&
         EVP_PKEY_derive(context.get(), shared->bytes().data(), &size) == 1;
}

}  // namespace

void Wipe(std::span<uint8_t> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

PublicKeyBytes DerivePublicKey(const SecretKey& private_key) {
  const Key key = PrivateKey(private_key);
  PublicKeyBytes out;
  size_t size = out.size();
  STROM_CHECK(EVP_PKEY_get_raw_public_key(key.get(), out.data(), &size) == 1);
  return out;
}

bool Agree(const SecretKey& private_key, const PublicKeyBytes& peer, SecretKey* shared) {
  return AgreeWith(PrivateKey(private_key).get(), peer, shared);
}

StaticKey::StaticKey(const SecretKey& private_key)
    : public_key_(DerivePublicKey(private_key)), key_(PrivateKey(private_key)) {}

bool StaticKey::Agree(const PublicKeyBytes& peer, SecretKey* shared) const {
  STROM_CHECK(key_ != nullptr);
  return AgreeWith(key_.get(), peer, shared);
}

Digest Sha256(std::initializer_list<Bytes> parts) {
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> context(EVP_MD_CTX_new());
  STROM_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  for (Bytes part : parts) {
    STROM_CHECK(EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1);
  }
  Digest out;
  STROM_CHECK(EVP_DigestFinal_ex(context.get(), out.data(), nullptr) == 1);
  return out;
}

// RFC 2104. Built on Sha256 because OpenSSL's own HMAC wants the text in one piece or a provider
// object; every key here is at most one block long.
Digest HmacSha256(Bytes key, std::initializer_list<Bytes> parts) {
  constexpr size_t kBlock = 64;
  STROM_CHECK(key.size() <= kBlock);
  Secret<kBlock> inner_pad, outer_pad;
  std::copy(key.begin(), key.end(), inner_pad.bytes().begin());
  std::copy(key.begin(), key.end(), outer_pad.bytes().begin());
  for (uint8_t& byte : inner_pad.bytes()) byte ^= 0x36;
  for (uint8_t& byte : outer_pad.bytes()) byte ^= 0x5c;

  const std::unique_ptr<EVP_MD_CTX, FreeDigest> context(EVP_MD_CTX_new());
  STROM_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  STROM_CHECK(EVP_DigestUpdate(context.get(), inner_pad.data(), kBlock) == 1);
  for (Bytes part : parts) {
    STROM_CHECK(EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1);
  }
  Digest inner;
  STROM_CHECK(EVP_DigestFinal_ex(context.get(), inner.data(), nullptr) == 1);
  const Digest out = Sha256({outer_pad.bytes(), inner});
  Wipe(inner);
  return out;
}

void Hkdf(Bytes salt, Bytes key_material, Bytes info, std::span<uint8_t> out) {
  STROM_CHECK(out.size() <= 255 * kDigestBytes);
  Digest pseudo_random_key = HmacSha256(salt, {key_material});
  Digest block{};
  uint8_t counter = 0;
  for (size_t done = 0; done < out.size();) {
    const Bytes previous = counter == 0 ? Bytes() : Bytes(block);
    const uint8_t number = ++counter;
    block = HmacSha256(pseudo_random_key, {previous, info, Bytes(&number, 1)});
    const size_t size = std::min(kDigestBytes, out.size() - done);
    std::copy_n(block.begin(), size, out.begin() + static_cast<std::ptrdiff_t>(done));
    done += size;
  }
  Wipe(block);
  Wipe(pseudo_random_key);
}

bool EqualInConstantTime(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Aead::Aead(Use use, Bytes key) : context_(EVP_CIPHER_CTX_new()) {
  STROM_CHECK(context_ != nullptr && (key.size() == 16 || key.size() == 32));
  const EVP_CIPHER* cipher = key.size() == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm();
  STROM_CHECK(EVP_CipherInit_ex(context_, cipher, nullptr, key.data(), nullptr,
                                use == Use::kSeal ? 1 : 0) == 1);
}

Aead::~Aead() { EVP_CIPHER_CTX_free(context_); }  // wipes the key schedule

Aead::Aead(Aead&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}

Aead& Aead::operator=(Aead&& other) noexcept {
  std::swap(context_, other.context_);
  return *this;
}

void Aead::Seal(std::span<const uint8_t, kNonceBytes> nonce, Bytes associated,
                std::span<uint8_t> text, std::span<uint8_t, kTagBytes> tag) {
  int size = 0;
  const bool sealed =
      EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
      EVP_EncryptUpdate(context_, nullptr, &size, associated.data(),
                        static_cast<int>(associated.size())) == 1 &&
      EVP_EncryptUpdate(context_, text.data(), &size, text.data(), static_cast<int>(text.size())) ==
          1 &&
      EVP_EncryptFinal_ex(context_, text.data() + size, &size) == 1 &&
      EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()) == 1;
  STROM_CHECK(sealed);
}

bool Aead::Open(std::span<const uint8_t, kNonceBytes> nonce, Bytes associated, Bytes sealed,
                uint8_t* out) {
  if (sealed.size() < kTagBytes) return false;
  const size_t text_bytes = sealed.size() - kTagBytes;
  // OpenSSL takes the expected tag as a pointer to non-const but only reads it.
  void* tag = const_cast<uint8_t*>(sealed.data() + text_bytes);
  int size = 0;
  return EVP_DecryptInit_ex(context_, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
         EVP_DecryptUpdate(context_, nullptr, &size, associated.data(),
                           static_cast<int>(associated.size())) == 1 &&
         EVP_DecryptUpdate(context_, out, &size, sealed.data(), static_cast<int>(text_bytes)) ==
             1 &&
         EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_SET_TAG, kTagBytes, tag) == 1 &&
         EVP_DecryptFinal_ex(context_, out + size, &size) == 1;
}

}  // namespace strom
