#include "core/codec/message.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>

#include "applied_together.h"
#include "core/base/crc32c.h"
#include "core/base/little_endian.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_writer.h"
#include "own_threads.h"

namespace strom {
namespace {

constexpr int64_t kBigMessage = int64_t{1} << 30;

using Signs = std::map<int64_t, int>;  // flat index -> +1 or -1

EntryList ListOf(const Signs& signs) {
  EntryList entries;
  for (const auto& [index, sign] : signs) {
    *entries.Reserve(1) = static_cast<uint32_t>(index % kChunk << 1) | (sign < 0 ? 1u : 0u);
    entries.Append(index / kChunk, 1);
  }
  return entries;
}

Signs RandomSigns(int64_t elements, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::geometric_distribution<int64_t> gap(density);
  Signs signs;
  for (int64_t i = gap(random); i < elements; i += 1 + gap(random)) {
    signs[i] = random() % 2 ? 1 : -1;
  }
  return signs;
}

ParsedMessage Parse(Bytes bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_TRUE(status.ok()) << status.message;
  return message;
}

void SetChecksum(std::vector<uint8_t>& bytes) {
  StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
}

// What the messages add up to where everything was zero.
std::vector<float> Decode(const std::vector<std::vector<uint8_t>>& messages, int64_t elements) {
  std::vector<float> sum(static_cast<size_t>(elements));
  for (const auto& bytes : messages) ApplyMessage(Parse(bytes), 0, sum);
  return sum;
}

void ExpectRoundTrip(const Signs& signs, int64_t elements, int64_t max_bytes = kBigMessage) {
  const MessageFields fields{0.25f, 0.25f, elements, 7};
  const auto messages = WriteEntries(fields, ListOf(signs), max_bytes);
  std::vector<float> expected(static_cast<size_t>(elements));
  for (const auto& [index, sign] : signs) expected[static_cast<size_t>(index)] = 0.25f * sign;
  EXPECT_EQ(Decode(messages, elements), expected);
  int64_t count = 0;
  for (const auto& bytes : messages) {
    EXPECT_LE(static_cast<int64_t>(bytes.size()), max_bytes);
    count += Parse(bytes).count();
  }
  EXPECT_EQ(count, static_cast<int64_t>(signs.size()));
}

TEST(Message, RoundTripsAtEveryDensity) {
  uint32_t seed = 0;
  for (const double density : {1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5, 0.9, 1.0}) {
    for (const int64_t elements : {1, 2, 63, 64, 65, 2047, 2048, 2049, 57001, 300000}) {
      SCOPED_TRACE(testing::Message() << density << " of " << elements);
      ExpectRoundTrip(RandomSigns(elements, density, ++seed), elements);
    }
  }
}

TEST(Message, RoundTripsEntriesThatGatherInOnePlace) {
  Signs signs;
  for (int64_t i = 250'000; i < 290'000; ++i) signs[i] = i % 3 ? 1 : -1;
  signs[0] = -1;
  signs[299'999] = 1;
  ExpectRoundTrip(signs, 300'000);
  ExpectRoundTrip(signs, 300'000, kMinMessageBytes);
}

TEST(Message, AnEmptyUpdateIsOneSmallMessage) {
  const auto messages = WriteEntries({1e-3f, 1e-3f, 57000, 12}, EntryList(), kBigMessage);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_LE(messages[0].size(), 24u);
  const ParsedMessage message = Parse(messages[0]);
  EXPECT_EQ(message.count(), 0);
  EXPECT_EQ(message.spans(), 0);
  EXPECT_EQ(message.elements(), 57000);
  EXPECT_EQ(message.fields().iteration, 12);
}

TEST(Message, SplitsALargeUpdateBySpanRange) {
  const Signs signs = RandomSigns(400'000, 0.2, 5);
  const auto messages = WriteEntries({0.5f, 0.5f, 400'000, 0}, ListOf(signs), kMinMessageBytes, 56);
  EXPECT_EQ(messages.size(), 3u);
  int64_t next_span = 0;
  for (const auto& bytes : messages) {
    for (size_t i = 0; i < 56; ++i) ASSERT_EQ(bytes[i], 0);
    const ParsedMessage message = Parse(Bytes(bytes).subspan(56));
    EXPECT_GE(message.first_span(), next_span);
    next_span = message.first_span() + message.spans();
  }
  ExpectRoundTrip(signs, 400'000, kMinMessageBytes);
}

TEST(Message, NamesElementsBeyondTwoToThe31) {
  const int64_t elements = (int64_t{5} << 32) + 1;
  const int64_t far = elements - 1;
  const Signs signs = {{3, 1}, {(int64_t{1} << 31) + 5, -1}, {far, -1}};
  const auto messages = WriteEntries({1, 1, elements, 0}, ListOf(signs), kBigMessage);
  ASSERT_EQ(messages.size(), 1u);
  std::vector<float> window(10);
  ApplyMessage(Parse(messages[0]), (int64_t{1} << 31), window);
  EXPECT_EQ(window, (std::vector<float>{0, 0, 0, 0, 0, -1, 0, 0, 0, 0}));
  std::vector<float> last(2);
  ApplyMessage(Parse(messages[0]), far - 1, last);
  EXPECT_EQ(last, (std::vector<float>{0, -1}));
}

TEST(Message, CarriesAValueApartFromTheThreshold) {
  const auto messages = WriteEntries({0.5f, 0.75f, 10, 0}, ListOf({{4, -1}}), kBigMessage);
  const ParsedMessage message = Parse(messages[0]);
  EXPECT_EQ(message.fields().threshold, 0.5f);
  EXPECT_EQ(message.fields().value, 0.75f);
  EXPECT_EQ(Decode(messages, 10)[4], -0.75f);
}

TEST(Message, RawSpansRoundTripAndSkipZeros) {
  std::mt19937 random(3);
  std::vector<float> values(10'000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i / 2048 == 2 ? 0 : static_cast<float>(random()) / 1e9f - 2;
  }
  MessageWriter writer({0, 0, 10'000, 0}, 11, kMinMessageBytes);
  for (int64_t span = 0; span < 5; ++span) {
    const auto start = static_cast<size_t>(2048 * span);
    writer.AddRawSpan(span,
                      std::span(values).subspan(start, std::min<size_t>(2048, 10'000 - start)));
  }
  const auto messages = writer.Finish();
  EXPECT_GE(messages.size(), 3u);
  EXPECT_EQ(Decode(messages, 10'000), values);

  // In two ranges with a hole of one element; what is in no range is reported.
  std::vector<float> sum(10'000);
  const ParameterRange ranges[] = {{0, std::span(sum).first(100)},
                                   {101, std::span(sum).subspan(101)}};
  int64_t skipped = 0;
  for (const auto& bytes : messages) skipped += ApplyMessage(Parse(bytes), ranges);
  EXPECT_EQ(skipped, 1);
  sum[100] = values[100];
  EXPECT_EQ(sum, values);
}

TEST(Message, AppliesToSeveralRangesAndSkipsWhatLiesOutside) {
  for (const double density : {0.01, 0.5}) {
    const Signs signs = RandomSigns(100'000, density, 9);
    const auto messages = WriteEntries({1, 1, 100'000, 0}, ListOf(signs), kBigMessage);
    const ParsedMessage message = Parse(messages[0]);
    const std::vector<float> all = Decode(messages, 100'000);
    std::vector<float> sum(100'000);
    std::vector<ParameterRange> ranges;
    for (const auto& [first, last] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {0, 1}, {1, 700}, {900, 900}, {1000, 1001}, {3000, 70'000}, {70'000, 99'999}}) {
      ranges.push_back({first, std::span(sum).subspan(static_cast<size_t>(first),
                                                      static_cast<size_t>(last - first))});
    }
    const int64_t skipped = ApplyMessage(message, ranges);
    int64_t outside = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool inside = i < 700 || i == 1000 || (i >= 3000 && i < 99'999);
      ASSERT_EQ(sum[i], inside ? all[i] : 0) << i;
      outside += !inside && all[i] != 0;
    }
    EXPECT_EQ(skipped, outside);
    EXPECT_EQ(ApplyMessage(message, {}), message.count());
  }
}

TEST(Message, ApplyingGivesTheBitsOfOneAddition) {
  const float value = 0.1f;
  const auto messages = WriteEntries({value, value, 3, 0}, ListOf({{0, 1}, {1, -1}}), kBigMessage);
  std::vector<float> parameters = {1.0f / 3, -7.7e-5f, -0.0f};
  ApplyMessage(Parse(messages[0]), 0, parameters);
  EXPECT_EQ(parameters[0], 1.0f / 3 + value);
  EXPECT_EQ(parameters[1], -7.7e-5f + -value);
  EXPECT_TRUE(std::signbit(parameters[2]));
}

// Ratio of the messages' bits to the entropy of independent entries with signs.
double RatioToEntropy(int64_t elements, double density) {
  const Signs signs = RandomSigns(elements, density, 11);
  const auto messages = WriteEntries({1, 1, elements, 100}, ListOf(signs), kMaxMessageBytes);
  double bits = 0;
  for (const auto& bytes : messages) bits += 8.0 * static_cast<double>(bytes.size());
  const auto m = static_cast<double>(signs.size());
  const double p = m / static_cast<double>(elements);
  const double entropy = -p * std::log2(p) - (1 - p) * std::log2(1 - p) + p;
  return bits / (entropy * static_cast<double>(elements));
}

TEST(Message, IsNearTheEntropyBound) {
  for (const double density : {1e-4, 1e-3, 1e-2, 5e-2, 0.1}) {
    const double large = RatioToEntropy(static_cast<int64_t>(20'000 / density), density);
    const double small = RatioToEntropy(static_cast<int64_t>(1'600 / density), density);
    EXPECT_LE(large, 1.03) << density;
    EXPECT_LE(small, 1.05) << density;
    RecordProperty("ratio_20000_at_" + std::to_string(density), std::to_string(large));
    RecordProperty("ratio_1600_at_" + std::to_string(density), std::to_string(small));
  }
}

TEST(Message, NeverTakesMoreThanTheClassicBitmap) {
  for (const double density : {0.2, 0.4, 0.6, 0.8, 0.99}) {
    const auto messages =
        WriteEntries({1, 1, 100'000, 0}, ListOf(RandomSigns(100'000, density, 2)), kBigMessage);
    EXPECT_LE(messages[0].size(), 100'000u / 4 + 600) << density;
  }
}

// --- the caller's choices

TEST(Message, CodesSparseOrAsABitmapWhereTheCallerSaysSo) {
  for (const double density : {1e-3, 0.3, 0.95}) {
    const Signs signs = RandomSigns(60'000, density, 21);
    const auto write = [&](CodingOptions options) {
      return WriteEntries({1, 1, 60'000, 0}, ListOf(signs), kBigMessage, 0, options);
    };
    const auto smallest = write({});
    for (const Coding coding : {Coding::kSparse, Coding::kBitmap}) {
      const auto forced = write({coding, Prefer::kSize});
      EXPECT_EQ(Decode(forced, 60'000), Decode(smallest, 60'000));
      EXPECT_GE(forced[0].size() + 8, smallest[0].size());  // bits are counted, not bytes
      const ParsedMessage message = Parse(forced[0]);
      for (int64_t i = 0; i < message.spans(); ++i) {
        EXPECT_EQ(message.span(i).k == 0, coding == Coding::kBitmap);
      }
    }
  }
}

TEST(Message, FullSpansOfForcedSparseCodingFitIntoTheSmallestMessage) {
  const Signs signs = RandomSigns(200'000, 1, 22);
  const auto messages = WriteEntries({1, 1, 200'000, 0}, ListOf(signs), kMinMessageBytes, 0,
                                     {Coding::kSparse, Prefer::kSize});
  for (const auto& bytes : messages) {
    EXPECT_LE(static_cast<int64_t>(bytes.size()), kMinMessageBytes);
  }
  const std::vector<float> sum = Decode(messages, 200'000);
  EXPECT_EQ(std::count(sum.begin(), sum.end(), 0.0f), 0);
}

TEST(Message, PreferringSpeedCostsAtMostItsLimit) {
  for (const double density : {1e-3, 0.05, 0.1, 0.2, 0.3, 0.5}) {
    const Signs signs = RandomSigns(60'000, density, 23);
    const auto size = WriteEntries({1, 1, 60'000, 0}, ListOf(signs), kBigMessage);
    const auto speed = WriteEntries({1, 1, 60'000, 0}, ListOf(signs), kBigMessage, 0,
                                    {Coding::kAuto, Prefer::kSpeed});
    EXPECT_EQ(Decode(speed, 60'000), Decode(size, 60'000));
    const auto grown = static_cast<int64_t>(speed[0].size() - size[0].size());
    const auto entries = static_cast<int64_t>(signs.size());
    EXPECT_LE(8 * grown, entries * kBitsForSpeed + 8 * 64) << density;
    if (density >= 0.3) {
      EXPECT_EQ(Parse(speed[0]).span(0).k, 0);
    }
    if (density <= 0.05) {
      EXPECT_EQ(speed, size);
    }
  }
}

// --- several threads, several messages

const Parallel kThreads = OwnThreads(4);

TEST(Message, ABitmapGivesTheBytesThatItsCodesGive) {
  struct Case {
    int64_t elements;
    double density;
  };
  constexpr int64_t kLarge = (int64_t{1} << 21) + 4099;
  for (const auto [elements, density] : {Case{0, 0}, Case{100, 0}, Case{kLarge, 1e-6},
                                         Case{kLarge, 1e-3}, Case{200'000, 0.3}, Case{60'001, 1}}) {
    const Signs signs = density > 0 ? RandomSigns(elements, density, 24) : Signs();
    const BitmapMemory memory(elements);
    Bitmap bitmap = memory.bitmap();
    for (int64_t i = 0; i < elements; ++i) {
      const auto entry = signs.find(i);
      bitmap.Append(entry != signs.end(), entry != signs.end() && entry->second < 0, 1,
                    entry != signs.end());
    }
    const MessageFields fields{1, 1, elements, 7};
    for (const int64_t max_bytes : {kMinMessageBytes, kBigMessage}) {
      const auto expected =
          WriteEntries(fields, ListOf(signs), max_bytes, 5, {Coding::kBitmap, Prefer::kSize});
      EXPECT_EQ(WriteBitmap(fields, bitmap, max_bytes, 5), expected) << density;
      EXPECT_EQ(WriteBitmap(fields, bitmap, max_bytes, 5, kThreads), expected) << density;
    }
  }
}

TEST(Message, ThreadsWriteTheSameBytes) {
  for (const double density : {0.01, 0.3}) {
    const EntryList entries = ListOf(RandomSigns(400'000, density, 31));
    for (const int64_t max_bytes : {kMinMessageBytes, kBigMessage}) {
      EXPECT_EQ(WriteEntries({1, 1, 400'000, 0}, entries, max_bytes, 56, {}, kThreads),
                WriteEntries({1, 1, 400'000, 0}, entries, max_bytes, 56));
    }
  }
  std::vector<float> values(100'000, 0.5f);
  std::fill_n(values.begin() + 30'000, 10'000, 0.0f);
  const auto write_raw = [&](const Parallel& parallel) {
    MessageWriter writer({0, 0, 100'000, 0}, 11, kMinMessageBytes);
    for (size_t start = 0; start < values.size(); start += 2048) {
      writer.AddRawSpan(
          static_cast<int64_t>(start / 2048),
          std::span(values).subspan(start, std::min<size_t>(2048, values.size() - start)));
    }
    return writer.Finish(parallel);
  };
  EXPECT_EQ(write_raw(kThreads), write_raw({}));
}

TEST(Message, ThreadsParseAndApplyAsOneDoes) {
  const auto messages =
      WriteEntries({1, 1, 900'000, 0}, ListOf(RandomSigns(900'000, 0.1, 32)), kBigMessage);
  ParsedMessage message;
  ASSERT_TRUE(ParseMessage(messages[0], &message, kThreads).ok());
  std::vector<float> sum(800'000);
  std::vector<float> expected(800'000);
  const ParameterRange ranges[] = {{0, std::span(sum).first(300'001)},
                                   {300'002, std::span(sum).subspan(300'002)}};
  const ParameterRange expected_ranges[] = {{0, std::span(expected).first(300'001)},
                                            {300'002, std::span(expected).subspan(300'002)}};
  EXPECT_EQ(ApplyMessage(message, ranges, kThreads), ApplyMessage(message, expected_ranges));
  EXPECT_EQ(sum, expected);

  std::vector<uint8_t> damaged = messages[0];
  for (size_t i = damaged.size() / 4; i < damaged.size(); i += 1000) damaged[i] ^= 4;
  SetChecksum(damaged);
  ParsedMessage ignored;
  const Status one = ParseMessage(damaged, &ignored);
  EXPECT_EQ(one.code, Code::kCorrupt);
  EXPECT_EQ(ParseMessage(damaged, &ignored, kThreads).message, one.message);
}

TEST(Message, SeveralAtOnceGiveTheBitsOfOneAfterTheOther) {
  constexpr int64_t kElements = 300'000;
  std::mt19937 random(41);
  for (const double density : {1e-4, 3e-3, 0.02, 0.3}) {
    SCOPED_TRACE(density);
    std::vector<std::vector<uint8_t>> stored;
    for (uint32_t i = 0; i < 8; ++i) {
      // Their spans differ in length, their values in size; one reaches only a part.
      const double here = density * (i % 3 == 0 ? 0.1 : 1);
      const float value = 0.1f + 0.013f * static_cast<float>(i);
      const int64_t elements = i == 5 ? kElements / 2 : kElements;
      stored.push_back(WriteEntries({value, value, elements, 0},
                                    ListOf(RandomSigns(elements, here, 50 + i)), kBigMessage)[0]);
    }
    std::vector<float> raw(static_cast<size_t>(kElements), 0.77f);
    MessageWriter writer({0, 0, kElements, 0}, 14, kBigMessage);
    writer.AddRawSpan(3, std::span(raw).first(1 << 14));
    stored.insert(stored.begin() + 4, writer.Finish()[0]);

    std::vector<ParsedMessage> messages;
    for (const auto& bytes : stored) messages.push_back(Parse(bytes));
    std::vector<float> start(static_cast<size_t>(kElements));
    for (float& value : start) value = static_cast<float>(random()) / 1e9f - 2;
    const Stretch stretches[] = {{5, 70'000}, {70'006, 200'000}};
    ExpectTogetherAsOneByOne(messages, start, stretches);
  }
  EXPECT_EQ(ApplyMessages({}, {}), 0);
}

// --- the examples that every implementation shares (tests/support/golden_messages.py)

struct Example {
  std::string file;
  int64_t elements = 0, count = 0;
  uint32_t decoded_crc32c = 0;
};

// The index has one example a line.
std::vector<Example> Examples() {
  std::vector<Example> examples;
  std::ifstream index(STROM_TEST_DATA "/messages.json");
  for (std::string line; std::getline(index, line);) {
    char file[64];
    Example example;
    if (std::sscanf(line.c_str(),
                    "{\"file\": \"%63[^\"]\", \"elements\": %" SCNd64 ", \"count\": %" SCNd64
                    ", \"decoded_crc32c\": %" SCNu32,
                    file, &example.elements, &example.count, &example.decoded_crc32c) == 4) {
      example.file = file;
      examples.push_back(example);
    }
  }
  return examples;
}

std::vector<uint8_t> Stored(const Example& example) {
  std::ifstream file(STROM_TEST_DATA "/" + example.file, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Message, ReadsAndWritesTheExamplesByteForByte) {
  ASSERT_GE(Examples().size(), 10u);
  for (const Example& example : Examples()) {
    SCOPED_TRACE(example.file);
    const std::vector<uint8_t> stored = Stored(example);
    const ParsedMessage message = Parse(stored);
    EXPECT_EQ(message.elements(), example.elements);
    EXPECT_EQ(message.count(), example.count);
    const std::vector<float> decoded = Decode({stored}, example.elements);
    EXPECT_EQ(Crc32c({reinterpret_cast<const uint8_t*>(decoded.data()), 4 * decoded.size()}),
              example.decoded_crc32c);

    if (message.spans() > 0 && message.span(0).k == kRawCoding) {
      MessageWriter writer(message.fields(), message.log2_span(), kBigMessage);
      const size_t length = size_t{1} << message.log2_span();
      for (size_t start = 0; start < decoded.size(); start += length) {
        writer.AddRawSpan(
            static_cast<int64_t>(start / length),
            std::span(decoded).subspan(start, std::min(length, decoded.size() - start)));
      }
      EXPECT_EQ(writer.Finish()[0], stored);
      continue;
    }
    if (message.spans() > 0 && message.span(0).k == kBitmap4Coding) {
      const Bitmap4Memory memory(example.elements);
      Bitmap4 bitmap = memory.bitmap(message.fields().iteration);
      for (const float added : decoded) {
        const bool half = std::fabs(added) == message.fields().value / 2;
        bitmap.Append(half || added > 0, half || added < 0);
      }
      EXPECT_EQ(WriteBitmap4(message.fields(), bitmap, kBigMessage)[0], stored);
      continue;
    }
    Signs signs;
    std::vector<ValueRun> runs;
    for (size_t i = 0; i < decoded.size(); ++i) {
      if (decoded[i] == 0) continue;
      signs[static_cast<int64_t>(i)] = decoded[i] < 0 ? -1 : 1;
      const float value = std::fabs(decoded[i]);
      if (runs.empty() || runs.back().value != value) runs.push_back({0, value, value});
      ++runs.back().count;
    }
    MessageFields fields = message.fields();
    if (message.has_table()) fields.runs = runs;
    EXPECT_EQ(WriteEntries(fields, ListOf(signs), kBigMessage)[0], stored);
  }
}

// --- what must be refused

std::vector<uint8_t> Valid(double density, uint32_t seed) {
  return WriteEntries({0.5f, 0.25f, 20'000, 3}, ListOf(RandomSigns(20'000, density, seed)),
                      kBigMessage)[0];
}

std::string WhyRefused(const std::vector<uint8_t>& bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_EQ(status.code, Code::kCorrupt);
  return status.message;
}

TEST(Message, RefusesWhatItsHeaderDoesNotAllow) {
  const std::vector<uint8_t> valid = Valid(0.01, 1);
  const auto changed = [&](auto change) {
    std::vector<uint8_t> bytes = valid;
    change(bytes);
    SetChecksum(bytes);
    return WhyRefused(bytes);
  };
  const auto has = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos ? testing::AssertionSuccess()
                                                 : testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(has(changed([](auto& b) { b[0] ^= 1; }), "magic"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kVersionOffset] = 2; }), "version"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kFlagsOffset] |= kFlagLevels; }), "flags"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kFlagsOffset] |= kFlagTable; }), "table"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kLog2SpanOffset] = 22; }), "span is out of range"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kLog2SpanOffset] = 10; }), "span is out of range"));
  EXPECT_TRUE(has(changed([](auto& b) { b[kCountBitsOffset] = 60; }), "too wide"));
  EXPECT_TRUE(has(changed([](auto& b) { b.push_back(0); }), "length"));
  EXPECT_TRUE(has(changed([](auto& b) { b.pop_back(); }), "length"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -1.0f}) {
    EXPECT_TRUE(
        has(changed([&](auto& b) { StoreLittleEndian<float>(b.data() + kThresholdOffset, bad); }),
            "threshold"));
  }
  std::vector<uint8_t> flipped = valid;
  flipped.back() ^= 0x10;
  EXPECT_TRUE(has(WhyRefused(flipped), "checksum"));
}

TEST(Message, RefusesARawElementThatIsNotFinite) {
  std::vector<float> values(2048, 1);
  values[77] = HUGE_VALF;
  MessageWriter writer({0, 0, 2048, 0}, 11, kMinMessageBytes);
  writer.AddRawSpan(0, values);
  EXPECT_NE(WhyRefused(writer.Finish()[0]).find("finite"), std::string::npos);
}

TEST(Message, RefusesEveryTruncation) {
  const std::vector<uint8_t> valid = Valid(0.02, 4);
  for (size_t size = 0; size < valid.size(); ++size) {
    // A copy of exactly this size, so that a read beyond it is caught by the sanitizer.
    std::vector<uint8_t> cut(valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(size));
    cut.shrink_to_fit();
    if (size >= 8) SetChecksum(cut);
    ParsedMessage message;
    ASSERT_EQ(ParseMessage(cut, &message).code, Code::kCorrupt) << size;
  }
}

TEST(Message, WhateverIsFlippedItIsRefusedOrHarmless) {
  std::mt19937 random(17);
  std::vector<float> parameters(20'000);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    static const std::vector<uint8_t> seeds[] = {Valid(0.001, 1), Valid(0.05, 2), Valid(0.7, 3)};
    std::vector<uint8_t> bytes = seeds[random() % 3];
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
      // Half of the flips hit header and directory, where they do most.
      const size_t range = random() % 2 ? std::min<size_t>(bytes.size(), 70) : bytes.size();
      bytes[random() % range] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    ParsedMessage message;
    if (round % 8 == 0) {
      // Without a matching checksum nothing passes but what flipped back.
      const bool ok = ParseMessage(bytes, &message).ok();
      EXPECT_TRUE(!ok || bytes == seeds[0] || bytes == seeds[1] || bytes == seeds[2]);
      continue;
    }
    SetChecksum(bytes);
    if (!ParseMessage(bytes, &message).ok()) continue;
    ++accepted;
    ApplyMessage(message, 0, parameters);
  }
  EXPECT_GT(accepted, 100);  // otherwise the test shows nothing about ApplyMessage
}

}  // namespace
}  // namespace strom
