// Control messages and chunked values: what is written is read, and nothing else is.
#include "core/replication/control.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/replication/blob.h"

namespace strom {
namespace {

JointPlan APlan() {
  JointPlan plan;
  plan.method = {STROM_MPCA, 3, 1, 0.05, 0.9, 0.7, 0.8, 0.5, 2, 20, 21, 5, 0, 0, 0};
  plan.ranges = {{0, 60}, {70, 30}};
  return plan;
}

std::vector<ControlMessage> OneOfEach() {
  return {Attach{3, {{1, 2}, {5, 6}}},
          Announce{{1, 100, 77}, 12, "method=MPCA()", APlan(), 8, {3, 4}},
          StartGeneration{1, {{9, 1}}, 7, 8, 9, 5'000'000},
          Step{1, 4, {{1, 2}, {1, 3}, {5, 6}}},
          Done{1, 12, 1},
          Final{1, {{9, 3}}, 7},
          Verification{1, 0.5, 99},
          End{1, 0.25},
          Stop{1},
          Beacon{1, 2, {{3, 4}}, 1},
          Notice{"worker 1 was lost"},
          Failure{-3, "no"},
          AttachAnew{3},
          TreePlace{.version = 9,
                    .depth = 2,
                    .parent = 7,
                    .parent_rank = 1,
                    .parent_address = {.ip = {1, 2}, .port = 4000},
                    .parent_key = {5},
                    .children = {{8, 2, {6}}, {9, 3, {7}}}},
          Placed{9, 3, {{1, 2}}},
          Orphan{9, 1, "silent"},
          Ended{3, 2},
          AskState{3, 2, 99},
          TooFarBehind{3},
          AskSnapshot{3, {{1, 2}, {5, 6}}},
          SnapshotCut{3, {{1, 2}}, 7},
          AskResume{.layout = {3, 100, 77},
                    .origin = 5,
                    .applied = {{1, 2}, {5, 6}},
                    .kept_after = 4,
                    .iteration = 12,
                    .lacks_state = 1,
                    .options_text = "max_staleness=None",
                    .plan = APlan(),
                    .cycles = 8},
          AskReplica{3, 1},
          ReplicaCut{3, 1, {{1, 2}}},
          Tick{3, 17, 1, 1, 0.05, 20, 5},
          Have{3, 16, 40},
          AskJoint{3, 2},
          Stepping{3},
          SayAgain{3, 4, 9},
          Peers{3, 2, {{1, 8, {6}, {.ip = {1, 2}, .port = 4000}, {5}}, {2, 9, {7}, {}, {6}}}},
          Linked{3, 2, 1},
          Rounds{3, 5, Rounds::kAmongPeers, 17},
          AtRound{3, 5, 18},
          AskPieces{3, 2, {0, 5}}};
}

TEST(Control, ReadsBackAPlan) {
  ControlMessage parsed;
  ASSERT_TRUE(ParseControl(*EncodeControl(Announce{{1, 100, 77}, 12, "", APlan()}), &parsed).ok());
  EXPECT_EQ(std::get<Announce>(parsed).plan, APlan());
}

TEST(Control, ReadsBackEveryMessage) {
  const std::vector<ControlMessage> messages = OneOfEach();
  ASSERT_EQ(messages.size(), std::variant_size_v<ControlMessage>);
  for (const ControlMessage& message : messages) {
    const Buffer bytes = EncodeControl(message);
    ControlMessage parsed;
    ASSERT_TRUE(ParseControl(*bytes, &parsed).ok()) << message.index();
    EXPECT_EQ(parsed.index(), message.index());
    EXPECT_EQ(*EncodeControl(parsed), *bytes);
  }
}

TEST(Control, RefusesEveryTruncationAndAnyTail) {
  for (const ControlMessage& message : OneOfEach()) {
    std::vector<uint8_t> bytes = *EncodeControl(message);
    ControlMessage parsed;
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(ParseControl(Bytes(bytes).first(size), &parsed).ok());
    }
    bytes.push_back(0);
    EXPECT_FALSE(ParseControl(bytes, &parsed).ok());
  }
}

TEST(Control, RefusesACountThatTheBytesCannotHold) {
  std::vector<uint8_t> bytes = *EncodeControl(Attach{1, {}});
  std::fill(bytes.end() - 4, bytes.end(), 0xff);
  ControlMessage parsed;
  EXPECT_EQ(ParseControl(bytes, &parsed).code, Code::kCorrupt);
}

TEST(Control, RefusesAVectorOfMoreOriginsThanAMessageIsSureToHold) {
  VersionVector vector;
  while (vector.size() < kMaxOrigins) vector[vector.size() + 1] = 1;
  ControlMessage parsed;
  EXPECT_TRUE(ParseControl(*EncodeControl(Attach{1, vector}), &parsed).ok());
  vector[vector.size() + 1] = 1;
  EXPECT_FALSE(ParseControl(*EncodeControl(Attach{1, vector}), &parsed).ok());
}

TEST(Control, WordsForPeopleAreCutAndOptionsRefused) {
  const std::string endless(1 << 20, 'x');
  ControlMessage parsed;
  ASSERT_TRUE(ParseControl(*EncodeControl(Failure{1, endless}), &parsed).ok());
  EXPECT_EQ(std::get<Failure>(parsed).reason.size(), kMaxWordsBytes);
  ASSERT_TRUE(ParseControl(*EncodeControl(Notice{endless}), &parsed).ok());
  EXPECT_EQ(std::get<Notice>(parsed).text.size(), kMaxWordsBytes);
  ASSERT_TRUE(ParseControl(*EncodeControl(Orphan{1, 0, endless}), &parsed).ok());
  EXPECT_EQ(std::get<Orphan>(parsed).reason.size(), kMaxOrphanBytes);
}

TEST(Control, RefusesAVectorOutOfOrder) {
  std::vector<uint8_t> bytes = *EncodeControl(Attach{1, {{1, 1}, {2, 2}}});
  std::swap_ranges(bytes.end() - 32, bytes.end() - 16, bytes.end() - 16);
  ControlMessage parsed;
  EXPECT_FALSE(ParseControl(bytes, &parsed).ok());
}

TEST(Control, TellsAnotherVersionWithoutReadingFurther) {
  Hello hello;
  EXPECT_TRUE(ParseHello(std::vector<uint8_t>{kProtocolVersion + 1, 0, 0, 0, 1}, &hello).ok());
  EXPECT_EQ(hello.version, kProtocolVersion + 1);
}

TEST(Blob, PutsChunksTogether) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{131072}, size_t{300001}}) {
    std::vector<double> values(count);
    std::iota(values.begin(), values.end(), 0.0);
    const BlobName name{BlobKind::kMean, 3, 4, 5, 6};
    BlobAssembler assembler;
    std::optional<Blob> blob;
    for (const Buffer& chunk : EncodeBlob(name, values)) {
      EXPECT_FALSE(blob);
      EXPECT_LE(static_cast<int64_t>(chunk->size()), kChunkBytes + 64);
      ASSERT_TRUE(assembler.Add(*chunk, int64_t{1} << 30, &blob).ok());
    }
    ASSERT_TRUE(blob);
    EXPECT_EQ(blob->name, name);
    std::vector<double> read;
    ASSERT_TRUE(blob->Values(&read).ok());
    EXPECT_EQ(read, values);
  }
}

TEST(Blob, RefusesAMissingChunkAndTooMuch) {
  const std::vector<float> values(600000, 1.0f);
  const std::vector<Buffer> chunks = EncodeBlob({BlobKind::kReplica, 1, 0, 0, 0}, values);
  ASSERT_EQ(chunks.size(), 3u);
  std::optional<Blob> blob;
  BlobAssembler skipping;
  ASSERT_TRUE(skipping.Add(*chunks[0], int64_t{1} << 30, &blob).ok());
  EXPECT_FALSE(skipping.Add(*chunks[2], int64_t{1} << 30, &blob).ok());
  BlobAssembler small;
  EXPECT_FALSE(small.Add(*chunks[0], 1000, &blob).ok());
}

}  // namespace
}  // namespace strom
