// Several updates as one: what it says of its contents is read back, what it adds up to is exact,
// and what a worker takes out of it is its own.
#include "core/replication/merged_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "core/replication/upward_queue.h"
#include "empty_update.h"
#include "merged_updates.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr Layout kLayout = {.generation = 1, .size = 100, .hash = 5};
constexpr UpdateId kPublication = {MasterOrigin(1), 9};

UpdateHeader HeaderOf(const Buffer& update) {
  UpdateHeader header;
  const Status status = ValidateUpdate(*update, kLayout, MessageCodec(), &header);
  EXPECT_TRUE(status.ok()) << status.message;
  return header;
}

// One byte of codec message, which cannot be summed.
Buffer Short(const UpdateId& id, uint64_t iteration) {
  std::vector<uint8_t> update(static_cast<size_t>(kUpdateHeaderBytes) + 1);
  WriteUpdateHeader({id, iteration, kLayout, kLastPartFlag}, update);
  return MakeBuffer(std::move(update));
}

// A merged update with these contents, and the same written again from what was read.
void ExpectReadBack(const UpdateRanges& ranges) {
  Merger merger;
  for (const UpdateRange& range : ranges) {
    for (uint64_t after = range.from; after < range.to; ++after) {
      ASSERT_TRUE(merger.Add(Short({range.origin, after + 1}, range.iteration)));
    }
  }
  const Buffer merged = merger.Write(kPublication, kLayout, BytesCodec());
  UpdateHeader header;
  const Status status = ValidateUpdate(*merged, kLayout, BytesCodec(), &header);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(ContentsOf(merged), ranges);
  MergedUpdate parts;
  ASSERT_TRUE(ParseMerged(ReceivedUpdate{kPublication, merged}.message(), &parts).ok());
  EXPECT_EQ(parts.whole.size(), static_cast<size_t>(merger.updates()));
  Merger again;
  ASSERT_TRUE(again.Add(merged));
  EXPECT_EQ(ContentsOf(again.Write(kPublication, kLayout, BytesCodec())), ranges);
}

TEST(MergedUpdate, ReadsBackTheContentsItWrote) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 300; ++run) {
    const size_t origins = run == 0 ? 5000 : 1 + random() % (run % 10 == 0 ? 300 : 20);
    // Some move in step, some lag, and some have come later.
    const uint64_t from = random() % 1000, iteration = random() % 5000;
    const uint64_t in_step = random() % 4;
    UpdateRanges ranges;
    uint64_t origin = (uint64_t{1} << 32) + random() % 3;
    while (ranges.size() < origins) {
      origin += random() % 4 < in_step ? 1 : 1 + random() % 1000;
      UpdateRange range{origin, from, from + 1, iteration};
      if (random() % 4 >= in_step) {
        range = {origin, random() % 2000, 0, random() % 10'000};
        range.to = range.from + 1 + random() % 3;
      }
      ranges.push_back(range);
    }
    ExpectReadBack(ranges);
    ASSERT_FALSE(HasFailure()) << run;
  }
}

// A header may have any, and whoever merges it with others' must not spoil those.
TEST(MergedUpdate, ReadsBackNumbersOfAnySize) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  std::mt19937_64 random(2);
  for (int run = 0; run < 300; ++run) {
    UpdateRanges ranges;
    uint64_t origin = 0;
    for (size_t i = 1 + random() % 5; i > 0; --i) {
      const uint64_t room = kMost - 1 - origin;
      if (room == 0) break;
      origin += 1 + (random() >> random() % 64) % room;
      if (IsOfMaster(origin)) ++origin;
      const uint64_t to = std::max<uint64_t>(1, random() >> random() % 64);
      ranges.push_back({origin, to - 1, to, random() >> random() % 64});
    }
    ExpectReadBack(ranges);
    ASSERT_FALSE(HasFailure()) << run;
  }
  ExpectReadBack({{1, kMost - 1, kMost, kMost}, {2, 0, 1, 0}, {kMost, kMost - 1, kMost, 7}});
}

TEST(MergedUpdate, WorkersInStepCostAFewBytesHoweverManyThereAre) {
  Merger merger;
  for (uint64_t origin = 1; origin <= 5000; ++origin) {
    ASSERT_TRUE(merger.Add(UpdateWith({(uint64_t{1} << 32) + origin, 400}, kLayout)));
  }
  const Buffer one = UpdateWith({1, 400}, kLayout, {{0, 1}}, 4096);
  const Buffer merged = merger.Write(kPublication, kLayout, MessageCodec());
  // 5000 is 2^12 + 2^10 - 2^7 + 2^3, each of which takes a message.
  EXPECT_LE(std::ssize(*merged), kUpdateHeaderBytes + 40 + 5 * std::ssize(*one));
}

Buffer Sample() {
  return MergedOf(
      {UpdateWith({1, 4}, kLayout, {{3, 1}, {50, -1}}),
       UpdateWith({1, 5}, kLayout, {{3, 1}}, 2, 77),
       UpdateWith({6, 1}, kLayout, {{3, 1}, {99, 1}}, 1.1875f),
       UpdateWith({7, 1}, kLayout, {{8, -1}}, 0x1p101f), EmptyUpdate({8, 200}, kLayout)},
      kLayout, kPublication);
}

// What passes the check can be used: nothing below looks at it again. *used counts it.
void Use(const std::vector<uint8_t>& bytes, int* used) {
  UpdateHeader header;
  if (!ValidateUpdate(bytes, kLayout, MessageCodec(), &header).ok() || !header.merged()) return;
  ++*used;
  const Buffer update = MakeBuffer(bytes);
  const UpdateRanges contents = ContentsOf(update);
  ASSERT_FALSE(contents.empty());
  for (size_t i = 0; i < contents.size(); ++i) {
    EXPECT_GT(contents[i].to, contents[i].from);
    EXPECT_FALSE(IsOfMaster(contents[i].origin));
    EXPECT_GT(contents[i].origin, i == 0 ? 0 : contents[i - 1].origin);
  }
  std::vector<float> parameters(kLayout.size);
  ForEachMessage(update, [&](Bytes message) { MessageCodec().Apply(message, parameters); });
  const auto own = [](uint64_t counter) { return UpdateWith({6, counter}, kLayout, {{3, 1}}); };
  for (const uint64_t origin : {6, 7, 9}) {
    const auto range = std::find_if(contents.begin(), contents.end(),
                                    [&](const UpdateRange& r) { return r.origin == origin; });
    if (range != contents.end() && range->to - range->from > 20) continue;
    for (const ReceivedUpdate& part : WithoutOwn(update, origin, own, MessageCodec())) {
      EXPECT_TRUE(MessageCodec().Check(part.message(), kLayout.size).ok());
    }
  }
  Merger merger;
  ASSERT_TRUE(merger.Add(update));
  const Buffer again = merger.Write(kPublication, kLayout, MessageCodec());
  EXPECT_TRUE(ValidateUpdate(*again, kLayout, MessageCodec(), &header).ok());
}

TEST(MergedUpdate, EveryTruncationIsRefusedOrIsAnUpdate) {
  const Buffer sample = Sample();
  int used = 0;
  for (size_t size = 0; size <= sample->size(); ++size) {
    Use(std::vector<uint8_t>(sample->begin(), sample->begin() + static_cast<ptrdiff_t>(size)),
        &used);
  }
  EXPECT_GT(used, 1);
  EXPECT_LT(used, 10);
}

TEST(MergedUpdate, EveryFlippedBitIsRefusedOrMakesAnUpdate) {
  const Buffer sample = Sample();
  int used = 0;
  for (size_t bit = 0; bit < 8 * sample->size(); ++bit) {
    std::vector<uint8_t> bytes = *sample;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    Use(bytes, &used);
    ASSERT_FALSE(HasFailure()) << bit;
  }
  EXPECT_GT(used, 100);
}

TEST(MergedUpdate, AnyBytesAreRefusedOrMakeAnUpdate) {
  std::mt19937_64 random(3);
  const Buffer sample = Sample();
  int used = 0;
  for (int run = 0; run < 20'000; ++run) {
    std::vector<uint8_t> bytes = *sample;
    const auto body = static_cast<size_t>(kUpdateHeaderBytes);
    const auto any = [&] { return static_cast<uint8_t>(random() >> random() % 64); };
    if (run % 2 == 0) {
      bytes.resize(body + random() % 60);
      std::generate(bytes.begin() + kUpdateHeaderBytes, bytes.end(), any);
    } else {  // nearly right, so that some are taken
      for (size_t i = 1 + random() % 3; i > 0; --i) {
        bytes[body + random() % (bytes.size() - body)] = any();
      }
    }
    Use(bytes, &used);
    ASSERT_FALSE(HasFailure()) << run;
  }
  EXPECT_GT(used, 200);
}

Status CheckBody(std::initializer_list<uint8_t> body) {
  return CheckMerged(std::vector<uint8_t>(body), kLayout.size, MessageCodec());
}

TEST(MergedUpdate, RefusesContentsThatNobodyWrites) {
  EXPECT_THAT(CheckBody({}).message, HasSubstr("does not say what is in it"));
  EXPECT_FALSE(CheckBody({0}).ok()) << "nothing";
  const UpdateRanges valid = {{1, 0, 1, 0}};
  const Buffer merged = MergedOf({UpdateWith({1, 1}, kLayout)}, kLayout);
  EXPECT_EQ(ContentsOf(merged), valid);
  // So many ranges that no vector could hold them all.
  std::vector<uint8_t> many = {0xff, 0xff, 0xff, 0x7f};
  many.resize(100);
  EXPECT_FALSE(CheckMerged(many, kLayout.size, MessageCodec()).ok());
}

TEST(MergedUpdate, RefusesASumThatNothingCanBeTakenFrom) {
  // The only addend passes as it came, so this one is made of a whole one's bytes.
  const Buffer huge = UpdateWith({1, 1}, kLayout, {{0, 1}}, 0x1p101f);
  std::vector<uint8_t> update = *MergedOf({huge}, kLayout);
  UpdateHeader header;
  ASSERT_TRUE(ValidateUpdate(update, kLayout, MessageCodec(), &header).ok());
  const Bytes message = Bytes(*huge).subspan(kUpdateHeaderBytes);
  const auto at = std::search(update.begin(), update.end(), message.begin(), message.end());
  ASSERT_NE(at, update.end());
  // Kind, origin, counter and length take a byte each: the kind of a sum stands before a length.
  ASSERT_EQ(*(at - 4), 1);
  update.erase(at - 3, at - 1);
  *(at - 4) = 0;
  const Status status = ValidateUpdate(update, kLayout, MessageCodec(), &header);
  EXPECT_THAT(status.message, HasSubstr("nothing can be taken from"));
}

// However large the values of what is merged: what comes out has to pass where it arrives.
TEST(MergedUpdate, WhatIsMergedOfTheLargestValuesIsValid) {
  for (const float value : {0x1p99f, 0x1.8p99f, 0x1.fffffep99f, 0x1p100f, 0x1.fffffep127f}) {
    std::vector<Buffer> updates;
    for (uint64_t origin = 1; origin <= 9; ++origin) {
      updates.push_back(UpdateWith({origin, 1}, kLayout, {{0, 1}, {1, -1}}, value));
    }
    const Buffer merged = MergedOf(updates, kLayout);
    UpdateHeader header;
    const Status status = ValidateUpdate(*merged, kLayout, MessageCodec(), &header);
    EXPECT_TRUE(status.ok()) << value << ": " << status.message;
  }
}

TEST(Merger, KeepsTheRangesOfEveryOriginWithoutGaps) {
  std::mt19937_64 random(4);
  for (int run = 0; run < 200; ++run) {
    Merger merger;
    std::map<uint64_t, UpdateRange> expected;
    int64_t added = 0;
    for (int i = 0; i < 30; ++i) {
      const UpdateId id = {1 + random() % 4, 1 + random() % 4};
      const auto range = expected.find(id.origin);
      const bool follows = range == expected.end() || range->second.to + 1 == id.counter;
      ASSERT_EQ(merger.Add(UpdateWith(id, kLayout)), follows);
      ASSERT_EQ(merger.updates(), added += follows ? 1 : 0);
      if (!follows) continue;
      expected.try_emplace(id.origin, UpdateRange{id.origin, id.counter - 1, 0, 0});
      expected[id.origin].to = id.counter;
    }
    const Buffer merged = merger.Write({}, kLayout, MessageCodec());
    UpdateRanges ranges;
    for (const auto& [origin, range] : expected) ranges.push_back(range);
    EXPECT_EQ(ContentsOf(merged), ranges);
    EXPECT_EQ(HeaderOf(merged).id, (UpdateId{ranges[0].origin, ranges[0].to}));
  }
}

TEST(Merger, TakesAMergedUpdateWholeOrNotAtAll) {
  Merger merger;
  ASSERT_TRUE(merger.Add(UpdateWith({1, 1}, kLayout)));
  ASSERT_TRUE(merger.Add(UpdateWith({2, 1}, kLayout)));
  const Buffer overlaps =
      MergedOf({UpdateWith({1, 2}, kLayout), UpdateWith({2, 1}, kLayout)}, kLayout);
  EXPECT_FALSE(merger.Add(overlaps));
  EXPECT_TRUE(merger.Add(UpdateWith({1, 2}, kLayout))) << "no trace is left";
  EXPECT_EQ(EndsOf(ContentsOf(merger.Write({}, kLayout, MessageCodec()))),
            (VersionVector{{1, 2}, {2, 1}}));
}

TEST(Merger, KeepsTheLatestIterationOfEachOriginAndOfAll) {
  const Buffer merged = MergedOf(
      {UpdateWith({1, 1}, kLayout, {{0, 1}}, 1, 30), UpdateWith({2, 1}, kLayout, {{0, 1}}, 1, 50),
       UpdateWith({1, 2}, kLayout, {{0, 1}}, 1, 40)},
      kLayout);
  EXPECT_EQ(ContentsOf(merged), (UpdateRanges{{1, 0, 2, 40}, {2, 0, 1, 50}}));
  EXPECT_EQ(HeaderOf(merged).iteration, 50u);
}

TEST(Merger, WhatCancelsLeavesNoMessageAndTellsItsContents) {
  const Buffer merged = MergedOf(
      {UpdateWith({1, 1}, kLayout, {{5, 1}}), UpdateWith({2, 1}, kLayout, {{5, -1}})}, kLayout);
  EXPECT_EQ(ContentsOf(merged), (UpdateRanges{{1, 0, 1, 0}, {2, 0, 1, 0}}));
  std::vector<float> parameters(kLayout.size);
  ForEachMessage(merged, [&](Bytes message) { MessageCodec().Apply(message, parameters); });
  EXPECT_EQ(parameters, std::vector<float>(kLayout.size));
  (void)HeaderOf(merged);
}

// A job of workers whose updates pass up over a chain of queues and are published in pieces: every
// replica is the sum of all, to the last bit, for what is added has few digits.
TEST(MergedUpdate, AWorkerHasTheSumOfAllOnceItHasTakenItsOwnOutOfEveryPublication) {
  std::mt19937_64 random(5);
  constexpr float kValues[] = {0.5f, 1, 2, 4, 1.1875f, 0x1p101f};
  for (int run = 0; run < 300; ++run) {
    const uint64_t workers = 1 + random() % 5;
    std::map<UpdateId, Buffer> all;
    std::vector<UpwardQueue> queues(workers);
    for (UpwardQueue& queue : queues) queue.Restart(kLayout, 0);
    Merger published;
    std::vector<Buffer> publications;
    const auto publish = [&] {
      if (published.updates() == 0) return;
      publications.push_back(
          published.Write({MasterOrigin(1), publications.size() + 1}, kLayout, MessageCodec()));
      published = {};
    };
    VersionVector made;
    for (int i = 0; i < 12; ++i) {
      const uint64_t origin = 1 + random() % workers;
      const float value = kValues[random() % std::size(kValues)];
      Signs signs;
      // Values that cannot be summed stand by themselves: beside them others would be rounded.
      for (size_t entries = random() % 6; entries > 0; --entries) {
        const uint32_t index = static_cast<uint32_t>(random() % 10);
        signs[value > 100 ? 90 + index : index] = random() % 2 == 0 ? 1 : -1;
      }
      const UpdateId id = {origin, ++made[origin]};
      all[id] = UpdateWith(id, kLayout, signs, value);
      queues[origin - 1].Add(all[id]);
      // The last worker is below the one before, and so on; the first is below the master.
      for (size_t worker = workers; worker > 0; --worker) {
        if (random() % 2 == 0 || queues[worker - 1].empty()) continue;
        const Buffer upward = queues[worker - 1].Take(0, MessageCodec());
        (void)HeaderOf(upward);
        if (worker > 1) {
          queues[worker - 2].Add(upward);
        } else if (!published.Add(upward)) {
          publish();
          ASSERT_TRUE(published.Add(upward));
        }
      }
      if (random() % 4 == 0) publish();
    }
    publish();
    std::vector<float> sum(kLayout.size);
    VersionVector in_sum;
    for (const Buffer& publication : publications) {
      EXPECT_EQ(HeaderOf(publication).id.origin, MasterOrigin(1));
      for (const UpdateRange& range : ContentsOf(publication)) {
        ASSERT_EQ(range.from, in_sum[range.origin]);
        in_sum[range.origin] = range.to;
        for (uint64_t next = range.from + 1; next <= range.to; ++next) {
          MessageCodec().Apply(ReceivedUpdate{{}, all[{range.origin, next}]}.message(), sum);
        }
      }
    }
    for (uint64_t origin = 1; origin <= workers + 1; ++origin) {  // the last one has made none
      std::vector<float> replica(kLayout.size);
      for (uint64_t next = 1; next <= in_sum[origin]; ++next) {
        MessageCodec().Apply(ReceivedUpdate{{}, all[{origin, next}]}.message(), replica);
      }
      for (const Buffer& publication : publications) {
        const auto own = [&](uint64_t counter) { return all.at({origin, counter}); };
        const auto received = WithoutOwn(publication, origin, own, MessageCodec());
        ASSERT_FALSE(received.empty());
        for (const ReceivedUpdate& part : received) {
          EXPECT_EQ(part.id, HeaderOf(publication).id);
          EXPECT_TRUE(MessageCodec().Check(part.message(), kLayout.size).ok());
          EXPECT_EQ(part.contents != nullptr, &part == &received.back());
          MessageCodec().Apply(part.message(), replica);
        }
        UpdateRanges others = ContentsOf(publication);
        std::erase_if(others, [&](const UpdateRange& range) { return range.origin == origin; });
        EXPECT_EQ(*received.back().contents, others);
      }
      ASSERT_EQ(replica, sum) << "run " << run << ", worker " << origin;
    }
  }
}

TEST(MergedUpdate, APublicationOfOwnUpdatesAloneChangesNothingAndTellsThatNobodyElseIsInIt) {
  for (const float value : {1.0f, 0x1p101f}) {
    const Buffer own = UpdateWith({1, 1}, kLayout, {{5, 1}}, value);
    const Buffer merged = MergedOf({own}, kLayout, kPublication);
    const auto received = WithoutOwn(merged, 1, [&](uint64_t) { return own; }, MessageCodec());
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].id, kPublication);
    std::vector<float> parameters(kLayout.size);
    MessageCodec().Apply(received[0].message(), parameters);
    EXPECT_EQ(parameters, std::vector<float>(kLayout.size));
    ASSERT_NE(received[0].contents, nullptr);
    EXPECT_TRUE(received[0].contents->empty());
    int applied = 0;
    ForEachApplied(received[0], [&](uint64_t origin, uint64_t first, uint64_t last) {
      EXPECT_EQ((UpdateId{origin, first}), kPublication);
      EXPECT_EQ(last, first);
      ++applied;
    });
    EXPECT_EQ(applied, 1);
    EXPECT_EQ(UpdatesIn(received[0]), 0);
  }
}

TEST(MergedUpdate, WithoutAnOwnUpdateThatItNamesThereIsNoResult) {
  const Buffer own = UpdateWith({1, 1}, kLayout);
  const Buffer merged = MergedOf({own, UpdateWith({1, 2}, kLayout), UpdateWith({2, 1}, kLayout)},
                                 kLayout, kPublication);
  const auto first_only = [&](uint64_t counter) { return counter == 1 ? own : nullptr; };
  EXPECT_TRUE(WithoutOwn(merged, 1, first_only, MessageCodec()).empty());
  EXPECT_EQ(WithoutOwn(merged, 3, first_only, MessageCodec()).size(), 2u) << "3 and 1 times 1";
}

TEST(MergedUpdate, APlainUpdateContainsItself) {
  const Buffer update = UpdateWith({4, 8}, kLayout, {{0, 1}}, 1, 12);
  EXPECT_EQ(ContentsOf(update), (UpdateRanges{{4, 7, 8, 12}}));
  int messages = 0;
  ForEachMessage(update, [&](Bytes message) {
    EXPECT_EQ(message.data(), update->data() + kUpdateHeaderBytes);
    ++messages;
  });
  EXPECT_EQ(messages, 1);
}

}  // namespace
}  // namespace strom
