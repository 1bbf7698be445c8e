#include "sim/network.h"

#include <algorithm>
#include <array>

namespace strom {
namespace {

constexpr size_t kReceiveBufferDatagrams = 4096;

}  // namespace

void SimulatedRandom::Fill(std::span<uint8_t> out) {
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(Next() >> 56);
}

uint64_t SimulatedRandom::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

bool SimulatedRandom::Chance(double probability) {
  return probability > 0 && static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
}

int64_t SimulatedRandom::Below(int64_t bound) {
  return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
}

Network::Network(uint64_t seed) : random_(seed) {}

Host Network::Add(const EndpointOptions& options) {
  const Host host = hosts_.size();
  HostState& state = hosts_.emplace_back();
  state.random = std::make_unique<SimulatedRandom>(random_.Next());
  state.endpoint = std::make_unique<Endpoint>(options, state.random.get());
  const uint8_t number = static_cast<uint8_t>(host % 256);
  const uint8_t block = static_cast<uint8_t>(host / 256);
  state.address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, block, number};
  state.address.port = 40000;
  by_address_[state.address] = host;
  return host;
}

void Network::SetPaths(const PathOptions& options) {
  default_path_ = options;
  paths_.clear();
}

void Network::SetPath(Host from, Host to, const PathOptions& options) {
  paths_[{from, to}] = options;
}

void Network::SetBlocked(Host a, Host b, bool blocked) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    PathOptions path = Path(from, to);
    path.blocked = blocked;
    paths_[{from, to}] = path;
  }
}

void Network::SetPaused(Host host, bool paused) { hosts_[host].paused = paused; }

void Network::Kill(Host host) {
  hosts_[host].killed = true;
  hosts_[host].buffer.clear();
}

void Network::Inject(Host from, Host to, std::vector<uint8_t> datagram, int64_t delay_ns) {
  arrivals_.push({now_ns_ + delay_ns, next_order_++, from, to, std::move(datagram)});
}

bool Network::RunUntil(int64_t duration_ns, const std::function<bool()>& done) {
  const int64_t end_ns = now_ns_ + duration_ns;
  // What the test has called since the last run may have left something to send.
  for (Host host = 0; host < hosts_.size(); ++host) Serve(host);
  while (!done()) {
    const int64_t next_ns = NextTime();
    if (next_ns > end_ns) {
      now_ns_ = end_ns;
      break;
    }
    now_ns_ = std::max(now_ns_, next_ns);
    std::vector<bool> touched(hosts_.size());
    while (!arrivals_.empty() && arrivals_.top().time_ns <= now_ns_) {
      touched[arrivals_.top().to] = true;
      Deliver(arrivals_.top());
      arrivals_.pop();
    }
    for (Host host = 0; host < hosts_.size(); ++host) {
      if (touched[host] || NextTimeOf(hosts_[host]) <= now_ns_) Serve(host);
    }
  }
  return done();
}

void Network::RunFor(int64_t duration_ns) {
  RunUntil(duration_ns, [] { return false; });
}

void Network::Serve(Host index) {
  HostState& host = hosts_[index];
  if (host.paused || host.killed) return;
  while (!host.buffer.empty()) {
    const auto [from, datagram] = std::move(host.buffer.front());
    host.buffer.pop_front();
    host.endpoint->HandleDatagram(now_ns_, from, datagram);
  }
  DrainEvents(&host);
  if (host.endpoint->NextTimeout() <= now_ns_) host.endpoint->HandleTimeout(now_ns_);
  DrainEvents(&host);
  if (host.hooks.next_timeout && host.hooks.next_timeout() <= now_ns_) {
    host.hooks.on_timeout(now_ns_);
  }
  std::array<uint8_t, 1500> out;
  Address to;
  while (const size_t size = host.endpoint->PollTransmit(now_ns_, out, &to)) {
    Transmit(index, to, Bytes(out.data(), size));
  }
  DrainEvents(&host);
}

void Network::DrainEvents(HostState* host) {
  while (auto event = host->endpoint->PollEvent()) {
    if (host->hooks.on_event) host->hooks.on_event(now_ns_, std::move(*event));
  }
}

void Network::Transmit(Host from, const Address& address, Bytes datagram) {
  ++datagrams_sent_;
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return;
  const Host to = found->second;
  if (tap_) tap_(from, to, datagram);
  const PathOptions& path = Path(from, to);
  if (path.blocked) return;
  const int copies = random_.Chance(path.duplication) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (random_.Chance(path.loss)) continue;
    std::vector<uint8_t> bytes(datagram.begin(), datagram.end());
    if (random_.Chance(path.corruption)) Corrupt(&bytes);
    const int64_t jitter_ns = path.jitter_ns > 0 ? random_.Below(path.jitter_ns) : 0;
    arrivals_.push(
        {now_ns_ + path.delay_ns + jitter_ns, next_order_++, from, to, std::move(bytes)});
  }
}

void Network::Corrupt(std::vector<uint8_t>* datagram) {
  const int64_t size = static_cast<int64_t>(datagram->size());
  if (random_.Chance(.2)) {
    datagram->resize(static_cast<size_t>(random_.Below(size)));
    return;
  }
  const int64_t bit = random_.Below(size * 8);
  (*datagram)[static_cast<size_t>(bit / 8)] ^= static_cast<uint8_t>(1 << bit % 8);
}

void Network::Deliver(Arrival arrival) {
  HostState& host = hosts_[arrival.to];
  if (host.killed || host.buffer.size() >= kReceiveBufferDatagrams) return;
  host.buffer.emplace_back(hosts_[arrival.from].address, std::move(arrival.datagram));
}

int64_t Network::NextTime() const {
  int64_t next_ns = arrivals_.empty() ? kNever : arrivals_.top().time_ns;
  for (const HostState& host : hosts_) next_ns = std::min(next_ns, NextTimeOf(host));
  return next_ns;
}

int64_t Network::NextTimeOf(const HostState& host) const {
  if (host.paused || host.killed) return kNever;
  const int64_t above_ns = host.hooks.next_timeout ? host.hooks.next_timeout() : kNever;
  return std::min(host.endpoint->NextTimeout(), above_ns);
}

const PathOptions& Network::Path(Host from, Host to) const {
  const auto found = paths_.find({from, to});
  return found == paths_.end() ? default_path_ : found->second;
}

}  // namespace strom
