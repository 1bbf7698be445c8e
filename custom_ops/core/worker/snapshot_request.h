// A live worker's request for a snapshot, one at a time, where the ring of its parent no longer
// reaches back to what it has. core/master/late_joins.h is the master's side.
//
// The master names the snapshot's cut; from then on what the cut covers counts as received, so that
// the relay goes on while the parameters are on their way. The application gets them in one piece
// with everything that this worker has beyond the cut, its own updates too.
#ifndef KERAS_STROM_CORE_WORKER_SNAPSHOT_REQUEST_H_
#define KERAS_STROM_CORE_WORKER_SNAPSHOT_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/exchange.h"
#include "core/replication/control.h"

namespace strom {

class SnapshotRequest {
 public:
  // The parent says that this worker needs one. False: one is outstanding.
  bool Begin() {
    if (std::exchange(outstanding_, true)) {
      behind_again_ = true;
      return false;
    }
    behind_again_ = false;
    return true;
  }
  // It has to be asked for (again): over a link that is new, nothing of the last answer will come.
  void AskAgain() { named_.reset(); }
  // The master's answer. False: nobody waits for it.
  bool Name(const SnapshotCut& named) {
    if (!outstanding_ || named_) return false;
    named_ = named;
    has_fast_forwarded_ = true;
    return true;
  }
  // The parameters may arrive before the SNAPSHOT message that says which cut they belong to.
  void AddParameters(uint64_t number, std::shared_ptr<const std::vector<float>> parameters) {
    parameters_ = {number, std::move(parameters)};
  }
  // Both are here: the request is over.
  std::optional<Snapshot> TakeWhole() {
    if (!named_ || parameters_.second == nullptr || parameters_.first != named_->snapshot) {
      return std::nullopt;
    }
    Snapshot whole{std::move(parameters_.second), std::move(named_->cut)};
    Clear();
    return whole;
  }
  void Clear() {
    outstanding_ = has_fast_forwarded_ = false;
    named_.reset();
    parameters_ = {};
  }

  bool is_outstanding() const { return outstanding_; }
  // What has been received since an answer came follows on a snapshot that is not here yet.
  bool has_fast_forwarded() const { return has_fast_forwarded_; }
  // Since Begin the parent has said once more that it cannot help.
  bool behind_again() const { return behind_again_; }

 private:
  bool outstanding_ = false;
  bool behind_again_ = false;
  bool has_fast_forwarded_ = false;
  std::optional<SnapshotCut> named_;
  std::pair<uint64_t, std::shared_ptr<const std::vector<float>>> parameters_;  // number, values
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_SNAPSHOT_REQUEST_H_
