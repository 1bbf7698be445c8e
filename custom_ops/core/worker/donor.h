// What a worker that trains gives to those who have joined late: its state, as bytes that only the
// applications understand, as far as the master lets it. core/master/donations.h is the master's
// side.
#ifndef KERAS_STROM_CORE_WORKER_DONOR_H_
#define KERAS_STROM_CORE_WORKER_DONOR_H_

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/types.h"
#include "core/replication/control.h"

namespace strom {

class Donor {
 public:
  void HandleAsk(const AskState& ask);
  // Somebody has not been answered yet.
  bool IsWanted() const;
  // Answers all who have not been; empty = nothing to give. `round`: of gradients, which this
  // worker has not given anything for yet.
  void Donate(const Buffer& donation, uint64_t round = 0);
  void Clear() { asking_.clear(); }

  // The chunks that may go to the master now.
  std::vector<Buffer> TakeChunks(uint64_t generation);

 private:
  struct Asking {
    uint64_t until = 0;
    Buffer donation;  // null = not yet answered
    uint64_t round = 0;
    uint64_t sent = 0;  // bytes of it
  };
  std::map<int32_t, Asking> asking_;  // by rank
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_DONOR_H_
