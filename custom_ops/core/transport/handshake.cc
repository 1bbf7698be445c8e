#include "core/transport/handshake.h"

#include <algorithm>
#include <string_view>

#include "core/base/little_endian.h"

namespace strom {
namespace {

// HELLO: header, u32 connection, cookie, ephemeral key, sealed {u16 size, payload, zeros}, tag.
constexpr size_t kHelloConnection = kHeaderBytes;
constexpr size_t kHelloCookie = kHelloConnection + 4;
constexpr size_t kHelloEphemeral = kHelloCookie + kCookieBytes;
constexpr size_t kHelloSealed = kHelloEphemeral + kKeyBytes;
constexpr size_t kHelloTag = kHelloBytes - kTagBytes;
static_assert(kHelloSealed + 2 + kMaxHelloPayload <= kHelloTag);

// WELCOME: header, ephemeral key, sealed {u8 accepted, u32 connection, payload}, tag.
constexpr size_t kWelcomeSealed = kHeaderBytes + kKeyBytes;
constexpr size_t kWelcomeFieldBytes = 5;

constexpr size_t kRetryBytes = kHeaderBytes + kCookieBytes + kTagBytes;

constexpr int64_t kCookieSlotNs = 10'000'000'000;

Bytes Text(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// What both sides of one handshake must agree on besides the keys. The cookie is left out: the
// same HELLO goes out again with a newer one.
std::vector<uint8_t> Prologue(uint32_t initiator_connection) {
  std::vector<uint8_t> prologue(kHeaderBytes + 4);
  WriteHeader({.type = PacketType::kHello}, prologue.data());
  StoreLittleEndian<uint32_t>(&prologue[kHeaderBytes], initiator_connection);
  return prologue;
}

ConnectionKeys SplitKeys(const Noise& noise, bool initiator) {
  const auto [from_initiator, from_responder] = noise.Split();
  return initiator ? ConnectionKeys{.send = from_initiator, .receive = from_responder}
                   : ConnectionKeys{.send = from_responder, .receive = from_initiator};
}

PacketCipher::Keys RetryKeys(const PublicKeyBytes& ephemeral) {
  PacketCipher::Keys keys;
  Hkdf({}, ephemeral, Text("strom retry: key"), keys.key.bytes());
  Hkdf({}, ephemeral, Text("strom retry: initial nonce"), keys.initial.bytes());
  return keys;
}

}  // namespace

SecretKey JobKey(Bytes secret, Bytes job_id) {
  SecretKey key;
  Hkdf(job_id, secret, Text("strom job key"), key.bytes());
  return key;
}

Initiator::Initiator(const PublicKeyBytes& responder, const SecretKey& job_key,
                     const SecretKey& ephemeral, uint32_t connection, Bytes payload)
    : noise_(Prologue(connection), responder, job_key), ephemeral_(DerivePublicKey(ephemeral)) {
  STROM_CHECK(payload.size() <= kMaxHelloPayload);
  WriteHeader({.type = PacketType::kHello}, hello_.data());
  StoreLittleEndian<uint32_t>(&hello_[kHelloConnection], connection);
  std::copy(ephemeral_.begin(), ephemeral_.end(), &hello_[kHelloEphemeral]);
  StoreLittleEndian<uint16_t>(&hello_[kHelloSealed], static_cast<uint16_t>(payload.size()));
  std::copy(payload.begin(), payload.end(), &hello_[kHelloSealed + 2]);
  const std::span<uint8_t> datagram(hello_);
  // It fails only for a master key of small order, which no honest master has; what was not
  // sealed must not be sent.
  if (!noise_.WriteFirst(ephemeral, datagram.subspan(kHelloSealed, kHelloTag - kHelloSealed),
                         datagram.last<kTagBytes>())) {
    std::fill(hello_.begin() + kHelloSealed, hello_.end(), uint8_t{0});
  }
}

bool Initiator::HandleRetry(Bytes datagram) {
  const auto header = ParseHeader(datagram);
  if (!header || datagram.size() != kRetryBytes) return false;
  std::array<uint8_t, kRetryBytes> body;
  PacketCipher cipher(Aead::Use::kOpen, RetryKeys(ephemeral_));
  if (!cipher.Open(header->number, datagram, body.data())) return false;
  std::copy_n(body.begin(), kCookieBytes, &hello_[kHelloCookie]);
  retried_ = true;
  return true;
}

std::optional<Initiator::Welcome> Initiator::HandleWelcome(Bytes datagram) {
  const size_t least = kWelcomeSealed + kWelcomeFieldBytes + kTagBytes;
  if (datagram.size() < least || datagram.size() > kHelloBytes) return std::nullopt;
  PublicKeyBytes responder_ephemeral;
  std::copy_n(datagram.begin() + kHeaderBytes, kKeyBytes, responder_ephemeral.begin());
  // A forged WELCOME must not spoil the state that the real one needs.
  Noise noise = noise_;
  std::array<uint8_t, kHelloBytes> body;
  const Bytes sealed = datagram.subspan(kWelcomeSealed);
  if (!noise.ReadSecond(responder_ephemeral, sealed, body.data())) return std::nullopt;
  const size_t body_bytes = sealed.size() - kTagBytes;
  return Welcome{.accepted = body[0] == 1,
                 .peer_connection = LoadLittleEndian<uint32_t>(&body[1]),
                 .payload = {body.begin() + kWelcomeFieldBytes,
                             body.begin() + static_cast<std::ptrdiff_t>(body_bytes)},
                 .keys = SplitKeys(noise, /*initiator=*/true)};
}

std::optional<HelloFields> ParseHello(Bytes datagram) {
  const auto header = ParseHeader(datagram);
  if (!header || header->key_phase || header->heard_phase || header->connection != 0 ||
      header->number != 0 || datagram.size() != kHelloBytes) {
    return std::nullopt;
  }
  HelloFields hello;
  hello.peer_connection = LoadLittleEndian<uint32_t>(&datagram[kHelloConnection]);
  std::copy_n(&datagram[kHelloCookie], kCookieBytes, hello.cookie.begin());
  std::copy_n(&datagram[kHelloEphemeral], kKeyBytes, hello.ephemeral.begin());
  if (hello.peer_connection == 0) return std::nullopt;
  return hello;
}

Cookie CookieJar::Make(int64_t now_ns, const Address& from, const PublicKeyBytes& ephemeral) const {
  return ForSlot(now_ns / kCookieSlotNs, from, ephemeral);
}

bool CookieJar::IsValid(int64_t now_ns, const Address& from, const HelloFields& hello) const {
  const int64_t slot = now_ns / kCookieSlotNs;
  return EqualInConstantTime(hello.cookie, ForSlot(slot, from, hello.ephemeral)) ||
         EqualInConstantTime(hello.cookie, ForSlot(slot - 1, from, hello.ephemeral));
}

Cookie CookieJar::ForSlot(int64_t slot, const Address& from,
                          const PublicKeyBytes& ephemeral) const {
  std::array<uint8_t, 10> fields;
  StoreLittleEndian<uint16_t>(&fields[0], from.port);
  StoreLittleEndian<int64_t>(&fields[2], slot);
  const Digest mac = HmacSha256(key_.bytes(), {from.ip, fields, ephemeral});
  Cookie cookie;
  std::copy_n(mac.begin(), kCookieBytes, cookie.begin());
  return cookie;
}

std::vector<uint8_t> MakeRetry(const HelloFields& hello, const Cookie& cookie) {
  std::vector<uint8_t> datagram(kRetryBytes);
  // The number is part of the cookie, so that two cookies are not sealed under one nonce.
  const uint64_t number = LoadLittleEndian<uint64_t>(cookie.data());
  WriteHeader({.type = PacketType::kRetry, .connection = hello.peer_connection, .number = number},
              datagram.data());
  std::copy(cookie.begin(), cookie.end(), datagram.begin() + kHeaderBytes);
  PacketCipher(Aead::Use::kSeal, RetryKeys(hello.ephemeral)).Seal(number, datagram);
  return datagram;
}

std::optional<Responder> Responder::Open(const StaticKey& static_key, const SecretKey& job_key,
                                         const HelloFields& hello, Bytes datagram) {
  Responder responder(Noise(Prologue(hello.peer_connection), static_key.public_key(), job_key),
                      hello);
  std::array<uint8_t, kHelloBytes> body;
  if (!responder.noise_.ReadFirst(static_key, hello.ephemeral, datagram.subspan(kHelloSealed),
                                  body.data())) {
    return std::nullopt;
  }
  const size_t size = LoadLittleEndian<uint16_t>(body.data());
  if (size > kMaxHelloPayload) return std::nullopt;
  responder.payload_.assign(&body[2], &body[2] + size);
  return responder;
}

Responder::Answer Responder::Accept(const SecretKey& ephemeral, uint32_t connection,
                                    Bytes welcome) {
  return Finish(ephemeral, true, connection, welcome);
}

Responder::Answer Responder::Refuse(const SecretKey& ephemeral, const std::string& reason) {
  return Finish(ephemeral, false, 0, Text(CutReason(reason)));
}

Responder::Answer Responder::Finish(const SecretKey& ephemeral, bool accepted, uint32_t connection,
                                    Bytes payload) {
  STROM_CHECK(payload.size() <= kMaxWelcomePayload);
  const size_t body_bytes = kWelcomeFieldBytes + payload.size();
  Answer answer;
  answer.datagram.resize(kWelcomeSealed + body_bytes + kTagBytes);
  const std::span<uint8_t> out(answer.datagram);
  WriteHeader({.type = PacketType::kWelcome, .connection = hello_.peer_connection}, out.data());
  const PublicKeyBytes public_key = DerivePublicKey(ephemeral);
  std::copy(public_key.begin(), public_key.end(), &out[kHeaderBytes]);
  out[kWelcomeSealed] = accepted ? 1 : 0;
  StoreLittleEndian<uint32_t>(&out[kWelcomeSealed + 1], connection);
  std::copy(payload.begin(), payload.end(), out.begin() + kWelcomeSealed + kWelcomeFieldBytes);
  // The joiner's ephemeral key was of good order when its HELLO was opened.
  STROM_CHECK(noise_.WriteSecond(ephemeral, out.subspan(kWelcomeSealed, body_bytes),
                                 out.last<kTagBytes>()));
  answer.keys = SplitKeys(noise_, /*initiator=*/false);
  return answer;
}

}  // namespace strom
