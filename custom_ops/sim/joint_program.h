// The part of a scripted program that trains on a joint model: its local model over its node,
// without threads.
#ifndef KERAS_STROM_SIM_JOINT_PROGRAM_H_
#define KERAS_STROM_SIM_JOINT_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/joint_exchange.h"
#include "core/joint/joint_plan.h"
#include "core/joint/local_model.h"
#include "core/worker/worker_node.h"
#include "sim/given_models.h"

namespace strom {

class JointProgram final : public JointExchange {
 public:
  // What those who judge are told.
  struct Hooks {
    // A snapshot, with so many steps behind it, or a gradient, which has no values here.
    std::function<void(GivenModels::Given given)> on_given;
    std::function<void()> on_asked;
    std::function<void(const std::vector<float>& values)> on_taken;
    std::function<void(int32_t shard, uint64_t tick, const std::vector<float>& values)> on_target;
  };

  // `node` outlives it.
  JointProgram(WorkerNode* node, Hooks hooks) : node_(node), hooks_(std::move(hooks)) {}

  // A generation begins, of `workers`.
  void Begin(const JointPlan& plan, int32_t rank, int32_t workers);
  // After a step that has changed `x`, the flat space. False: it waits, and Continue says how long.
  bool Step(int64_t now_ns, int64_t iteration, std::vector<float>* x);
  bool Continue(int64_t now_ns, std::vector<float>* x);
  // Rounds of gradients, instead of Step: Continue adds the mean of all workers' to `x`. Pieces
  // [first, last) of Cut may be given early.
  static std::vector<GradientPiece<const float>> Cut(const std::vector<float>& gradient);
  void GiveEarly(int64_t now_ns, int64_t iteration, const std::vector<float>& gradient,
                 size_t first, size_t last);
  void StepByGradient(int64_t now_ns, int64_t iteration, const std::vector<float>& gradient);
  // Of the round that Continue has ended; empty where there was none, for the master is lost.
  const std::vector<float>& mean() const { return mean_; }
  // After the last one.
  void Finish(int64_t now_ns, int64_t iteration, const std::vector<float>& x);
  // The node's kJoint.
  void HandleJoint(JointValues joint) { joint_ = std::move(joint); }
  bool waits() const { return waits_; }
  const Status& failure() const { return failure_; }

  // --- JointExchange
  JointOrders TakeOrders() override;
  void Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) override;
  void BeginGradient(int64_t iteration, GrowingGradient values) override;
  void GivePart(int64_t part) override { node_->GivePart(now_ns_, part); }
  void EndGradient(int64_t iteration, GrowingGradient values) override;
  void AskJoint() override;
  void AwaitJoint(int64_t, std::function<void(Status)>) override {}  // Continue looks
  JointValues TakeJoint() override;

 private:
  void TakeGradient(int64_t now_ns, std::vector<float>* x);
  std::vector<LocalPiece> Pieces(std::vector<float>* x) const;

  WorkerNode* const node_;
  const Hooks hooks_;
  JointPlan plan_;
  LocalModel local_;
  JointValues joint_;
  std::vector<float> mean_;
  bool waits_ = false;
  bool steps_ = false;
  int32_t rank_ = 0;
  Status failure_;
  int64_t now_ns_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_JOINT_PROGRAM_H_
