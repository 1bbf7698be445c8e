// A datagram network on a virtual clock, for tests: endpoints at addresses, and between any two of
// them everything sim/path.h can do to a datagram, all drawn from one seed. The same seed and the
// same calls give the same run, bit for bit.
//
//   Network network(seed);
//   network.SetPaths({.loss = .05, .jitter_ns = 200'000});
//   const Host master = network.Add(master_options), worker = network.Add(worker_options);
//   network.hooks(master).on_event = [&](int64_t now_ns, LinkEvent event) { ... };
//   network.endpoint(worker).Connect(network.now_ns(), network.address(master), key, hello);
//   EXPECT_TRUE(network.RunUntil(seconds, [&] { return done; }));
//
// What arrives at a paused host waits in its receive buffer, which is finite.
#ifndef KERAS_STROM_SIM_NETWORK_H_
#define KERAS_STROM_SIM_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/transport/endpoint.h"
#include "sim/path.h"
#include "sim/random.h"
#include "sim/simulated_network.h"

namespace strom {

class Network final : public SimulatedNetwork {
 public:
  // Sees every datagram that is sent, before its fate is drawn.
  using Tap = std::function<void(Host from, Host to, Bytes datagram)>;

  explicit Network(uint64_t seed) : SimulatedNetwork(seed) {}

  Host Add(const EndpointOptions& options);
  Endpoint& endpoint(Host host) { return *hosts_[host].endpoint; }
  LinkLayer& links(Host host) override { return *hosts_[host].endpoint; }
  Hooks& hooks(Host host) override { return hosts_[host].hooks; }
  Address address(Host host) const override { return hosts_[host].address; }

  void SetPaths(const PathOptions& options) override;
  void SetPath(Host from, Host to, const PathOptions& options) override;
  void SetBlocked(Host a, Host b, bool blocked) override;
  void SetOneWayBlocked(Host from, Host to, bool blocked) override;
  void SetPaused(Host host, bool paused) override { hosts_[host].paused = paused; }
  void Kill(Host host) override;
  void Restart(Host host) override;
  // The host's own line, which all its paths share: a rate and the buffer before it, for what
  // leaves and for what arrives (bytes a second with headers; 0 = no limit).
  void SetLine(Host host, int64_t rate_bytes, int64_t buffer_bytes);
  // The host's process goes on under another address, as behind a NAT that has forgotten it; what
  // is sent to the old one is lost.
  void Move(Host host);

  void SetTap(Tap tap) { tap_ = std::move(tap); }
  // Puts a datagram on the way as if `from` had sent it; it arrives after `delay_ns`, unharmed.
  void Inject(Host from, Host to, std::vector<uint8_t> datagram, int64_t delay_ns = 0);

  int64_t datagrams_sent() const { return datagrams_sent_; }

  bool RunUntil(int64_t duration_ns, const std::function<bool()>& done) override;

 private:
  struct HostState {
    EndpointOptions options;
    std::unique_ptr<SimulatedRandom> random;
    std::unique_ptr<Endpoint> endpoint;
    Address address;
    Hooks hooks;
    Bottleneck outgoing, incoming;
    bool paused = false;
    bool killed = false;
    std::deque<std::pair<Address, std::vector<uint8_t>>> buffer;  // the socket's receive buffer
  };
  struct Arrival {
    int64_t time_ns = 0;
    uint64_t order = 0;
    Address from;
    Host to = 0;
    bool at_host = false;  // has passed the host's line
    std::vector<uint8_t> datagram;
    bool operator>(const Arrival& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  void Serve(Host host);
  void DrainEvents(HostState* host);
  void Transmit(Host from, const Address& to, Bytes datagram);
  void Push(Arrival arrival);
  Arrival Pop();
  void Deliver(Arrival arrival);
  void GiveAddress(Host host);
  int64_t NextTime() const;
  int64_t NextTimeOf(const HostState& host) const;
  Path& PathBetween(Host from, Host to);

  uint64_t next_order_ = 0;
  uint32_t next_address_ = 0;
  int64_t datagrams_sent_ = 0;
  std::deque<HostState> hosts_;
  std::map<Address, Host> by_address_;
  PathOptions default_path_;
  std::map<std::pair<Host, Host>, Path> paths_;
  Cuts cuts_;
  std::vector<Arrival> arrivals_;                           // a heap, the earliest first
  std::vector<uint8_t> out_ = std::vector<uint8_t>(65536);  // the datagram being sent
  Tap tap_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_NETWORK_H_
