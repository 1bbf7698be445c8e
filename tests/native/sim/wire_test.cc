// Whole fits over a harmful network: a MasterNode and WorkerNodes on real endpoints, the codec and
// the replicas in between, all on sim/network's virtual clock. Everything follows from one seed,
// which a failure prints; a run that does not end within its virtual time counts as a hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/master/master_node.h"
#include "core/replication/version_vector.h"
#include "core/step/compression_state.h"
#include "core/transport/crypto.h"
#include "core/transport/endpoint.h"
#include "core/worker/worker_node.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFailureTimeoutNs = kSecond;
constexpr int64_t kElements = 2500;
constexpr uint64_t kLayoutHash = 11;
constexpr uint64_t kGenerations = 2;
constexpr float kThreshold = 2e-3f;
constexpr float kStepSize = 1e-3f;
constexpr PathOptions kHarm = {
    .loss = .05, .duplication = .05, .corruption = .02, .delay_ns = 50'000, .jitter_ns = 400'000};

EndpointOptions MasterEndpoint() {
  EndpointOptions options;
  options.secret.fill(7);
  options.job_id.fill(9);
  options.private_key.fill(3);
  options.accepts = true;
  options.failure_timeout_ns = kFailureTimeoutNs;
  return options;
}

EndpointOptions WorkerEndpoint() {
  EndpointOptions options = MasterEndpoint();
  options.accepts = false;
  options.private_key = {};
  return options;
}

uint64_t HashOf(const std::vector<float>& values) {
  return Hash({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance = std::max(distance, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return distance;
}

// What one worker's optimizer adds to element `i` in one step.
float Change(int rank, int step, size_t i) {
  return kStepSize * std::sin(static_cast<float>(i) + static_cast<float>(step * 31 + rank * 7));
}

struct WorkerPlan {
  int steps = 10;         // of each generation
  int average_every = 4;  // steps between two averages
  int64_t think_ns = 3 * kMillisecond;
  int64_t pause_ns = 0;                          // the whole host stands still for so long ...
  int pause_after = 3;                           // ... once after this many steps
  std::optional<WorkerEvent::Type> die_on = {};  // is killed when it gets this event
  std::optional<int> die_after = {};             // ... or after this many steps
};

// One worker's process: its host, its node, its replica, and an application that trains, averages
// and ends as the Keras side does.
class Worker {
 public:
  Worker(Network* network, const Address& master, int rank, int size, int max_staleness,
         const WorkerPlan& plan, const EndpointOptions& endpoint = WorkerEndpoint())
      : network_(network),
        host_(network->Add(endpoint)),
        plan_(plan),
        rank_(rank),
        max_staleness_(max_staleness),
        compression_(kMaxMessageBytes) {
    WorkerNodeOptions options;
    options.rank = rank;
    options.size = size;
    options.instance.fill(static_cast<uint8_t>(rank + 1));
    options.max_staleness = max_staleness;
    options.master = master;
    options.master_public_key = DerivePublicKey(MasterEndpoint().private_key);
    options.failure_timeout_ns = kFailureTimeoutNs;
    node_ = std::make_unique<WorkerNode>(options, &network->endpoint(host_));
    exchange_ = std::make_shared<NodeExchange>(this);
    EXPECT_TRUE(compression_.Extend(kElements).ok());
    compression_.Bind(exchange_);
    Network::Hooks& hooks = network->hooks(host_);
    hooks.on_event = [this](int64_t now_ns, LinkEvent event) {
      node_->HandleLinkEvent(now_ns, std::move(event));
      Act();
    };
    hooks.next_timeout = [this] { return std::min(node_->NextTimeout(), next_step_ns_); };
    hooks.on_timeout = [this](int64_t now_ns) {
      if (node_->NextTimeout() <= now_ns) node_->HandleTimeout(now_ns);
      Act();
    };
  }

  void Join() { node_->Start(network_->now_ns()); }
  bool over() const { return dead || failure || generation_ > kGenerations; }
  WorkerNode& node() { return *node_; }
  Host host() const { return host_; }
  int rank() const { return rank_; }
  int steps() const { return plan_.steps; }
  std::vector<float> Residual() const {
    std::vector<float> residual(kElements);
    EXPECT_TRUE(compression_.ReadResidual(0, residual).ok());
    return residual;
  }

  bool dead = false;
  std::optional<Status> failure;
  int ended = 0;  // generations
  int pauses = 0;
  int64_t resume_ns = kNever;  // while the host is paused
  std::vector<std::string> violations;
  std::function<void(Worker*)> on_result;  // compares with the master

  std::vector<float> parameters;  // this replica's

 private:
  // The replica's door, without threads: what WorkerAgent is over sockets.
  class NodeExchange final : public Exchange {
   public:
    explicit NodeExchange(Worker* worker) : worker_(worker) {}
    Status Submit(int64_t iteration, std::vector<std::vector<uint8_t>> parts,
                  UpdateId* last) override {
      for (size_t i = 0; i < parts.size(); ++i) {
        *last = worker_->node_->Submit(worker_->network_->now_ns(), iteration,
                                       i + 1 == parts.size(), std::move(parts[i]));
      }
      return {};
    }
    Status TakeReceived(Received* received) override {
      received->updates = worker_->node_->TakeReceived().updates;
      for (const ReceivedUpdate& update : received->updates) worker_->NoteOnce(update.id);
      return {};
    }
    void SetApplied(const VersionVector& applied) override { worker_->node_->SetApplied(applied); }
    void AwaitStep(int64_t, int64_t, std::function<void(Status)>) override {
      ADD_FAILURE() << "the scripted application asks for ReleasedSteps instead";
    }
    bool sequenced() const override { return worker_->max_staleness_ >= 0; }

   private:
    Worker* worker_;
  };

  // Every origin's updates come once and in counter order.
  void NoteOnce(const UpdateId& id) {
    if (id.counter != ++taken_[id.origin]) {
      violations.push_back("update " + std::to_string(id.counter) + " of origin " +
                           std::to_string(id.origin) + " came as number " +
                           std::to_string(taken_[id.origin]));
    }
  }

  void Act() {
    while (auto event = node_->PollEvent()) {
      HandleEvent(*event);
      if (dead) return;
    }
    const int64_t now_ns = network_->now_ns();
    if (training_ && waits_for_step_ && node_->ReleasedSteps() >= step_ - max_staleness_) {
      waits_for_step_ = false;
      next_step_ns_ = now_ns + Think();
    }
    if (next_step_ns_ <= now_ns) {
      next_step_ns_ = kNever;
      Continue(now_ns);
    }
  }

  void HandleEvent(const WorkerEvent& event) {
    if (plan_.die_on == event.type) return Die();
    const int64_t now_ns = network_->now_ns();
    switch (event.type) {
      case WorkerEvent::Type::kJoined:
        return Begin(now_ns);
      case WorkerEvent::Type::kStarted:
        parameters = *event.parameters;
        if (event.beginning.ended) return Begin(now_ns);
        if (event.beginning.late) strom::Join(event.cut, &taken_);  // came with the snapshot
        step_ = 0;
        training_ = true;
        next_step_ns_ = now_ns + Think();
        return;
      case WorkerEvent::Type::kAverage:
        if (event.key != static_cast<uint64_t>(step_) || event.values.size() != 1 ||
            event.contributors < 1) {
          violations.push_back("a wrong answer to average " + std::to_string(step_));
        }
        next_step_ns_ = now_ns + Think();
        averaged_ = step_;
        return;
      case WorkerEvent::Type::kFinal: {
        Check(compression_.Apply(Segments(), &result_));
        return node_->SendState(now_ns, {static_cast<double>(rank_)}, nullptr);
      }
      case WorkerEvent::Type::kResult: {
        const double apart = Distance(parameters, *event.parameters);
        if (max_staleness_ >= 0 ? apart != 0 : apart > 1e-5) {
          violations.push_back("the replica is " + std::to_string(apart) + " off the master's");
        }
        on_result(this);
        parameters = *event.parameters;
        return node_->Verify(now_ns, apart, HashOf(parameters));
      }
      case WorkerEvent::Type::kEnd:
        ++ended;
        return Begin(now_ns);
      case WorkerEvent::Type::kFailed:
        failure = event.status;
        training_ = false;
        next_step_ns_ = kNever;
        return;
      case WorkerEvent::Type::kDonation:
      case WorkerEvent::Type::kJoint:
      case WorkerEvent::Type::kStop:
      case WorkerEvent::Type::kNotice:
        return;
    }
  }

  void Begin(int64_t now_ns) {
    if (++generation_ > kGenerations) return node_->Leave(now_ns, "");
    Generation generation{generation_, kElements, kLayoutHash, "same", nullptr};
    if (rank_ == 0) {
      if (parameters.empty()) parameters.assign(kElements, 1.0f);
      generation.values = std::make_shared<std::vector<float>>(parameters);
    }
    node_->BeginGeneration(now_ns, std::move(generation));
  }

  void Continue(int64_t now_ns) {
    if (plan_.die_after == step_) return Die();
    if (plan_.pause_ns > 0 && pauses == 0 && step_ == plan_.pause_after) {
      ++pauses;
      resume_ns = now_ns + plan_.pause_ns;
      network_->SetPaused(host_, true);
    }
    if (step_ == plan_.steps) {
      training_ = false;
      return node_->Finish(now_ns, false);
    }
    if (step_ % plan_.average_every == plan_.average_every - 1 && averaged_ != step_) {
      return node_->Average(now_ns, static_cast<uint64_t>(step_), {1.0 * rank_});
    }
    TrainStep();
    ++step_;
    averaged_ = -1;
    waits_for_step_ = max_staleness_ >= 0;
    if (!waits_for_step_) next_step_ns_ = now_ns + Think();
  }

  void TrainStep() {
    std::vector<float> after = parameters;
    for (size_t i = 0; i < after.size(); ++i) after[i] += Change(rank_, step_, i);
    strom_step_options options = {};
    options.scale = 1;
    options.threshold = kThreshold;
    options.apply_own = options.take_received = max_staleness_ < 0;
    options.iteration = step_;
    const strom_segment segment = {
        0, kElements, parameters.data(), after.data(), parameters.data(), nullptr};
    Check(compression_.Step({&segment, 1}, options, &result_));
    if (max_staleness_ >= 0) Check(compression_.Apply(Segments(), &result_));
  }

  std::span<const strom_segment> Segments() {
    segment_ = {0, kElements, parameters.data(), parameters.data(), parameters.data(), nullptr};
    return {&segment_, 1};
  }

  void Die() {
    dead = true;
    training_ = false;
    next_step_ns_ = kNever;
    network_->Kill(host_);
  }

  int64_t Think() { return plan_.think_ns / 2 + network_->random().Below(plan_.think_ns); }

  void Check(const Status& status) {
    if (!status.ok()) violations.push_back(status.message);
  }

  Network* const network_;
  const Host host_;
  const WorkerPlan plan_;
  const int rank_;
  const int max_staleness_;
  std::unique_ptr<WorkerNode> node_;
  CompressionState compression_;
  std::shared_ptr<NodeExchange> exchange_;
  strom_segment segment_ = {};
  strom_step_result result_ = {};
  VersionVector taken_;
  uint64_t generation_ = 0;
  bool training_ = false;
  bool waits_for_step_ = false;
  int step_ = 0;
  int averaged_ = -1;  // the step whose average is here
  int64_t next_step_ns_ = kNever;
};

class Wire {
 public:
  Wire(uint64_t seed, int max_staleness, const std::vector<WorkerPlan>& plans,
       const PathOptions& paths = kHarm)
      : network(seed) {
    network.SetPaths(paths);
    host = network.Add(MasterEndpoint());
    MasterNodeOptions options;
    options.workers = static_cast<int32_t>(plans.size());
    options.failure_timeout_ns = kFailureTimeoutNs;
    master = std::make_unique<MasterNode>(options, &network.endpoint(host));
    Network::Hooks& hooks = network.hooks(host);
    hooks.on_event = [this](int64_t now_ns, LinkEvent event) {
      master->HandleLinkEvent(now_ns, std::move(event));
    };
    hooks.next_timeout = [this] { return master->NextTimeout(); };
    hooks.on_timeout = [this](int64_t now_ns) { master->HandleTimeout(now_ns); };
    address = network.address(host);
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      workers.push_back(std::make_unique<Worker>(&network, address, static_cast<int>(rank),
                                                 static_cast<int>(plans.size()), max_staleness,
                                                 plans[rank]));
      workers.back()->on_result = [this](Worker* worker) { Compare(worker); };
    }
  }

  // Runs every worker to its end. False: something hangs.
  bool Run(int64_t limit_ns = 120 * kSecond) {
    for (auto& worker : workers) worker->Join();
    const int64_t end_ns = network.now_ns() + limit_ns;
    while (network.now_ns() < end_ns) {
      int64_t resume_ns = end_ns;
      for (auto& worker : workers) resume_ns = std::min(resume_ns, worker->resume_ns);
      if (network.RunUntil(resume_ns - network.now_ns(),
                           [&] { return Over() || Pausing(resume_ns); })) {
        if (Over()) return true;
        continue;
      }
      for (auto& worker : workers) {
        if (worker->resume_ns > network.now_ns()) continue;
        worker->resume_ns = kNever;
        network.SetPaused(worker->host(), false);
      }
    }
    return Over();
  }

  bool Over() const {
    for (const auto& worker : workers) {
      if (!worker->over()) return false;
    }
    return true;
  }

  // When everything has been said, a live replica's vector is the master's.
  void Compare(Worker* worker) {
    if (worker->node().received() != master->received()) {
      worker->violations.push_back("its vector is not the master's");
    }
  }

  Network network;
  Host host = 0;  // the master's
  Address address;
  std::unique_ptr<MasterNode> master;
  std::vector<std::unique_ptr<Worker>> workers;

 private:
  bool Pausing(int64_t planned_ns) const {
    for (const auto& worker : workers) {
      if (worker->resume_ns < planned_ns) return true;
    }
    return false;
  }
};

// Plans of one seed: workers of different speeds and lengths, one that pauses, perhaps one that is
// killed in some phase of its life.
std::vector<WorkerPlan> RandomPlans(uint64_t seed, bool deaths) {
  SimulatedRandom random(seed * 7919 + 1);
  std::vector<WorkerPlan> plans(static_cast<size_t>(2 + random.Below(3)));
  for (WorkerPlan& plan : plans) {
    plan.steps = static_cast<int>(6 + random.Below(7));
    plan.think_ns = (1 + random.Below(6)) * kMillisecond;
  }
  WorkerPlan& pausing =
      plans[static_cast<size_t>(random.Below(static_cast<int64_t>(plans.size())))];
  pausing.pause_ns = kFailureTimeoutNs * (1 + random.Below(7)) / 10;
  if (!deaths) return plans;
  WorkerPlan& dying = plans[static_cast<size_t>(random.Below(static_cast<int64_t>(plans.size())))];
  using Type = WorkerEvent::Type;
  constexpr Type kDeaths[] = {Type::kStarted, Type::kAverage, Type::kFinal, Type::kResult,
                              Type::kEnd};
  const size_t which = static_cast<size_t>(random.Below(std::size(kDeaths) + 2));
  if (which < std::size(kDeaths)) {
    dying.die_on = kDeaths[which];
  } else {
    dying.die_after = static_cast<int>(random.Below(dying.steps + 1));
  }
  return plans;
}

// Every element moved by exactly what the workers' optimizers asked for.
std::vector<float> Expected(const Wire& wire) {
  std::vector<double> sum(kElements, 1.0);
  for (const auto& worker : wire.workers) {
    for (int step = 0; step < worker->steps(); ++step) {
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += static_cast<double>(kGenerations) * Change(worker->rank(), step, i);
      }
    }
  }
  return {sum.begin(), sum.end()};
}

// What all share, and what no worker has sent yet.
std::vector<float> SharedAndUnsent(const Wire& wire) {
  std::vector<float> sum = wire.master->parameters();
  for (const auto& worker : wire.workers) {
    const std::vector<float> residual = worker->Residual();
    std::transform(sum.begin(), sum.end(), residual.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

void ExpectPromisesKept(const Wire& wire) {
  for (const auto& worker : wire.workers) {
    for (const std::string& violation : worker->violations) {
      ADD_FAILURE() << "worker " << worker->rank() << ": " << violation;
    }
    if (worker->dead) continue;
    EXPECT_FALSE(worker->failure) << "worker " << worker->rank() << ": "
                                  << worker->failure->message;
    EXPECT_EQ(worker->ended, static_cast<int>(kGenerations));
  }
}

class WireTest : public testing::TestWithParam<int> {};  // max_staleness

TEST_P(WireTest, EveryReplicaEndsWithTheMastersSet) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Wire wire(seed, GetParam(), RandomPlans(seed, /*deaths=*/false));
    ASSERT_TRUE(wire.Run()) << "hangs: " << wire.master->StatusJson();
    ExpectPromisesKept(wire);
    EXPECT_LT(Distance(SharedAndUnsent(wire), Expected(wire)), 2e-5);
    if (HasFailure()) return;
  }
}

// The longest of these runs takes a little more than five failure timeouts.
TEST_P(WireTest, AKilledWorkerHoldsUpNobody) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Wire wire(seed, GetParam(), RandomPlans(seed, /*deaths=*/true));
    ASSERT_TRUE(wire.Run(8 * kFailureTimeoutNs)) << "hangs: " << wire.master->StatusJson();
    ExpectPromisesKept(wire);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, WireTest, testing::Values(-1, 0, 2),
                         [](const testing::TestParamInfo<int>& info) {
                           return info.param < 0 ? "Asynchronous"
                                                 : "Staleness" + std::to_string(info.param);
                         });

// Longer than the failure timeout: the worker looks for the master and either goes on where it was
// or ends with words; nobody else notices more than its absence.
TEST(WireTest, ABlackoutEndsInAReturnOrInWords) {
  int returned = 0;
  int lost = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedRandom random(seed);
    std::vector<WorkerPlan> plans(3);
    for (WorkerPlan& plan : plans) {
      plan.steps = 30;
      plan.think_ns = (20 + random.Below(80)) * kMillisecond;
    }
    Wire wire(seed, -1, plans);
    Worker& cut_off = *wire.workers[static_cast<size_t>(random.Below(3))];
    for (auto& worker : wire.workers) worker->Join();
    wire.network.RunFor(100 * kMillisecond + random.Below(2 * kSecond));
    wire.network.SetBlocked(wire.host, cut_off.host(), true);
    wire.network.RunFor(kFailureTimeoutNs * (8 + random.Below(14)) / 10);
    wire.network.SetBlocked(wire.host, cut_off.host(), false);
    ASSERT_TRUE(wire.network.RunUntil(120 * kSecond, [&] { return wire.Over(); }))
        << "hangs: " << wire.master->StatusJson();
    if (cut_off.failure) {
      EXPECT_TRUE(cut_off.failure->code == Code::kMasterLost ||
                  cut_off.failure->code == Code::kRefused)
          << cut_off.failure->message;
      cut_off.dead = true;
      ++lost;
    } else {
      ++returned;
    }
    ExpectPromisesKept(wire);
    if (!cut_off.failure) {
      EXPECT_LT(Distance(SharedAndUnsent(wire), Expected(wire)), 2e-5);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(returned, 10);
  EXPECT_GT(lost, 5);
}

TEST(WireTest, AMasterThatDiesOrClosesEndsEveryWorkerInWords) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<WorkerPlan> plans = RandomPlans(seed, /*deaths=*/false);
    for (WorkerPlan& plan : plans) plan.pause_ns = 0;
    Wire wire(seed, seed % 3 == 0 ? 0 : -1, plans);
    for (auto& worker : wire.workers) worker->Join();
    wire.network.RunFor(wire.network.random().Below(150 * kMillisecond));
    if (seed % 2 == 0) {
      wire.network.Kill(wire.host);
    } else {
      wire.master->Shutdown(wire.network.now_ns(), "the driver was interrupted");
    }
    ASSERT_TRUE(wire.network.RunUntil(10 * kFailureTimeoutNs, [&] { return wire.Over(); }));
    for (const auto& worker : wire.workers) {
      if (worker->ended == static_cast<int>(kGenerations)) continue;
      ASSERT_TRUE(worker->failure);
      EXPECT_FALSE(worker->failure->ok());
      EXPECT_FALSE(worker->failure->message.empty());
    }
  }
}

TEST(WireTest, AWrongSecretNeverJoins) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Wire wire(seed, -1, RandomPlans(seed, /*deaths=*/false));
    EndpointOptions endpoint = WorkerEndpoint();
    endpoint.secret.bytes()[31] ^= 1;
    Worker stranger(&wire.network, wire.address, 0, static_cast<int>(wire.workers.size()), -1, {},
                    endpoint);
    stranger.Join();
    ASSERT_TRUE(wire.Run());
    ExpectPromisesKept(wire);
    ASSERT_TRUE(wire.network.RunUntil(10 * kSecond, [&] { return stranger.over(); }));
    ASSERT_TRUE(stranger.failure);
    EXPECT_EQ(stranger.failure->code, Code::kRejectedSecret) << stranger.failure->message;
  }
}

}  // namespace
}  // namespace strom
