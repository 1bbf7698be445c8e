// The truth that MPCA's joint model is judged by: x~ and v~ of each shard, cycle by cycle, as they
// follow from what workers have given (core/joint/joint_model.h), within rounding, for sums are
// made as snapshots come.
//
// - A target that a worker installs follows by a few cycles from the one known last, or is one that
//   others have had, or one between; never one before what this worker has had itself.
// - A snapshot is in no more than one cycle: that of the tick which has asked for it, or a later
//   one. That of a worker which trains on and which no fault has struck is in the tick's own cycle
//   if it was given soon after the first for this tick, else in the next that begins well after it.
// - It is weighed by the steps behind it, or where the method says so counts once.
// - The generation ends with what all snapshots of those whom no fault has struck, or who have
//   drained, make of x~.
//
// A snapshot counts part by part: of one that comes late, or whose sender is lost, some parts may
// be in a cycle and others in a later one or in none.
//
// Large models are not judged, nor anything under another master, which has no v~.
#ifndef KERAS_STROM_SIM_CYCLES_OF_SHARDS_H_
#define KERAS_STROM_SIM_CYCLES_OF_SHARDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sim/given_models.h"

namespace strom {

class CyclesOfShards final : public GivenModels {
 public:
  CyclesOfShards(const JointPlan& plan, std::optional<std::vector<float>> start,
                 StruckRanks* struck, ModelTally* tally);

  void Join(int32_t rank, bool late) override;
  void Drain(int64_t now_ns, int32_t rank) override;
  std::string Take(int32_t rank, std::span<const float> values) override;
  std::string TakeTarget(int32_t rank, int32_t shard, uint64_t tick,
                         std::span<const float> values) override;
  std::string End(std::span<const float> values) override;

 protected:
  void Note(Given given) override;

 private:
  struct Snapshot {
    int32_t rank = 0;
    std::optional<int64_t> tick;  // that has asked for it; a last snapshot has none
    int64_t given_ns = 0;
    double weight = 0;
    std::shared_ptr<const std::vector<float>> values;  // of the shard
    std::optional<int64_t> calm_since;
    bool may_be_lost = false;        // its worker has been struck since it was given
    std::optional<int64_t> held_ns;  // its worker has left then, once the master had it
  };
  struct Part {
    ElementRange range;  // within the shard
    std::vector<float> joint, trajectory;
    std::vector<Snapshot> pending;
  };
  struct Shard {
    ElementRange range;
    bool is_known = false;
    std::vector<Part> parts;
    int64_t cycles = 0;                   // that have changed some part of it
    int64_t last_tick = 0;                // that has asked for what is in it
    double gamma = 0;                     // of its target
    std::map<int64_t, int64_t> asked_ns;  // by tick: when the first has given for it
    std::map<uint64_t, int64_t> targets;  // those that were installed, by hash, in order
    // ... and of cycles between them, of which nobody has installed the target yet.
    std::map<int64_t, std::vector<double>> unseen;
    std::map<int32_t, int64_t> had;  // the latest of them, by rank
  };
  // Of each snapshot that is pending for a part, the cycle that it is in, from 0 on; -1 = none.
  using Assignment = std::vector<int64_t>;
  // Of each cycle, whether it has changed some part of the shard.
  using Changes = std::vector<bool>;
  // How a shard may have gone on.
  struct Course {
    Changes changes;
    std::vector<Assignment> of_parts;

    // Its first cycles.
    Course First(int64_t cycles) const;
  };
  struct Element {
    double joint = 0, trajectory = 0;
  };

  double WeightOf(int64_t steps) const;
  double Ramp(int64_t cycles) const;
  double GammaAfter(const Shard& shard, const Changes& changes) const;
  Element Advance(const Shard& shard, const Part& part, const Changes& changes,
                  const Assignment& assignment, size_t element) const;
  bool Fits(const Shard& shard, const Part& part, const Changes& changes,
            const Assignment& assignment, bool is_target, std::span<const float> values) const;
  Assignment Allowed(const Shard& shard, const Snapshot& snapshot,
                     std::span<const int64_t> ticks) const;
  std::optional<bool> Explain(Shard* shard, std::span<const int64_t> ticks, bool is_target,
                              std::span<const float> values);
  void NoteStruck(Shard* shard);
  std::optional<Course> CourseTo(const Shard& shard, const Changes& changes,
                                 const std::vector<std::vector<Assignment>>& allowed,
                                 bool is_target, std::span<const float> values) const;
  static bool IsPendingAlike(const Part& a, const Part& b);
  void NoteUnseen(Shard* shard, const Course& course);
  static std::optional<int64_t> Find(Shard* shard, std::span<const float> values);
  void Install(Shard* shard, const Course& course);

  std::vector<Shard> shards_;
  std::optional<uint64_t> end_;  // the hash of what was looked at
  std::set<int32_t> ended_;      // ranks that have given their last snapshots
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_CYCLES_OF_SHARDS_H_
