// A whole job on a virtual clock: a MasterNode, WorkerNodes with scripted applications, the faults
// of a plan, and the promises of sim/invariants.h checked after every tick. Over datagrams it runs
// the real endpoints (the truth); over memory links it runs many seeds.
//
//   Simulation simulation(DrawJob(seed, SimulatedLinks::kMemory));
//   simulation.Run();
//   EXPECT_EQ(simulation.violations(), {}) << simulation.plan().Text();
//
// Everything follows from the job, so the same job fails in the same way.
#ifndef KERAS_STROM_SIM_SIMULATION_H_
#define KERAS_STROM_SIM_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/master/master_node.h"
#include "core/worker/worker_node.h"
#include "sim/application.h"
#include "sim/fault_plan.h"
#include "sim/ledger.h"
#include "sim/simulated_network.h"
#include "sim/watched_links.h"

namespace strom {

enum class SimulatedLinks { kMemory, kDatagrams };

struct SimulationOptions {
  uint64_t seed = 0;
  SimulatedLinks links = SimulatedLinks::kMemory;
  int32_t max_staleness = -1;
  int32_t min_workers = 0;                 // as in MasterNodeOptions
  std::map<int32_t, int64_t> begins_ns{};  // ranks whose first process begins later than others
  Topology topology = Topology::kPlain;
  int32_t max_children = 2;  // of a node of a mesh
  int32_t max_depth = 4;
  int32_t machines = 1;  // the workers are on so many by turns
  Merging merging = Merging::kOff;
  int64_t merging_interval_ns = 5'000'000;
  int64_t failure_timeout_ns = 1'000'000'000;
  int64_t master_wait_ns = 0;  // as in WorkerNodeOptions
  int64_t ring_bytes = int64_t{1} << 20;
  int64_t link_queue_bytes = int64_t{1} << 20;
  uint32_t first_link_sequence = 0;    // datagrams only: of every link
  uint64_t packets_per_key_phase = 0;  // datagrams only: as in EndpointOptions
  size_t max_origins = kMaxOrigins;    // as in MasterNodeOptions
  double cut_off_at_pieces = 0;  // with this chance who has got the first part of pieces of values
  double cut_off_at_last = 0;    // ... and who is asked for the last parameters of all
  // With this chance a chief that comes for a lost one begins the generation after that which runs.
  double chief_is_ahead = 0;
  FaultPlan plan = {};
  // Of generations that are over nothing is kept, so that what is left is what the nodes hold;
  // their holdings are noted. For runs of many generations.
  bool forgets = false;
  // A host is checked whenever it has been served this often; more than 1 only where vectors have
  // hundreds of origins.
  int64_t check_every = 1;
};

// What nodes held as a generation ended, of each figure that of the node with the most.
struct Holdings {
  int64_t replaced = 0;        // so many processes were by then
  int64_t origins = 0;         // in a vector
  int64_t update_bytes = 0;    // in the ring, and out of order
  int64_t status_bytes = 0;    // the status is this long
  int64_t resident_bytes = 0;  // of this process, the simulator included
};

// One run's options and what each rank's program does.
struct Job {
  SimulationOptions options;
  std::vector<Script> scripts;
};

class Simulation {
 public:
  Simulation(const SimulationOptions& options, std::vector<Script> scripts);
  explicit Simulation(const Job& job) : Simulation(job.options, job.scripts) {}
  ~Simulation();

  // Says every event and fault, for people. Set before Run.
  void SetLog(std::function<void(const std::string& line)> log) { log_ = std::move(log); }

  // Runs until every worker has finished, failed or died, or a promise is broken. A run that takes
  // longer than `limit_ns` of virtual time hangs, which breaks one too.
  void Run(int64_t limit_ns = 600'000'000'000);

  const std::vector<std::string>& violations() const { return violations_; }
  // The latest process of this rank, and whether it has been out of reach by its script.
  const ApplicationRecord& worker(int32_t rank) const;
  bool was_cut_off(int32_t rank) const { return cut_off_.at(static_cast<size_t>(rank)); }
  int32_t size() const { return static_cast<int32_t>(scripts_.size()); }
  // All processes that ever ran of this rank, the latest last.
  std::vector<const ApplicationRecord*> processes(int32_t rank) const;
  const MasterNode& master() const { return *master_; }
  const std::vector<MasterEvent>& master_events() const { return master_events_; }
  const SimulationOptions& options() const { return options_; }
  int64_t now_ns() const { return network_->now_ns(); }
  int64_t ticks() const { return ticks_; }
  // Where the job forgets: at the end of every generation.
  const std::vector<Holdings>& holdings() const { return holdings_; }
  int64_t replaced() const { return replaced_; }
  int64_t drained() const { return drained_; }
  // See WatchedLinks.
  int interrupted_pieces() const;
  int asked_again() const;
  int64_t rejoined() const { return rejoined_; }  // in a generation that ran
  const Ledger& ledger() const { return ledger_; }

 private:
  struct Process;

  Host AddHost(uint8_t key);  // the private one
  void StartProcess(int32_t rank, Host host, int32_t attempt, uint64_t first_generation);
  void StartMaster();
  void BindMaster();
  void BindWorker(Process* process);
  Application::Hooks HooksOf(Process* process);

  // The plan.
  void ScheduleFaults();
  void Begin(const Fault& fault);
  void End(const Fault& fault);
  void EndDisturbance();
  void SetReachable(const std::vector<int32_t>& ranks, bool reachable);
  void SetHeard(const Fault& fault, bool heard);
  void SetPathsOf(const std::vector<int32_t>& ranks, const PathOptions& paths);
  void Strike(int32_t rank);
  void KillProcess(int32_t rank);
  void Replace(int32_t rank);
  void ReplaceMaster();
  const MasterNode& MasterOf(const Process& process) const;
  const JointPlan& PlanOf(const Process& process) const;
  uint64_t FirstGenerationOfReplacement(int32_t rank);
  void CutOff(int32_t rank);
  void CutOffAtPieces(int32_t rank);
  void CutOffNow(int32_t rank, const std::string& why);
  void At(int64_t time_ns, std::function<void()> action);
  Host HostOf(int32_t rank) const;

  // The checks.
  void CheckMaster();
  void CheckWorker(Process* process);
  std::set<uint64_t> LivingOrigins(const Process* process) const;
  void CheckProgress();
  void CheckUnharmed();
  bool IsUnharmed(int32_t rank, int64_t since_ns) const;
  void CheckTree();
  void CheckEnd();
  std::string QueuesDownAreBounded(const WatchedLinks& links) const;
  void Expect(const std::string& broken, const Process* process);
  void Violate(const std::string& who, const std::string& what);

  void NoteHoldings();
  void ForgetWhatIsOver();
  bool Over() const;
  bool NobodyCanStart() const;
  void Log(const std::string& line) const;

  const SimulationOptions options_;
  const std::vector<Script> scripts_;
  std::unique_ptr<SimulatedNetwork> network_;
  Ledger ledger_;
  Host master_host_ = 0;
  std::unique_ptr<WatchedLinks> master_links_;
  std::unique_ptr<MasterNode> master_;
  VersionVector master_received_;  // when it was last checked
  bool master_starts_ = false;     // a generation, since then
  int32_t master_wakes_ = 0;       // see SleepsUntilLater
  uint64_t masters_ = 0;           // so many have there been
  struct LostMaster {
    std::unique_ptr<WatchedLinks> links;
    std::unique_ptr<MasterNode> node;
  };
  std::vector<LostMaster> lost_masters_;             // by epoch
  std::vector<std::unique_ptr<Process>> processes_;  // every one there ever was
  std::vector<Process*> current_;                    // by rank
  std::vector<bool> cut_off_;                        // by rank
  std::multimap<int64_t, std::function<void()>> agenda_;
  int replacements_ = 0;        // processes that are yet to come
  int disturbances_ = 0;        // faults that last
  int64_t quiet_since_ns_ = 0;  // none since then
  struct Then {
    int64_t time_ns;
    uint64_t generation;
    VersionVector submitted;  // by processes that live still
  };
  std::deque<Then> history_;
  std::map<int32_t, int> struck_;                         // by how many faults that last, by rank
  std::map<int32_t, int64_t> struck_until_ns_;            // until then it was, by rank
  std::map<uint64_t, std::map<size_t, UpdateId>> order_;  // of each generation, sequenced modes
  std::vector<MasterEvent> master_events_;
  std::vector<std::string> violations_;
  std::function<void(const std::string&)> log_;
  int64_t ticks_ = 0;
  bool ended_ = false;  // a generation, and what is over is to be forgotten
  std::vector<Holdings> holdings_;
  int64_t replaced_ = 0;
  int64_t drained_ = 0;
  int64_t rejoined_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_SIMULATION_H_
