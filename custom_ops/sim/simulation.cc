#include "sim/simulation.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/replication/version_vector.h"
#include "core/transport/crypto.h"
#include "core/transport/endpoint.h"
#include "sim/invariants.h"
#include "sim/list_codec.h"
#include "sim/long_run.h"
#include "sim/memory_links.h"
#include "sim/network.h"

namespace strom {
namespace {

// What a live node submitted is everywhere after so many failure timeouts without a fault. A link
// that was lost is noticed after one, found again within another, and then there is the replay.
constexpr int64_t kProgressTimeouts = 5;
constexpr int64_t kFewUpdatesBytes = 2000;

// What the master holds is kept for so many failure timeouts.
constexpr int64_t kRetentionTimeouts = 3;

// Every node's private key is made of one number.
constexpr uint8_t kMasterKey = 3;
constexpr uint8_t kWorkerKey = 4;

EndpointOptions EndpointOf(const SimulationOptions& simulation, uint8_t key) {
  EndpointOptions options;
  options.secret.fill(7);
  options.job_id.fill(9);
  options.accepts = true;
  options.private_key.fill(key);
  options.failure_timeout_ns = simulation.failure_timeout_ns;
  options.first_link_sequence = simulation.first_link_sequence;
  options.packets_per_key_phase = simulation.packets_per_key_phase;
  return options;
}

PublicKeyBytes PublicKeyOf(uint8_t key) { return DerivePublicKey(EndpointOf({}, key).private_key); }

}  // namespace

// One process of a worker: its node on its host, and the application above.
struct Simulation::Process {
  int32_t rank = 0;
  int32_t attempt = 0;
  Host host = 0;
  std::unique_ptr<WatchedLinks> links;
  std::unique_ptr<WorkerNode> node;
  std::unique_ptr<Application> application;
  VersionVector received;   // when it was last checked
  uint64_t generation = 0;  // that had started then; 0 = none
  uint64_t masters = 1;     // those of whom it is known to have heard
  int64_t served = 0;
  int32_t wakes = 0;  // see SleepsUntilLater

  const ApplicationRecord& record() const { return application->record(); }
  std::string name() const {
    return "worker " + std::to_string(rank) +
           (attempt == 0 ? "" : " (attempt " + std::to_string(attempt) + ")");
  }
};

// ----------------------------------------------------------------------------------- set-up

Simulation::Simulation(const SimulationOptions& options, std::vector<Script> scripts)
    : options_(options), scripts_(std::move(scripts)), cut_off_(scripts_.size()) {
  if (options.links == SimulatedLinks::kMemory) {
    network_ = std::make_unique<MemoryNetwork>(options.seed, options.failure_timeout_ns);
  } else {
    network_ = std::make_unique<Network>(options.seed);
  }
  network_->SetPaths(options.plan.paths);
  master_host_ = AddHost(kMasterKey);
  StartMaster();
  for (int32_t rank = 0; rank < size(); ++rank) {
    current_.push_back(nullptr);
    StartProcess(rank, AddHost(kWorkerKey), 0, 1);
  }
}

Simulation::~Simulation() = default;

const ApplicationRecord& Simulation::worker(int32_t rank) const {
  return current_.at(static_cast<size_t>(rank))->record();
}

std::vector<const ApplicationRecord*> Simulation::processes(int32_t rank) const {
  std::vector<const ApplicationRecord*> records;
  for (const auto& process : processes_) {
    if (process->rank == rank) records.push_back(&process->record());
  }
  return records;
}

Host Simulation::AddHost(uint8_t key) {
  if (auto* memory = dynamic_cast<MemoryNetwork*>(network_.get())) return memory->Add();
  return static_cast<Network*>(network_.get())->Add(EndpointOf(options_, key));
}

// The first one, or another in its place.
void Simulation::StartMaster() {
  MasterNodeOptions master;
  master.workers = size();
  master.epoch = ++masters_;
  master.min_workers = options_.min_workers;
  master.max_origins = static_cast<int64_t>(options_.max_origins);
  master.failure_timeout_ns = options_.failure_timeout_ns;
  master.ring_bytes = options_.ring_bytes;
  master.link_queue_bytes = options_.link_queue_bytes;
  master.topology = options_.topology;
  master.max_children = options_.max_children;
  master.max_depth = options_.max_depth;
  master.merging = options_.merging;
  master.merging_interval_ns = options_.merging_interval_ns;
  master.codec = &kListCodec;
  master_links_ = std::make_unique<WatchedLinks>(&network_->links(master_host_));
  master_ = std::make_unique<MasterNode>(master, master_links_.get());
  BindMaster();
}

void Simulation::BindMaster() {
  SimulatedNetwork::Hooks& hooks = network_->hooks(master_host_);
  hooks.on_event = [this](int64_t now_ns, LinkEvent event) {
    master_links_->Note(event);
    master_->HandleLinkEvent(now_ns, std::move(event));
  };
  hooks.next_timeout = [this] { return master_->NextTimeout(); };
  hooks.on_timeout = [this](int64_t now_ns) {
    master_->HandleTimeout(now_ns);
    Expect(SleepsUntilLater(now_ns, master_->NextTimeout(), &master_wakes_), nullptr);
  };
  hooks.after = [this](int64_t) {
    while (auto event = master_->PollEvent()) {
      Log("master: " + event->text);
      if (event->type == MasterEvent::Type::kStarted) {
        master_starts_ = true;
        // Another master keeps the origins of those whom it has not heard of yet.
        if (masters_ == 1) Expect(StartsWithFewOrigins(master_->received(), size()), nullptr);
      }
      rejoined_ += event->type == MasterEvent::Type::kRejoined ? 1 : 0;
      ended_ |= event->type == MasterEvent::Type::kEnded;
      if (!options_.forgets) master_events_.push_back(std::move(*event));
    }
    if (++ticks_ % options_.check_every == 0) CheckMaster();
  };
}

void Simulation::StartProcess(int32_t rank, Host host, int32_t attempt, uint64_t first_generation) {
  Process* process = processes_.emplace_back(std::make_unique<Process>()).get();
  process->rank = rank;
  process->attempt = attempt;
  process->host = host;
  process->links = std::make_unique<WatchedLinks>(&network_->links(host));
  WorkerNodeOptions options;
  options.rank = rank;
  options.size = size();
  options.attempt = attempt;
  options.instance[0] = static_cast<uint8_t>(rank);
  options.instance[1] = static_cast<uint8_t>(rank >> 8);
  options.instance[2] = static_cast<uint8_t>(attempt + 1);
  options.max_staleness = options_.max_staleness;
  options.master = network_->address(master_host_);
  options.master_public_key = PublicKeyOf(kMasterKey);
  options.public_key = PublicKeyOf(kWorkerKey);
  options.host[0] = static_cast<uint8_t>(rank % options_.machines);
  options.failure_timeout_ns = options_.failure_timeout_ns;
  options.master_wait_ns = options_.master_wait_ns;
  options.ring_bytes = options_.ring_bytes;
  options.link_queue_bytes = options_.link_queue_bytes;
  options.codec = &kListCodec;
  process->node = std::make_unique<WorkerNode>(options, process->links.get());
  Script script = scripts_[static_cast<size_t>(rank)];
  if (attempt > 0) script.die_on.reset();
  process->application = std::make_unique<Application>(
      rank, script, options_.max_staleness, first_generation, process->node.get(), &ledger_,
      network_->random().Next(), HooksOf(process));
  current_[static_cast<size_t>(rank)] = process;
  BindWorker(process);
  const auto begins = options_.begins_ns.find(rank);
  if (attempt > 0 || begins == options_.begins_ns.end()) {
    process->node->Start(network_->now_ns());
  } else {
    At(network_->now_ns() + begins->second,
       [this, process] { process->node->Start(network_->now_ns()); });
  }
}

void Simulation::BindWorker(Process* process) {
  SimulatedNetwork::Hooks& hooks = network_->hooks(process->host);
  hooks.on_event = [process](int64_t now_ns, LinkEvent event) {
    process->links->Note(event);
    process->node->HandleLinkEvent(now_ns, std::move(event));
  };
  hooks.next_timeout = [process] {
    return std::min(process->node->NextTimeout(), process->application->NextAction());
  };
  hooks.on_timeout = [this, process](int64_t now_ns) {
    if (process->node->NextTimeout() <= now_ns) process->node->HandleTimeout(now_ns);
    Expect(SleepsUntilLater(now_ns, process->node->NextTimeout(), &process->wakes), process);
  };
  hooks.after = [this, process](int64_t now_ns) {
    process->application->Act(now_ns);
    ++ticks_;
    if (++process->served % options_.check_every == 0) CheckWorker(process);
  };
}

Application::Hooks Simulation::HooksOf(Process* process) {
  Application::Hooks hooks;
  hooks.die = [this, process] { KillProcess(process->rank); };
  hooks.cut_off = [this, process] { CutOff(process->rank); };
  hooks.on_taken = [this, process](const ReceivedUpdate& update) {
    const ApplicationRecord& record = process->record();
    Expect(ComesNextAndUnharmed(update, record.applied, record.generation, ledger_), process);
    if (options_.max_staleness < 0) return;
    const size_t position = record.taken_before + record.taken.size();
    Expect(ComesInOneOrder(update.id, position, &order_[record.generation]), process);
  };
  hooks.on_final = [this, process] {
    const VersionVector& masters = MasterOf(*process).received();
    Expect(SameVector(process->node->received(), masters), process);
    Expect(HoldsItsOwn(process->record().origin, masters, ledger_), process);
    if (masters_ == 1)
      Expect(HoldsTheDrained(process->record().generation, masters, ledger_), process);
  };
  hooks.on_drained = [this, process] {
    ledger_.Drain(process->record().generation, process->record().origin);
    Expect(HoldsItsOwn(process->record().origin, MasterOf(*process).received(), ledger_), process);
  };
  hooks.on_result = [this, process](const std::vector<float>& parameters) {
    const ApplicationRecord& record = process->record();
    Expect(SameBits(parameters, MasterOf(*process).parameters()), process);
    if (const JointPlan& plan = PlanOf(*process); plan.IsJoint()) {
      Expect(IsAState(parameters, record.generation, plan, ledger_), process);
      return Expect(KeepsUntrained(parameters, record.generation, plan, ledger_), process);
    }
    Expect(SameBits(parameters, record.parameters), process);
    Expect(AddsUp(parameters, record.generation, record.applied, ledger_), process);
  };
  hooks.nobody_else_has_started = [this, process](uint64_t generation) {
    // Another master cannot know of a start of which nobody is left.
    return masters_ > 1 &&
           std::none_of(current_.begin(), current_.end(), [&](const Process* other) {
             const ApplicationRecord& record = other->record();
             return other != process && !record.over() && record.started &&
                    record.generation == generation;
           });
  };
  hooks.on_violation = [this, process](const std::string& what) { Expect(what, process); };
  return hooks;
}

// ----------------------------------------------------------------------------------- the run

void Simulation::Run(int64_t limit_ns) {
  const int64_t end_ns = network_->now_ns() + limit_ns;
  bool scheduled = false;
  while (!Over() && violations_.empty()) {
    if (!scheduled && ledger_.generation() > 0) {
      scheduled = true;
      ScheduleFaults();
    }
    const int64_t now_ns = network_->now_ns();
    if (now_ns >= end_ns && NobodyCanStart()) return;
    if (now_ns >= end_ns) {
      Violate("the job", "hangs: " + master_->StatusJson());
      for (const Process* process : current_) Log(process->node->StatusJson());
      return;
    }
    while (!agenda_.empty() && agenda_.begin()->first <= now_ns) {
      const std::function<void()> action = std::move(agenda_.begin()->second);
      agenda_.erase(agenda_.begin());
      action();
    }
    const int64_t next_ns = std::min(agenda_.empty() ? kNever : agenda_.begin()->first,
                                     now_ns + options_.failure_timeout_ns / 2);
    const size_t planned = agenda_.size();
    network_->RunUntil(std::min(next_ns, end_ns) - now_ns, [&] {
      return Over() || !violations_.empty() || agenda_.size() != planned ||
             (ended_ && options_.forgets) || (!scheduled && ledger_.generation() > 0);
    });
    CheckProgress();
    if (std::exchange(ended_, false) && options_.forgets) {
      NoteHoldings();
      ForgetWhatIsOver();
    }
  }
  if (violations_.empty()) CheckEnd();
}

void Simulation::NoteHoldings() {
  Holdings most;
  most.replaced = replaced_;
  const auto note = [&most](const Replication& replication, const std::string& status) {
    most.origins = std::max<int64_t>(most.origins, std::ssize(replication.received()));
    most.update_bytes =
        std::max(most.update_bytes, replication.ring_bytes() + replication.hold_bytes());
    most.status_bytes = std::max<int64_t>(most.status_bytes, std::ssize(status));
  };
  note(master_->replication(), master_->StatusJson());
  for (const Process* process : current_) {
    if (!process->record().over()) note(process->node->replication(), process->node->StatusJson());
  }
  most.resident_bytes = ResidentBytes();
  holdings_.push_back(most);
}

// Whoever is a process still has no part in a generation before the one that has just ended.
void Simulation::ForgetWhatIsOver() {
  const uint64_t ended = ledger_.generation();
  std::erase_if(processes_, [this](const std::unique_ptr<Process>& process) {
    return std::find(current_.begin(), current_.end(), process.get()) == current_.end();
  });
  VersionVector known = master_->received();
  for (const Process* process : current_) {
    Join(process->node->received(), &known);
    process->application->Forget();
  }
  ledger_.ForgetBefore(ended, known);
  order_.erase(order_.begin(), order_.lower_bound(ended));
}

bool Simulation::Over() const {
  return std::all_of(current_.begin(), current_.end(),
                     [](const Process* process) { return process->record().over(); }) &&
         replacements_ == 0;
}

// Another master has no parameters, and neither has anybody who is left: only the chief seeds a
// start.
bool Simulation::NobodyCanStart() const {
  return masters_ > 1 && std::all_of(current_.begin(), current_.end(), [](const Process* process) {
           const ApplicationRecord& record = process->record();
           return record.over() || (process->rank != 0 && !record.started);
         });
}

void Simulation::At(int64_t time_ns, std::function<void()> action) {
  agenda_.emplace(time_ns, std::move(action));
}

// ----------------------------------------------------------------------------------- faults

void Simulation::ScheduleFaults() {
  for (const Fault& fault : options_.plan.faults) {
    At(network_->now_ns() + fault.at_ns, [this, fault] {
      Begin(fault);
      ++disturbances_;
      At(network_->now_ns() + fault.for_ns, [this, fault] {
        End(fault);
        --disturbances_;
        quiet_since_ns_ = network_->now_ns();
      });
    });
  }
}

void Simulation::Begin(const Fault& fault) {
  Log("fault begins: " + FaultPlan{{}, {fault}}.Text());
  switch (fault.kind) {
    case Fault::Kind::kPause:
      for (const int32_t rank : fault.ranks) network_->SetPaused(HostOf(rank), true);
      return;
    case Fault::Kind::kKill:
      for (const int32_t rank : fault.ranks) KillProcess(rank);
      return;
    case Fault::Kind::kRestart:
      for (const int32_t rank : fault.ranks) KillProcess(rank);
      replacements_ += static_cast<int>(fault.ranks.size());
      return;
    case Fault::Kind::kDrain:
      for (const int32_t rank : fault.ranks) {
        current_[static_cast<size_t>(rank)]->application->Drain(network_->now_ns());
      }
      replacements_ += static_cast<int>(fault.ranks.size());
      return;
    case Fault::Kind::kPartition:
      return SetReachable(fault.ranks, false);
    case Fault::Kind::kDeaf:
    case Fault::Kind::kMute:
      return SetHeard(fault, false);
    case Fault::Kind::kHarm:
      return SetPathsOf(fault.ranks, fault.paths);
  }
}

void Simulation::End(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kPause:
      for (const int32_t rank : fault.ranks) network_->SetPaused(HostOf(rank), false);
      return;
    case Fault::Kind::kKill:
      return;
    case Fault::Kind::kDrain:
      for (const int32_t rank : fault.ranks) KillProcess(rank);  // who has not left by now
      [[fallthrough]];
    case Fault::Kind::kRestart:
      for (const int32_t rank : fault.ranks) Replace(rank);
      replacements_ -= static_cast<int>(fault.ranks.size());
      return;
    case Fault::Kind::kPartition:
      return SetReachable(fault.ranks, true);
    case Fault::Kind::kDeaf:
    case Fault::Kind::kMute:
      return SetHeard(fault, true);
    case Fault::Kind::kHarm:
      return SetPathsOf(fault.ranks, options_.plan.paths);
  }
}

void Simulation::SetReachable(const std::vector<int32_t>& ranks, bool reachable) {
  for (const int32_t rank : ranks) {
    for (int32_t other = kMasterRank; other < size(); ++other) {
      if (std::find(ranks.begin(), ranks.end(), other) != ranks.end()) continue;
      network_->SetBlocked(HostOf(rank), HostOf(other), !reachable);
    }
  }
}

void Simulation::SetHeard(const Fault& fault, bool heard) {
  for (const int32_t rank : fault.ranks) {
    for (int32_t other = kMasterRank; other < size(); ++other) {
      if (std::find(fault.ranks.begin(), fault.ranks.end(), other) != fault.ranks.end()) continue;
      if (fault.only && *fault.only != other) continue;
      const bool deaf = fault.kind == Fault::Kind::kDeaf;
      const Host struck = HostOf(rank), far = HostOf(other);
      network_->SetOneWayBlocked(deaf ? far : struck, deaf ? struck : far, !heard);
    }
  }
}

void Simulation::SetPathsOf(const std::vector<int32_t>& ranks, const PathOptions& paths) {
  for (const int32_t rank : ranks) {
    for (int32_t other = kMasterRank; other < size(); ++other) {
      if (other == rank) continue;
      network_->SetPath(HostOf(rank), HostOf(other), paths);
      network_->SetPath(HostOf(other), HostOf(rank), paths);
    }
  }
}

void Simulation::KillProcess(int32_t rank) {
  if (rank == kMasterRank) {
    Log("the master is killed");
    return network_->Kill(master_host_);
  }
  Process* process = current_[static_cast<size_t>(rank)];
  if (options_.forgets && process->record().state == ApplicationRecord::State::kFailed) {
    Expect(FailsForAReason(process->record().failure, /*excused=*/false, /*outran_ring=*/false),
           process);
  }
  const bool drained = process->record().state == ApplicationRecord::State::kDrained;
  drained_ += drained ? 1 : 0;
  Log(process->name() + (drained ? " is gone" : " is killed"));
  if (!drained) process->application->Die();
  network_->Kill(process->host);
}

// A new process in a killed one's place, at its address or at another.
void Simulation::Replace(int32_t rank) {
  if (rank == kMasterRank) return ReplaceMaster();
  ++replaced_;
  const Process& old = *current_[static_cast<size_t>(rank)];
  Host host = old.host;
  if (options_.forgets || network_->random().Chance(.5)) {
    network_->Restart(host);
  } else {
    host = AddHost(kWorkerKey);
  }
  StartProcess(rank, host, old.attempt + 1, FirstGenerationOfReplacement());
  Log(current_[static_cast<size_t>(rank)]->name() + " starts");
}

void Simulation::ReplaceMaster() {
  network_->Restart(master_host_);
  lost_masters_.push_back({std::move(master_links_), std::move(master_)});
  StartMaster();
  master_received_.clear();
  Log("master " + std::to_string(masters_) + " starts");
}

// Mostly the one that runs; at times one that is over, or the next. Of a master that has started
// nothing nobody can learn where the others are: where there may be one, all begin with the first.
uint64_t Simulation::FirstGenerationOfReplacement() {
  if (options_.master_wait_ns > 0) return 1;
  if (options_.forgets) return ledger_.generation();
  const int64_t choice = network_->random().Below(10);
  if (choice == 0) return ledger_.generation() + 1;
  return choice < 3 ? 1 : ledger_.generation();
}

// What a script asks for: nobody reaches it for up to two failure timeouts.
void Simulation::CutOff(int32_t rank) {
  cut_off_[static_cast<size_t>(rank)] = true;
  ++disturbances_;
  SetReachable({rank}, false);
  At(network_->now_ns() + network_->random().Between(1, 2 * options_.failure_timeout_ns),
     [this, rank] {
       SetReachable({rank}, true);
       --disturbances_;
       quiet_since_ns_ = network_->now_ns();
     });
}

// The one whose word it has last heard: a worker that stood still hears a lost one's.
const MasterNode& Simulation::MasterOf(const Process& process) const {
  const uint64_t epoch = process.node->master_epoch();
  return epoch == masters_ ? *master_ : *lost_masters_.at(epoch - 1).node;
}

const JointPlan& Simulation::PlanOf(const Process& process) const {
  return scripts_[static_cast<size_t>(process.rank)].plan;
}

Host Simulation::HostOf(int32_t rank) const {
  return rank == kMasterRank ? master_host_ : current_[static_cast<size_t>(rank)]->host;
}

// ----------------------------------------------------------------------------------- checks

void Simulation::CheckMaster() {
  const VersionVector& received = master_->received();
  Expect(std::exchange(master_starts_, false)
             ? KeepsTheLiving(master_received_, received, LivingOrigins(nullptr))
             : OnlyGrows(master_received_, received),
         nullptr);
  Expect(HoldsOnlySubmitted(received, ledger_), nullptr);
  if (received != master_received_) master_received_ = received;
  Expect(RingAndHoldAreBounded(master_->replication(), options_.ring_bytes, options_.ring_bytes),
         nullptr);
  Expect(QueuesDownAreBounded(*master_links_), nullptr);
  Expect(CountsOnlyGiven(master_->steps_counted(), ledger_.given(ledger_.generation())), nullptr);
}

// Of the processes that no start may retire at the node of `process`. Another master may know only
// some of them.
std::set<uint64_t> Simulation::LivingOrigins(const Process* process) const {
  std::set<uint64_t> living;
  if (process != nullptr) living.insert(process->record().origin);
  if (masters_ > 1) return living;
  for (const Process* other : current_) {
    if (!other->record().over()) living.insert(other->record().origin);
  }
  return living;
}

std::string Simulation::QueuesDownAreBounded(const WatchedLinks& links) const {
  // Snapshots and what is said on the control channel come on top of the updates.
  constexpr int64_t kOtherBytes = 32 << 10;
  return QueueIsBounded(links.LongestQueueDown(), options_.link_queue_bytes + kOtherBytes);
}

void Simulation::CheckWorker(Process* process) {
  const ApplicationRecord& record = process->record();
  if (record.over()) return;
  const VersionVector& received = process->node->received();
  const uint64_t generation = record.started ? record.generation : 0;
  const bool goes_on = std::exchange(process->generation, generation) == generation;
  std::string shrinks = goes_on && generation != 0
                            ? OnlyGrows(process->received, received)
                            : KeepsTheLiving(process->received, received, LivingOrigins(process));
  if (!shrinks.empty() && process->masters < masters_) {
    // Another master goes on from a replica that lacked it.
    process->masters = masters_;
    shrinks.clear();
  }
  Expect(shrinks, process);
  Expect(HoldsOnlySubmitted(received, ledger_), process);
  if (received != process->received) process->received = received;
  Expect(HoldsItsOwn(record.origin, received, ledger_), process);
  // Between two generations origins are retired; another master's workers forget others' updates.
  if (record.started && !process->node->AwaitsParameters()) {
    Expect(AppliesOnlyReceived(record.applied, received), process);
  }
  if (record.started && !PlanOf(*process).IsJoint()) {
    Expect(AddsUp(record.parameters, record.generation, record.applied, ledger_), process);
  }
  Expect(
      RingAndHoldAreBounded(process->node->replication(), options_.ring_bytes, options_.ring_bytes),
      process);
  Expect(QueuesDownAreBounded(*process->links), process);
}

// What live nodes submitted a while ago, with no fault since, is everywhere.
void Simulation::CheckProgress() {
  const int64_t now_ns = network_->now_ns();
  // A queue of few updates passes few on in a round trip.
  int64_t patience = options_.link_queue_bytes < kFewUpdatesBytes ? 8 : 1;
  // Workers look for another master, then that one waits for all of them.
  if (masters_ > 1) patience *= 2;
  const int64_t bound_ns = patience * kProgressTimeouts * options_.failure_timeout_ns;
  Then& now = history_.emplace_back();
  now.time_ns = now_ns;
  now.generation = ledger_.generation();
  for (const Process* process : current_) {
    const uint64_t origin = process->record().origin;
    if (!process->record().over()) now.submitted[origin] = CounterOf(ledger_.submitted(), origin);
  }
  while (history_.size() > 1 && now_ns - history_[1].time_ns >= bound_ns) history_.pop_front();
  const Then& then = history_.front();
  if (now_ns - then.time_ns < bound_ns) return;
  if (disturbances_ > 0 || now_ns - quiet_since_ns_ < bound_ns) return;
  if (NobodyCanStart()) return;
  CheckTree();
  VersionVector submitted;
  for (const Process* process : current_) {
    const auto found = then.submitted.find(process->record().origin);
    if (!process->record().over() && found != then.submitted.end()) submitted.insert(*found);
  }
  Expect(HasArrived(submitted, master_->received()), nullptr);
  for (const Process* process : current_) {
    const ApplicationRecord& record = process->record();
    if (record.over() || !record.started || record.generation != then.generation) continue;
    Expect(HasArrived(submitted, process->node->received()), process);
  }
}

// Who relays to whom: a worker's parent is the worker that it has a link to, else the master.
void Simulation::CheckTree() {
  if (options_.topology == Topology::kPlain) return;
  std::map<Address, int32_t> ranks;
  for (const Process* process : current_) {
    ranks[network_->address(process->host)] = process->rank;
  }
  std::map<int32_t, int32_t> parents;
  for (const Process* process : current_) {
    const ApplicationRecord& record = process->record();
    if (record.state == ApplicationRecord::State::kFinished) return;  // the tree is dissolving
    if (record.over() || record.origin == 0) continue;
    if (record.generation != ledger_.generation()) {
      if (process->attempt == 0) return;  // between two generations
      continue;                           // one that waits for the next has no place
    }
    if (process->attempt > 0 && !record.started) return;  // it may not have taken its place yet
    int32_t& parent = parents.emplace(process->rank, kTreeRoot).first->second;
    for (const auto& [link, watched] : process->links->open()) {
      const auto above = ranks.find(watched.to);
      const bool of_tree = watched.initiated && !process->node->IsToPeer(link);
      if (!of_tree || above == ranks.end()) continue;
      if (parent != kTreeRoot) Expect("has two parents", process);
      parent = above->second;
    }
  }
  if (parents.size() < 2) return;
  Expect(TreeIsSound(parents, options_.max_children, options_.max_depth), nullptr);
}

// Without a plan the script's writer knows who fails.
void Simulation::CheckEnd() {
  if (options_.plan.faults.empty()) return;
  // Sequenced modes have no snapshot for a live worker, and in a tree one parent after another may
  // be out of reach.
  int64_t silent_ns = 0;
  for (const Fault& fault : options_.plan.faults) {
    if (fault.kind != Fault::Kind::kHarm) silent_ns += fault.for_ns;
  }
  const bool outran_ring = options_.max_staleness >= 0 && options_.topology != Topology::kPlain &&
                           silent_ns > kRetentionTimeouts * options_.failure_timeout_ns;
  for (const auto& process : processes_) {
    const ApplicationRecord& record = process->record();
    const bool excused =
        was_cut_off(process->rank) || (record.ending && masters_ > 1) ||
        options_.plan.MayEnd(process->rank, process->attempt > 0, options_.failure_timeout_ns);
    // Memory links give up a join where nobody answers at that time; the endpoint asks for longer.
    const bool unlucky = process->attempt > 0 && options_.links == SimulatedLinks::kMemory &&
                         record.failure.code == Code::kUnreachable;
    // Where every replica lacks what its maker keeps no longer.
    const bool unkept =
        masters_ > 1 && record.failure.message.find("kept no longer") != std::string::npos;
    if (record.state == ApplicationRecord::State::kFailed && !unlucky && !unkept) {
      Expect(FailsForAReason(record.failure, excused, outran_ring), process.get());
    }
  }
}

void Simulation::Expect(const std::string& broken, const Process* process) {
  if (!broken.empty()) Violate(process == nullptr ? "the master" : process->name(), broken);
}

void Simulation::Violate(const std::string& who, const std::string& what) {
  char when[32];
  std::snprintf(when, sizeof(when), "%.3f ms", static_cast<double>(network_->now_ns()) * 1e-6);
  violations_.push_back("seed " + std::to_string(options_.seed) + " at " + when + ": " + who + " " +
                        what);
  Log(violations_.back());
}

void Simulation::Log(const std::string& line) const {
  if (!log_) return;
  char when[32];
  std::snprintf(when, sizeof(when), "%10.3f ms  ", static_cast<double>(network_->now_ns()) * 1e-6);
  log_(when + line);
}

}  // namespace strom
