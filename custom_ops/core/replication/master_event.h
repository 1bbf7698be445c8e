// What the master tells the log and the runner.
#ifndef KERAS_STROM_CORE_REPLICATION_MASTER_EVENT_H_
#define KERAS_STROM_CORE_REPLICATION_MASTER_EVENT_H_

#include <cstdint>
#include <string>

namespace strom {

// Who joined, left, was lost, rejoined, refused; a generation's start and end; whose state went to
// whom.
struct MasterEvent {
  enum class Type {
    kJoined,
    kLeft,
    kLost,
    kDrained,   // left in order, in the middle of its work, and lost nothing
    kRejoined,  // takes part in a generation that trains already, for the first time or again
    kRefused,
    kStarted,
    kEnded,
    kDonation,
    kSnapshot,    // a live worker that lacked what nobody keeps has been sent the parameters
    kResumed,     // a generation of an earlier master goes on
    kSuperseded,  // there is a later master: this one has stopped
    kNotice
  };
  Type type = Type::kNotice;
  int32_t rank = -1;
  std::string text;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_MASTER_EVENT_H_
