// Messages whose entries differ in what they add.
#include "core/codec/value_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/little_endian.h"
#include "core/codec/message.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_writer.h"
#include "own_threads.h"

namespace strom {
namespace {

constexpr int64_t kBigMessage = int64_t{1} << 30;

// An update with random entries in runs of random length, and what it adds to each element.
struct Update {
  EntryList entries;
  std::vector<ValueRun> runs;
  std::vector<float> sum;
};

Update RandomUpdate(int64_t elements, double density, int64_t longest_run, uint32_t seed) {
  Update update;
  update.sum.resize(static_cast<size_t>(elements));
  std::mt19937 random(seed);
  std::geometric_distribution<int64_t> gap(density);
  int64_t left = 0;
  for (int64_t i = gap(random); i < elements; i += 1 + gap(random)) {
    if (left-- == 0) {
      left = static_cast<int64_t>(random() % static_cast<uint64_t>(longest_run));
      const float value = TableValue(std::ldexp(1.0f + random() % 97 / 97.0f, random() % 9 - 8));
      update.runs.push_back({0, value, value});
    }
    ++update.runs.back().count;
    const bool negative = random() % 2 == 0;
    *update.entries.Reserve(1) = static_cast<uint32_t>(i % kChunk << 1) | (negative ? 1u : 0u);
    update.entries.Append(i / kChunk, 1);
    const float value = update.runs.back().value;
    update.sum[static_cast<size_t>(i)] = negative ? -value : value;
  }
  return update;
}

MessageFields Fields(const Update& update) {
  return {1, 1, static_cast<int64_t>(update.sum.size()), 7, update.runs};
}

ParsedMessage Parse(Bytes bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_TRUE(status.ok()) << status.message;
  return message;
}

std::string WhyRefused(Bytes bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_EQ(status.code, Code::kCorrupt);
  return status.message;
}

TEST(ValueTable, RoundTripsWhateverItsRunsAndHoweverItIsSplit) {
  uint32_t seed = 0;
  for (const double density : {1e-3, 0.05, 0.6, 1.0}) {
    for (const int64_t longest_run : {1, 3, 1000, 1'000'000}) {
      for (const int64_t max_bytes : {kMinMessageBytes, kBigMessage}) {
        SCOPED_TRACE(testing::Message() << density << ", runs up to " << longest_run);
        const Update update = RandomUpdate(150'000, density, longest_run, ++seed);
        const auto messages = WriteEntries(Fields(update), update.entries, max_bytes);
        std::vector<float> sum(update.sum.size());
        for (const auto& bytes : messages) {
          EXPECT_LE(static_cast<int64_t>(bytes.size()), max_bytes);
          EXPECT_EQ(ApplyMessage(Parse(bytes), 0, sum), 0);
        }
        ASSERT_EQ(sum, update.sum);
        EXPECT_EQ(WriteEntries(Fields(update), update.entries, max_bytes, 0, {}, OwnThreads(4)),
                  messages);
      }
    }
  }
}

TEST(ValueTable, ALargeFlatSpaceKeepsItsRunsInChunksAndThreads) {
  const Update update = RandomUpdate(2 * kChunk + 5000, 0.02, 500, 41);
  const auto messages = WriteEntries(Fields(update), update.entries, kBigMessage);
  for (const int threads : {1, 4}) {
    std::vector<float> sum(update.sum.size());
    const ParameterRange range{0, sum};
    EXPECT_EQ(ApplyMessage(Parse(messages[0]), {&range, 1}, OwnThreads(threads)), 0);
    ASSERT_EQ(sum, update.sum);
  }
}

TEST(ValueTable, SeveralMessagesGiveTheBitsOfOneAfterTheOther) {
  // Dense enough to be added together, and bitmaps, and one without a table between them.
  for (const double density : {0.02, 0.3}) {
    std::vector<std::vector<uint8_t>> bytes;
    std::vector<ParsedMessage> messages;
    for (uint32_t seed = 0; seed < 4; ++seed) {
      const Update update = RandomUpdate(100'000, density, seed == 2 ? 1'000'000 : 50, 60 + seed);
      bytes.push_back(WriteEntries(Fields(update), update.entries, kBigMessage)[0]);
    }
    std::vector<float> one_by_one(100'000, 0.1f), together = one_by_one;
    for (const auto& message : bytes) messages.push_back(Parse(message));
    EXPECT_FALSE(messages[2].has_table());
    for (const ParsedMessage& message : messages) ApplyMessage(message, 0, one_by_one);
    const ParameterRange ranges[] = {{0, std::span(together).first(33'333)},
                                     {33'333, std::span(together).subspan(33'333)}};
    EXPECT_EQ(ApplyMessages(messages, ranges), 0);
    EXPECT_EQ(together, one_by_one);
  }
}

TEST(ValueTable, OneValueNeedsNoTable) {
  Update update = RandomUpdate(50'000, 0.01, 20, 3);
  for (ValueRun& run : update.runs) run.threshold = run.value = 0.25f;
  const auto with_runs = WriteEntries(Fields(update), update.entries, kBigMessage);
  EXPECT_EQ(with_runs, WriteEntries({0.25f, 0.25f, 50'000, 7}, update.entries, kBigMessage));
  EXPECT_FALSE(Parse(with_runs[0]).has_table());
}

TEST(ValueTable, TheHeaderTellsTheLeastThreshold) {
  Update update = RandomUpdate(50'000, 0.01, 20, 4);
  update.runs[1].threshold = 0x1p-12f;
  const ParsedMessage message = Parse(WriteEntries(Fields(update), update.entries, kBigMessage)[0]);
  EXPECT_TRUE(message.has_table());
  EXPECT_EQ(message.fields().threshold, 0x1p-12f);
  EXPECT_EQ(message.fields().value, 0);
}

TEST(ValueTable, TakesFewBytes) {
  const Update update = RandomUpdate(1'000'000, 1e-3, 200, 5);
  const auto plain = WriteEntries({1, 1, 1'000'000, 7}, update.entries, kBigMessage);
  const auto with_table = WriteEntries(Fields(update), update.entries, kBigMessage);
  EXPECT_LE(with_table[0].size(), plain[0].size() + 1 + 4 * update.runs.size());
}

TEST(ValueTable, RoundsToWhatItCanHold) {
  EXPECT_EQ(TableValue(1.0f), 1.0f);
  EXPECT_EQ(TableValue(1.0f + 0x1p-8f), 1.0f);  // ties to even
  EXPECT_EQ(TableValue(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);
  EXPECT_TRUE(IsTableValue(TableValue(std::numeric_limits<float>::max())));
  EXPECT_NEAR(TableValue(1e-3f), 1e-3f, 1e-3f / 256);
  for (const float bad : {0.0f, -1.0f, 1e-3f, 1e-40f, HUGE_VALF, NAN}) {
    EXPECT_FALSE(IsTableValue(bad)) << bad;
  }
}

// A table of two runs stands right behind the header's varints.
struct Changeable {
  std::vector<uint8_t> bytes;
  size_t table;  // where it begins: the number of runs, then 1 + 2 bytes each
};

Changeable TwoRuns() {
  Update update = RandomUpdate(5000, 0.01, 1, 6);
  const int64_t count = update.entries.size();
  update.runs = {{10, 0.5f, 0.5f}, {count - 10, 0.25f, 0.25f}};
  EXPECT_TRUE(count > 20 && count < 100) << count;
  Changeable made{WriteEntries(Fields(update), update.entries, kBigMessage)[0], 0};
  const std::vector<uint8_t> table = {2, 10, 0x00, 0x3f, static_cast<uint8_t>(count - 10)};
  const auto found = std::search(made.bytes.begin(), made.bytes.end(), table.begin(), table.end());
  EXPECT_NE(found, made.bytes.end());
  made.table = static_cast<size_t>(found - made.bytes.begin());
  return made;
}

TEST(ValueTable, RefusesOneThatIsNotValid) {
  const Changeable valid = TwoRuns();
  Parse(valid.bytes);
  const auto refuses = [&](const char* words, auto change) {
    std::vector<uint8_t> bytes = valid.bytes;
    change(bytes, bytes.data() + valid.table);
    StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
    const std::string why = WhyRefused(bytes);
    EXPECT_NE(why.find(words), std::string::npos) << why;
  };
  refuses("no valid length", [](auto&, uint8_t* table) { table[0] = 1; });
  refuses("no valid length", [](auto&, uint8_t* table) { table[0] = 0x7f; });
  refuses("empty or malformed", [](auto&, uint8_t* table) { table[1] = 0; });
  refuses("add up", [](auto&, uint8_t* table) { ++table[1]; });
  refuses("add up", [](auto&, uint8_t* table) { --table[4]; });
  for (const uint16_t bad : {0x0000, 0x8000, 0xbf00, 0x7f80, 0x7fc0, 0x0040}) {
    refuses("positive and finite",
            [&](auto&, uint8_t* table) { StoreLittleEndian<uint16_t>(table + 2, bad); });
  }
  refuses("one value and a table",
          [](auto& bytes, uint8_t*) { bytes[kFlagsOffset] |= kFlagValue; });
  refuses("", [](auto& bytes, uint8_t*) { bytes[kFlagsOffset] = 0; });
  for (size_t size = 0; size < valid.bytes.size(); ++size) {
    refuses("", [&](auto& bytes, uint8_t*) {
      bytes.resize(std::max<size_t>(size, kFixedHeaderBytes));
      if (bytes.size() > size) bytes[kVersionOffset] = 9;
    });
  }
}

TEST(ValueTable, ARawSpanHasNone) {
  std::vector<float> values(2048, 1);
  MessageWriter writer({0, 0, 2048, 0}, 11, kMinMessageBytes);
  writer.AddRawSpan(0, values);
  const std::vector<uint8_t> raw = writer.Finish()[0];
  // Behind the fixed fields: elements (2), iteration, first_span, spans, count (2), payload (2).
  const size_t end = kFixedHeaderBytes + 2 + 1 + 1 + 1 + 2 + 2;
  std::vector<uint8_t> bytes = raw;
  // Runs of 1024 and 1024 entries of 1.
  const std::vector<uint8_t> table = {2, 0x80, 0x08, 0x80, 0x3f, 0x80, 0x08, 0x80, 0x3f};
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(end), table.begin(), table.end());
  bytes[kFlagsOffset] = kFlagTable;
  StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
  EXPECT_NE(WhyRefused(bytes).find("raw span"), std::string::npos);
}

}  // namespace
}  // namespace strom
