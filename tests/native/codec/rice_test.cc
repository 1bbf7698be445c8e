// One contract for every coder that this processor can run, judged by the scalar one.
#include "core/codec/rice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace strom {
namespace {

constexpr uint32_t kOrigin = 3u << 19;  // codes count from before their span

std::vector<uint32_t> RandomCodes(int64_t elements, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::geometric_distribution<int64_t> gap(density);
  std::vector<uint32_t> codes;
  for (int64_t i = gap(random); i < elements; i += 1 + gap(random)) {
    codes.push_back((kOrigin + static_cast<uint32_t>(i)) << 1 | (random() & 1));
  }
  return codes;
}

struct Case {
  std::string name;
  int64_t elements;
  std::vector<uint32_t> codes;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  uint32_t seed = 0;
  for (const double density : {1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.4, 0.9, 1.0}) {
    for (const int64_t elements : {1, 15, 16, 17, 63, 64, 65, 2047, 2048, 70'000, 1 << 21}) {
      if (density > 0.01 && elements > 100'000) continue;
      std::vector<uint32_t> codes = RandomCodes(elements, density, ++seed);
      if (codes.empty()) codes = {(kOrigin + static_cast<uint32_t>(elements) - 1) << 1};
      cases.push_back(
          {std::to_string(density) + " of " + std::to_string(elements), elements, codes});
    }
  }
  for (size_t count = 1; count <= 40; ++count) {
    std::vector<uint32_t> codes = RandomCodes(5000, 0.02, static_cast<uint32_t>(count));
    codes.resize(std::min(codes.size(), count));
    cases.push_back({std::to_string(count) + " entries", 5000, codes});
  }
  // A crowd, a desert and a crowd.
  std::vector<uint32_t> uneven;
  for (uint32_t i = 0; i < 500; ++i) uneven.push_back((kOrigin + i) << 1 | (i % 3 == 0));
  for (uint32_t i = 60'000; i < 60'100; ++i) uneven.push_back((kOrigin + i) << 1);
  cases.push_back({"uneven", 1 << 16, uneven});
  return cases;
}

// The payload and nothing of the slack; what lies behind it is as good as random.
std::vector<uint8_t> Encoded(const RiceCoder& coder, const Case& c, RiceChoice choice) {
  std::vector<uint8_t> out(static_cast<size_t>(choice.bytes) + kRiceSlack, 0xa5);
  coder.encode(c.codes, kOrigin, choice, out.data());
  out.resize(static_cast<size_t>(choice.bytes));
  return out;
}

// The same bytes with a slack full of ones behind them.
struct WithSlack {
  explicit WithSlack(const std::vector<uint8_t>& bytes) : all(bytes), size(bytes.size()) {
    all.resize(size + kRiceSlack, 0xff);
  }
  Bytes payload() const { return Bytes(all).first(size); }
  std::vector<uint8_t> all;
  size_t size;
};

// What a payload with this k takes, from the definition.
int64_t BytesWithK(Codes codes, int k) {
  int64_t high = 0;
  uint32_t next = kOrigin;
  for (const uint32_t code : codes) {
    high += ((code >> 1) - next) >> k;
    next = (code >> 1) + 1;
  }
  const auto count = static_cast<int64_t>(codes.size());
  return BytesOfBits(count * (k + 1)) + BytesOfBits(count + high);
}

class Rice : public testing::TestWithParam<RiceCoder> {};

TEST_P(Rice, ChoosesTheFewestBits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    for (const int least_k : {0, 1, 5}) {
      const RiceChoice choice = GetParam().choose(c.codes, kOrigin, least_k);
      const RiceChoice expected = RiceCoders().front().choose(c.codes, kOrigin, least_k);
      ASSERT_EQ(choice.k, expected.k);
      ASSERT_EQ(choice.bytes, expected.bytes);
      ASSERT_EQ(choice.bytes, BytesWithK(c.codes, choice.k));
      for (int k = least_k; k <= 21; ++k) {
        ASSERT_LE(choice.bytes, BytesWithK(c.codes, k) + 1) << k;  // it counts bits, not bytes
      }
    }
    ASSERT_EQ(BitmapChoice(c.codes, kOrigin).bytes, BytesWithK(c.codes, 0));
  }
}

TEST_P(Rice, WritesTheBytesOfTheOracleAndReadsThemBack) {
  for (const Case& c : Cases()) {
    const auto count = static_cast<int64_t>(c.codes.size());
    const int best = RiceCoders().front().choose(c.codes, kOrigin, 0).k;
    for (const int k : {0, 1, best, best + 1, 12, 15, 16, 20, 21}) {
      SCOPED_TRACE(c.name + ", k = " + std::to_string(k));
      const RiceChoice choice{k, BytesWithK(c.codes, k)};
      const std::vector<uint8_t> bytes = Encoded(GetParam(), c, choice);
      ASSERT_EQ(bytes, Encoded(RiceCoders().front(), c, choice));

      const WithSlack stored(bytes);
      ASSERT_EQ(GetParam().check(stored.payload(), count, k, c.elements), nullptr);
      std::vector<uint32_t> codes(c.codes.size() + kCodeSlack);
      GetParam().decode(stored.payload(), count, k, codes.data());
      for (size_t i = 0; i < c.codes.size(); ++i) {
        ASSERT_EQ(codes[i] + 2 * kOrigin, c.codes[i]) << i;
      }
    }
  }
}

TEST_P(Rice, RefusesWhatTheOracleRefuses) {
  std::mt19937 random(7);
  int refused = 0;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const auto count = static_cast<int64_t>(c.codes.size());
    const RiceChoice choice = RiceCoders().front().choose(c.codes, kOrigin, 0);
    const std::vector<uint8_t> bytes = Encoded(RiceCoders().front(), c, choice);
    const auto expect_agreement = [&](const std::vector<uint8_t>& changed, int64_t entries, int k,
                                      int64_t elements) {
      const WithSlack stored(changed);
      const char* const why = GetParam().check(stored.payload(), entries, k, elements);
      const char* const expected =
          RiceCoders().front().check(stored.payload(), entries, k, elements);
      ASSERT_STREQ(why == nullptr ? "" : why, expected == nullptr ? "" : expected);
      refused += why != nullptr;
    };
    for (int round = 0; round < 10; ++round) {
      std::vector<uint8_t> changed = bytes;
      changed[random() % changed.size()] ^= static_cast<uint8_t>(1u << random() % 8);
      expect_agreement(changed, count, choice.k, c.elements);
    }
    expect_agreement(bytes, count, choice.k, int64_t{c.codes.back() >> 1} - kOrigin);
    expect_agreement(bytes, count + 1, choice.k, c.elements);
    expect_agreement(bytes, count, choice.k + 1, c.elements);
    expect_agreement({bytes.begin(), bytes.end() - 1}, count, choice.k, c.elements);
    std::vector<uint8_t> longer = bytes;
    longer.push_back(0);
    expect_agreement(longer, count, choice.k, c.elements);
  }
  EXPECT_GT(refused, 500);
}

TEST_P(Rice, AddsABitmapAsItsCodesWould) {
  if (GetParam().add_bitmap == nullptr) GTEST_SKIP() << "decodes first";
  std::mt19937 random(9);
  for (const Case& c : Cases()) {
    if (c.elements > 100'000) continue;
    SCOPED_TRACE(c.name);
    std::vector<float> values(static_cast<size_t>(c.elements), -0.0f);
    for (float& value : values) {
      if (random() % 2) value = static_cast<float>(random()) / 1e9f - 2;
    }
    std::vector<float> expected = values;
    for (const uint32_t code : c.codes) {
      expected[(code >> 1) - kOrigin] += code & 1 ? -0.1f : 0.1f;
    }
    const WithSlack stored(Encoded(RiceCoders().front(), c, BitmapChoice(c.codes, kOrigin)));
    GetParam().add_bitmap(stored.payload(), static_cast<int64_t>(c.codes.size()), 0.1f, c.elements,
                          values.data());
    ASSERT_EQ(std::memcmp(values.data(), expected.data(), 4 * values.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Coders, Rice, testing::ValuesIn(RiceCoders().begin(), RiceCoders().end()),
                         [](const auto& coder) {
                           std::string name = coder.param.name;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace strom
