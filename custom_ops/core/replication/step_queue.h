// When an accepted update may be applied: at once in asynchronous mode, in its STEP in sequenced
// modes. What may be applied then waits in core/replication/inbox.h for the training step.
//
// Asynchronous mode: the others' updates, in acceptance order. Sequenced modes: updates wait until
// their STEP is here, and a STEP until all its updates are; then they are released in its order.
#ifndef KERAS_STROM_CORE_REPLICATION_STEP_QUEUE_H_
#define KERAS_STROM_CORE_REPLICATION_STEP_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/types.h"

namespace strom {

class StepQueue {
 public:
  StepQueue(bool sequenced, uint64_t own_origin) : sequenced_(sequenced), own_origin_(own_origin) {}

  // An accepted update, own ones included.
  void Add(ReceivedUpdate update);

  // The next STEP. kCorrupt where its number is not the next or it names an update twice.
  Status AddStep(uint64_t step, std::vector<UpdateId> ids);

  // A new generation: what waits belongs to the one before, and nobody applies it any more.
  void Begin();
  // It has started: STEPs count from `step`, and what `cut` covers came with the snapshot.
  void Restart(const VersionVector& cut, uint64_t step);

  std::vector<ReceivedUpdate> Take();

  uint64_t released_steps() const { return released_steps_; }
  // STEPs released that held a contribution of this worker.
  int64_t own_released_steps() const { return own_released_steps_; }
  size_t waiting() const { return waiting_.size(); }

 private:
  void Release();

  bool sequenced_;
  uint64_t own_origin_;
  std::map<UpdateId, Buffer> waiting_;
  std::deque<std::vector<UpdateId>> steps_;
  uint64_t released_steps_ = 0;
  int64_t own_released_steps_ = 0;
  std::vector<ReceivedUpdate> ready_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_STEP_QUEUE_H_
