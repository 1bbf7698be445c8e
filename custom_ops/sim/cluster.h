// A master and its workers over a MemoryNetwork, each worker driven by a scripted application that
// trains, averages and ends as a real one does. Everything follows from one seed.
//
// The values are small integers in float32, so that sums are exact in any order and the replicas
// can be compared bit for bit with each other and with what was submitted.
#ifndef KERAS_STROM_SIM_CLUSTER_H_
#define KERAS_STROM_SIM_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/master_node.h"
#include "core/worker_node.h"
#include "sim/memory_links.h"

namespace strom {

// What one worker's application does.
struct WorkerScript {
  std::vector<int> steps = {10};                 // of each generation
  std::set<int> average_before = {};             // calls Average(step, ...) before these steps
  bool stop_all = false;                         // Finish(stop = true)
  int64_t think_ns = 3'000'000;                  // mean time of a step
  std::optional<WorkerEvent::Type> die_on = {};  // is killed when it gets this event
  std::optional<int> die_after_steps = {};       // ... or after so many steps
  std::vector<int> cut_off_at = {};  // steps after which its network is gone for a while
  int64_t layout_size = 64;
  uint64_t layout_hash = 5;
  std::string options_text = "same";
  double state = 0;
  uint64_t wrong_hash = 0;                // Verify reports this hash instead of the true one
  std::optional<int> bad_update_at = {};  // this step's update has an index beyond the layout
};

struct ClusterOptions {
  uint64_t seed = 0;
  int32_t max_staleness = -1;
  int64_t failure_timeout_ns = 1'000'000'000;
  int64_t ring_bytes = int64_t{1} << 20;
  int64_t link_queue_bytes = int64_t{1} << 20;
};

class Cluster {
 public:
  Cluster(const ClusterOptions& options, std::vector<WorkerScript> scripts);
  ~Cluster();

  // Runs until every worker has finished, failed or died. What broke a promise is in violations();
  // so is a run that takes longer than `limit_ns` of virtual time.
  void Run(int64_t limit_ns = 600'000'000'000);

  struct Worker;
  Worker& worker(int rank) { return *workers_.at(static_cast<size_t>(rank)); }
  size_t size() const { return workers_.size(); }
  MasterNode& master() { return *master_; }
  const std::vector<MasterEvent>& master_events() const { return master_events_; }
  const std::vector<std::string>& violations() const { return violations_; }
  int64_t now_ns() const { return now_ns_; }

 private:
  void Deliver();
  void Act(Worker* worker);
  void TrainStep(Worker* worker);
  void TakeReceived(Worker* worker);
  void HandleEvent(Worker* worker, WorkerEvent event);
  void Begin(Worker* worker);
  void CheckFinal(Worker* worker);
  void CheckResult(Worker* worker, const std::vector<float>& parameters);
  std::vector<float> ExpectedParameters(const Worker& worker) const;
  void Violation(const Worker& worker, const std::string& what);
  int64_t Random(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  const ClusterOptions options_;
  std::mt19937_64 random_;
  int64_t now_ns_ = 0;
  MemoryNetwork network_;
  LinkLayer* master_host_ = nullptr;
  std::unique_ptr<MasterNode> master_;
  std::vector<std::unique_ptr<Worker>> workers_;
  struct Submitted {
    uint64_t generation;
    std::vector<std::pair<uint32_t, float>> entries;
  };
  std::map<UpdateId, Submitted> submitted_;         // by all workers
  std::map<uint64_t, std::vector<float>> initial_;  // parameters at each generation's start
  std::vector<MasterEvent> master_events_;
  std::vector<std::string> violations_;
};

struct Cluster::Worker {
  enum class State { kWaiting, kTraining, kFinished, kFailed, kDead };
  int32_t rank = 0;
  WorkerScript script;
  LinkLayer* host = nullptr;
  std::unique_ptr<WorkerNode> node;
  State state = State::kWaiting;
  uint64_t generation = 0;
  int step = 0;
  int64_t next_action_ns = kNever;
  bool was_cut_off = false;
  bool averaged = false;  // before the step at hand
  bool stop_heard = false;
  std::vector<float> parameters;
  VersionVector applied;        // last counter taken of each origin
  std::vector<UpdateId> taken;  // of this generation, in order
  std::map<uint64_t, std::vector<UpdateId>> taken_of_generation;
  std::vector<WorkerEvent> averages;
  std::vector<WorkerEvent> results;
  double worst = -1;
  Status failure;
  std::vector<std::string> notices;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_CLUSTER_H_
