// The joint model x~ that a master keeps of its workers' models, with its trajectory v~ and the
// target x* that workers are pulled to: the rules of MPCA SGD (Langer, Hall, He, Rahayu, "MPCA
// SGD", equations 4, 5, 8, 9), and of SparkNet and EASGD. Plain arithmetic; who sends what and when
// is core/master/shard_exchange.h's.
//
// In rounds of gradients what stands for x~ is the mean gradient of the last round.
//
// Sums and rules are float64, what is kept float32. A snapshot counts part by part, so that what
// has come of one whose sender is lost counts, and no more.
#ifndef KERAS_STROM_CORE_JOINT_JOINT_MODEL_H_
#define KERAS_STROM_CORE_JOINT_JOINT_MODEL_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/joint/joint_plan.h"
#include "core/joint/joint_values.h"

namespace strom {

// Shards are cut into parts of at most so many elements. A part is what one chunk carries.
inline constexpr int64_t kPartElements = int64_t{1} << 18;

// Elements of a part, the last one of a shard shorter: a multiple of 16. A small model has several
// parts too, so that one is added while the next comes, and in rounds, in which a part's mean
// leaves while later parts still come, more of them.
int64_t PartElements(const strom_method& method, int64_t size);

// Where shard number `shard` of `shards` lies: equal ranges, cut at multiples of 16 elements.
ElementRange ShardOf(int64_t size, int32_t shards, int32_t shard);

// The mean of vectors as long as `mean`, summed in their order as float64: the bits that a round's
// part has.
void MeanInOrder(std::span<const std::vector<float>> values, std::span<float> mean);

class JointModel {
 public:
  // `start` has plan-size elements. The method is a valid one.
  JointModel(const strom_method& method, std::vector<float> start);

  int64_t size() const { return static_cast<int64_t>(joint_.size()); }
  int32_t shards() const { return static_cast<int32_t>(shards_.size()); }
  const ElementRange& shard(int32_t shard) const { return At(shard).range; }
  // Cycles that the shard has finished, and that all have.
  int64_t cycles(int32_t shard) const { return At(shard).cycles; }
  int64_t cycles() const;

  // Training goes on, from the x~ of a fit before or of a checkpoint: all shards have finished
  // `cycles`, by which the schedules go. The trajectory begins anew.
  void BeginAfter(int64_t cycles);

  // The master has been replaced: the trajectory is lost, all shards have finished `cycles`, and
  // the next mean of each takes the place of what is here.
  void Restart(int64_t cycles);

  // Values of a snapshot from element `offset` on, with `steps` own steps behind them. Within one
  // part each snapshot is added once.
  void Add(int64_t offset, std::span<const float> values, int64_t steps);
  // Rounds: a worker's values of a part, in the place of what it has given for this part before.
  // They are added in the order of ranks, so that a mean has the same bits in whatever order they
  // come.
  void Keep(int64_t part, int32_t rank, std::vector<float> values);
  // Rounds: what was kept and has gone into no mean.
  void ForgetGiven();
  // EASGD: x~ += difference.
  void Move(int64_t offset, std::span<const float> difference);
  // EASGD: x~ += alpha (values - x~).
  void MoveTowards(int64_t offset, std::span<const float> values);

  // What was added to the shard becomes a part of it, part by part: first those of
  // [first_part, last_part), then EndCycle. Where nothing was added all stays as it is. In rounds
  // joint() is what it was before, all of it, until EndCycle.
  int64_t first_part(int32_t shard) const { return At(shard).first_part; }
  int64_t last_part(int32_t shard) const;
  ElementRange part(int64_t part) const { return parts_[static_cast<size_t>(part)].range; }
  void UpdatePart(int64_t part);
  void EndCycle(int32_t shard);
  // The same at once.
  void Update(int32_t shard);
  // Rounds of gradients: the mean of a round that was made elsewhere, of as many elements.
  void Install(std::vector<float> mean) { joint_ = std::move(mean); }
  // Rounds: what a part that was updated sends out, until EndCycle: SparkNet the mean, synchronous
  // EASGD x~ as it was.
  std::span<const float> RoundTarget(int64_t part) const;
  // The same of the part that was updated last, where the method has bfloat16: the change of it
  // since the last round, or the mean gradient. The mean has been rounded to what that makes of x~.
  Bytes RoundChange() const { return change_; }

  // (5): x* of a range within one shard, as it was at the end of its last cycle.
  void ReadTarget(const ElementRange& range, float* target) const;
  const std::vector<float>& joint() const { return joint_; }
  const std::vector<float>& trajectory() const { return trajectory_; }
  // Of (7), by the cycles that all shards have finished.
  double alpha() const;

 private:
  struct Shard {
    ElementRange range;
    int64_t first_part = 0;
    int64_t cycles = 0;
    double gamma = 0;          // of the target, since the last cycle
    bool has_changed = false;  // some part in the cycle at hand
    bool restarts = false;
  };
  struct Part {
    ElementRange range;
    int32_t shard = 0;
    double weight = 0;                           // W
    std::map<int32_t, std::vector<float>> kept;  // rounds: by rank
  };

  const Shard& At(int32_t shard) const { return shards_[static_cast<size_t>(shard)]; }
  bool HasRounds() const;
  size_t PartAt(int64_t offset) const;
  // The sums of elements [begin, begin + size) of a part, which are forgotten.
  void TakeSums(const Part& part, int64_t begin, int64_t size, double* sums);
  double WeightOf(int64_t steps) const;
  double Beta(const Shard& shard) const;
  double Gamma(int64_t cycles) const;
  // Calls visit(part, elements of it from `offset` on, theirs in `values`) for each part.
  template <typename Visit>
  void ForParts(int64_t offset, std::span<const float> values, Visit visit);

  const strom_method method_;
  std::vector<Shard> shards_;
  std::vector<Part> parts_;
  std::vector<float> joint_;
  std::vector<float> trajectory_;  // empty where there is no gamma
  std::vector<double> sums_;       // empty before the first Add
  std::vector<uint8_t> change_;    // bfloat16
  std::vector<float> next_;        // rounds: the joint model of the next cycle, as far as it is
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_JOINT_JOINT_MODEL_H_
