// A master and workers over real UDP sockets on loopback, each with its I/O thread: the whole
// native path without TensorFlow. Ports are any free ones; every wait has a deadline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/hash.h"
#include "core/codec/message_writer.h"
#include "core/step/compression_state.h"
#include "net/master_agent.h"
#include "net/worker_agent.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr int64_t kDeadlineNs = 30'000'000'000;
constexpr int64_t kElements = 10'000;
constexpr uint64_t kLayoutHash = 77;

class Cluster {
 public:
  // max_children > 0: in a tree.
  explicit Cluster(int workers, UdpSocketOptions socket = {}, int max_children = 0)
      : socket_(socket) {
    SystemRandom().Fill(endpoint_.secret.bytes());
    SystemRandom().Fill(endpoint_.job_id);
    endpoint_.failure_timeout_ns = 2'000'000'000;
    MasterAgentOptions options;
    options.bind_address = "127.0.0.1";
    options.socket = socket_;
    options.endpoint = endpoint_;
    options.node.workers = workers;
    if (max_children > 0) {
      options.node.topology = Topology::kMesh;
      options.node.max_children = max_children;
    }
    options.node.failure_timeout_ns = endpoint_.failure_timeout_ns;
    EXPECT_TRUE(MasterAgent::Create(options, &master).ok());
    workers_ = workers;
  }

  WorkerAgentOptions WorkerOptions(int rank, int max_staleness = -1) const {
    WorkerAgentOptions options;
    options.socket = socket_;
    options.endpoint = endpoint_;
    options.node.master_public_key = master->public_key();
    EXPECT_TRUE(ParseAddress("127.0.0.1", master->port(), &options.node.master).ok());
    options.node.rank = rank;
    options.node.size = workers_;
    options.node.max_staleness = max_staleness;
    options.node.failure_timeout_ns = endpoint_.failure_timeout_ns;
    SystemRandom().Fill(options.node.instance);
    return options;
  }

  std::shared_ptr<MasterAgent> master;

 private:
  const UdpSocketOptions socket_;
  EndpointOptions endpoint_;
  int workers_;
};

struct Outcome {
  Status status;
  std::vector<float> parameters;
  double difference = -1;
  double worst = -1;
  std::string started_json;  // the status when training starts
  std::string status_json;   // before the end
};

#define RETURN_IF_ERROR(expression)      \
  do {                                   \
    Status returned = (expression);      \
    if (!returned.ok()) return returned; \
  } while (false)

// Two workers in synchronous mode: of steps 0 and 1 the worker of that rank begins to wait for the
// other's update before that makes it.
class Turns {
 public:
  void BeforeStep(int rank, int step) {
    if (step < 2 && rank != step) waits_[step].get_future().wait();
  }
  void Waits(int rank, int step) {
    if (rank == step) waits_[step].set_value();
  }

 private:
  std::array<std::promise<void>, 2> waits_;
};

// One worker's `fit`: a made-up optimizer that moves every element by a little each step.
Status Train(const WorkerAgentOptions& options, int steps, Outcome* out, Turns* turns = nullptr) {
  Outcome& outcome = *out;
  std::shared_ptr<WorkerAgent> agent;
  RETURN_IF_ERROR(WorkerAgent::Join(options, kDeadlineNs, &agent));
  const bool chief = options.node.rank == 0;
  Generation generation{1, kElements, kLayoutHash, "the same", nullptr};
  if (chief) generation.values = std::make_shared<std::vector<float>>(kElements, 1.0f);
  std::shared_ptr<const std::vector<float>> start;
  RETURN_IF_ERROR(agent->Start(generation, kDeadlineNs, &start));

  outcome.started_json = agent->StatusJson();
  outcome.parameters = *start;
  CompressionState compression(kMaxMessageBytes - kUpdateHeaderBytes);
  RETURN_IF_ERROR(compression.Extend(kElements));
  compression.Bind(agent);
  strom_step_result result;
  for (int step = 0; step < steps; ++step) {
    if (turns != nullptr) turns->BeforeStep(options.node.rank, step);
    std::vector<float> after = outcome.parameters;
    for (int64_t i = 0; i < kElements; ++i) {
      after[i] += 1e-3f * std::sin(static_cast<float>(i + step * 31 + options.node.rank * 7));
    }
    strom_step_options step_options = {};
    step_options.scale = 1;
    step_options.threshold = 2e-3f;
    step_options.apply_own = step_options.take_received = options.node.max_staleness < 0;
    step_options.iteration = step;
    float* values = outcome.parameters.data();
    const strom_segment segment = {0, kElements, values, after.data(), values, nullptr};
    RETURN_IF_ERROR(compression.Step({&segment, 1}, step_options, &result));
    if (options.node.max_staleness >= 0) {
      std::promise<Status> released;
      agent->AwaitStep(step, kDeadlineNs, [&](Status s) { released.set_value(std::move(s)); });
      if (turns != nullptr) turns->Waits(options.node.rank, step);
      RETURN_IF_ERROR(released.get_future().get());
      RETURN_IF_ERROR(compression.Apply({&segment, 1}, &result));
    }
  }
  float* values = outcome.parameters.data();
  const strom_segment segment = {0, kElements, values, values, values, nullptr};
  RETURN_IF_ERROR(agent->Finish(false, kDeadlineNs));
  RETURN_IF_ERROR(compression.Apply({&segment, 1}, &result));
  std::vector<double> state = {static_cast<double>(options.node.rank)};
  std::shared_ptr<const std::vector<float>> final_parameters;
  RETURN_IF_ERROR(agent->Result(&state, nullptr, &final_parameters, kDeadlineNs));
  outcome.difference = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const double apart = std::abs(outcome.parameters[i] - (*final_parameters)[i]);
    outcome.difference = std::max(outcome.difference, apart);
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(final_parameters->data());
  const uint64_t hash = Hash({bytes, kElements * sizeof(float)}, 0);
  RETURN_IF_ERROR(agent->Verify(outcome.difference, hash, &outcome.worst, kDeadlineNs));
  outcome.status_json = agent->StatusJson();
  agent->Close("");
  return {};
}

std::vector<Outcome> TrainAll(const Cluster& cluster, std::vector<int> steps, int max_staleness,
                              Turns* turns = nullptr) {
  std::vector<Outcome> outcomes(steps.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank].status = Train(cluster.WorkerOptions(static_cast<int>(rank), max_staleness),
                                    steps[rank], &outcomes[rank], turns);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(AgentsTest, AsynchronousReplicasAgreeBeforeTheFinalCopy) {
  const Cluster cluster(3);
  for (const Outcome& outcome : TrainAll(cluster, {60, 40, 50}, -1)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
    EXPECT_LT(outcome.difference, 1e-5);
    EXPECT_GE(outcome.worst, outcome.difference);
  }
}

TEST(AgentsTest, AFullInboxIsAddedUpAndNothingIsLost) {
  const Cluster cluster(2);
  WorkerAgentOptions idle = cluster.WorkerOptions(0);
  idle.inbox_bytes = 4000;
  Outcome idle_outcome, busy_outcome;
  std::thread busy(
      [&] { busy_outcome.status = Train(cluster.WorkerOptions(1), 200, &busy_outcome); });
  idle_outcome.status = Train(idle, 0, &idle_outcome);  // takes nothing until the end
  busy.join();
  ASSERT_TRUE(busy_outcome.status.ok()) << busy_outcome.status.message;
  ASSERT_TRUE(idle_outcome.status.ok()) << idle_outcome.status.message;
  EXPECT_LT(idle_outcome.difference, 1e-5);
  EXPECT_NE(idle_outcome.status_json.find("updates_folded"), std::string::npos);
  EXPECT_EQ(idle_outcome.status_json.find("\"updates_folded\": 0,"), std::string::npos);
}

TEST(AgentsTest, TrainsWhereTheKernelMovesSingleDatagramsOnly) {
  const Cluster cluster(2, {.offload = false});
  for (const Outcome& outcome : TrainAll(cluster, {20, 20}, -1)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
    EXPECT_LT(outcome.difference, 1e-5);
  }
}

TEST(AgentsTest, SynchronousReplicasAreBitwiseEqual) {
  const Cluster cluster(2);
  const std::vector<Outcome> outcomes = TrainAll(cluster, {40, 25}, 0);
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
    EXPECT_EQ(outcome.difference, 0);
  }
  EXPECT_EQ(outcomes[0].parameters, outcomes[1].parameters);
}

TEST(AgentsTest, CountsHowLongItsStepsWaitForTheOthers) {
  const std::string waited_for_nobody = "\"step_wait_ns\": 0,";
  for (const int max_staleness : {-1, 0}) {
    const Cluster cluster(2);
    Turns turns;
    int without = 0;
    for (const Outcome& outcome :
         TrainAll(cluster, {20, 20}, max_staleness, max_staleness < 0 ? nullptr : &turns)) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
      without += outcome.status_json.find(waited_for_nobody) != std::string::npos;
    }
    EXPECT_EQ(without, max_staleness < 0 ? 2 : 0);
  }
}

TEST(AgentsTest, WorkersOfATreeAgree) {
  for (const int max_staleness : {-1, 0}) {
    const Cluster cluster(5, {}, 2);
    const std::vector<Outcome> outcomes = TrainAll(cluster, {20, 20, 20, 20, 20}, max_staleness);
    int below_a_worker = 0;
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
      EXPECT_LT(outcome.difference, 1e-5);
      below_a_worker += outcome.started_json.find("\"parent\": \"worker ") != std::string::npos;
    }
    EXPECT_EQ(below_a_worker, 3);
  }
}

TEST(AgentsTest, AWrongSecretIsRejectedAndSaidSo) {
  const Cluster cluster(1);
  WorkerAgentOptions options = cluster.WorkerOptions(0);
  options.endpoint.secret.bytes()[0] ^= 1;
  std::shared_ptr<WorkerAgent> agent;
  const Status status = WorkerAgent::Join(options, kDeadlineNs, &agent);
  EXPECT_EQ(status.code, Code::kRejectedSecret) << status.message;
}

TEST(AgentsTest, AnUnreachableMasterIsSaidSo) {
  const Cluster cluster(1);
  WorkerAgentOptions options = cluster.WorkerOptions(0);
  std::unique_ptr<UdpSocket> silent;  // bound, so that the port is nobody else's, and never read
  ASSERT_TRUE(UdpSocket::Open("127.0.0.1", 0, &silent).ok());
  options.node.master.port = silent->port();
  std::shared_ptr<WorkerAgent> agent;
  const Status status = WorkerAgent::Join(options, kDeadlineNs, &agent);
  EXPECT_EQ(status.code, Code::kUnreachable) << status.message;
}

TEST(AgentsTest, APortInUseIsSaidSo) {
  const Cluster cluster(1);
  std::unique_ptr<UdpSocket> second;
  const Status status = UdpSocket::Open("127.0.0.1", cluster.master->port(), &second);
  EXPECT_EQ(status.code, Code::kAddress);
  EXPECT_NE(status.message.find("in use"), std::string::npos) << status.message;
}

// Counted but never sent, it would keep the master waiting for it at the next start.
TEST(AgentsTest, AnUpdateOutsideOfTrainingIsRefusedAndHarmless) {
  const Cluster cluster(1);
  std::shared_ptr<WorkerAgent> agent;
  ASSERT_TRUE(WorkerAgent::Join(cluster.WorkerOptions(0), kDeadlineNs, &agent).ok());
  const auto submit = [&] {
    UpdateId last;
    const MessageFields fields{1e-3f, 1e-3f, kElements, 0};
    return agent->Submit(0, WriteEntries(fields, {}, kMaxMessageBytes, kUpdateHeaderBytes), &last);
  };
  const auto values = std::make_shared<std::vector<float>>(kElements, 1.0f);
  EXPECT_EQ(submit().code, Code::kInvalidArgument);
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    std::shared_ptr<const std::vector<float>> parameters;
    std::vector<double> state;
    double worst = 0;
    const Status started =
        agent->Start({generation, kElements, kLayoutHash, "", values}, kDeadlineNs, &parameters);
    ASSERT_TRUE(started.ok()) << started.message;
    EXPECT_TRUE(submit().ok());
    ASSERT_TRUE(agent->Finish(false, kDeadlineNs).ok());
    EXPECT_EQ(submit().code, Code::kInvalidArgument);
    ASSERT_TRUE(agent->Result(&state, nullptr, &parameters, kDeadlineNs).ok());
    ASSERT_TRUE(agent->Verify(0, 0, &worst, kDeadlineNs).ok());
  }
}

// The sends of a master that can be struck dumb.
std::atomic<bool> is_dumb = false;
int SendUnlessDumb(int descriptor, mmsghdr* messages, unsigned count, int flags) {
  return is_dumb ? static_cast<int>(count) : sendmmsg(descriptor, messages, count, flags);
}

// Starts with a worker whose first update fills what it may keep.
Status StartWithoutRoom(WorkerAgentOptions options, std::shared_ptr<WorkerAgent>* agent) {
  options.socket = {};
  options.same_host = false;
  options.outgoing_bytes = 0;
  RETURN_IF_ERROR(WorkerAgent::Join(options, kDeadlineNs, agent));
  const auto values = std::make_shared<std::vector<float>>(kElements, 1.0f);
  std::shared_ptr<const std::vector<float>> parameters;
  return (*agent)->Start({1, kElements, kLayoutHash, "", values}, kDeadlineNs, &parameters);
}

Status SubmitTwice(WorkerAgent* agent) {
  const MessageFields fields{1e-3f, 1e-3f, kElements, 0};
  for (int step = 0; step < 2; ++step) {
    UpdateId last;
    auto parts = WriteEntries(fields, {}, kMaxMessageBytes, kUpdateHeaderBytes);
    RETURN_IF_ERROR(agent->Submit(step, std::move(parts), &last));
  }
  return {};
}

// Another master goes on from parameters that a worker hands over between two steps: where all
// waited for room within one, it would wait for them, and they for it.
TEST(AgentsTest, AStepWaitsForNoRoomAtAMasterThatIsLost) {
  const Cluster cluster(1, {.send = SendUnlessDumb});
  WorkerAgentOptions options = cluster.WorkerOptions(0);
  options.node.master_wait_ns = kDeadlineNs;
  std::shared_ptr<WorkerAgent> agent;
  const Status started = StartWithoutRoom(options, &agent);
  ASSERT_TRUE(started.ok()) << started.message;

  is_dumb = true;
  auto submitted = std::async(std::launch::async, SubmitTwice, agent.get());
  EXPECT_EQ(submitted.wait_for(std::chrono::seconds(15)), std::future_status::ready);
  EXPECT_TRUE(agent->waits_for_master());
  agent->Close("");
  const Status status = submitted.get();
  EXPECT_TRUE(status.ok()) << status.message;
  is_dumb = false;
}

// "Raise the threshold" would be no remedy for a master that is dead.
TEST(AgentsTest, AStepWaitsForRoomLongerThanASilentMasterCounts) {
  const Cluster cluster(1, {.send = SendUnlessDumb});
  WorkerAgentOptions options = cluster.WorkerOptions(0);
  options.submit_timeout_ns = 1;
  std::shared_ptr<WorkerAgent> agent;
  const Status started = StartWithoutRoom(options, &agent);
  ASSERT_TRUE(started.ok()) << started.message;

  is_dumb = true;
  const Status status = SubmitTwice(agent.get());
  EXPECT_EQ(status.code, Code::kMasterLost) << status.message;
  is_dumb = false;
}

// The sends of a worker whose own firewall may hold them back.
std::atomic<bool> is_held_back = false;
int SendUnlessHeldBack(int descriptor, mmsghdr* messages, unsigned count, int flags) {
  if (!is_held_back) return sendmmsg(descriptor, messages, count, flags);
  errno = EPERM;
  return -1;
}

TEST(AgentsTest, AFirewallOfTheWorkersOwnIsNotASilentMaster) {
  const Cluster cluster(1);
  WorkerAgentOptions options = cluster.WorkerOptions(0);
  options.socket.send = SendUnlessHeldBack;
  options.same_host = false;
  constexpr std::string_view kWords =
      "a firewall on this machine itself holds back what it sends (Operation not permitted)";
  std::shared_ptr<WorkerAgent> agent;
  is_held_back = true;
  const Status refused = WorkerAgent::Join(options, kDeadlineNs, &agent);
  EXPECT_EQ(refused.code, Code::kUnreachable) << refused.message;
  EXPECT_THAT(refused.message, HasSubstr(kWords));

  is_held_back = false;
  const Status joined = WorkerAgent::Join(options, kDeadlineNs, &agent);
  ASSERT_TRUE(joined.ok()) << joined.message;
  is_held_back = true;
  std::shared_ptr<const std::vector<float>> parameters;
  const auto values = std::make_shared<std::vector<float>>(kElements, 1.0f);
  const Status lost =
      agent->Start({1, kElements, kLayoutHash, "", values}, kDeadlineNs, &parameters);
  is_held_back = false;
  EXPECT_EQ(lost.code, Code::kMasterLost) << lost.message;
  EXPECT_THAT(lost.message, HasSubstr(kWords));
}

TEST(AgentsTest, TheLastReferenceMayGoOnTheAgentsOwnThread) {
  const Cluster cluster(1);
  std::shared_ptr<WorkerAgent> agent;
  ASSERT_TRUE(WorkerAgent::Join(cluster.WorkerOptions(0, 0), kDeadlineNs, &agent).ok());
  const std::weak_ptr<WorkerAgent> watched = agent;
  std::promise<void> called, let_go;
  WorkerAgent* const raw = agent.get();
  raw->AwaitStep(0, 1, [&, held = std::move(agent)](Status) mutable {
    called.set_value();
    held.reset();
    let_go.set_value();
  });
  ASSERT_EQ(called.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  ASSERT_EQ(let_go.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(watched.expired());
  cluster.master->Close("");
}

// For ThreadSanitizer above all: every call at once, and two closings in the midst of them.
TEST(AgentsTest, CallsOfManyThreadsEndWhenItCloses) {
  const Cluster cluster(1);
  std::shared_ptr<WorkerAgent> agent;
  ASSERT_TRUE(WorkerAgent::Join(cluster.WorkerOptions(0, 0), kDeadlineNs, &agent).ok());
  const auto values = std::make_shared<std::vector<float>>(kElements, 1.0f);
  std::shared_ptr<const std::vector<float>> parameters;
  ASSERT_TRUE(agent->Start({1, kElements, kLayoutHash, "", values}, kDeadlineNs, &parameters).ok());

  std::promise<void> busy;  // so many steps have been released that all threads are at work
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    const MessageFields fields{1e-3f, 1e-3f, kElements, 0};
    Status status;
    for (int64_t step = 0; status.ok(); ++step) {
      UpdateId last;
      auto parts = WriteEntries(fields, {}, kMaxMessageBytes, kUpdateHeaderBytes);
      if (!agent->Submit(step, std::move(parts), &last).ok()) break;
      std::promise<Status> released;
      agent->AwaitStep(step, kDeadlineNs, [&](Status s) { released.set_value(std::move(s)); });
      status = released.get_future().get();
      if (step == 50) busy.set_value();
    }
  });
  threads.emplace_back([&] {
    Received received;
    VersionVector applied;
    while (agent->TakeReceived(&received).ok()) {
      for (const ReceivedUpdate& update : received.updates)
        applied[update.id.origin] = update.id.counter;
      agent->SetApplied(applied);
      std::this_thread::yield();
    }
  });
  threads.emplace_back([&] {
    std::vector<double> values(1);
    int32_t contributors = 0;
    while (agent->Average(1, &values, &contributors, kDeadlineNs).ok()) agent->StatusJson();
  });
  ASSERT_EQ(busy.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  threads.emplace_back([&] { agent->Close("one"); });
  threads.emplace_back([&] { agent->Close("another"); });
  threads.emplace_back([&] { agent->StatusJson(); });
  for (std::thread& thread : threads) thread.join();
}

TEST(AgentsTest, AWaitOfAnyLengthDoesNotOverflow) {
  const Cluster cluster(1);
  std::shared_ptr<WorkerAgent> agent;
  const int64_t longest = std::numeric_limits<int64_t>::max();
  const Status joined = WorkerAgent::Join(cluster.WorkerOptions(0, 0), longest, &agent);
  ASSERT_TRUE(joined.ok()) << joined.message;
  std::promise<Status> answered;
  agent->AwaitStep(0, longest, [&](Status status) { answered.set_value(std::move(status)); });
  agent->StatusJson();  // a round of the I/O thread
  agent->Close("");
  EXPECT_EQ(answered.get_future().get().code, Code::kClosed);
}

int64_t DatagramsSent(MasterAgent* master) {
  const std::string json = master->StatusJson();
  const std::string name = "\"datagrams_sent\": ";
  return std::stoll(json.substr(json.find(name) + name.size()));
}

// One lost datagram must not make everybody wait for the failure timeout.
TEST(AgentsTest, AGoodbyeIsSaidThreeTimesBeforeTheThreadEnds) {
  const Cluster cluster(1);
  std::shared_ptr<WorkerAgent> agent;
  ASSERT_TRUE(WorkerAgent::Join(cluster.WorkerOptions(0), kDeadlineNs, &agent).ok());
  const int64_t before = DatagramsSent(cluster.master.get());
  cluster.master->Close("the driver was interrupted");
  EXPECT_GE(DatagramsSent(cluster.master.get()), before + 3);
}

TEST(AgentsTest, ClosingTheMasterEndsItsWorkersWithTheReason) {
  const Cluster cluster(2);
  std::shared_ptr<WorkerAgent> agent;
  ASSERT_TRUE(WorkerAgent::Join(cluster.WorkerOptions(1), kDeadlineNs, &agent).ok());
  cluster.master->Close("the driver was interrupted");
  std::shared_ptr<const std::vector<float>> parameters;
  const Status status =
      agent->Start({1, kElements, kLayoutHash, "", nullptr}, kDeadlineNs, &parameters);
  EXPECT_EQ(status.code, Code::kMasterLost) << status.message;
  EXPECT_NE(status.message.find("the driver was interrupted"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace strom
