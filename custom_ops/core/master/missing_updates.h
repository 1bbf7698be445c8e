// Where updates are merged: what was lost on its way up, with a node or because it came by two
// ways, is asked of its origins, each of which keeps its own.
#ifndef KERAS_STROM_CORE_MASTER_MISSING_UPDATES_H_
#define KERAS_STROM_CORE_MASTER_MISSING_UPDATES_H_

#include <cstdint>

#include "core/base/exchange.h"
#include "core/base/types.h"
#include "core/master/master_generation.h"
#include "core/master/membership.h"
#include "core/replication/relay.h"

namespace strom {

class MissingUpdates {
 public:
  // The pointers outlive this.
  MissingUpdates(int64_t failure_timeout_ns, Relay* relay, const Membership* membership,
                 GenerationHost* host);

  // After every event, and when NextTimeout is over.
  void Ask(int64_t now_ns);
  int64_t NextTimeout() const { return next_look_ns_; }

 private:
  void AskFor(const UpdateRange& range);

  const int64_t patience_ns_;
  Relay* const relay_;
  const Membership* const membership_;
  GenerationHost* const host_;
  int64_t next_look_ns_ = kNever;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MISSING_UPDATES_H_
