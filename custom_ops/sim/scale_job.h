// A job of very many workers, in which links are counted and updates are timed: real nodes and the
// real codec over links in memory, in virtual time. Nothing but a few replicas is applied: what
// every worker has been given is counted by what it contains, each update once and in order, and
// compared with the master at the end.
#ifndef KERAS_STROM_SIM_SCALE_JOB_H_
#define KERAS_STROM_SIM_SCALE_JOB_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/master/master_node.h"
#include "core/worker/worker_node.h"
#include "sim/counted_links.h"
#include "sim/memory_links.h"
#include "sim/random.h"

namespace strom {

struct ScaleOptions {
  int64_t workers = 0;
  int64_t merging = 1;
  int64_t rounds = 30;
  int64_t elements = int64_t{1} << 20;
  int64_t entries = 104'857;
  int64_t values = 1;
  int64_t deaths = 0;
  int64_t step_ms = 100;
  int64_t timeout_ms = 1000;
  int64_t max_children = 8;
  int64_t max_depth = 6;
  int64_t seed = 1;
  int64_t replicas = 4;
};

// How long updates have been under way.
class Lateness {
 public:
  void Add(int64_t ns) {
    ++count_;
    sum_ns_ += static_cast<double>(ns);
    max_ns_ = std::max(max_ns_, ns);
    ++by_ms_[static_cast<size_t>(std::min(ns / kMillisecond, kMostMilliseconds))];
  }
  std::string Json() const;

 private:
  static constexpr int64_t kMillisecond = 1'000'000;
  static constexpr int64_t kMostMilliseconds = 60'000;

  int64_t Percentile(double part) const;

  int64_t count_ = 0;
  double sum_ns_ = 0;
  int64_t max_ns_ = 0;
  std::vector<int64_t> by_ms_ = std::vector<int64_t>(kMostMilliseconds + 1);
};

class ScaleJob {
 public:
  explicit ScaleJob(const ScaleOptions& options);
  std::string Run();  // JSON
  bool holds() const { return violations_.empty(); }

 private:
  static constexpr int64_t kMillisecond = 1'000'000;

  struct Worker {
    enum class State { kJoining, kReady, kStarting, kTraining, kOver };
    int32_t rank = 0;
    Host host = 0;
    LinkId master_link = 0;
    std::unique_ptr<CountedLinks> links;
    std::unique_ptr<WorkerNode> node;
    State state = State::kJoining;
    uint64_t origin = 0;
    float threshold = 0;
    int64_t rounds = 0;  // made
    int64_t next_step_ns = kNever;
    int64_t applied = 0;         // updates of anybody
    std::vector<uint32_t> last;  // counters, by the origin's sequence
    std::vector<float> replica;  // of some
  };
  struct Made {
    int64_t submitted_ns = 0;
    int64_t everywhere_ns = 0;  // the latest so far
  };
  // A kind of link, both directions.
  struct LinkSums {
    Traffic down, up;
    double links = 0;  // that were there all the time
  };

  void StartMaster();
  void StartWorker(Worker* worker);
  void Begin(Worker* worker, int64_t now_ns);
  void StartAll();
  void Train();
  void RunUntil(int64_t until_ns);
  void Act(Worker* worker, int64_t now_ns);
  void Handle(Worker* worker, int64_t now_ns, const WorkerEvent& event);
  void Step(Worker* worker, int64_t now_ns);
  std::vector<uint8_t> MakeUpdate(const Worker& worker);
  void Take(Worker* worker, int64_t now_ns);
  void Applied(Worker* worker, int64_t now_ns, uint64_t origin, uint64_t first, uint64_t last);
  void Apply(Bytes message, Worker* worker);
  void CountPublished(const Buffer& update);
  void PlanDeaths();
  void KillDue();
  bool HasConverged() const;
  void CheckEnd();
  void Violate(const std::string& what) {
    constexpr size_t kMostViolations = 10;
    if (violations_.size() < kMostViolations) violations_.push_back(what);
  }
  static bool IsInner(const Worker& worker);
  std::string ResultsJson() const;
  std::string LinksJson() const;
  std::string ControlJson() const;
  std::string TrafficJson(const Traffic& traffic, double links) const;
  double PartOfTime(const CountedLinks::Counted& link) const;
  int64_t step_ns() const { return options_.step_ms * kMillisecond; }
  // So many rounds of all workers have as many entries as there were: the dead make none.
  double full_rounds() const {
    return static_cast<double>(entries_made_) / static_cast<double>(options_.entries);
  }
  bool AllAre(Worker::State state) const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](const auto& worker) { return worker->state == state; });
  }

  const ScaleOptions options_;
  MemoryNetwork network_;
  SimulatedRandom random_;
  bool counts_ = false;
  Host master_host_ = 0;
  std::unique_ptr<CountedLinks> master_links_;
  std::unique_ptr<MasterNode> master_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::vector<Made>> made_;              // by the origin's sequence, by counter - 1
  std::vector<std::pair<int64_t, int32_t>> deaths_;  // when, and whose
  Lateness at_one_, at_all_;
  int64_t entries_made_ = 0;
  int64_t snapshots_ = 0;
  uint64_t last_published_ = 0;
  Traffic published_;
  int64_t published_contents_bytes_ = 0;
  int64_t published_entries_ = 0;
  int64_t killed_ = 0;
  int64_t begin_ns_ = 0, end_ns_ = 0;  // in which updates are made
  double start_cpu_s_ = 0, cpu_s_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_SCALE_JOB_H_
