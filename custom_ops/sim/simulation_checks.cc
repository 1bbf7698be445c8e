// What a Simulation asks of a job, after every tick and now and then.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/replication/version_vector.h"
#include "sim/invariants.h"
#include "sim/simulation.h"
#include "sim/simulation_process.h"

namespace strom {
namespace {

// What a live node submitted is everywhere after so many failure timeouts without a fault. A link
// that was lost is noticed after one, found again within another, and then there is the replay.
constexpr int64_t kProgressTimeouts = 5;
constexpr int64_t kFewUpdatesBytes = 2000;

// What others submit arrives within so much of a failure timeout, whatever happens to some.
constexpr double kUnharmedTimeouts = .5;

// What the master holds is kept for so many failure timeouts.
constexpr int64_t kRetentionTimeouts = 3;

}  // namespace

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

// Law 4: what happens to some changes nothing among those to whom nothing does. In a tree a node
// that is struck stands between others.
void Simulation::CheckUnharmed() {
  const int64_t now_ns = network_->now_ns();
  const bool is_asked = options_.max_staleness < 0 && options_.topology == Topology::kPlain &&
                        options_.link_queue_bytes >= kFewUpdatesBytes && masters_ == 1 &&
                        !scripts_[0].plan.IsJoint();
  if (!is_asked) return;
  const auto bound_ns =
      static_cast<int64_t>(kUnharmedTimeouts * static_cast<double>(options_.failure_timeout_ns));
  const auto then = std::find_if(history_.rbegin(), history_.rend(), [&](const Then& earlier) {
    return now_ns - earlier.time_ns >= bound_ns;
  });
  if (then == history_.rend() || !IsUnharmed(kMasterRank, then->time_ns)) return;
  VersionVector submitted;
  std::vector<const Process*> unharmed;
  for (const Process* process : current_) {
    const ApplicationRecord& record = process->record();
    const bool trains = process->attempt == 0 && record.started && !record.over() &&
                        record.generation == then->generation;
    const auto found = then->submitted.find(record.origin);
    if (!trains || found == then->submitted.end() || !IsUnharmed(process->rank, then->time_ns)) {
      continue;
    }
    submitted.insert(*found);
    unharmed.push_back(process);
  }
  Expect(IsAsFastAsEver(submitted, master_->received()), nullptr);
  for (const Process* process : unharmed) {
    Expect(IsAsFastAsEver(submitted, process->node->received()), process);
  }
}

// Nothing has struck it since long before.
bool Simulation::IsUnharmed(int32_t rank, int64_t since_ns) const {
  const auto struck = struck_.find(rank);
  if (struck == struck_.end()) return rank == kMasterRank || !was_cut_off(rank);
  return struck->second == 0 &&
         struck_until_ns_.at(rank) + kProgressTimeouts * options_.failure_timeout_ns <= since_ns;
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

}  // namespace strom
