// A relay of any bytes over real UDP sockets on loopback, each node with its I/O thread.
#include "net/bytes_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/master_agent.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr int64_t kDeadlineNs = 30'000'000'000;
constexpr int64_t kNoWait = 0;

class BytesAgentTest : public testing::Test {
 protected:
  void StartMaster(int workers) {
    SystemRandom().Fill(endpoint_.secret.bytes());
    MasterAgentOptions options;
    options.bind_address = "127.0.0.1";
    options.endpoint = endpoint_;
    options.node.workers = workers_ = workers;
    options.node.codec = &BytesCodec();
    ASSERT_TRUE(MasterAgent::Create(options, &master_).ok());
  }

  std::shared_ptr<BytesAgent> Join(int rank) {
    WorkerAgentOptions options;
    options.endpoint = endpoint_;
    options.node.master_public_key = master_->public_key();
    EXPECT_TRUE(ParseAddress("127.0.0.1", master_->port(), &options.node.master).ok());
    options.node.rank = rank;
    options.node.size = workers_;
    SystemRandom().Fill(options.node.instance);
    std::shared_ptr<BytesAgent> agent;
    EXPECT_TRUE(BytesAgent::Join(options, kDeadlineNs, &agent).ok());
    return agent;
  }

  static uint64_t Submit(BytesAgent& agent, const std::string& text) {
    UpdateId id;
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    EXPECT_TRUE(agent.Submit({bytes, text.size()}, kDeadlineNs, &id).ok());
    return id.counter;
  }

  static std::string Poll(BytesAgent& agent, UpdateId* id) {
    std::optional<ReceivedUpdate> next;
    const Status polled = agent.Poll(kDeadlineNs, &next);
    EXPECT_TRUE(polled.ok() && next) << polled.message;
    if (!next) return "";
    *id = next->id;
    const Bytes bytes = next->message();
    return std::string(bytes.begin(), bytes.end());
  }

  std::shared_ptr<MasterAgent> master_;

 private:
  EndpointOptions endpoint_;
  int workers_ = 0;
};

TEST_F(BytesAgentTest, EveryMessageReachesAllOthersOnceInOrder) {
  constexpr int kWorkers = 3, kMessages = 50;
  StartMaster(kWorkers);
  std::vector<std::shared_ptr<BytesAgent>> workers;
  for (int rank = 0; rank < kWorkers; ++rank) workers.push_back(Join(rank));
  for (int i = 1; i <= kMessages; ++i) {
    for (auto& worker : workers) EXPECT_EQ(Submit(*worker, std::string(i * 97 % 4000, 'a')), i);
  }
  for (auto& worker : workers) {
    std::map<uint64_t, uint64_t> last;
    for (int i = 0; i < kMessages * (kWorkers - 1); ++i) {
      UpdateId id;
      const std::string text = Poll(*worker, &id);
      EXPECT_EQ(id.counter, ++last[id.origin]);
      EXPECT_EQ(text.size(), id.counter * 97 % 4000);
    }
    EXPECT_EQ(last.size(), kWorkers - 1);
    std::optional<ReceivedUpdate> more;
    EXPECT_TRUE(worker->Poll(kNoWait, &more).ok());
    EXPECT_FALSE(more);
  }
}

TEST_F(BytesAgentTest, SubmittingWaitsForTheOtherWorkers) {
  StartMaster(2);
  const auto first = Join(0);
  UpdateId id;
  const Status early = first->Submit({}, kNoWait, &id);
  EXPECT_EQ(early.code, Code::kTimeout);
  EXPECT_THAT(early.message, HasSubstr("the other workers to join"));
  const auto second = Join(1);
  EXPECT_EQ(Submit(*first, ""), 1);
  EXPECT_EQ(Poll(*second, &id), "");
}

TEST_F(BytesAgentTest, WhatIsFlushedArrivesAfterItsWorkerHasLeft) {
  StartMaster(2);
  const auto first = Join(0), second = Join(1);
  Submit(*first, std::string(BytesAgent::kMaxBytes, 'x'));
  EXPECT_TRUE(first->Flush(kDeadlineNs).ok());
  first->Close("");
  UpdateId id;
  EXPECT_EQ(Poll(*second, &id).size(), BytesAgent::kMaxBytes);
}

TEST_F(BytesAgentTest, AMessageOverTheLimitIsRefused) {
  StartMaster(1);
  const auto worker = Join(0);
  UpdateId id;
  const std::vector<uint8_t> bytes(BytesAgent::kMaxBytes + 1);
  const Status refused = worker->Submit(bytes, kDeadlineNs, &id);
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_THAT(refused.message, HasSubstr("over the limit of 4194248"));
}

TEST_F(BytesAgentTest, WhatCameBeforeTheMastersEndIsStillPolled) {
  StartMaster(2);
  const auto first = Join(0), second = Join(1);
  Submit(*first, "last words");
  UpdateId id;
  Submit(*second, "an answer");
  EXPECT_EQ(Poll(*first, &id), "an answer");
  EXPECT_EQ(Poll(*second, &id), "last words");
  master_->Close("the test is over");
  std::optional<ReceivedUpdate> none;
  const Status over = second->Poll(kDeadlineNs, &none);
  EXPECT_EQ(over.code, Code::kMasterLost);
  EXPECT_THAT(over.message, HasSubstr("the test is over"));
}

}  // namespace
}  // namespace strom
