// How long merged messages wait for one another: at most so long as a node is told, and a small
// part of the time that a step takes, so that merging makes nobody's updates a step later.
#ifndef KERAS_STROM_CORE_REPLICATION_PACE_H_
#define KERAS_STROM_CORE_REPLICATION_PACE_H_

#include <algorithm>
#include <cstdint>

namespace strom {

class Pace {
 public:
  // Never longer than kMostPace, whatever a master says.
  explicit Pace(int64_t most_ns = 0) : most_ns_(std::clamp<int64_t>(most_ns, 0, kMostPace)) {}

  // An update of this iteration has been made, here or by any worker.
  void Note(int64_t now_ns, uint64_t iteration) {
    const uint64_t apart = std::max(iteration, iteration_) - std::min(iteration, iteration_);
    // A number far from the others tells nothing of time, and they go on from where they were.
    const bool follows = is_known_ && apart <= kMostStepsAtOnce;
    if (follows && iteration <= iteration_) return;
    if (follows) {
      const int64_t step_ns = (now_ns - noted_ns_) / static_cast<int64_t>(iteration - iteration_);
      // One pause, such as a validation, does not count for long.
      step_ns_ = step_ns_ < 0 ? step_ns : step_ns_ + (step_ns - step_ns_) / kSteps;
    }
    is_known_ = true;
    iteration_ = iteration;
    noted_ns_ = now_ns;
  }

  // Between two messages.
  int64_t interval_ns() const {
    return step_ns_ < 0 ? most_ns_ : std::min(most_ns_, step_ns_ / kMessagesOfStep);
  }

 private:
  static constexpr int64_t kMostPace = 60'000'000'000;
  static constexpr int64_t kMessagesOfStep = 16;
  static constexpr int64_t kSteps = 8;
  static constexpr uint64_t kMostStepsAtOnce = 1000;

  int64_t most_ns_ = 0;
  bool is_known_ = false;
  uint64_t iteration_ = 0;
  int64_t noted_ns_ = 0;
  int64_t step_ns_ = -1;  // not known yet
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_PACE_H_
