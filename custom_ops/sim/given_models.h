// The truth that joint models are judged by: what every worker has given to one, and what any has
// got of it. Each method has its laws, in a file of its own; these hold for all of them. What a
// worker installs is made of the values that workers have given in this generation to this master,
// of each at most once. Nothing is left out of it that a worker has given in time whom no fault has
// struck.
#ifndef KERAS_STROM_SIM_GIVEN_MODELS_H_
#define KERAS_STROM_SIM_GIVEN_MODELS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/joint/joint_plan.h"

namespace strom {

// Whom faults have struck, so that something which it gives may be left out.
class StruckRanks {
 public:
  void Strike(int32_t rank) {
    State& state = states_[rank];
    state.is_struck = true;
    state.is_calm = false;
    ++state.strikes;
  }
  // It has come later than others, which is no fault that lasts.
  void Excuse(int32_t rank) {
    State& state = states_[rank];
    state.is_struck = true;
    ++state.strikes;
  }
  // No fault lasts any more.
  void Calm() {
    for (auto& [rank, state] : states_) state.is_calm = true;
  }
  bool Has(int32_t rank) const {
    const auto found = states_.find(rank);
    return found != states_.end() && found->second.is_struck;
  }
  // How often it was struck; nullopt while a fault lasts. What it gives bears this number: once
  // that has been used, and the number is still the same, the worker is as good as unharmed again.
  std::optional<int64_t> CalmSince(int32_t rank) const {
    const auto found = states_.find(rank);
    if (found == states_.end()) return 0;
    return found->second.is_calm ? std::optional(found->second.strikes) : std::nullopt;
  }
  void Heal(int32_t rank, std::optional<int64_t> calm_since) {
    if (calm_since && calm_since == CalmSince(rank)) states_[rank].is_struck = false;
  }

 private:
  struct State {
    bool is_struck = false;
    bool is_calm = true;
    int64_t strikes = 0;
  };
  std::map<int32_t, State> states_;
};

// So many values that workers have installed were looked at, and so many could not be.
struct ModelTally {
  int64_t checked = 0, unchecked = 0;
};

// Of one generation at one master.
class GivenModels {
 public:
  // What a worker gives, as JointExchange::Give has it.
  struct Given {
    int64_t now_ns = 0;
    int32_t rank = 0;
    uint64_t mark = 0;
    int64_t steps = 0;
    std::vector<float> values;
  };

  // Of a plan with a joint model that is not made of gradients. `start`: the joint model that the
  // generation begins with; nullopt where another master has it from some worker.
  static std::unique_ptr<GivenModels> Make(const JointPlan& plan,
                                           std::optional<std::vector<float>> start,
                                           StruckRanks* struck, ModelTally* tally);
  virtual ~GivenModels() = default;

  // A worker trains from here on; `late`: the others do already.
  virtual void Join(int32_t rank, bool late) = 0;
  // A snapshot, a difference, or after the last step a last snapshot of a shard.
  void Give(Given given) {
    if (given.mark >= kFirstLastMark) lasts_.push_back(given);
    Note(std::move(given));
  }
  // It leaves, and all that it has given is with the master.
  virtual void Drain(int64_t /*now_ns*/, int32_t /*rank*/) {}
  // EASGD: it asks for the joint model.
  virtual void Ask(int32_t /*rank*/) {}
  // It installs the joint model, or the mean, for which it has asked or given. What is wrong with
  // it; "" = nothing.
  virtual std::string Take(int32_t rank, std::span<const float> values) = 0;
  // MPCA: it installs the target of a shard, the latest tick that it knows of being `tick`.
  virtual std::string TakeTarget(int32_t /*rank*/, int32_t /*shard*/, uint64_t /*tick*/,
                                 std::span<const float> /*values*/) {
    return "";
  }
  // What the generation ends with.
  virtual std::string End(std::span<const float> values) = 0;

  // Last snapshots, which those who have ended give again to another master.
  const std::vector<Given>& lasts() const { return lasts_; }

 protected:
  GivenModels(const JointPlan& plan, StruckRanks* struck, ModelTally* tally)
      : plan_(plan), struck_(struck), tally_(tally) {}

  virtual void Note(Given given) = 0;

  const JointPlan plan_;
  StruckRanks* const struck_;
  ModelTally* const tally_;

 private:
  std::vector<Given> lasts_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_GIVEN_MODELS_H_
