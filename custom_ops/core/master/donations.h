// A late joiner's question for another worker's state, at the master: it asks one that trains, the
// chief first, and passes on what that sends, chunk by chunk. It allows the donor only so much
// ahead of the joiner's link, so that it holds little of it. A donor that is lost, silent or has
// nothing makes it ask the next; where all must have one state, all are asked again, a few times,
// and who is only away is waited for.
// core/worker/donor.h is the giving worker's side.
#ifndef KERAS_STROM_CORE_MASTER_DONATIONS_H_
#define KERAS_STROM_CORE_MASTER_DONATIONS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "core/master/master_generation.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/node_status.h"

namespace strom {

class Donations {
 public:
  // `host` and `drops` outlive this. `window_bytes` is how far a donor may be ahead, but at
  // least a chunk. Whole chunks, so that both sides agree on which is the last.
  Donations(int64_t failure_timeout_ns, int64_t window_bytes, GenerationHost* host,
            DropCounters* drops)
      : failure_timeout_ns_(failure_timeout_ns),
        window_bytes_(std::max<uint64_t>(1, static_cast<uint64_t>(window_bytes / kChunkBytes)) *
                      kChunkBytes),
        host_(host),
        drops_(drops) {}

  // A late joiner asks for state. A second question over the same link is ignored.
  void HandleAsk(int64_t now_ns, int32_t joiner, MasterGeneration* generation);
  // A piece of `donor`'s state; `whole` is the chunk as it came.
  void HandleChunk(int64_t now_ns, int32_t donor, const BlobChunk& chunk, const Buffer& whole,
                   MasterGeneration* generation);
  // The link of `rank` is gone: it asks no more.
  void Withdraw(int32_t rank);
  // Those of an earlier generation are void.
  void Clear() { open_.clear(); }

  // After every event, and when NextTimeout is over.
  void Advance(int64_t now_ns, MasterGeneration* generation);
  int64_t NextTimeout() const { return next_look_ns_; }

 private:
  static constexpr int32_t kNobody = -1;

  struct Donation {
    int32_t donor = kNobody;  // ... while one that may be back is waited for
    std::set<int32_t> asked;  // donors so far, in this pass
    int passes = 0;           // in which all were asked
    uint64_t passed_on = 0;   // bytes of this donor's state
    uint64_t total = 0;       // 0 = not yet known
    uint64_t until = 0;       // the donor's window
    int64_t asked_ns = 0;     // by the joiner
    int64_t deadline_ns = 0;  // the donor is silent then
  };

  // False: nobody is left to ask, the joiner has been told so, and the donation is to be removed.
  [[nodiscard]] bool AskNext(int64_t now_ns, int32_t joiner, const std::string& why,
                             Donation* donation, MasterGeneration* generation);
  // Where all must have one state, nobody begins with one of its own.
  void RefuseWithoutState(int32_t joiner, const MasterGeneration& generation);
  bool Widen(int32_t joiner, Donation* donation, const MasterGeneration& generation);

  const int64_t failure_timeout_ns_;
  const uint64_t window_bytes_;
  GenerationHost* const host_;
  DropCounters* const drops_;
  std::map<int32_t, Donation> open_;  // by joiner
  int64_t next_look_ns_ = kNever;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_DONATIONS_H_
