// A simulated network of LinkLayers without packets, for tests of what stands above the links.
//
// Every message takes a random time; control and state stay in order, updates overtake each other.
// What a path does to datagrams a link would make good, so here it costs time: a lost datagram is a
// resend later, a rate spaces messages out. A path that is silent for the failure timeout (blocked,
// or an end of it paused or dead) takes the connection down at both ends, and what was under way is
// lost.
#ifndef KERAS_STROM_SIM_MEMORY_LINKS_H_
#define KERAS_STROM_SIM_MEMORY_LINKS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "sim/simulated_network.h"

namespace strom {

class MemoryNetwork final : public SimulatedNetwork {
 public:
  MemoryNetwork(uint64_t seed, int64_t failure_timeout_ns);
  ~MemoryNetwork() override;

  Host Add();
  LinkLayer& links(Host host) override;
  Hooks& hooks(Host host) override;
  Address address(Host host) const override;

  void SetPaths(const PathOptions& options) override;
  void SetPath(Host from, Host to, const PathOptions& options) override;
  void SetBlocked(Host a, Host b, bool blocked) override;
  // Without acknowledgements nothing goes on the other way either, and so it is here at once.
  void SetOneWayBlocked(Host from, Host to, bool blocked) override {
    SetBlocked(from, to, blocked);
  }
  void SetPaused(Host host, bool paused) override;
  void Kill(Host host) override;
  void Restart(Host host) override;

  bool RunUntil(int64_t duration_ns, const std::function<bool()>& done) override;

 private:
  class Links;
  struct HostState;
  struct Connection;
  struct Delivery {
    enum class Kind {
      kEvent,    // what the other end said
      kSuspect,  // 30 % of the failure timeout without a word
      kSilence   // all of it
    };
    int64_t due_ns = 0;
    uint64_t sequence = 0;
    Connection* connection = nullptr;
    int to = 0;  // index of the end
    Kind kind = Kind::kEvent;
    uint64_t stall = 0;  // kSuspect, kSilence: of which stall
    LinkEvent event = {};
  };
  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const {
      return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.sequence > b.sequence;
    }
  };
  struct End {
    Host host = 0;
    LinkId link = 0;
    bool open = false;  // still hears of this connection
    // Of what this end sent, by channel.
    int64_t queued_bytes[kChannels] = {};
    int64_t last_arrival_ns[kChannels] = {};
    uint64_t voided_before[kChannels] = {};
    bool held_back = false;  // of what is sent to it
    std::vector<Delivery> held = {};
  };
  struct Connection {
    End ends[2] = {};  // initiator, responder
    bool up = false;
    bool cut = false;  // one end has given it up
    int64_t base_delay_ns = 0;
    int stalls = 0;                      // reasons why nothing passes
    uint64_t stall = 0;                  // counts the times it stopped
    std::vector<Delivery> stalled = {};  // waits until something passes again
  };

  Connection* Open(Host from, Host to);
  void Post(int64_t due_ns, Connection* connection, int to, LinkEvent event);
  void PostSilence(Connection* connection, int to, int64_t delay_ns, Delivery::Kind kind);
  void Deliver(Delivery delivery);
  void Silence(Delivery delivery);
  void Stall(Connection* connection);
  void Unstall(Connection* connection);
  int StallsBetween(Host a, Host b) const;
  template <typename Visit>
  void ForConnectionsOf(Host host, Visit visit);
  int64_t RandomDelay(const Connection& connection, int to, int64_t bytes);
  Path& PathBetween(Host from, Host to);
  void Serve(Host host);
  void Schedule(Host host);
  void Touch(Host host);

  const int64_t failure_timeout_ns_;
  uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<HostState>> hosts_;
  std::map<Address, Host> by_address_;
  std::deque<Connection> connections_;
  PathOptions default_path_ = {.jitter_ns = 5'000'000};
  std::map<std::pair<Host, Host>, Path> paths_;
  Cuts cuts_;  // the smaller host first
  std::priority_queue<Delivery, std::vector<Delivery>, Later> deliveries_;
  // When hosts are due; an entry that is not the host's `scheduled_ns` is an old one.
  std::priority_queue<std::pair<int64_t, Host>, std::vector<std::pair<int64_t, Host>>,
                      std::greater<>>
      timers_;
  std::vector<Host> touched_;  // in this tick
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_MEMORY_LINKS_H_
