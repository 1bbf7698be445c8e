// Sums of messages, against exact sums of what each of them adds to parameters that are zero.
#include "core/codec/message_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/codec/bitmap4.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"

namespace strom {
namespace {

constexpr int64_t kBigMessage = int64_t{1} << 30;

using Message = std::vector<uint8_t>;
using Signs = std::map<int64_t, int>;  // flat index -> +1 or -1

ParsedMessage Parse(Bytes bytes) {
  ParsedMessage message;
  const Status status = ParseMessage(bytes, &message);
  EXPECT_TRUE(status.ok()) << status.message;
  return message;
}

// A sum of any float32 values, without rounding: a number with a fixed point, 32 bits a digit.
class Exact {
 public:
  void Add(double value) {
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(value, &exponent), 24));
    const int position = exponent - 24 + 160;  // of the lowest bit
    ASSERT_GE(position, 0);
    const int64_t shifted = mantissa * (int64_t{1} << position % 32);
    const auto digit = static_cast<size_t>(position / 32);
    digits_[digit] += shifted & 0xffffffff;
    digits_[digit + 1] += shifted >> 32;
  }

  // The digits when each is from 0 to 2^32 - 1, but for the highest one.
  std::array<int64_t, 12> Normal() const {
    std::array<int64_t, 12> normal = digits_;
    for (size_t i = 0; i + 1 < normal.size(); ++i) {
      normal[i + 1] += normal[i] >> 32;
      normal[i] &= 0xffffffff;
    }
    return normal;
  }

  friend bool operator==(const Exact& a, const Exact& b) {
    return a.digits_ == b.digits_ || a.Normal() == b.Normal();
  }

 private:
  std::array<int64_t, 12> digits_{};
};

// What a message adds: an element has one entry at most, so nothing is rounded.
std::vector<float> Added(const ParsedMessage& message) {
  std::vector<float> added(static_cast<size_t>(message.elements()));
  EXPECT_EQ(ApplyMessage(message, 0, added), 0);
  return added;
}

// Adds what the message adds to elements [first, first + sum->size()).
void AddExactly(Bytes bytes, bool negative, int64_t first, std::vector<Exact>* sum) {
  std::vector<float> added(sum->size());
  ApplyMessage(Parse(bytes), first, added);
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i] != 0) (*sum)[i].Add(negative ? -added[i] : added[i]);
  }
}

void ExpectSum(std::span<const Addend> addends, const std::vector<Message>& messages) {
  int64_t elements = 0;
  for (const Addend& addend : addends) {
    elements = std::max(elements, Parse(addend.message).elements());
  }
  constexpr int64_t kAtOnce = 1 << 18;
  for (int64_t first = 0; first < elements; first += kAtOnce) {
    std::vector<Exact> expected(static_cast<size_t>(std::min(kAtOnce, elements - first)));
    std::vector<Exact> sum = expected;
    for (const Addend& addend : addends) {
      AddExactly(addend.message, addend.negative, first, &expected);
    }
    for (const Message& message : messages) {
      EXPECT_LE(Parse(message).elements(), elements);
      AddExactly(message, false, first, &sum);
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_TRUE(sum[i] == expected[i]) << "element " << first + static_cast<int64_t>(i);
    }
  }
}

// The sum, after a look at whether it is one, of no more entries than the addends.
std::vector<Message> Sum(std::span<const Addend> addends) {
  int64_t count = 0;
  for (const Addend& addend : addends) {
    EXPECT_TRUE(CanSum(Parse(addend.message)));
    count += Parse(addend.message).count();
  }
  std::vector<Message> messages = SumMessages(addends, kBigMessage);
  ExpectSum(addends, messages);
  for (const Message& message : messages) count -= Parse(message).count();
  EXPECT_GE(count, 0);
  return messages;
}

std::vector<Addend> AddAll(const std::vector<Message>& messages, bool negative = false) {
  std::vector<Addend> addends;
  for (const Message& message : messages) addends.push_back({message, negative});
  return addends;
}

EntryList ListOf(const Signs& signs) {
  EntryList entries;
  for (const auto& [index, sign] : signs) {
    *entries.Reserve(1) = static_cast<uint32_t>(index % kChunk << 1) | (sign < 0 ? 1u : 0u);
    entries.Append(index / kChunk, 1);
  }
  return entries;
}

Signs RandomSigns(int64_t elements, double density, std::mt19937& random) {
  std::geometric_distribution<int64_t> gap(density);
  Signs signs;
  for (int64_t i = gap(random); i < elements; i += 1 + gap(random)) {
    signs[i] = random() % 2 ? 1 : -1;
  }
  return signs;
}

Message Write(const Signs& signs, float value, int64_t elements, int64_t iteration = 0) {
  return WriteEntries({value, value, elements, iteration}, ListOf(signs), kBigMessage)[0];
}

float GridValue(int i) { return static_cast<float>(std::exp2(i / 4.0)); }

// Entries whose values come from a grid, in runs of up to `longest_run`.
Message WithTable(const Signs& signs, int64_t elements, uint32_t longest_run,
                  std::mt19937& random) {
  std::vector<ValueRun> runs;
  for (auto left = static_cast<int64_t>(signs.size()); left > 0;) {
    const int64_t count = std::min<int64_t>(left, 1 + random() % longest_run);
    const float value = TableValue(GridValue(static_cast<int>(random() % 40) - 60));
    runs.push_back({count, value, value});
    left -= count;
  }
  return WriteEntries({0, 0, elements, 3, runs}, ListOf(signs), kBigMessage)[0];
}

Message WithFourStates(int64_t elements, float value, double density, int64_t iteration,
                       std::mt19937& random) {
  const Bitmap4Memory memory(elements);
  Bitmap4 bitmap = memory.bitmap(iteration);
  std::bernoulli_distribution entry(density);
  for (int64_t i = 0; i < elements; ++i) {
    const bool here = entry(random);
    const auto state = random() % 3;
    bitmap.Append(here && state != 0, here && state != 1);
  }
  return WriteBitmap4({value, value, elements, iteration}, bitmap, kBigMessage)[0];
}

// A message of any kind, with about that many entries.
Message RandomMessage(int64_t elements, double density, std::mt19937& random) {
  const float value = GridValue(static_cast<int>(random() % 24) - 40);
  const Signs signs = RandomSigns(elements, density, random);
  switch (random() % 5) {
    case 0:
      return WithTable(signs, elements, 1 + random() % 300, random);
    case 1:
      return WithFourStates(elements, value, density, static_cast<int64_t>(random() % 9), random);
    case 2: {  // any length of spans
      const int log2_span = kMinLog2Span + static_cast<int>(random() % 11);
      MessageWriter writer({value, value, elements, 1}, log2_span, kBigMessage);
      std::map<int64_t, std::vector<uint32_t>> spans;
      for (const auto& [i, sign] : signs) {
        spans[i >> log2_span].push_back(static_cast<uint32_t>(2 * i) | (sign < 0 ? 1u : 0u));
      }
      for (const auto& [span, codes] : spans) writer.AddSpan(span, codes);
      return writer.Finish()[0];
    }
    default:
      return Write(signs, value, elements);
  }
}

TEST(MessageSum, AddsExactlyWhatTheAddendsAdd) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto elements = static_cast<int64_t>(1 + random() % (seed % 3 == 0 ? 300'000 : 9000));
    const double densities[] = {1e-4, 1e-3, 0.02, 0.3, 0.97};
    std::vector<Message> messages;
    std::vector<Addend> addends;
    const auto count = 1 + random() % 12;
    for (size_t i = 0; i < count; ++i) {
      const auto here = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(elements));
      messages.push_back(RandomMessage(random() % 2 ? elements : here,
                                       densities[random() % std::size(densities)], random));
    }
    for (const Message& message : messages) addends.push_back({message, random() % 3 == 0});
    const std::vector<Message> sum = Sum(addends);
    std::shuffle(addends.begin(), addends.end(), random);
    EXPECT_EQ(SumMessages(addends, kBigMessage), sum);
  }
}

TEST(MessageSum, AddsAcrossChunks) {
  std::mt19937 random(7);
  const int64_t elements = kChunk + 5000;
  std::vector<Message> messages;
  for (int i = 0; i < 5; ++i) {
    messages.push_back(Write(RandomSigns(elements, 1e-3, random), GridValue(i), elements));
  }
  messages.push_back(WithTable(RandomSigns(elements, 1e-3, random), elements, 50, random));
  Sum(AddAll(messages));
}

TEST(MessageSum, AddsElementsBeyondTwoToThe31) {
  const int64_t elements = (int64_t{5} << 32) + 1;
  const Message one = Write({{3, 1}, {int64_t{1} << 31, -1}, {elements - 1, -1}}, 0.5f, elements);
  const Message other = Write({{int64_t{1} << 31, 1}, {elements - 1, -1}}, 0.5f, elements);
  const Addend addends[] = {{one}, {other}};
  const std::vector<Message> sum = SumMessages(addends, kBigMessage);
  ASSERT_EQ(sum.size(), 2u);
  std::vector<float> first(4), middle(1), last(2);
  for (const Message& message : sum) {
    ApplyMessage(Parse(message), 0, first);
    ApplyMessage(Parse(message), int64_t{1} << 31, middle);
    ApplyMessage(Parse(message), elements - 2, last);
  }
  EXPECT_EQ(first, (std::vector<float>{0, 0, 0, 0.5f}));
  EXPECT_EQ(middle[0], 0);
  EXPECT_EQ(last, (std::vector<float>{0, -1}));
}

TEST(MessageSum, OneAddendComesBackAsItIs) {
  std::mt19937 random(1);
  const Signs signs = RandomSigns(100'000, 0.01, random);
  const Message message = Write(signs, 0.7f, 100'000, 5);
  const Addend addends[] = {{message}};
  EXPECT_EQ(Sum(addends), std::vector<Message>{message});

  Signs turned = signs;
  for (auto& [index, sign] : turned) sign = -sign;
  const Addend taken_away[] = {{message, true}};
  EXPECT_EQ(Sum(taken_away), std::vector<Message>{Write(turned, 0.7f, 100'000, 5)});

  // A negative value takes away as well; nobody here writes one, but it can be read.
  const MessageFields fields{0.7f, -0.7f, 100'000, 5};
  const Message below_zero = WriteEntries(fields, ListOf(turned), kBigMessage)[0];
  const Addend negative_value[] = {{below_zero}};
  EXPECT_EQ(Sum(negative_value), std::vector<Message>{message});
}

TEST(MessageSum, OneAddendWithATableOrFourStatesComesBackWithItsEntries) {
  std::mt19937 random(2);
  const Signs signs = RandomSigns(100'000, 0.01, random);
  for (const Message& message :
       {WithTable(signs, 100'000, 30, random), WithFourStates(100'000, 0.3f, 0.01, 7, random)}) {
    const Addend addends[] = {{message}};
    int64_t count = 0;
    for (const Message& part : Sum(addends)) count += Parse(part).count();
    EXPECT_EQ(count, Parse(message).count());
  }
}

TEST(MessageSum, NothingIsLeftOfWhatCancels) {
  std::mt19937 random(3);
  std::vector<Message> messages;
  for (int i = 0; i < 20; ++i) messages.push_back(RandomMessage(70'000, 0.05, random));
  std::vector<Addend> addends = AddAll(messages);
  for (const Addend& addend : AddAll(messages, true)) addends.push_back(addend);
  EXPECT_TRUE(Sum(addends).empty());

  // Two halves cancel a whole.
  const Message half = Write({{3, 1}, {5, -1}}, 0.3f, 10),
                whole = Write({{3, 1}, {5, -1}}, 0.6f, 10);
  const Addend halves[] = {{half}, {whole, true}, {half}};
  EXPECT_TRUE(Sum(halves).empty());

  EXPECT_TRUE(SumMessages({}, kBigMessage).empty());
  const Message nothing = Write({}, 0.3f, 10);
  const Addend no_entries[] = {{nothing}, {nothing, true}};
  EXPECT_TRUE(Sum(no_entries).empty());
}

TEST(MessageSum, ASingleEntryMayBeAllThatIsLeft) {
  std::mt19937 random(4);
  Signs signs = RandomSigns(1'000'000, 0.01, random);
  const Message more = Write(signs, 0.25f, 1'000'000);
  signs.erase(std::next(signs.begin(), 5000));
  const Message fewer = Write(signs, 0.25f, 1'000'000);
  const Addend addends[] = {{more}, {fewer, true}};
  const std::vector<Message> sum = Sum(addends);
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_EQ(Parse(sum[0]).count(), 1);
}

// How many powers of two, added or taken away, give the number: the fewest.
int FewestPowers(uint32_t number) {
  if (number == 0) return 0;
  if (number % 2 == 0) return FewestPowers(number / 2);
  return 1 +
         std::min(FewestPowers((number - 1) / 2), number == 1 ? 9 : FewestPowers((number + 1) / 2));
}

TEST(MessageSum, EveryMultiplicityTakesAsFewEntriesAsItCan) {
  std::mt19937 random(5);
  const Signs signs = RandomSigns(5000, 0.05, random);
  const Message message = Write(signs, 0.7f, 5000);
  std::vector<Addend> addends;
  for (uint32_t times = 1; times <= 70; ++times) {
    addends.push_back({message});
    const std::vector<Message> sum = Sum(addends);
    const int count = FewestPowers(times);
    ASSERT_EQ(sum.size(), static_cast<size_t>(count)) << times;
    uint32_t powers = 0;
    for (const Message& bytes : sum) {
      const ParsedMessage part = Parse(bytes);
      EXPECT_EQ(part.count(), static_cast<int64_t>(signs.size()));
      powers |= static_cast<uint32_t>(part.fields().value / 0.7f);
    }
    // Where the binary digits are as few, it is those.
    if (std::popcount(times) == count) {
      EXPECT_EQ(powers, times);
    }
  }
}

TEST(MessageSum, ASmallValueBesideALargeOneOfTheOtherSignStaysTwoEntries) {
  for (int exponent = 0; exponent <= 60; ++exponent) {
    const Message large = Write({{3, 1}}, std::ldexp(0.7f, exponent), 10);
    const Message small = Write({{3, -1}}, 0.7f, 10);
    const Addend addends[] = {{large}, {small}};
    int64_t count = 0;
    for (const Message& message : Sum(addends)) count += Parse(message).count();
    EXPECT_EQ(count, exponent == 0 ? 0 : exponent == 1 ? 1 : 2) << exponent;
  }
}

TEST(MessageSum, ManyMoreAddendsThanABlockHasElements) {
  const Message plus = Write({{0, 1}, {1, -1}}, 0.1f, 3), minus = Write({{0, -1}, {2, 1}}, 0.1f, 3);
  std::vector<Addend> addends(100'001, {plus});
  addends.resize(150'000, {minus});
  std::map<int, int> added;
  for (const Message& message : SumMessages(addends, kBigMessage)) {
    const std::vector<float> here = Added(Parse(message));
    for (size_t i = 0; i < 3; ++i) {
      added[static_cast<int>(i)] += static_cast<int>(here[i] / 0.1f);
    }
  }
  EXPECT_EQ(added, (std::map<int, int>{{0, 100'001 - 49'999}, {1, -100'001}, {2, 49'999}}));
}

TEST(MessageSum, ValuesMayLieAnyDistanceApart) {
  std::mt19937 random(6);
  std::vector<Message> messages;
  for (const float mantissa : {1.0f, 1.3f, 1.9999999f}) {
    for (const int exponent : {-126, -125, -100, -86, -85, -84, -45, -44, 0, 40, 41, 42, 80, 99}) {
      const float value = std::ldexp(mantissa, exponent);
      for (int i = 0; i < 3; ++i)
        messages.push_back(Write(RandomSigns(500, 0.5, random), value, 500));
    }
  }
  std::vector<Addend> addends = AddAll(messages);
  Sum(addends);
  for (Addend& addend : addends) addend.negative = random() % 2 == 0;
  Sum(addends);
}

TEST(MessageSum, ValuesStayFiniteAndCanBeSummedAgain) {
  const float largest = std::nextafter(kSummableBelow, 0.0f);
  const Message message = Write({{0, 1}, {1, -1}}, largest, 2);
  const std::vector<Addend> addends(1000, {message});
  for (const Message& part : Sum(addends)) Parse(part);  // which sees whether its value is finite

  std::mt19937 random(8);
  std::vector<Message> messages;
  for (int i = 0; i < 8; ++i) messages.push_back(RandomMessage(20'000, 0.02, random));
  std::vector<Addend> twice;
  const std::vector<Message> once = Sum(AddAll(messages));
  for (int i = 0; i < 2; ++i) {
    for (const Addend& addend : AddAll(once)) twice.push_back(addend);
  }
  for (const Addend& addend : AddAll(messages, true)) twice.push_back(addend);
  EXPECT_EQ(Sum(twice), once);
}

TEST(MessageSum, TellsTheMostElementsAndTheLatestIteration) {
  const Message early = Write({{3, 1}}, 0.5f, 1000, 2), late = Write({{4, 1}}, 0.7f, 10, 9);
  const Message empty = Write({}, 0.7f, 2000, 11);
  const Addend addends[] = {{early}, {late, true}, {empty}};
  for (const Message& message : Sum(addends)) {
    const MessageFields fields = Parse(message).fields();
    EXPECT_EQ(fields.elements, 2000);
    EXPECT_EQ(fields.iteration, 11);
    EXPECT_EQ(fields.threshold, fields.value);
  }
}

TEST(MessageSum, KeepsToTheLongestMessageAndLeavesRoom) {
  std::mt19937 random(9);
  std::vector<Message> messages;
  for (int i = 0; i < 6; ++i) {
    messages.push_back(Write(RandomSigns(400'000, 0.2, random), GridValue(i % 3), 400'000));
  }
  const std::vector<Addend> addends = AddAll(messages);
  std::vector<Message> without_room;
  std::set<float> values;
  for (const Message& message : SumMessages(addends, kMinMessageBytes, 56)) {
    EXPECT_LE(static_cast<int64_t>(message.size()), kMinMessageBytes + 56);
    EXPECT_EQ(std::count(message.begin(), message.begin() + 56, 0), 56);
    without_room.emplace_back(message.begin() + 56, message.end());
    values.insert(Parse(without_room.back()).fields().value);
  }
  EXPECT_GT(without_room.size(), values.size());
  ExpectSum(addends, without_room);
}

TEST(MessageSum, RefusesRawSpans) {
  const std::vector<float> values(2048, 1.0f), no_values(2048);
  const std::vector<uint32_t> codes = {3, 6};
  MessageWriter writer({0.5f, 0.5f, 3 * 2048, 0}, 11, kMinMessageBytes);
  writer.AddSpan(0, codes);
  writer.AddRawSpan(2, values);
  EXPECT_FALSE(CanSum(Parse(writer.Finish()[0])));

  MessageWriter zeros({0, 0, 2048, 0}, 11, kMinMessageBytes);
  zeros.AddRawSpan(0, no_values);
  const Message nothing = zeros.Finish()[0];
  const Addend addends[] = {{nothing}};
  EXPECT_TRUE(Sum(addends).empty());
}

TEST(MessageSum, RefusesValuesWhoseSumsMightNotBeExact) {
  const Signs signs = {{1, 1}, {2, -1}};
  for (const float value : {0x1p-149f, 0x1p-127f, kSummableBelow, 0x1.fffffep127f}) {
    EXPECT_FALSE(CanSum(Parse(Write(signs, value, 10)))) << value;
    EXPECT_TRUE(CanSum(Parse(Write({}, value, 10)))) << "no entry has it";
  }
  for (const float value : {0x1p-126f, 1.0f, std::nextafter(kSummableBelow, 0.0f)}) {
    EXPECT_TRUE(CanSum(Parse(Write(signs, value, 10)))) << value;
  }
  const ValueRun runs[] = {{1, 1, 1}, {1, 1, kSummableBelow}};
  EXPECT_FALSE(CanSum(Parse(WriteEntries({0, 0, 10, 0, runs}, ListOf(signs), kBigMessage)[0])));
}

TEST(MessageSum, EntriesOfZeroAddNothing) {
  const Message zero = Write({{1, 1}, {2, -1}}, 0, 10), one = Write({{1, 1}}, 1, 10);
  const Addend zeros[] = {{zero}, {zero}};
  EXPECT_TRUE(Sum(zeros).empty());
  const Addend addends[] = {{zero}, {one}};
  EXPECT_EQ(Sum(addends), std::vector<Message>{one});
}

TEST(MessageSum, FourStatesMayStandBesideOtherSpans) {
  std::mt19937 random(10);
  const std::vector<uint32_t> codes = {1, 6, 2000};
  const Bitmap4Memory memory(2048);
  Bitmap4 bitmap = memory.bitmap(1);
  for (int64_t i = 0; i < 2048; ++i) bitmap.Append(random() % 2 == 0, random() % 2 == 0);
  // A bitmap of halves alone comes before and after one of wholes alone.
  for (const float value : {0.3f, -0.3f, kMinBitmap4Value}) {
    const MessageFields fields{std::fabs(value), value, 4 * 2048, 1};
    MessageWriter writer(fields, 11, kMinMessageBytes);
    std::vector<uint8_t> halves(512, 0xff), wholes(512);
    for (size_t i = 0; i < wholes.size(); i += 2) wholes[i] = 0x5a;
    writer.AddCodedSpan(0, 2048, kBitmap4Coding, halves);
    writer.AddCodedSpan(1, 1024, kBitmap4Coding, wholes);
    writer.AddSpan(2, codes);
    writer.AddCodedSpan(3, bitmap.count, kBitmap4Coding, {bitmap.bytes, 512});
    const Message message = writer.Finish()[0];
    const Message other = Write(RandomSigns(4 * 2048, 0.3, random), 0.15f, 4 * 2048);
    const Addend addends[] = {{message}, {other, true}, {message}};
    Sum(addends);
  }
}

}  // namespace
}  // namespace strom
