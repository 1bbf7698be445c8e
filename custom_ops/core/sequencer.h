// The master's STEP rules of the synchronous and bounded modes. A step is one contribution of every
// member that is stepping, in rank order. A member stops stepping when it is done, lost or waits in
// an average; each takes effect only after what it sent before has stood in a STEP, so different
// numbers of steps on workers never make anybody wait for ever.
#ifndef KERAS_STROM_CORE_SEQUENCER_H_
#define KERAS_STROM_CORE_SEQUENCER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/exchange.h"
#include "core/types.h"

namespace strom {

class Sequencer {
 public:
  using Contribution = std::vector<ReceivedUpdate>;

  // `counters`: rank -> its origin's counter at the generation's cut.
  explicit Sequencer(const std::map<int32_t, uint64_t>& counters);

  // An accepted update of `rank`, in counter order; `last_part` completes a contribution.
  void Add(int32_t rank, ReceivedUpdate update, bool last_part);

  void Done(int32_t rank, uint64_t final_counter);
  void Lose(int32_t rank);
  void Wait(int32_t rank, uint64_t counter);  // in an average, after its update `counter`

  // The next STEP's updates in order, once all that are stepping have contributed.
  std::optional<Contribution> NextStep();
  uint64_t steps() const { return steps_; }

  // Every member that is neither done nor lost waits, and all they sent has been consumed.
  bool BarrierComplete() const;
  void ReleaseBarrier();

  // Everybody is done or lost and nothing is queued.
  bool Finished() const;

  int64_t queued_bytes() const { return queued_bytes_; }

 private:
  enum class Mode { kStepping, kWaiting, kDone, kLost };
  struct Member {
    Mode mode = Mode::kStepping;
    uint64_t accepted = 0;  // its last update that is here
    uint64_t until = 0;     // kWaiting, kDone: its last update before that
    Contribution open;
    std::deque<Contribution> complete;
    bool Stepping() const;
  };

  std::map<int32_t, Member> members_;
  uint64_t steps_ = 0;
  int64_t queued_bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_SEQUENCER_H_
