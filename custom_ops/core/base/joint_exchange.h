// What a worker's own model needs from the network side where workers train on a joint model.
// net/worker_agent.h implements it; a lone worker has none.
#ifndef KERAS_STROM_CORE_BASE_JOINT_EXCHANGE_H_
#define KERAS_STROM_CORE_BASE_JOINT_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace strom {

// Values of a shard of the joint model, or of all of it.
using JointValues = std::shared_ptr<const std::vector<float>>;

// What the training thread is to do before its next step, in this order.
struct JointOrders {
  std::optional<uint64_t> asked;  // the number of the tick that asks for a snapshot
  struct Target {
    int32_t shard = 0;
    JointValues values;
  };
  std::vector<Target> targets;  // take the place of what was pulled to before
  double alpha = 0;             // of the pull
  std::vector<float> spare;     // memory for the next snapshot: that of one which has gone
  // Methods with rounds: the one at hand, and after how many own steps a snapshot is given.
  uint64_t round = 0;
  int64_t steps = 0;

  void AddTarget(int32_t shard, JointValues values) {
    std::erase_if(targets, [&](const Target& target) { return target.shard == shard; });
    targets.push_back({shard, std::move(values)});
  }
  // What `news` has is newer.
  void Merge(JointOrders news) {
    if (news.asked) asked = news.asked;
    for (Target& target : news.targets) AddTarget(target.shard, std::move(target.values));
    if (news.spare.capacity() > 0) spare = std::move(news.spare);
    alpha = news.alpha;
    round = news.round;
    steps = news.steps;
  }
  // What is to be done once goes out; the numbers stay.
  JointOrders Take() {
    JointOrders taken = std::move(*this);
    asked.reset();
    targets.clear();
    return taken;
  }
};

// A gradient with its learning rate behind it, of which parts are sent while others are written.
using GrowingGradient = std::shared_ptr<std::vector<float>>;

class JointExchange {
 public:
  virtual ~JointExchange() = default;

  // See JointOrders::Take.
  virtual JointOrders TakeOrders() = 0;

  // Sends values with `steps` own steps behind them: the snapshot of a tick's shard or of a round,
  // the last one of a shard, or EASGD's difference. `mark` says which (core/joint/joint_plan.h).
  // No values: the snapshot was not finite, and nothing of it counts.
  virtual void Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) = 0;

  // Rounds of gradients, instead of Give: that one is coming; that a part of it (JointModel's
  // parts) is written, and may leave; and that all of it is. What was begun may be void by then:
  // all of it counts as written then, for the round that is at hand. Nobody has the mean before
  // the end.
  virtual void BeginGradient(int64_t iteration, GrowingGradient values) = 0;
  virtual void GivePart(int64_t part) = 0;
  virtual void EndGradient(int64_t iteration, GrowingGradient values) = 0;

  // Asks for the joint model, which AwaitJoint waits for.
  virtual void AskJoint() = 0;

  // Calls `done` once when what was asked for, or the target of the round for which a snapshot was
  // given, is here (TakeJoint), or on failure. Where a master is lost for which another may come it
  // is called without either: TakeJoint has nothing, and what was asked and given is void.
  virtual void AwaitJoint(int64_t timeout_ns, std::function<void(Status)> done) = 0;
  virtual JointValues TakeJoint() = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_JOINT_EXCHANGE_H_
