#include "net/worker_agent.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/json.h"
#include "core/transport/crypto.h"
#include "net/host.h"

namespace strom {
namespace {

constexpr int64_t kLeastJoinNs = 3'000'000'000;  // as the endpoint's own
constexpr size_t kMaxNotices = 4096;  // each of a worker that was lost, a hundred bytes long
// Longer waits are cut to this, so that no deadline overflows the clock.
constexpr int64_t kLongestWaitNs = int64_t{1} << 60;

std::string Seconds(int64_t ns) {
  const int64_t tenths = ns / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// A peer that seems silent may be one to which nothing has been sent.
Status WithRefusal(Status status, const std::string& refusal) {
  const bool is_silence = status.code == Code::kMasterLost || status.code == Code::kUnreachable;
  if (is_silence && !refusal.empty()) status.message += "; " + refusal;
  return status;
}

// The last reference may go where a callback of AwaitStep ends, on the agent's own I/O thread,
// which cannot wait for itself to end.
void Delete(WorkerAgent* agent, bool on_its_own_thread) {
  if (!on_its_own_thread) {
    delete agent;
  } else {
    std::thread([agent] { delete agent; }).detach();
  }
}

}  // namespace

Status WorkerAgent::Join(WorkerAgentOptions options, int64_t timeout_ns,
                         std::shared_ptr<WorkerAgent>* out) {
  // A short wait still ends with what the links know: whether nobody answers, or nobody believes.
  const int64_t patience_ns = std::max(options.endpoint.failure_timeout_ns, kLeastJoinNs);
  if (timeout_ns > 0) {
    options.endpoint.join_timeout_ns = std::min(patience_ns, timeout_ns - timeout_ns / 10);
  }
  std::unique_ptr<UdpSocket> socket;
  Status opened = UdpSocket::Open(options.bind_address, options.port, &socket, options.socket);
  if (!opened.ok()) return opened;
  // The master may put other workers under this one.
  SystemRandom().Fill(options.endpoint.private_key.bytes());
  options.endpoint.accepts = true;
  options.node.public_key = DerivePublicKey(options.endpoint.private_key);
  options.node.port = socket->port();
  options.node.host = HostOfThisProcess();
  // A master that has died is named as that, and not as a slow one: it may be silent for one
  // failure timeout, and come back within another.
  options.submit_timeout_ns =
      std::max(options.submit_timeout_ns, 3 * options.endpoint.failure_timeout_ns);
  std::shared_ptr<WorkerAgent> agent(
      new WorkerAgent(options, std::move(socket)),
      [](WorkerAgent* last) { Delete(last, last->loop_.OnItsThread()); });
  Status status = agent->loop_.Start(agent.get());
  if (!status.ok()) return status;
  WorkerEvent joined;
  status = agent->Ask(
      WorkerEvent::Type::kJoined, "a welcome", timeout_ns,
      [raw = agent.get()](int64_t now_ns) { raw->node_.Start(now_ns); }, &joined);
  if (!status.ok()) {
    if (status.code == Code::kUnreachable) {
      status.message +=
          " (asked from UDP port " + std::to_string(agent->loop_.socket().port()) + ")";
    } else if (status.code == Code::kTimeout) {
      status.message = "worker " + std::to_string(options.node.rank) + " got no welcome from " +
                       ToString(options.node.master) + " in " + Seconds(timeout_ns) +
                       "; is the master running, and is that UDP port open?";
    }
    agent->Close("gave up joining");
    return status;
  }
  {
    std::lock_guard<std::mutex> lock(agent->mutex_);
    agent->origin_ = joined.origin;
  }
  *out = std::move(agent);
  return {};
}

WorkerAgent::WorkerAgent(const WorkerAgentOptions& options, std::unique_ptr<UdpSocket> socket)
    : options_(options),
      loop_(std::move(socket), options.endpoint, {.enabled = options.same_host}),
      node_(options.node, loop_.links()),
      inbox_(options.adds_up && options.node.max_staleness < 0 ? options.inbox_bytes / 2 : kNever,
             *options.node.codec) {}

WorkerAgent::~WorkerAgent() { Close("the worker ended without saying why"); }

Status WorkerAgent::Start(Generation generation, int64_t timeout_ns,
                          std::shared_ptr<const std::vector<float>>* parameters) {
  Begin(std::move(generation));
  std::unique_lock<std::mutex> lock(mutex_);
  WorkerEvent started;
  Status status = WaitFor(lock, WorkerEvent::Type::kStarted,
                          "the start of training (do all workers call fit?)", timeout_ns, &started);
  if (!status.ok()) return status;
  beginning_ = started.beginning;
  *parameters = std::move(started.parameters);
  return {};
}

Beginning WorkerAgent::beginning() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return beginning_;
}

Status WorkerAgent::TakeDonation(int64_t timeout_ns, Buffer* donation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!beginning_.late && !beginning_.ended && !has_one_state_) {
      return {Code::kInvalidArgument, "worker " + std::to_string(options_.node.rank) +
                                          " has not joined late; nobody gives it their state"};
    }
    if (!std::exchange(donation_asked_, true)) {
      loop_.Post([this](int64_t now_ns) { node_.AskDonation(now_ns); });
    }
  }
  WorkerEvent answer;
  std::unique_lock<std::mutex> lock(mutex_);
  Status status =
      WaitFor(lock, WorkerEvent::Type::kDonation, "another worker's state", timeout_ns, &answer);
  if (!status.ok()) return status;
  *donation = std::move(answer.donation);
  return {};
}

void WorkerAgent::Donate(Bytes donation) {
  Buffer bytes = MakeBuffer({donation.begin(), donation.end()});
  loop_.Post([this, b = std::move(bytes)](int64_t now_ns) { node_.Donate(now_ns, b); });
}

void WorkerAgent::HandOver(std::vector<float> parameters) {
  replica_wanted_.store(false, std::memory_order_relaxed);  // until Publish says so again
  loop_.Post([this, p = std::move(parameters)](int64_t now_ns) { node_.HandOver(now_ns, p); });
}

void WorkerAgent::Begin(Generation generation) {
  std::lock_guard<std::mutex> lock(mutex_);
  training_ = false;
  stop_requested_ = false;
  released_ = 0;
  steps_ = false;
  beginning_ = {};
  donation_asked_ = false;
  has_one_state_ = generation.plan.IsOfGradients();
  std::erase_if(answers_, [](const WorkerEvent& e) {
    return e.type == WorkerEvent::Type::kStarted || e.type == WorkerEvent::Type::kDonation;
  });
  loop_.Post([this, g = std::move(generation)](int64_t now_ns) {
    node_.BeginGeneration(now_ns, g);
    std::lock_guard<std::mutex> guard(mutex_);
    orders_ = {};  // what came for the generation before
    joint_ = nullptr;
  });
}

Status WorkerAgent::AwaitRoom(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool in_time = WaitUntil(lock, timeout_ns, [&] {
    return (training_ && outgoing_bytes_ <= options_.outgoing_bytes) || !failure_.ok();
  });
  if (in_time) return failure_;
  if (!training_) return {Code::kTimeout, RanOut(timeout_ns, "the other workers to join")};
  return {Code::kBackPressure, RanOut(timeout_ns, "the master to take what it has submitted")};
}

Status WorkerAgent::Average(uint64_t key, std::vector<double>* values, int32_t* contributors,
                            int64_t timeout_ns) {
  WorkerEvent answer;
  Status status = Ask(
      WorkerEvent::Type::kAverage, "the average over the workers", timeout_ns,
      [this, key, v = *values](int64_t now_ns) { node_.Average(now_ns, key, v); }, &answer);
  if (!status.ok()) return status;
  *values = std::move(answer.values);
  *contributors = answer.contributors;
  return {};
}

Status WorkerAgent::Finish(bool stop, int64_t timeout_ns) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    training_ = false;
  }
  WorkerEvent answer;
  return Ask(
      WorkerEvent::Type::kFinal, "the other workers' end of training", timeout_ns,
      [this, stop](int64_t now_ns) { node_.Finish(now_ns, stop); }, &answer);
}

Status WorkerAgent::Result(std::vector<double>* state, std::shared_ptr<std::vector<float>> own,
                           std::shared_ptr<const std::vector<float>>* parameters,
                           int64_t timeout_ns) {
  WorkerEvent answer;
  Status status = Ask(
      WorkerEvent::Type::kResult, "the master's final parameters", timeout_ns,
      [this, s = *state, own = std::move(own)](int64_t now_ns) { node_.SendState(now_ns, s, own); },
      &answer);
  if (!status.ok()) return status;
  *state = std::move(answer.values);
  *parameters = std::move(answer.parameters);
  return {};
}

Status WorkerAgent::Verify(double difference, uint64_t hash, double* worst, int64_t timeout_ns) {
  WorkerEvent answer;
  Status status = Ask(
      WorkerEvent::Type::kEnd, "the other workers' verification", timeout_ns,
      [this, difference, hash](int64_t now_ns) { node_.Verify(now_ns, difference, hash); },
      &answer);
  if (status.ok()) *worst = answer.values.empty() ? difference : answer.values[0];
  return status;
}

Status WorkerAgent::AwaitReceived(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitUntil(lock, timeout_ns, [&] { return !inbox_.empty() || !failure_.ok(); })) {
    return {Code::kTimeout, RanOut(timeout_ns, "the others' updates")};
  }
  return {};
}

Status WorkerAgent::AwaitAcknowledged(int64_t timeout_ns) {
  // What was submitted before is with the node when this runs, so its count leaves nothing out.
  loop_.Run([this](int64_t) {
    std::lock_guard<std::mutex> lock(mutex_);
    outgoing_bytes_ = node_.OutgoingBytes();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitUntil(lock, timeout_ns, [&] { return outgoing_bytes_ == 0 || !failure_.ok(); })) {
    return {Code::kTimeout, RanOut(timeout_ns, "the master to acknowledge its updates")};
  }
  return failure_;
}

Status WorkerAgent::Drain(int64_t timeout_ns) {
  loop_.Run([this](int64_t) {
    std::lock_guard<std::mutex> lock(mutex_);
    given_bytes_ = node_.GivenBytes();
  });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_held = [&] { return held_ >= counter_ && given_bytes_ == 0; };
    if (!WaitUntil(lock, timeout_ns, [&] { return is_held() || !failure_.ok(); })) {
      return {Code::kTimeout, RanOut(timeout_ns, "the others to take over what it has made")};
    }
    if (!failure_.ok()) return failure_;
  }
  Close(std::string(kDrained));
  return {};
}

void WorkerAgent::Close(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
    failure_ = {Code::kClosed, "this worker's connection is closed"};
  }
  changed_.notify_all();
  loop_.Run([&](int64_t now_ns) { node_.Leave(now_ns, reason); });
  loop_.Stop();
  FireWaiters(MonotonicNanoseconds());
}

std::string WorkerAgent::StatusJson() {
  std::string node, counters;
  loop_.Run([&](int64_t) {
    node = node_.StatusJson();
    counters = loop_.CountersJson();
  });
  std::lock_guard<std::mutex> lock(mutex_);
  JsonObject json;
  json.Add("rank", options_.node.rank)
      .Add("origin", origin_)
      .Add("port", loop_.socket().port())
      .Add("stop_requested", stop_requested_)
      .Add("updates_submitted", updates_submitted_)
      .Add("updates_taken", updates_taken_)
      .Add("updates_folded", updates_folded_ + inbox_.folded_updates())
      .Add("submit_wait_ns", submit_wait_ns_)
      .Add("step_wait_ns", step_wait_ns_)
      .Add("inbox_bytes", inbox_.bytes())
      .Add("outgoing_bytes", outgoing_bytes_)
      .Add("failure", failure_.message)
      .Add("notices", notices_)
      .AddRaw("counters", counters)
      .AddRaw("node", node);
  return json.Text();
}

Status WorkerAgent::Submit(int64_t iteration, std::vector<std::vector<uint8_t>> parts,
                           UpdateId* last) {
  STROM_CHECK(!parts.empty());
  std::unique_lock<std::mutex> lock(mutex_);
  // A worker that waits within a step can neither hand over its parameters nor learn of another
  // master. While one is lost it makes no further step, so this adds little to what is kept.
  const auto has_room = [&] {
    return outgoing_bytes_ <= options_.outgoing_bytes || waits_for_master();
  };
  const bool waits = !has_room();
  const int64_t start_ns = waits ? MonotonicNanoseconds() : 0;
  const bool room = changed_.wait_for(lock, std::chrono::nanoseconds(options_.submit_timeout_ns),
                                      [&] { return !failure_.ok() || has_room(); });
  if (waits) submit_wait_ns_ += MonotonicNanoseconds() - start_ns;
  if (!failure_.ok()) return failure_;
  if (!training_) {
    return {Code::kInvalidArgument, "worker " + std::to_string(options_.node.rank) +
                                        ": an update outside of training; call "
                                        "strategy.begin() before the first step and "
                                        "strategy.synchronize() after the last"};
  }
  if (!room) {
    return {Code::kBackPressure,
            "worker " + std::to_string(options_.node.rank) + ": the master has not taken " +
                std::to_string(outgoing_bytes_ >> 20) + " MiB of updates within " +
                Seconds(options_.submit_timeout_ns) +
                "; is the network far slower than the training? Raise the threshold."};
  }
  const UpdateId expected{origin_, counter_ + parts.size()};
  const auto submitted = static_cast<int64_t>(parts.size());
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += static_cast<int64_t>(part.size());
  // Posting under the lock keeps counters and the I/O thread's order the same.
  loop_.Post([this, iteration, expected, p = std::move(parts)](int64_t now_ns) mutable {
    UpdateId id;
    for (size_t i = 0; i < p.size(); ++i) {
      id = node_.Submit(now_ns, iteration, i + 1 == p.size(), std::move(p[i]));
    }
    STROM_CHECK(id == expected);
  });
  // Only now, for there may have been no memory to post it.
  counter_ = expected.counter;
  updates_submitted_ += submitted;
  outgoing_bytes_ += bytes;
  *last = expected;
  return {};
}

Status WorkerAgent::TakeReceived(Received* received) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (inbox_.has_snapshot()) {
    // Own updates that are still on their way to the I/O thread follow on the snapshot, too. It may
    // bring another one meanwhile, but the caller, who alone submits, no further update of its own.
    lock.unlock();
    loop_.Run([this](int64_t) {
      std::lock_guard<std::mutex> guard(mutex_);
      TakeFromNode();
      node_.SnapshotInstalled();
    });
    lock.lock();
  }
  // What has been received is applied even after a failure; the failure shows when nothing is left.
  if (inbox_.empty() && !failure_.ok()) return failure_;
  *received = inbox_.Take();
  updates_taken_ += received->folded.updates;
  for (const ReceivedUpdate& update : received->updates) updates_taken_ += UpdatesIn(update);
  updates_folded_ += received->folded.updates;
  return {};
}

void WorkerAgent::SetApplied(const VersionVector& applied) {
  loop_.Post([this, applied](int64_t) { node_.SetApplied(applied); });
}

void WorkerAgent::AwaitStep(int64_t step, int64_t timeout_ns, std::function<void(Status)> done) {
  Await(step, timeout_ns, std::move(done));
}

bool WorkerAgent::HasCome(const Waiter& waiter) const {
  return waiter.step == kForJoint ? joint_ != nullptr : released_ > waiter.step;
}

// A worker that waits within a step can neither hand over its parameters nor learn of another
// master, so that step ends without its exchange.
bool WorkerAgent::IsVoid(const Waiter& waiter) const {
  return waiter.step == kForJoint && waits_for_master();
}

void WorkerAgent::Await(int64_t step, int64_t timeout_ns, std::function<void(Status)> done) {
  Status now;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t wait_ns = std::min(timeout_ns, kLongestWaitNs);
    const int64_t start_ns = MonotonicNanoseconds();
    const int64_t deadline_ns = timeout_ns < 0 ? kNever : start_ns + wait_ns;
    Waiter waiter{step, wait_ns, deadline_ns, start_ns, std::move(done)};
    const bool has_come = HasCome(waiter);
    const bool is_void = !has_come && IsVoid(waiter);
    if (failure_.ok() && !has_come && !is_void) {
      waiters_.push_back(std::move(waiter));
      loop_.Post([](int64_t) {});  // a nearer deadline must be seen by the sleeping thread
      return;
    }
    if (!has_come) now = failure_;
    if (is_void) loop_.Post([this](int64_t) { node_.WithdrawFromJoint(); });
    done = std::move(waiter.done);
  }
  done(now);
}

Status WorkerAgent::ReadJoint(JointValues* joint, int64_t timeout_ns) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joint_for_training_ = false;
  }
  WorkerEvent answer;
  Status status = Ask(
      WorkerEvent::Type::kJoint, "the joint model", timeout_ns,
      [this](int64_t now_ns) { node_.AskJoint(now_ns); }, &answer);
  if (status.ok()) *joint = std::move(answer.parameters);
  return status;
}

JointOrders WorkerAgent::TakeOrders() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(steps_, true)) {
    loop_.Post([this](int64_t now_ns) { node_.BeginStepping(now_ns); });
  }
  return orders_.Take();
}

void WorkerAgent::Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joint_ = nullptr;  // what came for a snapshot that is void
  }
  loop_.Post([this, mark, iteration, steps, v = std::move(values)](int64_t now_ns) mutable {
    node_.GiveToJoint(now_ns, mark, iteration, steps, std::move(v));
  });
}

void WorkerAgent::BeginGradient(int64_t iteration, GrowingGradient values) {
  loop_.Post([this, iteration, v = std::move(values)](int64_t now_ns) mutable {
    node_.BeginGradient(now_ns, iteration, std::move(v));
  });
}

void WorkerAgent::GivePart(int64_t part) {
  loop_.Post([this, part](int64_t now_ns) { node_.GivePart(now_ns, part); });
}

void WorkerAgent::EndGradient(int64_t iteration, GrowingGradient values) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joint_ = nullptr;  // what came for a gradient that is void
  }
  loop_.Post([this, iteration, v = std::move(values)](int64_t now_ns) mutable {
    node_.EndGradient(now_ns, iteration, std::move(v));
  });
}

void WorkerAgent::AskJoint() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joint_for_training_ = true;
    joint_ = nullptr;
  }
  loop_.Post([this](int64_t now_ns) { node_.AskJoint(now_ns); });
}

void WorkerAgent::AwaitJoint(int64_t timeout_ns, std::function<void(Status)> done) {
  Await(kForJoint, timeout_ns, std::move(done));
}

JointValues WorkerAgent::TakeJoint() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(joint_, nullptr);
}

void WorkerAgent::HandleLinkEvent(int64_t now_ns, LinkEvent event) {
  node_.HandleLinkEvent(now_ns, std::move(event));
}

void WorkerAgent::HandleTimeout(int64_t now_ns) {
  if (node_.NextTimeout() <= now_ns) node_.HandleTimeout(now_ns);
}

int64_t WorkerAgent::NextTimeout() const {
  int64_t next = node_.NextTimeout();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline_ns);
  return next;
}

void WorkerAgent::Publish(int64_t now_ns) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TakeFromNode();
    TakeEvents();
    TakeJointFromNode();
    outgoing_bytes_ = node_.OutgoingBytes();
    held_ = node_.LastHeld();
    given_bytes_ = node_.GivenBytes();
    released_ = node_.ReleasedSteps();
    donation_wanted_.store(node_.DonationWanted(), std::memory_order_relaxed);
    missing_workers_.store(node_.missing_workers(), std::memory_order_relaxed);
    joint_cycles_.store(node_.joint_cycles(), std::memory_order_relaxed);
    waits_for_master_.store(node_.WaitsForMaster(), std::memory_order_relaxed);
    replica_wanted_.store(node_.ReplicaWanted(), std::memory_order_relaxed);
    merges_.store(node_.merges(), std::memory_order_relaxed);
    if (inbox_.bytes() > options_.inbox_bytes && failure_.ok()) {
      failure_ = {Code::kBackPressure,
                  "worker " + std::to_string(options_.node.rank) +
                      " has not trained for long: " + std::to_string(inbox_.bytes() >> 20) +
                      " MiB of the others' updates wait for its next step"};
    }
  }
  changed_.notify_all();
  FireWaiters(now_ns);
}

Status WorkerAgent::Ask(WorkerEvent::Type type, const char* what, int64_t timeout_ns,
                        std::function<void(int64_t)> request, WorkerEvent* answer) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  std::erase_if(answers_, [&](const WorkerEvent& e) { return e.type == type; });
  loop_.Post(std::move(request));
  return WaitFor(lock, type, what, timeout_ns, answer);
}

Status WorkerAgent::WaitFor(std::unique_lock<std::mutex>& lock, WorkerEvent::Type type,
                            const char* what, int64_t timeout_ns, WorkerEvent* answer) {
  auto found = answers_.end();
  const auto ready = [&] {
    found = std::find_if(answers_.begin(), answers_.end(),
                         [&](const WorkerEvent& e) { return e.type == type; });
    return found != answers_.end() || !failure_.ok();
  };
  if (!WaitUntil(lock, timeout_ns, ready)) return {Code::kTimeout, RanOut(timeout_ns, what)};
  if (found == answers_.end()) return failure_;
  *answer = std::move(*found);
  answers_.erase(found);
  return {};
}

template <typename Condition>
bool WorkerAgent::WaitUntil(std::unique_lock<std::mutex>& lock, int64_t timeout_ns,
                            Condition holds) {
  if (timeout_ns >= 0) {
    return changed_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongestWaitNs)),
                             holds);
  }
  changed_.wait(lock, holds);
  return true;
}

std::string WorkerAgent::RanOut(int64_t timeout_ns, const char* what) const {
  return "worker " + std::to_string(options_.node.rank) + " waited " + Seconds(timeout_ns) +
         " in vain for " + what;
}

// On the I/O thread, under the lock.
void WorkerAgent::TakeFromNode() {
  Received received = node_.TakeReceived();
  if (received.snapshot) inbox_.Restart(std::move(*received.snapshot));
  for (ReceivedUpdate& update : received.updates) inbox_.Add(std::move(update));
}

void WorkerAgent::TakeJointFromNode() {
  orders_.Merge(node_.TakeJointOrders());
  if (JointValues round = node_.TakeRound()) joint_ = std::move(round);
}

void WorkerAgent::TakeEvents() {
  while (auto event = node_.PollEvent()) {
    switch (event->type) {
      case WorkerEvent::Type::kFailed:
        if (failure_.ok()) failure_ = WithRefusal(event->status, loop_.socket().Refusal());
        break;
      case WorkerEvent::Type::kStop:
        stop_requested_ = true;
        break;
      case WorkerEvent::Type::kNotice:
        if (notices_.size() < kMaxNotices) notices_.push_back(std::move(event->text));
        break;
      case WorkerEvent::Type::kJoint:
        if (joint_for_training_) {
          joint_ = std::move(event->parameters);
        } else {
          answers_.push_back(std::move(*event));
        }
        break;
      case WorkerEvent::Type::kStarted:
        training_ = !event->beginning.ended;
        answers_.push_back(std::move(*event));
        break;
      default:
        answers_.push_back(std::move(*event));
    }
  }
}

void WorkerAgent::FireWaiters(int64_t now_ns) {
  std::vector<std::pair<std::function<void(Status)>, Status>> due;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      Status status;
      if (!HasCome(*it)) {
        if (!failure_.ok()) {
          status = failure_;
        } else if (IsVoid(*it)) {
          node_.WithdrawFromJoint();
        } else if (now_ns >= it->deadline_ns && (missing_workers() > 0 || waits_for_master())) {
          it->deadline_ns = now_ns + it->timeout_ns;  // the others wait by agreement
          ++it;
          continue;
        } else if (now_ns >= it->deadline_ns) {
          status = {Code::kTimeout,
                    "worker " + std::to_string(options_.node.rank) +
                        (it->step == kForJoint
                             ? ": the joint model did not arrive within "
                             : ": the other workers' updates of this step did not arrive within ") +
                        Seconds(it->timeout_ns) +
                        ", though enough workers are there: one of them stands still, or one of "
                        "its callbacks takes longer than start_timeout (see their logs)"};
        } else {
          ++it;
          continue;
        }
      }
      step_wait_ns_ += std::max<int64_t>(0, now_ns - it->start_ns);
      due.emplace_back(std::move(it->done), std::move(status));
      it = waiters_.erase(it);
    }
  }
  for (auto& [done, status] : due) done(std::move(status));
}

}  // namespace strom
