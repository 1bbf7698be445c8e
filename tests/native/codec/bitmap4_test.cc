// Bitmaps of four states, from what a kernel appends to what a message adds to parameters. Whole
// updates against the oracle are in tests/codec/test_codec_contract.py.
#include "core/codec/bitmap4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "applied_together.h"
#include "core/base/little_endian.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_writer.h"
#include "own_threads.h"

namespace strom {
namespace {

constexpr int64_t kBigMessage = int64_t{1} << 30;

// What each element adds, in halves of the value: -2 to 2.
using Halves = std::vector<int>;

Halves RandomHalves(int64_t elements, double density, uint32_t seed, int64_t iteration = 0) {
  std::mt19937 random(seed);
  std::bernoulli_distribution entry(density);
  Halves halves(static_cast<size_t>(elements));
  for (size_t i = 0; i < halves.size(); ++i) {
    if (!entry(random)) continue;
    const int half = HalfIsNegative(static_cast<int64_t>(i), iteration) ? -1 : 1;
    const int states[] = {2, -2, half};
    halves[i] = states[random() % 3];
  }
  return halves;
}

// A bitmap with memory of its own, which ends where the bitmap does.
struct Filled {
  explicit Filled(const Halves& halves, int64_t iteration = 0)
      : bytes(static_cast<size_t>(Bitmap4Bytes(static_cast<int64_t>(halves.size()))), 0xa5),
        bitmap{bytes.data(), iteration} {
    for (const int state : halves) {
      const bool half = state == 1 || state == -1;
      bitmap.Append(half || state > 0, half || state < 0);
    }
  }

  std::vector<uint8_t> bytes;
  Bitmap4 bitmap;
};

std::vector<float> Added(const Halves& halves, float value) {
  std::vector<float> added;
  for (const int state : halves) added.push_back(static_cast<float>(state) * value / 2);
  return added;
}

int64_t Entries(const Halves& halves) {
  return static_cast<int64_t>(halves.size()) - std::count(halves.begin(), halves.end(), 0);
}

ParsedMessage Parse(Bytes bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_TRUE(status.ok()) << status.message;
  return message;
}

TEST(Bitmap4, TakesWordsAsItTakesElements) {
  const Halves halves = RandomHalves(64 * 5 + 3, 0.7, 1);
  const Filled one_by_one(halves);
  Filled by_words({});
  by_words.bytes.resize(one_by_one.bytes.size());
  by_words.bitmap.bytes = by_words.bytes.data();
  size_t done = 0;
  for (; done + 64 <= halves.size(); done += 64) {
    uint64_t plus = 0, minus = 0;
    for (size_t i = 0; i < 64; ++i) {
      const int state = halves[done + i];
      plus |= uint64_t{state > 0 || state == -1} << i;
      minus |= uint64_t{state < 0 || state == 1} << i;
    }
    by_words.bitmap.Append64(plus, minus);
  }
  for (; done < halves.size(); ++done) {
    by_words.bitmap.Append(halves[done] > 0 || halves[done] == -1,
                           halves[done] < 0 || halves[done] == 1);
  }
  EXPECT_EQ(by_words.bytes, one_by_one.bytes);
  EXPECT_EQ(by_words.bitmap.elements, one_by_one.bitmap.elements);
  EXPECT_EQ(by_words.bitmap.count, Entries(halves));
}

TEST(Bitmap4, PiecesJoinToWhatOneBitmapWouldBe) {
  const Halves halves = RandomHalves(4096 + 8 + 133, 0.5, 2);
  const auto part = [&](size_t first, size_t size) {
    return Filled(Halves(halves.begin() + static_cast<std::ptrdiff_t>(first),
                         halves.begin() + static_cast<std::ptrdiff_t>(first + size)));
  };
  const Filled pieces[] = {part(0, 4096), part(4096, 0), part(4096, 8), part(4104, 133)};
  std::vector<Bitmap4> bitmaps;
  for (const Filled& piece : pieces) bitmaps.push_back(piece.bitmap);
  const Filled expected(halves);
  std::vector<uint8_t> bytes(expected.bytes.size());
  Bitmap4 whole{bytes.data()};
  JoinBitmaps4(bitmaps, OwnThreads(3), &whole);
  EXPECT_EQ(bytes, expected.bytes);
  EXPECT_EQ(whole.elements, expected.bitmap.elements);
  EXPECT_EQ(whole.count, expected.bitmap.count);
}

class EveryReader : public testing::TestWithParam<Bitmap4Reader> {};

INSTANTIATE_TEST_SUITE_P(Bitmap4, EveryReader,
                         testing::ValuesIn(Bitmap4Readers().begin(), Bitmap4Readers().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryReader, AddsToAnyElementsAndTouchesNoOthers) {
  constexpr float kValue = 0.3f;
  for (const int64_t size : {1, 7, 8, 9, 64, 200}) {
    for (const int64_t iteration : {0, 5}) {
      const Halves halves = RandomHalves(size, 0.6, static_cast<uint32_t>(size), iteration);
      const Filled filled(halves, iteration);
      const std::vector<float> added = Added(halves, kValue);
      for (int64_t first = 0; first <= std::min<int64_t>(size, 20); ++first) {
        for (int64_t last = std::max(first, size - 20); last <= size; ++last) {
          std::vector<float> values(static_cast<size_t>(last - first), -0.0f);
          GetParam().add(filled.bytes.data(), first, last, {kValue, iteration}, values.data());
          for (int64_t i = first; i < last; ++i) {
            const float expected = added[static_cast<size_t>(i)];
            const float value = values[static_cast<size_t>(i - first)];
            ASSERT_EQ(value, expected) << i << " of " << size;
            // What adds nothing leaves even a negative zero.
            ASSERT_EQ(std::signbit(value), expected == 0 || expected < 0);
          }
        }
      }
    }
  }
}

TEST_P(EveryReader, CountsTheEntriesOfPairs) {
  for (const int64_t pairs : {0, 1, 7, 8, 9, 40}) {
    const Halves halves = RandomHalves(8 * pairs, 0.4, 3);
    EXPECT_EQ(GetParam().count(Filled(halves).bytes.data(), pairs), Entries(halves));
  }
}

TEST(Bitmap4, MessagesRoundTripAtEveryDensity) {
  for (const double density : {0.0, 1e-5, 0.2, 1.0}) {
    for (const int64_t elements : {1, 2048, 2049, 300'007}) {
      SCOPED_TRACE(testing::Message() << density << " of " << elements);
      const MessageFields fields{0.5f, 0.5f, elements, 9};
      const Halves halves = RandomHalves(elements, density, 4, 9);
      const Filled filled(halves, 9);
      for (const int64_t max_bytes : {kMinMessageBytes, kBigMessage}) {
        const auto messages = WriteBitmap4(fields, filled.bitmap, max_bytes, 3);
        EXPECT_EQ(WriteBitmap4(fields, filled.bitmap, max_bytes, 3, OwnThreads(4)), messages);
        std::vector<float> sum(static_cast<size_t>(elements));
        int64_t count = 0;
        for (const auto& bytes : messages) {
          EXPECT_LE(static_cast<int64_t>(bytes.size()) - 3, max_bytes);
          const ParsedMessage message = Parse(Bytes(bytes).subspan(3));
          ApplyMessage(message, 0, sum);
          count += message.count();
        }
        EXPECT_EQ(sum, Added(halves, 0.5f));
        EXPECT_EQ(count, Entries(halves));
      }
    }
  }
}

TEST(Bitmap4, AppliesToSeveralRangesAmongOtherMessages) {
  constexpr int64_t kElements = 100'003;
  const Halves halves = RandomHalves(kElements, 0.3, 5, 1);
  const Filled filled(halves, 1);
  const auto bytes = WriteBitmap4({0.1f, 0.1f, kElements, 1}, filled.bitmap, kBigMessage)[0];
  EntryList entries;
  for (uint32_t i = 0; i < kElements; i += 5) {
    *entries.Reserve(1) = i << 1;
    entries.Append(0, 1);
  }
  const auto others = WriteEntries({0.7f, 0.7f, kElements, 0}, entries, kBigMessage)[0];
  const ParsedMessage messages[] = {Parse(others), Parse(bytes), Parse(others), Parse(others)};
  const std::vector<float> start(static_cast<size_t>(kElements), 1.0f / 3);
  const Stretch stretches[] = {{3, 30'002}, {30'010, 60'000}};
  ExpectTogetherAsOneByOne(messages, start, stretches);

  const std::vector<float> added = Added(halves, 0.1f);
  const auto alone =
      Applied(start, stretches, [&](auto ranges) { return ApplyMessage(messages[1], ranges); });
  int64_t outside = 0;
  for (size_t i = 0; i < added.size(); ++i) {
    const bool inside = (i >= 3 && i < 30'005) || (i >= 30'010 && i < 90'010);
    ASSERT_EQ(alone.first[i], inside ? 1.0f / 3 + added[i] : 1.0f / 3) << i;
    outside += !inside && added[i] != 0;
  }
  EXPECT_EQ(alone.second, outside);
  EXPECT_EQ(ApplyMessage(messages[1], {}), messages[1].count());
}

// --- what must be refused

std::string WhyRefused(std::vector<uint8_t> bytes) {
  StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_EQ(status.code, Code::kCorrupt);
  return status.message;
}

TEST(Bitmap4, PayloadsThatAreNoneAreRefused) {
  const Filled filled(RandomHalves(2051, 0.5, 6));
  const std::vector<uint8_t> valid =
      WriteBitmap4({0.5f, 0.5f, 2051, 0}, filled.bitmap, kBigMessage)[0];
  const auto has = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos ? testing::AssertionSuccess()
                                                 : testing::AssertionFailure() << text;
  };
  std::vector<uint8_t> bytes = valid;
  bytes.back() |= 0x08;  // behind the last of its three elements
  bytes[bytes.size() - 3] = 0;
  EXPECT_TRUE(has(WhyRefused(bytes), "not as many as its entries"));
  // One entry moved behind the last element.
  Halves moved(2051);
  moved[2050] = 2;
  bytes = WriteBitmap4({0.5f, 0.5f, 2051, 0}, Filled(moved).bitmap, kBigMessage)[0];
  ASSERT_EQ(bytes[bytes.size() - 2], 0x04);
  bytes[bytes.size() - 2] = 0x08;
  EXPECT_TRUE(has(WhyRefused(bytes), "padding bits"));
  bytes = valid;
  StoreLittleEndian<float>(bytes.data() + kThresholdOffset, 0x1.fp-126f);
  EXPECT_TRUE(has(WhyRefused(bytes), "a half of its value is not exact"));
  StoreLittleEndian<float>(bytes.data() + kThresholdOffset, kMinBitmap4Value);
  StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
  Parse(bytes);
}

TEST(Bitmap4, WhateverIsFlippedItIsRefusedOrHarmless) {
  std::mt19937 random(18);
  std::vector<float> parameters(5'001);
  const Filled filled(RandomHalves(5'001, 0.5, 7, 3), 3);
  const std::vector<uint8_t> valid =
      WriteBitmap4({0.5f, 0.25f, 5'001, 3}, filled.bitmap, kBigMessage)[0];
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    // A copy of exactly this size, so that a read beyond it is caught by the sanitizer.
    std::vector<uint8_t> bytes = valid;
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
      const size_t range = random() % 2 ? std::min<size_t>(bytes.size(), 60) : bytes.size();
      bytes[random() % range] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
    ParsedMessage message;
    if (!ParseMessage(bytes, &message).ok()) continue;
    ++accepted;
    ApplyMessage(message, 0, parameters);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace strom
