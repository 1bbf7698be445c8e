#include "sim/scale_job.h"

#include <sys/resource.h>

#include <cmath>

#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/codec/threshold_grid.h"
#include "core/replication/merged_update.h"
#include "core/replication/version_vector.h"

namespace strom {
namespace {

// How often it is asked whether all have everything.
constexpr int64_t kLookNs = 20'000'000;
// A start's parameters are let through to so many workers at a time: all of them have a copy of
// their own for a moment.
constexpr size_t kStartsAtOnce = 64;
constexpr float kThreshold = 0x1p-12f;  // on the grid; sums of it are exact

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

ScaleJob::ScaleJob(const ScaleOptions& options)
    : options_(options),
      network_(static_cast<uint64_t>(options.seed), options.timeout_ms * kMillisecond),
      random_(static_cast<uint64_t>(options.seed) + 1),
      made_(static_cast<size_t>(options.workers) + 1) {
  StartMaster();
  for (int32_t rank = 0; rank < options.workers; ++rank) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->rank = rank;
    StartWorker(workers_.back().get());
  }
}

std::string ScaleJob::Run() {
  StartAll();
  start_cpu_s_ = ProcessorSeconds();
  if (holds()) Train();
  cpu_s_ = ProcessorSeconds() - start_cpu_s_;
  if (holds()) CheckEnd();
  return ResultsJson();
}

// ----------------------------------------------------------------------------------- the start

void ScaleJob::StartMaster() {
  master_host_ = network_.Add();
  master_links_ =
      std::make_unique<CountedLinks>(&network_.links(master_host_), &counts_,
                                     [this](const Buffer& update) { CountPublished(update); });
  MasterNodeOptions options;
  options.workers = static_cast<int32_t>(options_.workers);
  options.topology = Topology::kMesh;
  options.max_children = static_cast<int32_t>(options_.max_children);
  options.max_depth = static_cast<int32_t>(options_.max_depth);
  options.merging = options_.merging != 0 ? Merging::kOn : Merging::kOff;
  options.failure_timeout_ns = options_.timeout_ms * kMillisecond;
  master_ = std::make_unique<MasterNode>(options, master_links_.get());
  SimulatedNetwork::Hooks& hooks = network_.hooks(master_host_);
  hooks.on_event = [this](int64_t now_ns, LinkEvent event) {
    master_links_->Note(event);
    master_->HandleLinkEvent(now_ns, std::move(event));
  };
  hooks.next_timeout = [this] { return master_->NextTimeout(); };
  hooks.on_timeout = [this](int64_t now_ns) { master_->HandleTimeout(now_ns); };
  hooks.after = [this](int64_t) {
    while (master_->PollEvent()) {
    }
  };
}

void ScaleJob::StartWorker(Worker* worker) {
  worker->host = network_.Add();
  worker->links = std::make_unique<CountedLinks>(&network_.links(worker->host), &counts_);
  const int64_t place = options_.values == 1 ? 0 : random_.Between(-1, 1);
  worker->threshold = OnGrid(kThreshold * std::exp2(0.25f * static_cast<float>(place)));
  WorkerNodeOptions options;
  options.rank = worker->rank;
  options.size = static_cast<int32_t>(options_.workers);
  random_.Fill(options.instance);
  options.master = network_.address(master_host_);
  options.port = network_.address(worker->host).port;
  options.failure_timeout_ns = options_.timeout_ms * kMillisecond;
  worker->node = std::make_unique<WorkerNode>(options, worker->links.get());
  SimulatedNetwork::Hooks& hooks = network_.hooks(worker->host);
  hooks.on_event = [worker](int64_t now_ns, LinkEvent event) {
    worker->links->Note(event);
    worker->node->HandleLinkEvent(now_ns, std::move(event));
  };
  hooks.next_timeout = [worker] {
    return std::min(worker->node->NextTimeout(), worker->next_step_ns);
  };
  hooks.on_timeout = [worker](int64_t now_ns) {
    if (worker->node->NextTimeout() <= now_ns) worker->node->HandleTimeout(now_ns);
  };
  hooks.after = [this, worker](int64_t now_ns) { Act(worker, now_ns); };
  worker->node->Start(network_.now_ns());
  worker->master_link = worker->links->counted().begin()->first;
}

void ScaleJob::Begin(Worker* worker, int64_t now_ns) {
  worker->state = Worker::State::kStarting;
  Generation generation;
  generation.number = 1;
  generation.layout_size = options_.elements;
  generation.layout_hash = 5;
  if (worker->rank == 0) {
    generation.values =
        std::make_shared<std::vector<float>>(static_cast<size_t>(options_.elements), 0.0f);
  }
  worker->node->BeginGeneration(now_ns, std::move(generation));
}

// All join and find their places, then all announce, and the start reaches them batch by batch.
void ScaleJob::StartAll() {
  const int64_t timeout_ns = options_.timeout_ms * kMillisecond;
  network_.RunUntil(20 * timeout_ns, [&] { return AllAre(Worker::State::kReady); });
  network_.RunFor(timeout_ns);
  for (const auto& worker : workers_) Begin(worker.get(), network_.now_ns());
  network_.RunFor(kMillisecond / 100);  // nothing has arrived yet
  for (const auto& worker : workers_) {
    network_.links(worker->host).HoldBack(network_.now_ns(), worker->master_link, true);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (i % kStartsAtOnce == 0) network_.RunFor(i == 0 ? 20 * kMillisecond : kMillisecond);
    Worker& worker = *workers_[i];
    network_.links(worker.host).HoldBack(network_.now_ns(), worker.master_link, false);
  }
  network_.RunUntil(5 * timeout_ns, [&] { return AllAre(Worker::State::kTraining); });
  if (!AllAre(Worker::State::kTraining)) Violate("not all workers have started");
  network_.RunFor(timeout_ns / 2);  // what a start leaves to be said has been said
}

void ScaleJob::Handle(Worker* worker, int64_t now_ns, const WorkerEvent& event) {
  switch (event.type) {
    case WorkerEvent::Type::kJoined:
      worker->origin = event.origin;
      worker->state = Worker::State::kReady;
      worker->last.resize(static_cast<size_t>(options_.workers) + 1);
      return;
    case WorkerEvent::Type::kStarted:
      worker->state = Worker::State::kTraining;
      if (worker->rank % std::max<int64_t>(1, options_.workers / options_.replicas) == 0) {
        worker->replica = *event.parameters;
      }
      if (worker->node->merges() != (options_.merging != 0)) Violate("merging is not as asked");
      return;
    case WorkerEvent::Type::kFailed:
      worker->state = Worker::State::kOver;
      worker->next_step_ns = kNever;
      return Violate("worker " + std::to_string(worker->rank) + " failed after " +
                     std::to_string(now_ns / kMillisecond) + " ms: " + event.status.message);
    default:
      return;
  }
}

// ----------------------------------------------------------------------------------- training

void ScaleJob::Train() {
  begin_ns_ = network_.now_ns();
  end_ns_ = begin_ns_ + options_.rounds * step_ns();
  PlanDeaths();
  for (const auto& worker : workers_) {
    worker->next_step_ns = begin_ns_ + random_.Below(step_ns());
  }
  counts_ = true;
  RunUntil(end_ns_);
  const int64_t patience_ns = 20 * options_.timeout_ms * kMillisecond;
  while (network_.now_ns() < end_ns_ + patience_ns && !HasConverged() && holds()) {
    RunUntil(network_.now_ns() + kLookNs);
  }
  counts_ = false;
  if (!HasConverged()) Violate("some updates have not arrived everywhere");
}

void ScaleJob::RunUntil(int64_t until_ns) {
  while (network_.now_ns() < until_ns && holds()) {
    const int64_t next_ns = std::min(until_ns, deaths_.empty() ? kNever : deaths_.back().first);
    network_.RunFor(std::max<int64_t>(0, next_ns - network_.now_ns()));
    KillDue();
  }
}

void ScaleJob::Act(Worker* worker, int64_t now_ns) {
  while (auto event = worker->node->PollEvent()) Handle(worker, now_ns, *event);
  if (worker->state != Worker::State::kTraining) return;
  Take(worker, now_ns);
  if (worker->next_step_ns <= now_ns) Step(worker, now_ns);
}

void ScaleJob::Step(Worker* worker, int64_t now_ns) {
  std::vector<uint8_t> update = MakeUpdate(*worker);
  Apply(Bytes(update).subspan(kUpdateHeaderBytes), worker);
  const UpdateId id = worker->node->Submit(now_ns, worker->rounds, true, std::move(update));
  const auto sequence = static_cast<uint32_t>(id.origin);
  worker->last.at(sequence) = static_cast<uint32_t>(id.counter);
  ++worker->applied;
  made_.at(sequence).push_back({now_ns, now_ns});
  ++worker->rounds;
  // Steps differ in length, so workers drift apart.
  worker->next_step_ns = now_ns + random_.Between(3 * step_ns() / 4, 5 * step_ns() / 4);
  if (worker->next_step_ns >= end_ns_) worker->next_step_ns = kNever;
}

std::vector<uint8_t> ScaleJob::MakeUpdate(const Worker& worker) {
  const int64_t count = options_.entries / options_.workers +
                        (worker.rank < options_.entries % options_.workers ? 1 : 0);
  std::vector<uint32_t> places(static_cast<size_t>(count));
  for (uint32_t& place : places) place = static_cast<uint32_t>(random_.Below(options_.elements));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  entries_made_ += std::ssize(places);
  EntryList list;
  for (size_t first = 0; first < places.size();) {
    const int64_t chunk = places[first] / kChunk;
    size_t end = first;
    while (end < places.size() && places[end] / kChunk == chunk) ++end;
    uint32_t* const codes = list.Reserve(static_cast<int64_t>(end - first));
    for (size_t i = first; i < end; ++i) {
      const auto sign = static_cast<uint32_t>(random_.Next() >> 63);
      codes[i - first] = static_cast<uint32_t>(places[i] % kChunk) << 1 | sign;
    }
    list.Append(chunk, static_cast<int64_t>(end - first));
    first = end;
  }
  const MessageFields fields{worker.threshold, worker.threshold, options_.elements, worker.rounds};
  auto parts = WriteEntries(fields, list, kMaxMessageBytes - kUpdateHeaderBytes - kMergedRoomBytes,
                            kUpdateHeaderBytes);
  STROM_CHECK(parts.size() == 1);
  return std::move(parts[0]);
}

void ScaleJob::Take(Worker* worker, int64_t now_ns) {
  const Received received = worker->node->TakeReceived();
  if (received.snapshot) {
    ++snapshots_;
    worker->node->SnapshotInstalled();
    worker->applied = 0;
    for (const auto& [origin, counter] : received.snapshot->cut) {
      if (IsOfMaster(origin)) continue;
      worker->last.at(static_cast<uint32_t>(origin)) = static_cast<uint32_t>(counter);
      worker->applied += static_cast<int64_t>(counter);
    }
    if (!worker->replica.empty()) worker->replica = *received.snapshot->parameters;
  }
  for (const ReceivedUpdate& update : received.updates) {
    ForEachApplied(update, [&](uint64_t origin, uint64_t first, uint64_t last) {
      if (!IsOfMaster(origin)) Applied(worker, now_ns, origin, first, last);
    });
    Apply(update.message(), worker);
  }
}

void ScaleJob::Applied(Worker* worker, int64_t now_ns, uint64_t origin, uint64_t first,
                       uint64_t last) {
  const auto sequence = static_cast<uint32_t>(origin);
  uint32_t& counter = worker->last.at(sequence);
  if (first != counter + 1) {
    Violate("worker " + std::to_string(worker->rank) + " got update " + std::to_string(first) +
            " of origin " + std::to_string(sequence) + " after " + std::to_string(counter));
  }
  counter = static_cast<uint32_t>(last);
  worker->applied += static_cast<int64_t>(last - first + 1);
  for (uint64_t next = first; next <= last; ++next) {
    Made& made = made_.at(sequence).at(next - 1);
    made.everywhere_ns = now_ns;
    at_one_.Add(now_ns - made.submitted_ns);
  }
}

void ScaleJob::Apply(Bytes message, Worker* worker) {
  if (!worker->replica.empty()) ApplyMessage(OpenValidatedMessage(message), 0, worker->replica);
}

// What the master has sent down, each publication once.
void ScaleJob::CountPublished(const Buffer& update) {
  UpdateHeader header;
  if (!ParseUpdateHeader(*update, &header).ok() || !IsOfMaster(header.id.origin)) return;
  if (header.id.counter <= last_published_) return;
  last_published_ = header.id.counter;
  published_ += {1, static_cast<int64_t>(update->size())};
  MergedUpdate merged;
  STROM_CHECK(ParseMerged(Bytes(*update).subspan(kUpdateHeaderBytes), &merged).ok());
  published_contents_bytes_ += std::ssize(*update) - kUpdateHeaderBytes;
  const auto count = [&](Bytes message) {
    published_contents_bytes_ -= std::ssize(message);
    published_entries_ += OpenValidatedMessage(message).count();
  };
  for (const Bytes message : merged.sums) count(message);
  for (const auto& [id, message] : merged.whole) count(message);
}

// ----------------------------------------------------------------------------------- deaths

bool ScaleJob::IsInner(const Worker& worker) {
  return std::any_of(worker.links->counted().begin(), worker.links->counted().end(),
                     [](const auto& entry) {
                       const CountedLinks::Counted& link = entry.second;
                       return !link.initiated && (link.sent_on(Channel::kUpdate).messages > 0 ||
                                                  link.received_on(Channel::kUpdate).messages > 0);
                     });
}

// Within the second quarter of the rounds; who it strikes is seen when it does.
void ScaleJob::PlanDeaths() {
  const int64_t rounds_ns = options_.rounds * step_ns();
  for (int64_t i = 0; i < options_.deaths; ++i) {
    deaths_.emplace_back(begin_ns_ + random_.Between(rounds_ns / 4, rounds_ns / 2), i % 2);
  }
  std::sort(deaths_.rbegin(), deaths_.rend());
}

void ScaleJob::KillDue() {
  while (!deaths_.empty() && deaths_.back().first <= network_.now_ns()) {
    const bool is_inner = deaths_.back().second == 0;
    deaths_.pop_back();
    std::vector<Worker*> candidates;
    for (const auto& worker : workers_) {
      // Those with a replica are compared at the end.
      if (worker->state != Worker::State::kTraining || !worker->replica.empty()) continue;
      if (!is_inner || IsInner(*worker)) candidates.push_back(worker.get());
    }
    if (candidates.empty()) return;
    Worker* const struck = candidates[static_cast<size_t>(random_.Below(std::ssize(candidates)))];
    network_.Kill(struck->host);
    struck->state = Worker::State::kOver;
    struck->next_step_ns = kNever;
    ++killed_;
  }
}

// ----------------------------------------------------------------------------------- the end

bool ScaleJob::HasConverged() const {
  if (!deaths_.empty() || network_.now_ns() < end_ns_) return false;
  int64_t held = 0;
  const VersionVector& received = master_->received();
  for (const auto& [origin, counter] : received) {
    if (!IsOfMaster(origin)) held += static_cast<int64_t>(counter);
  }
  for (const auto& worker : workers_) {
    if (worker->state != Worker::State::kTraining) continue;
    if (worker->applied != held) return false;
    if (CounterOf(received, worker->origin) != static_cast<uint64_t>(worker->rounds)) return false;
  }
  return true;
}

void ScaleJob::CheckEnd() {
  for (const auto& worker : workers_) {
    if (worker->state != Worker::State::kTraining) continue;
    for (const Made& made : made_.at(static_cast<uint32_t>(worker->origin))) {
      at_all_.Add(made.everywhere_ns - made.submitted_ns);
    }
    const std::string name = "worker " + std::to_string(worker->rank);
    if (worker->node->received() != master_->received()) {
      Violate(name + " ends with another vector than the master");
    }
    for (const auto& [origin, counter] : master_->received()) {
      if (IsOfMaster(origin)) continue;
      if (worker->last.at(static_cast<uint32_t>(origin)) != counter) {
        Violate(name + " has not applied all of origin " + std::to_string(origin));
      }
    }
    // With one value of a power of two every sum is exact; otherwise it is rounded.
    const double apart = options_.values == 1 ? 0 : 1e-5;
    for (size_t i = 0; i < worker->replica.size(); ++i) {
      if (std::abs(worker->replica[i] - master_->parameters()[i]) <= apart) continue;
      Violate(name + "'s parameter " + std::to_string(i) + " is not the master's");
      break;
    }
  }
}

}  // namespace strom
