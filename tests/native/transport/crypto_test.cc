// The cryptography against published vectors.
#include "core/transport/crypto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core_dump.h"

namespace strom {
namespace {

std::vector<uint8_t> Hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::array<uint8_t, 32> Hex32(const std::string& text) {
  const auto bytes = Hex(text);
  std::array<uint8_t, 32> out{};
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

// RFC 7748, section 6.1.
TEST(Crypto, AgreesOnTheSharedSecretOfRfc7748) {
  const SecretKey alice(Hex32("77076d0a7318a57d3c16c17251b26645df4c3f6b3c3c7b7c5c2a3a8d5e8e6f4a"));
  const SecretKey bob(Hex32("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  EXPECT_EQ(DerivePublicKey(bob),
            Hex32("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
  SecretKey at_alice, at_bob;
  ASSERT_TRUE(Agree(alice, DerivePublicKey(bob), &at_alice));
  ASSERT_TRUE(Agree(bob, DerivePublicKey(alice), &at_bob));
  EXPECT_TRUE(EqualInConstantTime(at_alice.bytes(), at_bob.bytes()));
}

TEST(Crypto, RefusesAPublicKeyOfSmallOrder) {
  SecretKey shared;
  EXPECT_FALSE(Agree(SecretKey({1}), PublicKeyBytes{}, &shared));
}

// RFC 4231, test case 2.
TEST(Crypto, MatchesTheHmacVector) {
  const std::string key = "Jefe", text = "what do ya want for nothing?";
  const auto bytes = [](const std::string& s) {
    return Bytes(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  const Digest expected = Hex32("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HmacSha256(bytes(key), {bytes(text)}), expected);
  EXPECT_EQ(HmacSha256(bytes(key), {bytes(text).first(5), bytes(text).subspan(5)}), expected);
}

// RFC 5869, test case 1.
TEST(Crypto, MatchesTheHkdfVector) {
  std::vector<uint8_t> out(42);
  Hkdf(Hex("000102030405060708090a0b0c"), std::vector<uint8_t>(22, 0x0b),
       Hex("f0f1f2f3f4f5f6f7f8f9"), out);
  EXPECT_EQ(out, Hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
                     "34007208d5b887185865"));
}

// The GCM specification's test case 2: one zero block under the zero key and nonce.
TEST(Crypto, MatchesTheGcmVectorAndRejectsEveryFlippedBit) {
  const std::array<uint8_t, 16> key{};
  const std::array<uint8_t, kNonceBytes> nonce{};
  std::vector<uint8_t> sealed(16 + kTagBytes);
  Aead(Aead::Use::kSeal, key)
      .Seal(nonce, {}, std::span(sealed).first(16), std::span(sealed).last<kTagBytes>());
  EXPECT_EQ(sealed, Hex("0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf"));

  Aead open(Aead::Use::kOpen, key);
  std::vector<uint8_t> text(16, 1);
  ASSERT_TRUE(open.Open(nonce, {}, sealed, text.data()));
  EXPECT_EQ(text, std::vector<uint8_t>(16, 0));
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::vector<uint8_t> harmed = sealed;
    harmed[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(open.Open(nonce, {}, harmed, text.data()));
  }
  EXPECT_FALSE(open.Open(nonce, key, sealed, text.data())) << "other associated data";
  EXPECT_TRUE(open.Open(nonce, {}, sealed, text.data())) << "a failure must not spoil the context";
}

TEST(Crypto, ComparesWholeRanges) {
  EXPECT_TRUE(EqualInConstantTime(Hex("0102"), Hex("0102")));
  EXPECT_FALSE(EqualInConstantTime(Hex("0102"), Hex("0103")));
  EXPECT_FALSE(EqualInConstantTime(Hex("0102"), Hex("010203")));
}

TEST(Crypto, KeysAreInNoCoreDump) {
  if (!KernelTakesAdvice()) GTEST_SKIP() << "an emulation ignores MADV_DONTDUMP";
  EXPECT_TRUE(IsDumped(&*std::make_unique<int>()));
  const Secret<16> secret(std::array<uint8_t, 16>{1});
  const Secret<16> copy = secret;
  EXPECT_FALSE(IsDumped(secret.data()));
  EXPECT_FALSE(IsDumped(copy.data()));
  EXPECT_NE(copy.data(), secret.data());
  EXPECT_EQ(copy.data()[0], 1);
  // What OpenSSL allocates for its own objects, however large.
  for (const size_t bytes : {size_t{1}, size_t{500}, size_t{100'000}}) {
    void* const block = OPENSSL_malloc(bytes);
    EXPECT_FALSE(IsDumped(block));
    OPENSSL_free(block);
  }
}

// ---------------------------------------------------------------- the memory they are in

TEST(Undumped, BlocksKeepWhatIsWrittenAndAreUsedAgain) {
  std::vector<std::pair<uint8_t*, size_t>> blocks;
  for (size_t bytes = 1; bytes < 200'000; bytes += bytes / 3 + 1) {
    auto* const block = static_cast<uint8_t*>(AllocateUndumped(bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 16, 0U);
    std::fill_n(block, bytes, static_cast<uint8_t>(bytes));
    blocks.emplace_back(block, bytes);
  }
  for (auto& [block, bytes] : blocks) {
    block = static_cast<uint8_t*>(ReallocateUndumped(block, 2 * bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(std::count(block, block + bytes, static_cast<uint8_t>(bytes)),
              static_cast<std::ptrdiff_t>(bytes));
  }
  for (const auto& [block, bytes] : blocks) FreeUndumped(block);
  void* const small = AllocateUndumped(40);
  FreeUndumped(small);
  EXPECT_EQ(AllocateUndumped(40), small);
  FreeUndumped(small);
  EXPECT_EQ(AllocateUndumped(SIZE_MAX), nullptr);
  FreeUndumped(nullptr);
}

}  // namespace
}  // namespace strom
