// The master's STEP rules of the synchronous and bounded modes. A step is one contribution of every
// member that is stepping, in rank order. A member stops stepping when it is done, lost or waits in
// an average; each takes effect only after what it sent before has stood in a STEP, so different
// numbers of steps on workers never make anybody wait for ever.
#ifndef KERAS_STROM_CORE_REPLICATION_SEQUENCER_H_
#define KERAS_STROM_CORE_REPLICATION_SEQUENCER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/types.h"

namespace strom {

// One process of a rank. Where another has taken its place, what it sent before still stands in
// STEPs, ahead of its successor's.
struct Stepper {
  int32_t rank = 0;
  uint64_t origin = 0;
  friend auto operator<=>(const Stepper&, const Stepper&) = default;
};

// What the sequencer holds at most.
struct SequencerBounds {
  size_t parts = 8192;                      // of one contribution
  size_t step_ids = 260'000;                // of one STEP, which is one message
  int64_t queued_bytes = int64_t{1} << 29;  // beyond it somebody is out of the staleness bound
  int64_t open_bytes = int64_t{1} << 26;    // of incomplete contributions of those who are lost
};

class Sequencer {
 public:
  using Contribution = std::vector<ReceivedUpdate>;

  // `counters`: of each origin at the generation's cut.
  explicit Sequencer(const std::map<Stepper, uint64_t>& counters,
                     const SequencerBounds& bounds = {});

  // One that joins late: it steps from its first contribution on, so nobody waits for that.
  void Join(const Stepper& who, uint64_t counter);

  // An accepted update of `who`, in counter order; `last_part` completes a contribution. Of who is
  // lost, contributions that are incomplete go when there are too many: it cannot complete them.
  void Add(const Stepper& who, ReceivedUpdate update, bool last_part);

  void Done(const Stepper& who, uint64_t final_counter);
  void Lose(const Stepper& who);
  void Wait(const Stepper& who, uint64_t counter);  // in an average, after its update `counter`

  // The next STEP's updates in order, once all that are stepping have contributed.
  std::optional<Contribution> NextStep();
  uint64_t steps() const { return steps_; }

  // Every member that steps and is neither done nor lost waits, and all they sent has been
  // consumed.
  bool BarrierComplete() const;
  void ReleaseBarrier();

  // Everybody is done or lost and nothing is queued.
  bool Finished() const;

  // What is here and stands in no STEP yet.
  Contribution Waiting() const;
  int64_t queued_bytes() const { return queued_bytes_; }
  // Who keeps no bound, live or not: a contribution of too many parts, or, where too much is
  // queued, the most of it.
  struct Excess {
    Stepper who;
    bool of_parts = false;
  };
  std::optional<Excess> FindExcess() const;
  // What is queued of who is lost goes.
  void Discard(const Stepper& who);

 private:
  enum class Mode { kJoining, kStepping, kWaiting, kDone, kLost };
  struct Member {
    Mode mode = Mode::kStepping;
    uint64_t accepted = 0;  // its last update that is here
    uint64_t until = 0;     // kWaiting, kDone: its last update before that
    Contribution open;
    std::deque<Contribution> complete;
    int64_t open_bytes = 0, queued_bytes = 0;  // of `open`; of both
    bool is_void = false;                      // what is open: until its last part
    bool Stepping() const;
  };
  void VoidOpen(Member* member);
  void VoidOpenOfLost();

  const SequencerBounds bounds_;
  std::map<Stepper, Member> members_;
  std::optional<Stepper> many_parts_;  // whose contribution has too many
  int64_t lost_open_bytes_ = 0;
  uint64_t steps_ = 0;
  int64_t queued_bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_SEQUENCER_H_
