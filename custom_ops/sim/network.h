// A datagram network on a virtual clock, for tests: endpoints at addresses, and between any two of
// them loss, duplication, delay, reordering, corruption, partition and pauses, all drawn from one
// seed. The same seed and the same calls give the same run, bit for bit.
//
//   Network network(seed);
//   network.SetPaths({.loss = .05, .jitter_ns = 200'000});
//   const Host master = network.Add(master_options), worker = network.Add(worker_options);
//   network.hooks(master).on_event = [&](int64_t now_ns, LinkEvent event) { ... };
//   network.endpoint(worker).Connect(network.now_ns(), network.address(master), hello);
//   EXPECT_TRUE(network.RunUntil(seconds, [&] { return done; }));
//
// A host is served as the I/O thread serves its socket: datagrams first, then timers, then events,
// then everything there is to send. A paused host does nothing; what arrives meanwhile waits in its
// receive buffer.
#ifndef KERAS_STROM_SIM_NETWORK_H_
#define KERAS_STROM_SIM_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "core/endpoint.h"

namespace strom {

// SplitMix64: small, seeded, and the same on every machine.
class SimulatedRandom final : public RandomSource {
 public:
  explicit SimulatedRandom(uint64_t seed) : state_(seed) {}
  void Fill(std::span<uint8_t> out) override;
  uint64_t Next();
  // True with this probability.
  bool Chance(double probability);
  // Uniform in [0, bound); bound > 0.
  int64_t Below(int64_t bound);

 private:
  uint64_t state_;
};

// What happens to datagrams in one direction between two hosts.
struct PathOptions {
  double loss = 0;         // each with this probability
  double duplication = 0;  // arrives twice
  double corruption = 0;   // arrives with one bit flipped, or cut short
  int64_t delay_ns = 50'000;
  int64_t jitter_ns = 0;  // added, uniform; more than the spacing of datagrams reorders them
  bool blocked = false;   // nothing passes
};

using Host = size_t;

class Network {
 public:
  // What runs on a host above its endpoint; every member may be left empty.
  struct Hooks {
    std::function<void(int64_t now_ns, LinkEvent event)> on_event;
    std::function<int64_t()> next_timeout;
    std::function<void(int64_t now_ns)> on_timeout;
  };
  // Sees every datagram that is sent, before its fate is drawn.
  using Tap = std::function<void(Host from, Host to, Bytes datagram)>;

  explicit Network(uint64_t seed);

  Host Add(const EndpointOptions& options);
  Endpoint& endpoint(Host host) { return *hosts_[host].endpoint; }
  Hooks& hooks(Host host) { return hosts_[host].hooks; }
  Address address(Host host) const { return hosts_[host].address; }

  // All paths, present and future, or one direction between two hosts.
  void SetPaths(const PathOptions& options);
  void SetPath(Host from, Host to, const PathOptions& options);
  // Cuts or heals both directions.
  void SetBlocked(Host a, Host b, bool blocked);
  void SetPaused(Host host, bool paused);
  // Ends the host for good, without a word to anybody.
  void Kill(Host host);
  void SetTap(Tap tap) { tap_ = std::move(tap); }
  // Puts a datagram on the way as if `from` had sent it; it arrives after `delay_ns`, unharmed.
  void Inject(Host from, Host to, std::vector<uint8_t> datagram, int64_t delay_ns = 0);

  int64_t now_ns() const { return now_ns_; }
  SimulatedRandom& random() { return random_; }
  int64_t datagrams_sent() const { return datagrams_sent_; }

  // Runs for `duration_ns` of virtual time, or until `done` is true; returns done().
  bool RunUntil(int64_t duration_ns, const std::function<bool()>& done);
  void RunFor(int64_t duration_ns);

 private:
  struct HostState {
    std::unique_ptr<SimulatedRandom> random;
    std::unique_ptr<Endpoint> endpoint;
    Address address;
    Hooks hooks;
    bool paused = false;
    bool killed = false;
    std::deque<std::pair<Address, std::vector<uint8_t>>> buffer;  // the socket's receive buffer
  };
  struct Arrival {
    int64_t time_ns = 0;
    uint64_t order = 0;
    Host from = 0;
    Host to = 0;
    std::vector<uint8_t> datagram;
    bool operator>(const Arrival& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  void Serve(Host host);
  void DrainEvents(HostState* host);
  void Transmit(Host from, const Address& to, Bytes datagram);
  void Corrupt(std::vector<uint8_t>* datagram);
  void Deliver(Arrival arrival);
  int64_t NextTime() const;
  int64_t NextTimeOf(const HostState& host) const;
  const PathOptions& Path(Host from, Host to) const;

  SimulatedRandom random_;
  int64_t now_ns_ = 1'000'000'000;
  uint64_t next_order_ = 0;
  int64_t datagrams_sent_ = 0;
  std::vector<HostState> hosts_;
  std::map<Address, Host> by_address_;
  PathOptions default_path_;
  std::map<std::pair<Host, Host>, PathOptions> paths_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  Tap tap_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_NETWORK_H_
