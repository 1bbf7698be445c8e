// What a worker has beside its own parameters x where it trains on a joint model: the targets that
// it is pulled to, and how many steps lie behind each shard's last snapshot. One thread's, the one
// that trains; times are arguments.
#ifndef KERAS_STROM_CORE_JOINT_LOCAL_MODEL_H_
#define KERAS_STROM_CORE_JOINT_LOCAL_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/joint_exchange.h"
#include "core/base/parallel.h"
#include "core/base/recent.h"
#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/joint/joint_values.h"
#include "core/joint/pull.h"

namespace strom {

// The parameters, lent for one call: pieces that cover the joint model whole, in its order.
struct LocalPiece {
  std::span<float> values;
  const char* name = nullptr;  // for errors
};

// A variable's gradient, and the place of both in the joint model.
struct PenalizedPiece {
  std::span<float> gradient;
  std::span<const float> values;  // as many
  int64_t offset = 0;
};

// A variable's gradient, or what it is to become, and its place in the joint model.
template <typename Values>
struct GradientPiece {
  std::span<Values> values;
  int64_t offset = 0;
  const char* name = nullptr;  // for errors
};

// What a worker does with the targets of MPCA SGD.
enum class PullKind {
  kStep,      // (7), after each step
  kGradient,  // (6), with Penalize
};

class LocalModel {
 public:
  // A generation begins: no targets, no steps. Without an exchange nobody is there to train with.
  // Workers whose exchanges are each their own begin them at different steps, by their rank.
  void Begin(std::shared_ptr<JointExchange> exchange, int64_t size, const strom_method& method,
             int32_t rank, int32_t workers, PullKind pull = PullKind::kStep);

  // Before a step of the optimizer, where the pull is a part of its gradients: adds that of the
  // step before's targets.
  Status Penalize(std::span<const PenalizedPiece> pieces, const Parallel& parallel) const;
  // After a step of the optimizer. Where result->waits, JointExchange::AwaitJoint and then Install
  // come before the next one; Install changes nothing where the exchange is void. kNotFinite where
  // three snapshots one after another were not finite.
  Status Step(std::span<const LocalPiece> pieces, int64_t iteration, int64_t now_ns,
              const Parallel& parallel, strom_pull_result* result);
  Status Install(std::span<const LocalPiece> pieces, int64_t now_ns, const Parallel& parallel,
                 strom_pull_result* result);
  // Rounds of gradients, instead: before a step of the optimizer, gives this worker's gradient,
  // with zeros where there is no piece, and the learning rate. Pieces may be given early, as they
  // are computed, so that parts leave meanwhile; GiveGradient has all of them again, and copies
  // those that were not. JointExchange::AwaitJoint and then TakeGradient come before the step.
  // TakeGradient writes the mean of all workers', and the rate with which all step. kNotFinite
  // where the mean is not finite, unless it `may_overflow`: the optimizer scales its loss and
  // leaves out such a step. kMasterLost where the exchange is void. Step then only counts.
  Status GiveEarly(std::span<const GradientPiece<const float>> pieces, float rate,
                   int64_t iteration, const Parallel& parallel);
  Status GiveGradient(std::span<const GradientPiece<const float>> pieces, float rate,
                      int64_t iteration, int64_t now_ns, const Parallel& parallel);
  Status TakeGradient(std::span<const GradientPiece<float>> pieces, bool may_overflow,
                      int64_t now_ns, const Parallel& parallel, float* rate);
  // After the last step: the last snapshot of everything, but for shards that are not finite;
  // kNotFinite where there are such.
  Status Finish(std::span<const float> values, int64_t iteration);

  const std::shared_ptr<JointExchange>& exchange() const { return exchange_; }

 private:
  struct Shard {
    ElementRange range;
    JointValues target;
    int64_t steps = 0;  // tau: own steps since its last snapshot
    int64_t asked_ns = 0;
    Divergence apart;       // when the target came
    bool is_apart = false;  // that has been measured
  };
  // The pull of a piece towards its target, and how far they are apart before.
  struct Way {
    std::span<float> own;
    std::span<const float> target;
    Shard* shard = nullptr;
    Divergence apart;
  };

  // A gradient that is being given.
  struct Giving {
    GrowingGradient values;
    std::vector<int64_t> missing;        // of each part, elements
    std::map<int64_t, int64_t> written;  // offset and size of the pieces that are there
  };

  Status CheckCovers(std::span<const LocalPiece> pieces) const;
  template <typename Values>
  Status CheckWithin(std::span<const GradientPiece<Values>> pieces) const;
  void BeginGiving(float rate, int64_t iteration);
  std::vector<GradientPiece<const float>> Copy(std::span<const GradientPiece<const float>> pieces,
                                               const Parallel& parallel);
  void GiveParts(const GradientPiece<const float>& piece);
  Status StepOfRounds(std::span<const LocalPiece> pieces, JointOrders orders, int64_t iteration,
                      int64_t now_ns, const Parallel& parallel);
  Status GiveShard(std::span<const LocalPiece> pieces, uint64_t mark, std::vector<float> memory,
                   Shard* shard, int64_t iteration, int64_t now_ns, const Parallel& parallel);
  void Pull(std::span<const LocalPiece> pieces, float alpha, const Parallel& parallel);
  void NoteDistance(std::span<const Way> ways);
  Status NoteGiven(const char* bad);
  void NoteCycle(int64_t steps, int64_t since_ns, int64_t now_ns);
  int64_t StepsToExchange(const JointOrders& orders) const;

  std::shared_ptr<JointExchange> exchange_;
  strom_method method_{};
  PullKind pull_ = PullKind::kStep;
  int64_t size_ = 0;
  std::vector<Shard> shards_;
  int32_t bad_snapshots_ = 0;  // one after another
  strom_pull_result told_{};
  bool waits_ = false;
  std::optional<Giving> giving_;

  // Methods with exchanges that training waits for.
  int64_t since_exchange_ = 0;  // own steps
  int64_t first_extra_ = 0;     // steps that the first exchange of this rank comes earlier
  uint64_t exchanges_ = 0;
  int64_t iteration_ = 0;
  int64_t waits_since_ns_ = 0;
  int64_t exchanged_ns_ = 0;  // when the last one ended; 0 = none has
  // Of the latest exchanges, to choose how many steps lie between two.
  static constexpr size_t kRemembered = 5;
  Recent<double> wait_seconds_{kRemembered}, step_seconds_{kRemembered};
  int32_t workers_ = 1;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_JOINT_LOCAL_MODEL_H_
