// The functions of capi/strom.h that seal a TCP connection's messages.
#include <algorithm>
#include <array>

#include "capi/handles.h"
#include "core/base/little_endian.h"
#include "core/transport/crypto.h"

namespace strom {
namespace {

static_assert(STROM_TAG_BYTES == kTagBytes);

Bytes KeyOf(const uint8_t* key) { return {key, kKeyBytes}; }

SecretKey SecretOf(const uint8_t* key) {
  SecretKey out;
  std::copy_n(key, kKeyBytes, out.bytes().begin());
  return out;
}

std::array<uint8_t, kNonceBytes> NonceOf(uint64_t number) {
  std::array<uint8_t, kNonceBytes> out{};
  StoreLittleEndian<uint64_t>(out.data(), number);
  return out;
}

}  // namespace
}  // namespace strom

int strom_public_key(const uint8_t* private_key, uint8_t* out) {
  return strom::Guard([&]() -> strom::Status {
    std::ranges::copy(strom::DerivePublicKey(strom::SecretOf(private_key)), out);
    return {};
  });
}

int strom_agree(const uint8_t* private_key, const uint8_t* peer, uint8_t* out) {
  return strom::Guard([&]() -> strom::Status {
    strom::PublicKeyBytes key;
    std::copy_n(peer, key.size(), key.begin());
    strom::SecretKey shared;
    if (!strom::Agree(strom::SecretOf(private_key), key, &shared)) {
      return {strom::Code::kRejectedSecret, "the peer's key is one that agrees with nobody's"};
    }
    std::ranges::copy(shared.bytes(), out);
    return {};
  });
}

int strom_seal(const uint8_t* key, uint64_t number, const uint8_t* text, int64_t size,
               uint8_t* out) {
  return strom::Guard([&]() -> strom::Status {
    const std::span<uint8_t> sealed(out, static_cast<size_t>(size));
    std::copy_n(text, size, out);
    strom::Aead(strom::Aead::Use::kSeal, strom::KeyOf(key))
        .Seal(strom::NonceOf(number), {}, sealed,
              std::span<uint8_t, strom::kTagBytes>(out + size, strom::kTagBytes));
    return {};
  });
}

int strom_open(const uint8_t* key, uint64_t number, const uint8_t* sealed, int64_t size,
               uint8_t* out) {
  return strom::Guard([&]() -> strom::Status {
    if (!strom::Aead(strom::Aead::Use::kOpen, strom::KeyOf(key))
             .Open(strom::NonceOf(number), {}, {sealed, static_cast<size_t>(size)}, out)) {
      return {strom::Code::kRejectedSecret, "the message was not sealed with this key and number"};
    }
    return {};
  });
}
