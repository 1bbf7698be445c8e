#include "sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/hash.h"
#include "core/little_endian.h"
#include "core/version_vector.h"

namespace strom {

namespace {

constexpr size_t kEntryBytes = 8;

// The values of an update as a plain list of (u32 index, f32 value).
class ListCodec final : public UpdateCodec {
 public:
  Status Check(Bytes message, uint64_t size) const override {
    if (message.size() % kEntryBytes != 0) return {Code::kCorrupt, "half an entry"};
    for (size_t at = 0; at < message.size(); at += kEntryBytes) {
      if (LoadLittleEndian<uint32_t>(&message[at]) >= size) {
        return {Code::kCorrupt, "an index beyond the layout"};
      }
      if (!std::isfinite(LoadLittleEndian<float>(&message[at + 4]))) {
        return {Code::kCorrupt, "a value that is not finite"};
      }
    }
    return {};
  }
  void Apply(Bytes message, std::span<float> parameters) const override {
    for (size_t at = 0; at < message.size(); at += kEntryBytes) {
      parameters[LoadLittleEndian<uint32_t>(&message[at])] +=
          LoadLittleEndian<float>(&message[at + 4]);
    }
  }
};

const ListCodec kListCodec;

Address AddressOf(uint16_t host) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  address.ip[12] = 10;
  address.ip[15] = static_cast<uint8_t>(host + 1);
  address.port = 4000;
  return address;
}

uint64_t HashOf(const std::vector<float>& values) {
  return Hash(Bytes(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4));
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options, std::vector<WorkerScript> scripts)
    : options_(options),
      random_(options.seed),
      network_(options.seed + 1, {.failure_timeout_ns = options.failure_timeout_ns}) {
  master_host_ = network_.AddHost(AddressOf(0));
  MasterNodeOptions master;
  master.workers = static_cast<int32_t>(scripts.size());
  master.failure_timeout_ns = options.failure_timeout_ns;
  master.ring_bytes = options.ring_bytes;
  master.link_queue_bytes = options.link_queue_bytes;
  master.codec = &kListCodec;
  master_ = std::make_unique<MasterNode>(master, master_host_);
  network_.SetSink(master_host_, [this](int64_t now_ns, LinkEvent event) {
    master_->HandleLinkEvent(now_ns, std::move(event));
  });
  for (size_t rank = 0; rank < scripts.size(); ++rank) {
    auto worker = std::make_unique<Worker>();
    worker->rank = static_cast<int32_t>(rank);
    worker->script = scripts[rank];
    worker->host = network_.AddHost(AddressOf(static_cast<uint16_t>(rank + 1)));
    WorkerNodeOptions node;
    node.rank = worker->rank;
    node.size = static_cast<int32_t>(scripts.size());
    node.instance[0] = static_cast<uint8_t>(rank + 1);
    node.max_staleness = options.max_staleness;
    node.master = AddressOf(0);
    node.failure_timeout_ns = options.failure_timeout_ns;
    node.ring_bytes = options.ring_bytes;
    node.codec = &kListCodec;
    worker->node = std::make_unique<WorkerNode>(node, worker->host);
    network_.SetSink(worker->host, [raw = worker.get()](int64_t now_ns, LinkEvent event) {
      raw->node->HandleLinkEvent(now_ns, std::move(event));
    });
    workers_.push_back(std::move(worker));
  }
}

Cluster::~Cluster() = default;

void Cluster::Run(int64_t limit_ns) {
  for (auto& worker : workers_) worker->node->Start(now_ns_);
  const auto over = [](const auto& worker) {
    return worker->state == Worker::State::kFinished || worker->state == Worker::State::kFailed ||
           worker->state == Worker::State::kDead;
  };
  while (!std::all_of(workers_.begin(), workers_.end(), over)) {
    int64_t next_ns = std::min(network_.NextDelivery(), master_->NextTimeout());
    for (const auto& worker : workers_) {
      if (worker->state == Worker::State::kDead) continue;
      next_ns = std::min({next_ns, worker->next_action_ns, worker->node->NextTimeout()});
    }
    now_ns_ = std::max(now_ns_, next_ns);
    if (now_ns_ > limit_ns) {
      violations_.push_back("hangs: " + master_->StatusJson());
      for (const auto& worker : workers_) violations_.push_back(worker->node->StatusJson());
      return;
    }
    Deliver();
  }
}

void Cluster::Deliver() {
  network_.Deliver(now_ns_);
  if (master_->NextTimeout() <= now_ns_) master_->HandleTimeout(now_ns_);
  while (auto event = master_->PollEvent()) master_events_.push_back(std::move(*event));
  for (auto& worker : workers_) {
    if (worker->state == Worker::State::kDead) continue;
    if (worker->node->NextTimeout() <= now_ns_) worker->node->HandleTimeout(now_ns_);
    bool woken = worker->next_action_ns <= now_ns_;
    for (;;) {
      auto event = worker->node->PollEvent();
      if (!event || worker->state == Worker::State::kDead) break;
      HandleEvent(worker.get(), std::move(*event));
    }
    // A worker that waits for a STEP looks again whenever anything has happened.
    if (worker->state == Worker::State::kTraining && worker->next_action_ns == kNever) woken = true;
    if (woken) Act(worker.get());
  }
}

void Cluster::Act(Worker* worker) {
  worker->next_action_ns = kNever;
  if (worker->state != Worker::State::kTraining) return;
  TakeReceived(worker);
  const WorkerScript& script = worker->script;
  const int steps = script.steps.at(worker->generation - 1);
  if (worker->step >= steps || worker->stop_heard) {
    worker->state = Worker::State::kWaiting;
    worker->node->Finish(now_ns_, script.stop_all);
    return;
  }
  if (options_.max_staleness >= 0 &&
      worker->node->ReleasedSteps() < worker->step - options_.max_staleness) {
    return;  // looks again after the next delivery
  }
  if (script.average_before.contains(worker->step) && !worker->averaged) {
    worker->averaged = true;
    worker->state = Worker::State::kWaiting;
    worker->node->Average(now_ns_, static_cast<uint64_t>(worker->step),
                          {static_cast<double>(worker->rank), 1.0});
    return;
  }
  TrainStep(worker);
}

void Cluster::TrainStep(Worker* worker) {
  const int64_t parts = Random(1, 3);
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<uint8_t> update(kUpdateHeaderBytes);
    std::vector<std::pair<uint32_t, float>> entries;
    for (int64_t i = Random(0, 4); i > 0; --i) {
      const auto index = static_cast<uint32_t>(Random(0, worker->script.layout_size - 1));
      const auto value = static_cast<float>(Random(-8, 8));
      entries.emplace_back(index, value);
      update.resize(update.size() + kEntryBytes);
      StoreLittleEndian<uint32_t>(&update[update.size() - 8], index);
      StoreLittleEndian<float>(&update[update.size() - 4], value);
      if (options_.max_staleness < 0) worker->parameters[index] += value;
    }
    if (worker->script.bad_update_at == worker->step) {
      update.resize(kUpdateHeaderBytes);
      update.resize(kUpdateHeaderBytes + kEntryBytes, 0xff);
      entries.clear();
    }
    const UpdateId id =
        worker->node->Submit(now_ns_, worker->step, part + 1 == parts, std::move(update));
    submitted_[id] = {worker->generation, std::move(entries)};
  }
  ++worker->step;
  worker->averaged = false;
  const auto& cuts = worker->script.cut_off_at;
  if (std::find(cuts.begin(), cuts.end(), worker->step) != cuts.end()) {
    worker->was_cut_off = true;
    network_.CutOff(worker->host, now_ns_ + Random(1, 2 * options_.failure_timeout_ns));
  }
  if (worker->script.die_after_steps == worker->step) {
    worker->state = Worker::State::kDead;
    network_.Kill(worker->host);
    return;
  }
  worker->next_action_ns = now_ns_ + Random(0, 2 * worker->script.think_ns);
}

void Cluster::TakeReceived(Worker* worker) {
  for (const ReceivedUpdate& update : worker->node->TakeReceived()) {
    uint64_t& last = worker->applied[update.id.origin];
    if (last != 0 && update.id.counter != last + 1) {
      Violation(*worker, "takes update " + std::to_string(update.id.counter) + " after " +
                             std::to_string(last));
    }
    last = update.id.counter;
    worker->taken.push_back(update.id);
    kListCodec.Apply(update.message(), worker->parameters);
  }
}

void Cluster::HandleEvent(Worker* worker, WorkerEvent event) {
  if (worker->script.die_on == event.type) {
    worker->state = Worker::State::kDead;
    network_.Kill(worker->host);
    return;
  }
  switch (event.type) {
    case WorkerEvent::Type::kJoined:
      return Begin(worker);
    case WorkerEvent::Type::kStarted:
      worker->parameters = *event.parameters;
      initial_.emplace(worker->generation, worker->parameters);
      if (initial_[worker->generation] != worker->parameters) {
        Violation(*worker, "starts with other values than the others");
      }
      worker->state = Worker::State::kTraining;
      worker->next_action_ns = now_ns_ + Random(0, worker->script.think_ns);
      return;
    case WorkerEvent::Type::kAverage:
      worker->averages.push_back(std::move(event));
      worker->state = Worker::State::kTraining;
      worker->next_action_ns = now_ns_;
      return;
    case WorkerEvent::Type::kFinal:
      TakeReceived(worker);
      CheckFinal(worker);
      return worker->node->SendState(now_ns_, {worker->script.state});
    case WorkerEvent::Type::kResult: {
      CheckResult(worker, *event.parameters);
      worker->parameters = *event.parameters;
      worker->results.push_back(event);
      const uint64_t wrong = worker->script.wrong_hash;
      return worker->node->Verify(now_ns_, 0.5 * worker->rank,
                                  wrong != 0 ? wrong : HashOf(worker->parameters));
    }
    case WorkerEvent::Type::kEnd:
      worker->worst = event.values.at(0);
      worker->taken_of_generation[worker->generation] = std::exchange(worker->taken, {});
      if (worker->generation < worker->script.steps.size()) return Begin(worker);
      worker->state = Worker::State::kFinished;
      return worker->node->Leave(now_ns_, "");
    case WorkerEvent::Type::kStop:
      worker->stop_heard = true;
      return;
    case WorkerEvent::Type::kNotice:
      worker->notices.push_back(event.text);
      return;
    case WorkerEvent::Type::kFailed:
      worker->failure = event.status;
      worker->state = Worker::State::kFailed;
      return;
  }
}

void Cluster::Begin(Worker* worker) {
  const WorkerScript& script = worker->script;
  worker->state = Worker::State::kWaiting;
  worker->step = 0;
  worker->averaged = worker->stop_heard = false;
  worker->applied.clear();
  Generation generation;
  generation.number = ++worker->generation;
  generation.layout_size = script.layout_size;
  generation.layout_hash = script.layout_hash;
  generation.options_text = script.options_text;
  if (worker->rank == 0) {
    std::vector<float> seed(static_cast<size_t>(script.layout_size));
    for (float& value : seed) value = static_cast<float>(Random(-100, 100));
    generation.seed = std::make_shared<const std::vector<float>>(std::move(seed));
  }
  worker->node->BeginGeneration(now_ns_, std::move(generation));
}

void Cluster::CheckFinal(Worker* worker) {
  if (worker->node->received() != master_->received()) {
    Violation(*worker, "ends with another vector than the master");
  }
}

void Cluster::CheckResult(Worker* worker, const std::vector<float>& parameters) {
  if (parameters != master_->parameters()) Violation(*worker, "got other than master's values");
  if (parameters != worker->parameters) Violation(*worker, "is off before the final copy");
  if (parameters != ExpectedParameters(*worker)) Violation(*worker, "has lost or doubled updates");
}

// The generation's initial values plus the set of updates that count: what the master has accepted
// or, in sequenced modes, what stood in a STEP.
std::vector<float> Cluster::ExpectedParameters(const Worker& worker) const {
  std::vector<float> sum = initial_.at(worker.generation);
  const std::set<UpdateId> listed(worker.taken.begin(), worker.taken.end());
  for (const auto& [id, submitted] : submitted_) {
    const bool counts =
        options_.max_staleness < 0 ? Covers(master_->received(), id) : listed.contains(id);
    if (submitted.generation != worker.generation || !counts) continue;
    for (const auto& [index, value] : submitted.entries) sum[index] += value;
  }
  return sum;
}

void Cluster::Violation(const Worker& worker, const std::string& what) {
  violations_.push_back("seed " + std::to_string(options_.seed) + ", worker " +
                        std::to_string(worker.rank) + " in generation " +
                        std::to_string(worker.generation) + " " + what);
}

}  // namespace strom
