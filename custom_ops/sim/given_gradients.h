// The truth that rounds of gradients are judged by: what every worker has given in a round. Its
// mean is that of one gradient each of all whom no fault has struck, and of any of the others, part
// by part; nobody's counts twice or as another.
#ifndef KERAS_STROM_SIM_GIVEN_GRADIENTS_H_
#define KERAS_STROM_SIM_GIVEN_GRADIENTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/joint/joint_plan.h"

namespace strom {

class GivenGradients {
 public:
  // Worker `rank` gives a gradient of the whole joint model, early parts of it first perhaps. It
  // may give another one of the same round, where that is made again.
  void Give(uint64_t generation, uint64_t round, int32_t rank, std::vector<float> gradient);
  // Parts of two gradients of one worker are in it: nobody looks at it.
  void Skip(uint64_t generation, uint64_t round);
  // A fault strikes the worker: from here on it may be left out.
  void Strike(int32_t rank) { struck_.insert(rank); }

  // What is wrong with the mean of a round, of parts as in core/joint/joint_model.h; "" = nothing.
  std::string Check(const JointPlan& plan, uint64_t generation, uint64_t round,
                    std::span<const float> mean);
  // So many means were looked at.
  int64_t checked() const { return checked_; }

 private:
  struct Round {
    std::map<int32_t, std::vector<std::vector<float>>> by_rank;
    std::set<uint64_t> accepted;  // hashes of means
    bool is_skipped = false;
  };
  // Of one worker: a gradient, or null where it is left out.
  using Choice = std::vector<const std::vector<float>*>;

  bool Explains(const std::vector<Choice>& choices, const ElementRange& part, double tolerance,
                std::span<const float> mean) const;

  std::map<std::pair<uint64_t, uint64_t>, Round> rounds_;  // by generation and number
  std::set<int32_t> struck_;
  int64_t checked_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_GIVEN_GRADIENTS_H_
