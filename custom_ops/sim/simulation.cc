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
#include "sim/simulation_process.h"

namespace strom {
namespace {

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
  // Who comes while the master is away asks until another one is there.
  options.join_timeout_ns = simulation.master_wait_ns;
  return options;
}

PublicKeyBytes PublicKeyOf(uint8_t key) { return DerivePublicKey(EndpointOf({}, key).private_key); }

// See Rounds::kGiveLast.
bool IsAskedForLast(const LinkEvent& event) {
  ControlMessage word;
  return event.type == LinkEvent::Type::kMessage && event.channel == Channel::kControl &&
         event.payload->front() == Rounds::kType && ParseControl(*event.payload, &word).ok() &&
         std::get<Rounds>(word).where == Rounds::kGiveLast;
}

}  // namespace

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
    if (master_links_->Note(event)) CutOffAtPieces(kChiefRank);
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
  hooks.on_event = [this, process](int64_t now_ns, LinkEvent event) {
    if (process->links->Note(event)) CutOffAtPieces(process->rank);
    if (IsAskedForLast(event) && network_->random().Chance(options_.cut_off_at_last)) {
      CutOffNow(process->rank, "as it is asked for its last parameters");
    }
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
    CheckUnharmed();
    if (std::exchange(ended_, false) && options_.forgets) {
      NoteHoldings();
      ForgetWhatIsOver();
    }
  }
  if (violations_.empty()) CheckEnd();
}

int Simulation::interrupted_pieces() const {
  int interrupted = master_links_->interrupted_pieces();
  for (const auto& process : processes_) interrupted += process->links->interrupted_pieces();
  return interrupted;
}

int Simulation::asked_again() const {
  int asked = master_links_->asked_again();
  for (const LostMaster& lost : lost_masters_) asked += lost.links->asked_again();
  return asked;
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
// start. And one of whom nobody knows an earlier one waits for all.
bool Simulation::NobodyCanStart() const {
  if (masters_ == 1) return false;
  bool any_is_over = false, chief_is_here = false, all_are_new = true;
  for (const Process* process : current_) {
    const ApplicationRecord& record = process->record();
    any_is_over |= record.over();
    if (record.over()) continue;
    if (record.started) return false;
    chief_is_here |= process->rank == kChiefRank;
    all_are_new &= record.origin >> 32 == masters_;
  }
  return !chief_is_here || (any_is_over && all_are_new);
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
      for (const int32_t rank : fault.ranks) ++struck_[rank];
      At(network_->now_ns() + fault.for_ns, [this, fault] {
        End(fault);
        EndDisturbance();
        for (const int32_t rank : fault.ranks) {
          --struck_[rank];
          struck_until_ns_[rank] = network_->now_ns();
        }
      });
    });
  }
}

void Simulation::Begin(const Fault& fault) {
  Log("fault begins: " + FaultPlan{{}, {fault}}.Text());
  for (const int32_t rank : fault.ranks) Strike(rank);
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

void Simulation::EndDisturbance() {
  quiet_since_ns_ = network_->now_ns();
  if (--disturbances_ == 0) ledger_.struck().Calm();
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

// Of what it gives in a round something may be left out from here on; at a lost master anybody's.
void Simulation::Strike(int32_t rank) {
  for (int32_t one = 0; one < size(); ++one) {
    if (one != rank && rank != kMasterRank) continue;
    ledger_.gradients().Strike(one);
    ledger_.struck().Strike(one);
  }
}

void Simulation::KillProcess(int32_t rank) {
  Strike(rank);
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
  StartProcess(rank, host, old.attempt + 1, FirstGenerationOfReplacement(rank));
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
uint64_t Simulation::FirstGenerationOfReplacement(int32_t rank) {
  if (options_.master_wait_ns > 0) return 1;
  if (options_.forgets) return ledger_.generation();
  if (rank == kChiefRank && options_.chief_is_ahead > 0 &&
      network_->random().Chance(options_.chief_is_ahead)) {
    return ledger_.generation() + 1;
  }
  const int64_t choice = network_->random().Below(10);
  if (choice == 0) return ledger_.generation() + 1;
  return choice < 3 ? 1 : ledger_.generation();
}

// What a script asks for: nobody reaches it for up to two failure timeouts.
void Simulation::CutOff(int32_t rank) {
  cut_off_[static_cast<size_t>(rank)] = true;
  Strike(rank);
  ++disturbances_;
  SetReachable({rank}, false);
  At(network_->now_ns() + network_->random().Between(1, 2 * options_.failure_timeout_ns),
     [this, rank] {
       SetReachable({rank}, true);
       EndDisturbance();
     });
}

// In the middle of what comes to it, or, of the chief, from it.
void Simulation::CutOffAtPieces(int32_t rank) {
  // Without the chief the first generation never starts.
  const bool is_needed = rank == kChiefRank && ledger_.generation() == 0;
  if (options_.cut_off_at_pieces == 0 || is_needed) return;
  if (!network_->random().Chance(options_.cut_off_at_pieces)) return;
  CutOffNow(rank, "in the middle of pieces");
}

// Once what has just happened is over.
void Simulation::CutOffNow(int32_t rank, const std::string& why) {
  Log("worker " + std::to_string(rank) + " is cut off " + why);
  At(network_->now_ns(), [this, rank] { CutOff(rank); });
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

// ----------------------------------------------------------------------------------- words

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
