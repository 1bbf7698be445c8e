// What runs on a worker above its node: a scripted training program that steps, averages, validates
// and ends as a real one does. It knows nothing of the network below the node.
#ifndef KERAS_STROM_SIM_APPLICATION_H_
#define KERAS_STROM_SIM_APPLICATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/joint/joint_plan.h"
#include "core/worker/worker_node.h"
#include "sim/joint_program.h"
#include "sim/ledger.h"
#include "sim/random.h"

namespace strom {

struct Script {
  std::vector<int> steps = {10};       // of each generation
  std::set<int> average_before = {};   // calls Average before these steps
  int averages = 1;                    // ... so often
  bool averages_meet = false;          // all workers do at the same steps, and nobody is lost
  std::set<int> validate_before = {};  // stands still before these steps: neither sends nor takes
  int64_t validate_ns = 0;
  bool stop_all = false;                         // Finish(stop = true)
  int64_t think_ns = 3'000'000;                  // mean time of a step
  std::optional<WorkerEvent::Type> die_on = {};  // is killed when it gets this event
  std::optional<int> die_after_steps = {};       // ... or after so many steps
  std::vector<int> cut_off_at = {};  // steps after which its network is gone for a while
  int64_t layout_size = 16;
  bool restores = false;  // a process that comes for a lost one may begin with the others' values
  std::optional<int64_t> trained = {};  // by update sharing, so many of the layout; else all
  uint64_t layout_hash = 5;
  std::string options_text = "same";
  JointPlan plan = {};  // training on a joint model; else by update sharing
  int32_t workers = 1;  // of a joint model's job
  double state = 0;
  uint64_t wrong_hash = 0;                // Verify reports this hash instead of the true one
  std::optional<int> bad_update_at = {};  // this step's update has an index beyond the layout
  int64_t donation_bytes = 100;  // what it gives to late joiners; 0 = nothing, -1 = no answer
  int64_t outgoing_cap_bytes = int64_t{16} << 20;  // does not step while more is unacknowledged
};

// What an application has seen; the checks and tests read it.
struct ApplicationRecord {
  enum class State { kWaiting, kTraining, kFinished, kFailed, kDead, kDrained };
  State state = State::kWaiting;
  uint64_t origin = 0;
  uint64_t generation = 0;
  bool started = false;  // has this generation's parameters
  int step = 0;
  int first_step = 0;  // a late joiner goes on here
  Beginning beginning;
  int late_starts = 0;  // generations that it has joined late, or found over
  int ended_starts = 0;
  int donations = 0;        // that it got
  int snapshots = 0;        // in the middle of a generation
  int handed_over = 0;      // replicas, to another master
  int64_t joint_steps = 0;  // of this generation, that were made
  uint64_t rounds = 0;      // of gradients, in what it has
  bool ending = false;      // between FINAL and END
  bool stop_heard = false;
  std::vector<float> parameters;
  VersionVector applied;        // what they contain, own updates included
  std::vector<UpdateId> taken;  // of this generation, in order
  size_t taken_before = 0;      // updates of this generation that came with the snapshot
  std::map<uint64_t, std::vector<UpdateId>> taken_of_generation;
  std::vector<WorkerEvent> averages;
  std::vector<WorkerEvent> results;
  double worst = -1;
  int64_t blocked_ns = 0;  // waited for room in the queue towards the master
  Status failure;
  std::vector<std::string> notices;

  bool over() const { return state != State::kWaiting && state != State::kTraining; }
};

class Application {
 public:
  // What the script does to its surroundings, and what checks look at.
  struct Hooks {
    std::function<void()> die;
    std::function<void()> cut_off;
    std::function<void(const ReceivedUpdate& update)> on_taken;  // before it is applied
    std::function<void()> on_final;                              // everything has been applied
    std::function<void()> on_drained;                            // it leaves: nothing is left here
    std::function<void(const std::vector<float>& parameters)> on_result;
    // Of those who train now.
    std::function<bool(uint64_t generation)> nobody_else_has_started;
    std::function<void(const std::string& what)> on_violation;
  };

  // Begins with `first_generation`. `node` and `ledger` outlive it.
  Application(int32_t rank, const Script& script, int32_t max_staleness, uint64_t first_generation,
              WorkerNode* node, Ledger* ledger, uint64_t seed, Hooks hooks);

  // Takes the node's events and does what is due.
  void Act(int64_t now_ns);
  int64_t NextAction() const { return next_action_ns_; }
  // From here on it looks for a moment between two steps to hand over what it has not sent, and
  // leaves when that is with the master.
  void Drain(int64_t now_ns) {
    drains_ = true;
    if (record_.state == ApplicationRecord::State::kTraining && next_action_ns_ == kNever) {
      next_action_ns_ = now_ns;
    }
  }
  void Die() {
    record_.state = ApplicationRecord::State::kDead;
    next_action_ns_ = kNever;
  }

  // What it has seen in generations that are over, and been told.
  void Forget() {
    record_.taken_of_generation.clear();
    record_.averages.clear();
    record_.results.clear();
    record_.notices.clear();
  }

  const ApplicationRecord& record() const { return record_; }

 private:
  void HandleEvent(int64_t now_ns, WorkerEvent event);
  void Begin(int64_t now_ns);
  void Started(int64_t now_ns, const WorkerEvent& event);
  void CheckDonation(const Buffer& donation);
  void AskAverage(int64_t now_ns);
  void CheckAverage(const WorkerEvent& average);
  std::shared_ptr<std::vector<float>> DrawValues();
  void Continue(int64_t now_ns);
  bool MayStep(int64_t now_ns);
  bool IsReleased() const;
  void HandOver(int64_t now_ns);
  void LeaveOnceHeld(int64_t now_ns);
  void TrainStep(int64_t now_ns);
  void TrainJointStep(int64_t now_ns);
  std::vector<float> DrawGradient();
  void TrainStepByGradient(int64_t now_ns);
  void EndStepByGradient(int64_t now_ns);
  JointProgram::Hooks HooksOfJoint();
  GivenModels* Models();
  void CheckEndOfModels(const std::vector<float>& parameters);
  void NoteRound();
  void LookAtRound(bool ends);
  Buffer StateToGive() const;
  std::shared_ptr<std::vector<float>> ValuesAtEnd();
  void InstallState(const Buffer& donation);
  void EndStep(int64_t now_ns);
  void TakeReceived();
  bool sequenced() const { return max_staleness_ >= 0; }

  const int32_t rank_;
  const Script script_;
  const int32_t max_staleness_;
  WorkerNode* const node_;
  Ledger* const ledger_;
  SimulatedRandom random_;
  const Hooks hooks_;
  JointProgram joint_;
  std::optional<std::vector<float>> gradient_;  // of a step in whose middle it is
  std::optional<uint64_t> round_hash_;  // of the parameters since the last round of gradients
  ApplicationRecord record_;
  int64_t next_action_ns_ = kNever;
  int averaged_ = 0;        // so often before the step at hand
  bool validated_ = false;  // likewise
  bool waits_ = false;      // training, but may not step yet
  bool drains_ = false;
  std::optional<uint64_t> handed_over_ = {};  // all is, when the master holds this own update
  int64_t blocked_since_ns_ = kNever;
  int64_t validates_until_ns_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_APPLICATION_H_
