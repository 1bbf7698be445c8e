// What goes wrong in one run, drawn from a seed: it can be printed, and it says which workers it
// may cost their lives. A worker that fails without such an excuse is a bug.
#ifndef KERAS_STROM_SIM_FAULT_PLAN_H_
#define KERAS_STROM_SIM_FAULT_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/path.h"

namespace strom {

// The master's number among the ranks that a fault strikes.
inline constexpr int32_t kMasterRank = -1;

struct Fault {
  enum class Kind {
    kPause,      // the processes stand still
    kKill,       // they are gone for good
    kRestart,    // they are gone, and others come in their place
    kDrain,      // the same, but they have so long to hand over what they have not sent
    kPartition,  // they reach each other, but nobody else does
    kDeaf,       // they hear nobody else, who hears them
    kMute,       // nobody else hears them, whom they hear
    kHarm        // all their paths are as bad as `paths`
  };
  Kind kind = Kind::kPause;
  int64_t at_ns = 0;   // after the first generation has started
  int64_t for_ns = 0;  // kKill: 0
  std::vector<int32_t> ranks;
  PathOptions paths = {};            // kHarm
  std::optional<int32_t> only = {};  // kDeaf, kMute: only the paths between them and this one
};

// What a plan is drawn for.
struct FaultBounds {
  int32_t workers = 5;
  int64_t span_ns = 2'000'000'000;  // faults begin within so long
  int64_t failure_timeout_ns = 1'000'000'000;
  bool master_too = true;     // the master may stand still
  bool replacements = false;  // what may end processes replaces them, several at once now and then
  bool drains = false;        // most of what may end processes lets them drain
  bool masters = false;       // the master is gone once or twice, and another one comes
  bool silences = false;      // nobody dies: workers stand still for longer than anything is kept
  bool one_way = false;       // of most faults one direction of paths is cut
  bool everybody = false;     // all workers are gone about at once, the chief comes back first
  bool long_lines = false;    // paths between sites: far, jittered, behind deep queues or a policer
};

struct FaultPlan {
  PathOptions paths;          // from the beginning
  std::vector<Fault> faults;  // by time

  // At least three faults. Two workers or more are struck by none that may end them.
  static FaultPlan Draw(uint64_t seed, const FaultBounds& bounds);

  // Whether some fault may end this worker's process, or its replacement's: it dies in it, or was
  // out of reach for about the failure timeout.
  bool MayEnd(int32_t rank, bool is_replacement, int64_t failure_timeout_ns) const;
  // One line a fault, with times in milliseconds.
  std::string Text() const;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_FAULT_PLAN_H_
