// Who has said HELLO to a master, and how far each has got: what tells a blocked direction from a
// wrong secret. The addresses are those that datagrams bear, so a stranger can make them up: this
// is for messages to people, nothing is decided by it, and its size is bounded.
#ifndef KERAS_STROM_CORE_TRANSPORT_JOINERS_H_
#define KERAS_STROM_CORE_TRANSPORT_JOINERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "core/base/link_layer.h"

namespace strom {

struct Joiner {
  enum class Progress : uint8_t {
    kHeard,        // its HELLO has arrived; whether it hears our RETRY is not known
    kWrongSecret,  // it has come back with the cookie, but with another secret, job or master's key
    kAsked,        // its HELLO was authentic
    kJoined        // its first packet after the WELCOME has arrived
  };
  Progress progress = Progress::kHeard;
  int64_t hellos = 0;
};

class Joiners {
 public:
  static constexpr size_t kMost = 1024;

  // `from` has got so far, or further before. When full, an address that has proved itself by its
  // cookie takes the place of one that has not; others are left out.
  void Note(const Address& from, Joiner::Progress progress) {
    if (joiners_.size() >= kMost && !joiners_.contains(from)) {
      const auto unproved = std::find_if(joiners_.begin(), joiners_.end(), [](const auto& entry) {
        return entry.second.progress == Joiner::Progress::kHeard;
      });
      if (progress == Joiner::Progress::kHeard || unproved == joiners_.end()) return;
      joiners_.erase(unproved);
    }
    Joiner& joiner = joiners_[from];
    joiner.progress = std::max(joiner.progress, progress);
    if (progress != Joiner::Progress::kJoined) ++joiner.hellos;
  }

  const std::map<Address, Joiner>& all() const { return joiners_; }

 private:
  std::map<Address, Joiner> joiners_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_JOINERS_H_
