// The end of a `fit` in asynchronous mode, both sides: the master's parameters come to a worker as
// what is near to its own, and what was not near comes whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/replication/near_values.h"
#include "scripted_master.h"
#include "scripted_worker.h"

namespace strom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const PieceGrid& Grid() {
  static const PieceGrid grid(kLayout.size);  // each value is a piece
  return grid;
}

// 1, 2, 3, ...
std::vector<float> Counting() {
  std::vector<float> values(kLayout.size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// Their neighbours.
std::vector<float> NextTo(std::vector<float> values) {
  for (float& value : values) value = std::nextafter(value, 0.0f);
  return values;
}

std::vector<Buffer> NearPieces(const std::vector<float>& wanted,
                               const std::vector<uint32_t>& indices) {
  const std::vector<uint64_t> hashes = Grid().Hashes(wanted);
  std::vector<uint8_t> near;
  for (const uint32_t index : indices) AppendNear(Grid().Piece(std::span(wanted), index), &near);
  return EncodeParts({BlobKind::kNearPieces, 1, 0, 0, 0}, {AsBytes(hashes), near});
}

std::vector<uint32_t> All() {
  std::vector<uint32_t> indices(kLayout.size);
  std::iota(indices.begin(), indices.end(), 0u);
  return indices;
}

// The chunks of this kind that have gone over the link.
std::vector<BlobChunk> Sent(const RecordedLinks& links, LinkId link, BlobKind kind) {
  std::vector<BlobChunk> found;
  for (const RecordedLinks::Sent& sent : links.sent) {
    BlobChunk chunk;
    if (sent.link != link || sent.channel != Channel::kState) continue;
    if (ParseChunk(*sent.message, &chunk).ok() && chunk.name.kind == kind) found.push_back(chunk);
  }
  return found;
}

std::shared_ptr<std::vector<float>> Shared(std::vector<float> values) {
  return std::make_shared<std::vector<float>>(std::move(values));
}

// Worker 1, which has sent its state and waits for the master's parameters.
class EndingWorker : public ScriptedWorker {
 public:
  explicit EndingWorker(std::shared_ptr<std::vector<float>> own)
      : ScriptedWorker({.rank = 1, .master = {}}, Shared(Counting())) {
    Hear(StartGeneration{1, {}});
    HearBlob(PiecesOf(Counting(), {}, Counting()));
    node.Finish(kNow, false);
    Hear(Final{1, {}, 0});
    node.SendState(kNow, {}, std::move(own));
    HearBlob(EncodeBlob({BlobKind::kResult, 1, 0, 0, 2}, std::vector<double>{}));
    (void)ScriptedWorker::Outcome(WorkerEvent::Type::kResult);
    links.sent.clear();
  }
  auto Outcome() { return ScriptedWorker::Outcome(WorkerEvent::Type::kResult); }
};

TEST(NearEndTest, WhatIsNearBecomesTheMastersInTheWorkersOwnValues) {
  std::vector<float> nearly = NextTo(Counting());
  nearly[7] = Counting()[7];
  const auto own = Shared(nearly);
  EndingWorker worker(own);
  std::vector<uint32_t> lacking = All();
  lacking.erase(lacking.begin() + 7);
  worker.HearBlob(NearPieces(Counting(), lacking));
  const auto [parameters, failure] = worker.Outcome();
  ASSERT_TRUE(parameters) << failure;
  EXPECT_EQ(parameters, own);
  EXPECT_EQ(*parameters, Counting());
  EXPECT_THAT(Sent(worker.links, 1, BlobKind::kHashes), IsEmpty());
}

TEST(NearEndTest, WhatIsNotNearIsAskedForAndComesWhole) {
  std::vector<float> nearly = NextTo(Counting());
  nearly[3] = -1;
  nearly[98] = 0;
  EndingWorker worker(Shared(nearly));
  worker.HearBlob(NearPieces(Counting(), All()));
  EXPECT_FALSE(worker.Outcome().first);
  const std::vector<BlobChunk> asked = Sent(worker.links, 1, BlobKind::kHashes);
  ASSERT_EQ(asked.size(), 1u);
  Blob blob;
  blob.bytes.assign(asked[0].bytes.begin(), asked[0].bytes.end());
  std::vector<uint64_t> hashes;
  ASSERT_TRUE(blob.Values(&hashes).ok());
  EXPECT_THAT(Lacking(Grid().Hashes(Counting()), hashes), ElementsAre(3, 98));

  worker.HearBlob(NearPieces(Counting(), {3, 98}));  // a second time
  EXPECT_EQ(worker.Outcome(), std::pair(std::shared_ptr<const std::vector<float>>(), std::string()))
      << "nobody has asked for it";
  worker.HearBlob(PiecesOf(Counting(), {3, 98}, Counting()));
  const auto [parameters, failure] = worker.Outcome();
  ASSERT_TRUE(parameters) << failure;
  EXPECT_EQ(*parameters, Counting());
}

TEST(NearEndTest, NearPiecesThatCannotBeEndTheWorker) {
  const auto failure = [](EndingWorker worker, const std::vector<Buffer>& chunks) {
    worker.HearBlob(chunks);
    return worker.Outcome().second;
  };
  EXPECT_THAT(failure(EndingWorker(nullptr), NearPieces(Counting(), All())),
              HasSubstr("near to no values"));
  EXPECT_THAT(failure(EndingWorker(Shared(Counting())), NearPieces(Counting(), {1})),
              HasSubstr("more pieces of near values"));
  const auto far = Shared(std::vector<float>(kLayout.size, -1));
  EXPECT_THAT(failure(EndingWorker(far), NearPieces(Counting(), {0, 1, 2})),
              HasSubstr("fewer pieces than this worker lacks"));
}

// Two workers that have ended the first generation, whose parameters are 1, 2, 3, ...
class EndingMaster {
 public:
  explicit EndingMaster(const std::vector<float>& own, int32_t max_staleness = -1) : master(2) {
    master.Join(max_staleness);
    master.BeginAsChief(1, {kLayout, 0, ""}, Counting());
    master.Say(2, Announce{kLayout, 0, ""});
    master.Say(1, Done{1, 0, 0});
    master.Say(2, Done{1, 0, 0});
    master.links.sent.clear();
    SayHashes(own);
    for (LinkId link : {1, 2}) {
      master.SayBlob(link, EncodeBlob({BlobKind::kState, 1, 0, 0, 0}, std::vector<double>{}));
    }
  }

  // Of worker 1's values.
  void SayHashes(const std::vector<float>& values) {
    master.SayBlob(2, EncodeBlob({BlobKind::kHashes, 1, 0, 0, 0}, Grid().Hashes(values)));
  }
  std::vector<BlobChunk> SentTo(LinkId link, BlobKind kind) const {
    return Sent(master.links, link, kind);
  }

  Master master;
};

TEST(NearEndTest, AMasterSendsWhatIsNearToWhoHasToldWhatItHas) {
  const EndingMaster ending(NextTo(Counting()));
  EXPECT_EQ(ending.SentTo(2, BlobKind::kNearPieces).size(), 1u);
  EXPECT_THAT(ending.SentTo(2, BlobKind::kPieces), IsEmpty());
  EXPECT_EQ(ending.SentTo(1, BlobKind::kPieces).size(), 1u) << "it has told nothing";
  EXPECT_THAT(ending.SentTo(1, BlobKind::kNearPieces), IsEmpty());
}

TEST(NearEndTest, WhereUpdatesHaveAnOrderTheMastersPiecesComeWhole) {
  const EndingMaster ending(NextTo(Counting()), 0);
  EXPECT_EQ(ending.SentTo(2, BlobKind::kPieces).size(), 1u);
  EXPECT_THAT(ending.SentTo(2, BlobKind::kNearPieces), IsEmpty());
}

TEST(NearEndTest, AMasterSendsWhatWasNotNearOnce) {
  EndingMaster ending(NextTo(Counting()));
  std::vector<float> now = Counting();
  now[3] = now[98] = -1;
  ending.SayHashes(now);
  const std::vector<BlobChunk> whole = ending.SentTo(2, BlobKind::kPieces);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].bytes.size(), kLayout.size * sizeof(uint64_t) + 2 * sizeof(float));
  ending.SayHashes(now);
  EXPECT_EQ(ending.SentTo(2, BlobKind::kPieces).size(), 1u);
  EXPECT_THAT(ending.master.node.StatusJson(), HasSubstr("\"values that nobody waits for\": 1"));
}

}  // namespace
}  // namespace strom
