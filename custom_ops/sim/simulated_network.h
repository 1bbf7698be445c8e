// What the two simulated networks have in common: hosts at addresses on a virtual clock, and the
// faults that strike them. sim/network.h carries datagrams between real endpoints (the truth);
// sim/memory_links.h delivers whole messages without packets (many seeds).
//
// A host is served as the I/O thread serves its socket: what has arrived first, then timers, then
// `after`. Everything follows from one seed and the same calls, so a failing run replays.
#ifndef KERAS_STROM_SIM_SIMULATED_NETWORK_H_
#define KERAS_STROM_SIM_SIMULATED_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "core/base/link_layer.h"
#include "sim/path.h"
#include "sim/random.h"

namespace strom {

using Host = size_t;

// The ways between two hosts that are cut. Cuts of one way may overlap: the last to end heals it.
class Cuts {
 public:
  using Way = std::pair<Host, Host>;
  // One more, or one less; whether that cuts or heals the way.
  bool Count(const Way& way, bool cut) {
    if (cut) return ++times_[way] == 1;
    const auto found = times_.find(way);
    if (found == times_.end() || --found->second > 0) return false;
    times_.erase(found);
    return true;
  }
  bool contains(const Way& way) const { return times_.contains(way); }

 private:
  std::map<Way, int> times_;
};

class SimulatedNetwork {
 public:
  // What runs on a host above its links; every member may be left empty.
  struct Hooks {
    std::function<void(int64_t now_ns, LinkEvent event)> on_event;
    std::function<int64_t()> next_timeout;
    std::function<void(int64_t now_ns)> on_timeout;
    std::function<void(int64_t now_ns)> after;  // whenever the host has been served
  };

  explicit SimulatedNetwork(uint64_t seed) : random_(seed) {}
  virtual ~SimulatedNetwork() = default;

  virtual LinkLayer& links(Host host) = 0;
  virtual Hooks& hooks(Host host) = 0;
  virtual Address address(Host host) const = 0;

  // All paths, present and future, or one direction between two hosts.
  virtual void SetPaths(const PathOptions& options) = 0;
  virtual void SetPath(Host from, Host to, const PathOptions& options) = 0;
  // Cuts or heals both directions, whatever path is set meanwhile; see Cuts.
  virtual void SetBlocked(Host a, Host b, bool blocked) = 0;
  // Cuts or heals one direction: `to` no longer hears `from`.
  virtual void SetOneWayBlocked(Host from, Host to, bool blocked) = 0;
  // A paused host does nothing; what arrives meanwhile waits for it.
  virtual void SetPaused(Host host, bool paused) = 0;
  // Ends the host's process for good, without a word to anybody.
  virtual void Kill(Host host) = 0;
  // A new process at a killed host's address; its hooks are empty.
  virtual void Restart(Host host) = 0;

  int64_t now_ns() const { return now_ns_; }
  SimulatedRandom& random() { return random_; }

  // Runs for `duration_ns` of virtual time, or until `done` is true; returns done(). It is asked
  // after every tick: an instant at which something arrived or came due.
  virtual bool RunUntil(int64_t duration_ns, const std::function<bool()>& done) = 0;
  void RunFor(int64_t duration_ns) {
    RunUntil(duration_ns, [] { return false; });
  }

 protected:
  SimulatedRandom random_;
  int64_t now_ns_ = 1'000'000'000;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_SIMULATED_NETWORK_H_
