// Rounds of gradients among workers: all get the mean that a master would have made, to the bit, in
// whatever order pieces come; what does not belong there is refused.
#include "core/worker/peer_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "core/joint/bfloat16.h"
#include "core/joint/joint_model.h"

namespace strom {
namespace {

constexpr uint64_t kGeneration = 5, kFirst = 7;

JointPlan PlanOf(int64_t size, int32_t bfloat16) {
  JointPlan plan;
  plan.method.kind = STROM_SPARKNET;
  plan.method.phases = 1;
  plan.method.steps = 1;
  plan.method.gradients = 1;
  plan.method.bfloat16 = bfloat16;
  plan.ranges = {{0, size}};
  return plan;
}

// Workers whose messages wait until the test delivers them.
class Workers {
 public:
  Workers(const JointPlan& plan, std::vector<int32_t> ranks) : plan_(plan), ranks_(ranks) {
    const Rounds order{kGeneration, 3, Rounds::kAmongPeers, kFirst};
    for (const int32_t rank : ranks) {
      auto& worker = workers_[rank] = std::make_unique<Worker>();
      worker->host.all = this;
      worker->host.from = rank;
      worker->rounds.emplace(plan, order, ranks, rank, &worker->host);
    }
  }

  void Give(int32_t rank, uint64_t round, std::vector<float> values) {
    Worker& worker = *workers_.at(rank);
    if (!worker.has_begun) {
      worker.given = std::move(values);
      worker.mean.assign(worker.given.size(), -1.0f);
      worker.rounds->Begin(round, worker.given, worker.mean);
    } else {
      std::copy(values.begin(), values.end(), worker.given.begin());  // in the same memory
    }
    worker.has_begun = false;
    worker.rounds->GiveRest();
    worker.rounds->Advance(0);
  }
  // These parts of what it is to Give for the round, while it writes the others.
  void GiveEarly(int32_t rank, uint64_t round, const std::vector<float>& values,
                 const std::vector<int64_t>& parts) {
    Worker& worker = *workers_.at(rank);
    worker.given.assign(values.size(), std::numeric_limits<float>::quiet_NaN());
    worker.given.back() = values.back();
    worker.mean.assign(values.size(), -1.0f);
    worker.rounds->Begin(round, worker.given, worker.mean);
    worker.has_begun = true;
    const int64_t elements = PartElements(plan_.method, plan_.size());
    for (const int64_t part : parts) {
      const auto first = static_cast<size_t>(part * elements);
      const size_t last = std::min(first + static_cast<size_t>(elements), values.size() - 1);
      std::copy(values.begin() + first, values.begin() + last, worker.given.begin() + first);
      worker.rounds->GivePart(part);
    }
    worker.rounds->Advance(0);
  }
  // In an order that the seed says, but that each link keeps its own.
  void DeliverAll(uint32_t seed) {
    std::mt19937 random(seed);
    while (true) {
      std::vector<std::deque<Buffer>*> waiting;
      std::vector<std::pair<int32_t, int32_t>> links;
      for (auto& [link, queue] : queues_) {
        if (queue.empty()) continue;
        waiting.push_back(&queue);
        links.push_back(link);
      }
      if (waiting.empty()) return;
      const size_t chosen = random() % waiting.size();
      const Buffer chunk = waiting[chosen]->front();
      waiting[chosen]->pop_front();
      BlobChunk parsed;
      ASSERT_TRUE(ParseChunk(*chunk, &parsed).ok());
      const Status status =
          workers_.at(links[chosen].second)->rounds->Handle(links[chosen].first, parsed);
      ASSERT_TRUE(status.ok()) << status.message;
    }
  }
  bool TakeWhole(int32_t rank) { return workers_.at(rank)->rounds->TakeWhole(); }
  const std::vector<float>& mean(int32_t rank) { return workers_.at(rank)->mean; }
  Status Handle(int32_t rank, int32_t from, const Buffer& chunk) {
    BlobChunk parsed;
    EXPECT_TRUE(ParseChunk(*chunk, &parsed).ok());
    return workers_.at(rank)->rounds->Handle(from, parsed);
  }
  std::deque<Buffer>& queue(int32_t from, int32_t to) { return queues_[{from, to}]; }

  // What a master makes of the same.
  std::vector<float> Expected() const {
    JointModel joint(plan_.method, std::vector<float>(static_cast<size_t>(plan_.size())));
    for (int64_t part = 0; part < joint.last_part(0); ++part) {
      const ElementRange range = joint.part(part);
      for (const auto& [rank, worker] : workers_) {
        const auto first = worker->given.begin() + range.offset;
        std::vector<float> values(first, first + range.size);
        if (plan_.method.bfloat16 != 0) {
          std::vector<uint8_t> rounded(values.size() * kBfloat16Bytes);
          EncodeRounded(values, rounded);
          DecodeRounded(rounded, values);
        }
        joint.Keep(part, rank, std::move(values));
      }
    }
    joint.Update(0);
    std::vector<float> mean = joint.joint();
    mean.push_back(workers_.begin()->second->given.back());  // the lowest rank's learning rate
    return mean;
  }

 private:
  struct Host final : PeerHost {
    void SendToPeer(int32_t rank, const Buffer& chunk) override {
      all->queues_[{from, rank}].push_back(chunk);
    }
    Workers* all = nullptr;
    int32_t from = -1;
  };
  struct Worker {
    Host host;
    std::optional<PeerRounds> rounds;
    std::vector<float> given, mean;
    bool has_begun = false;
  };

  const JointPlan plan_;
  const std::vector<int32_t> ranks_;
  std::map<int32_t, std::unique_ptr<Worker>> workers_;
  std::map<std::pair<int32_t, int32_t>, std::deque<Buffer>> queues_;
};

std::vector<float> Gradient(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size) + 1);
  for (float& value : values) value = normal(random);
  return values;
}

struct RoundsCase {
  int64_t size;
  int32_t bfloat16;
};

class PeerRoundsTest : public testing::TestWithParam<RoundsCase> {};

TEST_P(PeerRoundsTest, AllHaveTheMeanThatAMasterWouldMake) {
  const auto [size, bfloat16] = GetParam();
  const std::vector<int32_t> ranks = {0, 2, 3, 7, 8};
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Workers workers(PlanOf(size, bfloat16), ranks);
    for (uint64_t round = kFirst; round < kFirst + 3; ++round) {
      for (const int32_t rank : ranks) {
        workers.Give(rank, round, Gradient(size, static_cast<uint32_t>(100 * round) + rank));
      }
      workers.DeliverAll(seed);
      const std::vector<float> expected = workers.Expected();
      for (const int32_t rank : ranks) {
        ASSERT_TRUE(workers.TakeWhole(rank));
        EXPECT_EQ(workers.mean(rank), expected);
      }
    }
  }
}

TEST_P(PeerRoundsTest, PartsLeaveBeforeTheRestIsThereAndNobodyHasTheMeanBeforeThat) {
  const auto [size, bfloat16] = GetParam();
  const std::vector<int32_t> ranks = {1, 4, 5};
  const JointPlan plan = PlanOf(size, bfloat16);
  const int64_t elements = PartElements(plan.method, size);
  std::vector<int64_t> parts;  // in the order of backpropagation
  for (int64_t part = (size - 1) / elements; part >= 0; --part) parts.push_back(part);
  Workers workers(plan, ranks);
  for (uint64_t round = kFirst; round < kFirst + 3; ++round) {
    const auto gradient = [&](int32_t rank) {
      return Gradient(size, static_cast<uint32_t>(100 * round) + static_cast<uint32_t>(rank));
    };
    workers.GiveEarly(1, round, gradient(1), parts);  // all of it
    workers.GiveEarly(4, round, gradient(4), {parts.begin(), parts.begin() + parts.size() / 2});
    EXPECT_EQ(workers.queue(1, 4).empty(), parts.size() < 2);
    workers.DeliverAll(static_cast<uint32_t>(round));
    workers.Give(5, round, gradient(5));
    workers.Give(4, round, gradient(4));
    workers.DeliverAll(static_cast<uint32_t>(round));
    for (const int32_t rank : ranks) EXPECT_FALSE(workers.TakeWhole(rank));
    workers.Give(1, round, gradient(1));
    workers.DeliverAll(static_cast<uint32_t>(round));
    const std::vector<float> expected = workers.Expected();
    for (const int32_t rank : ranks) {
      ASSERT_TRUE(workers.TakeWhole(rank));
      EXPECT_EQ(workers.mean(rank), expected);
    }
  }
}

// 20: fewer parts than workers, and the last one is short.
INSTANTIATE_TEST_SUITE_P(Sizes, PeerRoundsTest,
                         testing::Values(RoundsCase{1000, 0}, RoundsCase{1000, 1},
                                         RoundsCase{20, 0}, RoundsCase{20, 1}, RoundsCase{3, 0}));

TEST(PeerRounds, WhoIsAheadGivesForTheNextRound) {
  const std::vector<int32_t> ranks = {0, 1};
  Workers workers(PlanOf(64, 0), ranks);
  for (const int32_t rank : ranks) workers.Give(rank, kFirst, Gradient(64, rank));
  workers.DeliverAll(1);
  ASSERT_TRUE(workers.TakeWhole(0));
  workers.Give(0, kFirst + 1, Gradient(64, 2));
  workers.DeliverAll(1);  // before the other has taken its mean
  ASSERT_TRUE(workers.TakeWhole(1));
  EXPECT_FALSE(workers.TakeWhole(0));
  workers.Give(1, kFirst + 1, Gradient(64, 3));
  workers.DeliverAll(1);
  EXPECT_TRUE(workers.TakeWhole(0));
  EXPECT_TRUE(workers.TakeWhole(1));
  EXPECT_EQ(workers.mean(1), workers.Expected());
}

TEST(PeerRounds, RefusesWhatDoesNotBelongThere) {
  Workers workers(PlanOf(64, 0), {0, 1});
  workers.Give(0, kFirst, Gradient(64, 0));
  const Buffer piece = workers.queue(0, 1).front();
  EXPECT_TRUE(workers.Handle(1, 0, piece).ok());
  EXPECT_EQ(workers.Handle(1, 0, piece).code, Code::kCorrupt);  // twice
  EXPECT_EQ(workers.Handle(1, 5, piece).code, Code::kCorrupt);  // of nobody
  EXPECT_EQ(workers.Handle(0, 1, piece).code, Code::kCorrupt);  // not added up there
  const std::vector<float> values(16, 1.0f);
  const auto chunk = [&](BlobKind kind, uint64_t round, uint64_t offset, uint64_t total) {
    return EncodePiece({kind, kGeneration, 3, round, 0}, values, offset, total);
  };
  constexpr uint64_t kTotal = 64 * sizeof(float);
  EXPECT_EQ(workers.Handle(1, 0, chunk(BlobKind::kShard, kFirst + 1, 64, kTotal)).code,
            Code::kCorrupt);  // a round that cannot have begun
  EXPECT_EQ(workers.Handle(1, 0, chunk(BlobKind::kShard, kFirst, 68, kTotal)).code,
            Code::kCorrupt);  // between two parts
  EXPECT_EQ(workers.Handle(1, 0, chunk(BlobKind::kShard, kFirst, 64, kTotal + 64)).code,
            Code::kCorrupt);  // another model
  EXPECT_EQ(workers.Handle(1, 0, chunk(BlobKind::kTarget, kFirst, 0, kTotal)).code,
            Code::kCorrupt);  // a mean before it has given
  EXPECT_EQ(workers.Handle(0, 1, chunk(BlobKind::kTarget, kFirst, 0, kTotal)).code,
            Code::kCorrupt);  // a mean of a part that the sender does not add up
}

}  // namespace
}  // namespace strom
