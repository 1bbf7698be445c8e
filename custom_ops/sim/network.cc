#include "sim/network.h"

#include <algorithm>

namespace strom {
namespace {

constexpr size_t kReceiveBufferDatagrams = 4096;

}  // namespace

Host Network::Add(const EndpointOptions& options) {
  const Host host = hosts_.size();
  HostState& state = hosts_.emplace_back();
  state.options = options;
  state.random = std::make_unique<SimulatedRandom>(random_.Next());
  state.endpoint = std::make_unique<Endpoint>(options, state.random.get());
  GiveAddress(host);
  return host;
}

void Network::GiveAddress(Host host) {
  Address& address = hosts_[host].address;
  const uint32_t number = next_address_++;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10};
  for (size_t i = 0; i < 3; ++i) address.ip[13 + i] = static_cast<uint8_t>(number >> (16 - 8 * i));
  address.port = 40000;
  by_address_[address] = host;
}

void Network::SetPaths(const PathOptions& options) {
  default_path_ = options;
  paths_.clear();
}

void Network::SetPath(Host from, Host to, const PathOptions& options) {
  PathBetween(from, to).Set(options);
}

void Network::SetBlocked(Host a, Host b, bool blocked) {
  SetOneWayBlocked(a, b, blocked);
  SetOneWayBlocked(b, a, blocked);
}

void Network::SetOneWayBlocked(Host from, Host to, bool blocked) {
  cuts_.Count({from, to}, blocked);
}

void Network::Kill(Host host) {
  hosts_[host].killed = true;
  hosts_[host].buffer.clear();
}

void Network::Restart(Host host) {
  HostState& state = hosts_[host];
  STROM_CHECK(state.killed);
  state.hooks = {};
  state.random = std::make_unique<SimulatedRandom>(random_.Next());
  state.endpoint = std::make_unique<Endpoint>(state.options, state.random.get());
  state.killed = state.paused = false;
}

void Network::SetLine(Host host, int64_t rate_bytes, int64_t buffer_bytes) {
  hosts_[host].outgoing.Set(rate_bytes, buffer_bytes);
  hosts_[host].incoming.Set(rate_bytes, buffer_bytes);
}

void Network::Move(Host host) {
  by_address_.erase(hosts_[host].address);
  GiveAddress(host);
}

void Network::Inject(Host from, Host to, std::vector<uint8_t> datagram, int64_t delay_ns) {
  Push({now_ns_ + delay_ns, next_order_++, hosts_[from].address, to, true, std::move(datagram)});
}

bool Network::RunUntil(int64_t duration_ns, const std::function<bool()>& done) {
  const int64_t end_ns = now_ns_ + duration_ns;
  // What the test has called since the last run may have left something to send.
  for (Host host = 0; host < hosts_.size(); ++host) Serve(host);
  std::vector<bool> touched;
  while (!done()) {
    const int64_t next_ns = NextTime();
    if (next_ns > end_ns) {
      now_ns_ = end_ns;
      break;
    }
    now_ns_ = std::max(now_ns_, next_ns);
    touched.assign(hosts_.size(), false);
    while (!arrivals_.empty() && arrivals_.front().time_ns <= now_ns_) {
      Arrival arrival = Pop();
      touched[arrival.to] = true;
      Deliver(std::move(arrival));
    }
    for (Host host = 0; host < hosts_.size(); ++host) {
      if (touched[host] || NextTimeOf(hosts_[host]) <= now_ns_) Serve(host);
    }
  }
  return done();
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
  if (host.hooks.after) host.hooks.after(now_ns_);
  if (host.killed) return;
  Address to;
  while (const size_t size = host.endpoint->PollTransmit(now_ns_, out_, &to)) {
    Transmit(index, to, Bytes(out_).first(size));
  }
  DrainEvents(&host);
}

void Network::DrainEvents(HostState* host) {
  while (!host->killed) {
    auto event = host->endpoint->PollEvent();
    if (!event) return;
    if (host->hooks.on_event) host->hooks.on_event(now_ns_, std::move(*event));
  }
}

void Network::Transmit(Host from, const Address& address, Bytes datagram) {
  ++datagrams_sent_;
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return;
  const Host to = found->second;
  if (tap_) tap_(from, to, datagram);
  const int64_t bytes = static_cast<int64_t>(datagram.size()) + kIpAndUdpBytes;
  const std::optional<int64_t> left_ns = hosts_[from].outgoing.Pass(now_ns_, bytes);
  if (!left_ns || cuts_.contains({from, to})) return;
  for (Path::Arrival& arrival : PathBetween(from, to).Carry(*left_ns, datagram, &random_)) {
    Push({arrival.time_ns, next_order_++, hosts_[from].address, to, false,
          std::move(arrival.datagram)});
  }
}

void Network::Push(Arrival arrival) {
  arrivals_.push_back(std::move(arrival));
  std::push_heap(arrivals_.begin(), arrivals_.end(), std::greater<>());
}

Network::Arrival Network::Pop() {
  std::pop_heap(arrivals_.begin(), arrivals_.end(), std::greater<>());
  Arrival arrival = std::move(arrivals_.back());
  arrivals_.pop_back();
  return arrival;
}

void Network::Deliver(Arrival arrival) {
  HostState& host = hosts_[arrival.to];
  if (!arrival.at_host) {
    const int64_t bytes = static_cast<int64_t>(arrival.datagram.size()) + kIpAndUdpBytes;
    const std::optional<int64_t> here_ns = host.incoming.Pass(arrival.time_ns, bytes);
    if (!here_ns) return;
    arrival.at_host = true;
    if (*here_ns > now_ns_) {
      arrival.time_ns = *here_ns;
      return Push(std::move(arrival));
    }
  }
  if (host.killed || host.buffer.size() >= kReceiveBufferDatagrams) return;
  host.buffer.emplace_back(arrival.from, std::move(arrival.datagram));
}

int64_t Network::NextTime() const {
  int64_t next_ns = arrivals_.empty() ? kNever : arrivals_.front().time_ns;
  for (const HostState& host : hosts_) next_ns = std::min(next_ns, NextTimeOf(host));
  return next_ns;
}

int64_t Network::NextTimeOf(const HostState& host) const {
  if (host.paused || host.killed) return kNever;
  const int64_t above_ns = host.hooks.next_timeout ? host.hooks.next_timeout() : kNever;
  return std::min(host.endpoint->NextTimeout(), above_ns);
}

Path& Network::PathBetween(Host from, Host to) {
  return paths_.try_emplace({from, to}, default_path_).first->second;
}

}  // namespace strom
