// The handshake's two sides against each other, and Noise against an independent computation.
#include "core/transport/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/transport/noise.h"

namespace strom {
namespace {

SecretKey Repeated(uint8_t byte) {
  std::array<uint8_t, kKeyBytes> bytes;
  bytes.fill(byte);
  return SecretKey(bytes);
}

std::vector<uint8_t> Text(const std::string& text) { return {text.begin(), text.end()}; }

std::string Hex(Bytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// Computed from the specification's text with Python's `cryptography`.
TEST(Noise, MatchesAnIndependentComputation) {
  const SecretKey responder = Repeated(1), first = Repeated(2), second = Repeated(3);
  const auto prologue = Text("prologue");
  Noise left(prologue, DerivePublicKey(responder), Repeated(4));
  Noise right(prologue, DerivePublicKey(responder), Repeated(4));

  auto message = Text("first payload");
  message.resize(message.size() + kTagBytes);
  std::span<uint8_t> span(message);
  ASSERT_TRUE(left.WriteFirst(first, span.first(13), span.last<kTagBytes>()));
  EXPECT_EQ(Hex(message), "7fb74a253b7f11f8bd01e6585a753af3ae211396b8ba6dce4ab4f4a4c4");
  std::vector<uint8_t> opened(message.size());
  ASSERT_TRUE(
      right.ReadFirst(StaticKey(responder), DerivePublicKey(first), message, opened.data()));

  message = Text("second payload");
  message.resize(message.size() + kTagBytes);
  span = message;
  ASSERT_TRUE(right.WriteSecond(second, span.first(14), span.last<kTagBytes>()));
  EXPECT_EQ(Hex(message), "cafc593628123777b3a47486b152533afab4861b8cd371db71a2b27edd4e");
  ASSERT_TRUE(left.ReadSecond(DerivePublicKey(second), message, opened.data()));

  for (const Noise& side : {left, right}) {
    const auto [from_initiator, from_responder] = side.Split();
    EXPECT_EQ(Hex(from_initiator.bytes()),
              "476f37e54c8bf8a52064bd574b8b07ae84504645cb35e9629bdd26c97d897d88");
    EXPECT_EQ(Hex(from_responder.bytes()),
              "30113c8f2d8ab8be38c19ac37445c2b254fe0579ef5b28f533da6f09fe81ffae");
    EXPECT_EQ(Hex(side.transcript()),
              "8c0707558cb1a73e4290cbd12b81a54d6b2d13e584d158bc247b13d807894133");
  }
}

class Handshake : public testing::Test {
 protected:
  const SecretKey static_key_ = Repeated(1);
  const SecretKey job_key_ = JobKey(Text("secret"), Text("job"));
  Initiator initiator_{DerivePublicKey(static_key_), job_key_, Repeated(2), 77, Text("hello")};

  std::optional<Responder> Open(Bytes datagram) const {
    const auto hello = ParseHello(datagram);
    return hello ? Responder::Open(StaticKey(static_key_), job_key_, *hello, datagram)
                 : std::nullopt;
  }
};

TEST_F(Handshake, BothSidesHoldTheSameKeys) {
  auto responder = Open(initiator_.hello());
  ASSERT_TRUE(responder);
  EXPECT_EQ(responder->payload(), Text("hello"));
  const auto answer = responder->Accept(Repeated(3), 88, Text("welcome"));
  const auto welcome = initiator_.HandleWelcome(answer.datagram);
  ASSERT_TRUE(welcome);
  EXPECT_TRUE(welcome->accepted);
  EXPECT_EQ(welcome->peer_connection, 88u);
  EXPECT_EQ(welcome->payload, Text("welcome"));
  EXPECT_EQ(Hex(welcome->keys.send.bytes()), Hex(answer.keys.receive.bytes()));
  EXPECT_EQ(Hex(welcome->keys.receive.bytes()), Hex(answer.keys.send.bytes()));
  EXPECT_NE(Hex(welcome->keys.send.bytes()), Hex(welcome->keys.receive.bytes()));
}

TEST_F(Handshake, EveryAlteredByteOfHelloButTheCookieIsNoticed) {
  for (size_t at = kHeaderBytes; at < kHelloBytes; ++at) {
    auto hello = initiator_.hello();
    hello[at] ^= 0x10;
    const bool in_cookie = at >= kHeaderBytes + 4 && at < kHeaderBytes + 4 + kCookieBytes;
    EXPECT_EQ(Open(hello).has_value(), in_cookie) << at;
  }
}

TEST_F(Handshake, AForgedWelcomeDoesNotSpoilTheRealOne) {
  auto answer = Open(initiator_.hello())->Refuse(Repeated(3), "no");
  auto forged = answer.datagram;
  forged.back() ^= 1;
  EXPECT_FALSE(initiator_.HandleWelcome(forged));
  const auto welcome = initiator_.HandleWelcome(answer.datagram);
  ASSERT_TRUE(welcome);
  EXPECT_FALSE(welcome->accepted);
  EXPECT_EQ(welcome->payload, Text("no"));
}

TEST_F(Handshake, OtherSecretsJobsAndMasterKeysDoNotOpenHello) {
  const auto hello = ParseHello(initiator_.hello());
  ASSERT_TRUE(hello);
  const auto opens = [&](const SecretKey& static_key, const SecretKey& job_key) {
    return Responder::Open(StaticKey(static_key), job_key, *hello, initiator_.hello()).has_value();
  };
  EXPECT_TRUE(opens(static_key_, job_key_));
  EXPECT_FALSE(opens(static_key_, JobKey(Text("other"), Text("job"))));
  EXPECT_FALSE(opens(static_key_, JobKey(Text("secret"), Text("other"))));
  EXPECT_FALSE(opens(Repeated(9), job_key_));
}

TEST_F(Handshake, CookiesHoldForOneAddressKeyAndTime) {
  constexpr int64_t kSecond = 1'000'000'000;
  const CookieJar jar(Repeated(5));
  Address from;
  from.port = 1;
  auto hello = *ParseHello(initiator_.hello());
  EXPECT_FALSE(jar.IsValid(0, from, hello));
  const auto retry = MakeRetry(hello, jar.Make(0, from, hello.ephemeral));
  EXPECT_LT(retry.size(), kHelloBytes / 3) << "no amplification";
  ASSERT_TRUE(initiator_.HandleRetry(retry));
  hello = *ParseHello(initiator_.hello());
  EXPECT_TRUE(jar.IsValid(0, from, hello));
  EXPECT_TRUE(jar.IsValid(19 * kSecond, from, hello));
  EXPECT_FALSE(jar.IsValid(20 * kSecond, from, hello));
  Address elsewhere = from;
  elsewhere.port = 2;
  EXPECT_FALSE(jar.IsValid(0, elsewhere, hello));
  auto other_key = hello;
  other_key.ephemeral[0] ^= 1;
  EXPECT_FALSE(jar.IsValid(0, from, other_key));
  EXPECT_TRUE(Open(initiator_.hello())) << "the same handshake with another cookie";
}

TEST_F(Handshake, ARetryForAnotherHelloIsNotTaken) {
  auto hello = *ParseHello(initiator_.hello());
  hello.ephemeral[3] ^= 1;
  EXPECT_FALSE(initiator_.HandleRetry(MakeRetry(hello, Cookie{1})));
  EXPECT_FALSE(initiator_.retried());
}

}  // namespace
}  // namespace strom
