#include "sim/memory_links.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace strom {
namespace {

// What a lost datagram costs before its resend has arrived.
constexpr int64_t kResendNs = 3'000'000;

std::pair<Host, Host> Pair(Host a, Host b) { return {std::min(a, b), std::max(a, b)}; }

}  // namespace

// One host's interface to the network.
class MemoryNetwork::Links final : public LinkLayer {
 public:
  Links(MemoryNetwork* network, Host host) : network_(network), host_(host) {}

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override;
  void Accept(int64_t now_ns, LinkId link, Buffer welcome) override;
  void Refuse(int64_t now_ns, LinkId link, const std::string& reason) override;
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override;
  int64_t QueuedBytes(LinkId link) const override;
  std::optional<Address> PeerAddress(LinkId link) const override;
  void Void(int64_t now_ns, LinkId link, Channel channel) override;
  void HoldBack(int64_t now_ns, LinkId link, bool hold) override;
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override;

  struct Place {
    Connection* connection;
    int side;  // which end is ours
  };
  // Takes one end of `connection`.
  LinkId Take(Connection* connection, int side) {
    links_[++last_link_] = {connection, side};
    connection->ends[side] = {.host = host_, .link = last_link_, .open = true};
    return last_link_;
  }
  const std::map<LinkId, Place>& places() const { return links_; }
  // Names of links are never reused, also not by the next process.
  void Forget() { links_.clear(); }

 private:
  End* Own(LinkId link) const {
    const auto found = links_.find(link);
    return found == links_.end() ? nullptr : &found->second.connection->ends[found->second.side];
  }

  MemoryNetwork* const network_;
  const Host host_;
  LinkId last_link_ = 0;
  std::map<LinkId, Place> links_;
};

struct MemoryNetwork::HostState {
  HostState(MemoryNetwork* network, Host host) : links(network, host) {}
  Links links;
  Hooks hooks;
  Address address;
  bool paused = false;
  bool killed = false;
  std::vector<Delivery> silences;  // found while it was paused
  int64_t scheduled_ns = kNever;
  bool touched = false;
};

MemoryNetwork::MemoryNetwork(uint64_t seed, int64_t failure_timeout_ns)
    : SimulatedNetwork(seed), failure_timeout_ns_(failure_timeout_ns) {}
MemoryNetwork::~MemoryNetwork() = default;

Host MemoryNetwork::Add() {
  const Host host = hosts_.size();
  hosts_.push_back(std::make_unique<HostState>(this, host));
  Address& address = hosts_.back()->address;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10};
  const size_t number = host + 1;
  for (size_t i = 0; i < 3; ++i) address.ip[13 + i] = static_cast<uint8_t>(number >> (16 - 8 * i));
  address.port = 4000;
  by_address_[address] = host;
  return host;
}

LinkLayer& MemoryNetwork::links(Host host) { return hosts_[host]->links; }
SimulatedNetwork::Hooks& MemoryNetwork::hooks(Host host) { return hosts_[host]->hooks; }
Address MemoryNetwork::address(Host host) const { return hosts_[host]->address; }

// ----------------------------------------------------------------------------------- faults

void MemoryNetwork::SetPaths(const PathOptions& options) {
  default_path_ = options;
  paths_.clear();
}

void MemoryNetwork::SetPath(Host from, Host to, const PathOptions& options) {
  PathBetween(from, to).Set(options);
}

void MemoryNetwork::SetBlocked(Host a, Host b, bool blocked) {
  if (!cuts_.Count(Pair(a, b), blocked)) return;
  ForConnectionsOf(a, [&](Connection* connection, int side) {
    if (connection->ends[1 - side].host != b) return;
    blocked ? Stall(connection) : Unstall(connection);
  });
}

void MemoryNetwork::SetPaused(Host host, bool paused) {
  HostState& state = *hosts_[host];
  if (state.paused == paused || state.killed) return;
  state.paused = paused;
  ForConnectionsOf(
      host, [&](Connection* connection, int) { paused ? Stall(connection) : Unstall(connection); });
  if (paused) return;
  for (const Delivery& silence : std::exchange(state.silences, {})) {
    PostSilence(silence.connection, silence.to, failure_timeout_ns_, silence.kind);
  }
  Schedule(host);
}

void MemoryNetwork::Kill(Host host) {
  HostState& state = *hosts_[host];
  if (state.killed) return;
  state.killed = true;
  ForConnectionsOf(host, [&](Connection* connection, int side) {
    connection->ends[side].open = false;
    Stall(connection);
  });
}

void MemoryNetwork::Restart(Host host) {
  HostState& state = *hosts_[host];
  STROM_CHECK(state.killed);
  // The old connections stay stalled for ever; peers notice after the failure timeout.
  state.links.Forget();
  state.hooks = {};
  state.silences.clear();
  state.killed = state.paused = false;
  Schedule(host);
}

template <typename Visit>
void MemoryNetwork::ForConnectionsOf(Host host, Visit visit) {
  for (const auto& [link, place] : hosts_[host]->links.places()) {
    visit(place.connection, place.side);
  }
}

int MemoryNetwork::StallsBetween(Host a, Host b) const {
  return hosts_[a]->paused + hosts_[a]->killed + hosts_[b]->paused + hosts_[b]->killed +
         static_cast<int>(cuts_.contains(Pair(a, b)));
}

void MemoryNetwork::Stall(Connection* connection) {
  if (++connection->stalls > 1) return;
  ++connection->stall;
  for (int end = 0; end < 2; ++end) {
    PostSilence(connection, end, failure_timeout_ns_ * 3 / 10, Delivery::Kind::kSuspect);
    PostSilence(connection, end, failure_timeout_ns_, Delivery::Kind::kSilence);
  }
}

void MemoryNetwork::Unstall(Connection* connection) {
  if (--connection->stalls > 0 || connection->cut) return;
  ++connection->stall;  // what was due after a longer silence is void
  for (Delivery& delivery : std::exchange(connection->stalled, {})) {
    delivery.due_ns = now_ns_;  // so nothing overtakes what was waiting
    deliveries_.push(std::move(delivery));
  }
}

void MemoryNetwork::PostSilence(Connection* connection, int to, int64_t delay_ns,
                                Delivery::Kind kind) {
  Delivery delivery;
  delivery.due_ns = now_ns_ + delay_ns + random_.Below(connection->base_delay_ns + 1);
  delivery.sequence = ++sequence_;
  delivery.connection = connection;
  delivery.to = to;
  delivery.kind = kind;
  delivery.stall = connection->stall;
  deliveries_.push(std::move(delivery));
}

// ----------------------------------------------------------------------------------- the clock

bool MemoryNetwork::RunUntil(int64_t duration_ns, const std::function<bool()>& done) {
  const int64_t end_ns = now_ns_ + duration_ns;
  for (Host host = 0; host < hosts_.size(); ++host) Serve(host);
  while (!done()) {
    const int64_t arrival_ns = deliveries_.empty() ? kNever : deliveries_.top().due_ns;
    const int64_t timer_ns = timers_.empty() ? kNever : timers_.top().first;
    const int64_t next_ns = std::min(arrival_ns, timer_ns);
    if (next_ns > end_ns) {
      now_ns_ = end_ns;
      break;
    }
    now_ns_ = std::max(now_ns_, next_ns);
    while (!deliveries_.empty() && deliveries_.top().due_ns <= now_ns_) {
      Delivery delivery = deliveries_.top();
      deliveries_.pop();
      Deliver(std::move(delivery));
    }
    while (!timers_.empty() && timers_.top().first <= now_ns_) {
      const auto [due_ns, host] = timers_.top();
      timers_.pop();
      if (hosts_[host]->scheduled_ns == due_ns) Touch(host);
    }
    for (size_t i = 0; i < touched_.size(); ++i) {
      hosts_[touched_[i]]->touched = false;
      Serve(touched_[i]);
    }
    touched_.clear();
  }
  return done();
}

void MemoryNetwork::Touch(Host host) {
  if (std::exchange(hosts_[host]->touched, true)) return;
  touched_.push_back(host);
}

void MemoryNetwork::Serve(Host host) {
  HostState& state = *hosts_[host];
  if (state.paused || state.killed) return;
  if (state.hooks.next_timeout && state.hooks.next_timeout() <= now_ns_) {
    state.hooks.on_timeout(now_ns_);
  }
  if (state.hooks.after) state.hooks.after(now_ns_);
  Schedule(host);
}

void MemoryNetwork::Schedule(Host host) {
  HostState& state = *hosts_[host];
  if (state.paused || state.killed || !state.hooks.next_timeout) return;
  state.scheduled_ns = state.hooks.next_timeout();
  if (state.scheduled_ns != kNever) timers_.emplace(state.scheduled_ns, host);
}

void MemoryNetwork::Deliver(Delivery delivery) {
  Connection& connection = *delivery.connection;
  End& end = connection.ends[delivery.to];
  if (delivery.kind != Delivery::Kind::kEvent) return Silence(std::move(delivery));
  if (connection.cut) return;
  if (connection.stalls > 0) {
    connection.stalled.push_back(std::move(delivery));
    return;
  }
  if (delivery.event.type == LinkEvent::Type::kMessage) {
    if (end.held_back) {
      end.held.push_back(std::move(delivery));
      return;
    }
    End& from = connection.ends[1 - delivery.to];
    const size_t channel = static_cast<size_t>(delivery.event.channel);
    if (delivery.sequence < from.voided_before[channel]) return;
    from.queued_bytes[channel] -= static_cast<int64_t>(delivery.event.payload->size());
    Touch(from.host);  // it hears that something has arrived
  }
  if (!end.open) return;
  if (delivery.event.type == LinkEvent::Type::kDown) end.open = false;
  if (delivery.event.type == LinkEvent::Type::kUp) connection.up = true;
  delivery.event.link = end.link;
  HostState& host = *hosts_[end.host];
  Touch(end.host);
  if (host.hooks.on_event) host.hooks.on_event(now_ns_, std::move(delivery.event));
}

void MemoryNetwork::Silence(Delivery delivery) {
  Connection& connection = *delivery.connection;
  End& end = connection.ends[delivery.to];
  if (!end.open) return;
  if (!connection.cut && delivery.stall != connection.stall) return;  // it has gone on since
  HostState& host = *hosts_[end.host];
  const bool last = delivery.kind == Delivery::Kind::kSilence;
  if (host.paused) {
    // It sees how long nothing came only after it has gone on, and has read what is there.
    if (last) host.silences.push_back(std::move(delivery));
    return;
  }
  LinkEvent& event = delivery.event;
  event.link = end.link;
  event.type = last ? LinkEvent::Type::kDown : LinkEvent::Type::kSuspect;
  if (last) {
    connection.cut = true;
    end.open = false;
    event.code = connection.up ? Code::kMasterLost : Code::kUnreachable;
    event.reason = connection.up ? "silent for the failure timeout" : "no answer";
  }
  Touch(end.host);
  if (host.hooks.on_event) host.hooks.on_event(now_ns_, std::move(event));
}

// ----------------------------------------------------------------------------------- links

int64_t MemoryNetwork::RandomDelay(const Connection& connection, int to, int64_t bytes) {
  Path& path = PathBetween(connection.ends[1 - to].host, connection.ends[to].host);
  const PathOptions& options = path.options();
  int64_t delay_ns = connection.base_delay_ns / 2 + random_.Below(connection.base_delay_ns + 1);
  while (path.Loses(now_ns_ + delay_ns, &random_)) delay_ns += kResendNs;
  if (options.rate_bytes > 0) {
    delay_ns += path.bottleneck().Pass(now_ns_, bytes).value_or(now_ns_) - now_ns_;
  }
  return delay_ns;
}

Path& MemoryNetwork::PathBetween(Host from, Host to) {
  const auto [path, fresh] = paths_.try_emplace({from, to}, default_path_);
  return path->second;
}

void MemoryNetwork::Post(int64_t due_ns, Connection* connection, int to, LinkEvent event) {
  Delivery delivery;
  delivery.due_ns = due_ns;
  delivery.sequence = ++sequence_;
  delivery.connection = connection;
  delivery.to = to;
  delivery.event = std::move(event);
  deliveries_.push(std::move(delivery));
}

MemoryNetwork::Connection* MemoryNetwork::Open(Host from, Host to) {
  Connection& connection = connections_.emplace_back();
  const PathOptions& options = PathBetween(from, to).options();
  connection.base_delay_ns = options.delay_ns + random_.Below(options.jitter_ns + 1);
  return &connection;
}

LinkId MemoryNetwork::Links::Connect(int64_t now_ns, const Address& to, const PublicKeyBytes&,
                                     Buffer hello) {
  MemoryNetwork& network = *network_;
  const auto found = network.by_address_.find(to);
  const Host target = found == network.by_address_.end() ? host_ : found->second;
  Connection* connection = network.Open(host_, target);
  const LinkId link = Take(connection, 0);
  connection->ends[1].host = target;
  connection->stalls = network.StallsBetween(host_, target);
  if (target == host_ || connection->stalls > 0) {
    connection->cut = true;
    network.PostSilence(connection, 0, network.failure_timeout_ns_ / 4, Delivery::Kind::kSilence);
    return link;
  }
  network.hosts_[target]->links.Take(connection, 1);
  LinkEvent event;
  event.type = LinkEvent::Type::kHello;
  const int64_t bytes = static_cast<int64_t>(hello->size());
  event.payload = std::move(hello);
  network.Post(now_ns + network.RandomDelay(*connection, 1, bytes), connection, 1,
               std::move(event));
  return link;
}

void MemoryNetwork::Links::Accept(int64_t now_ns, LinkId link, Buffer welcome) {
  Connection* connection = links_.at(link).connection;
  LinkEvent initiator;
  initiator.type = LinkEvent::Type::kUp;
  initiator.payload = std::move(welcome);
  const int64_t there_ns = now_ns + network_->RandomDelay(*connection, 0, 0);
  const int64_t back_ns = there_ns + network_->RandomDelay(*connection, 1, 0);
  network_->Post(there_ns, connection, 0, std::move(initiator));
  LinkEvent responder;
  responder.type = LinkEvent::Type::kUp;
  responder.payload = MakeBuffer({});
  network_->Post(back_ns, connection, 1, std::move(responder));
  // What the initiator sends stands behind its first authentic packet.
  for (int64_t& arrival_ns : connection->ends[0].last_arrival_ns) arrival_ns = back_ns;
}

void MemoryNetwork::Links::Refuse(int64_t now_ns, LinkId link, const std::string& reason) {
  const auto& [connection, side] = links_.at(link);
  connection->ends[side].open = false;
  LinkEvent down;
  down.code = Code::kRefused;
  down.reason = reason;
  network_->Post(now_ns + network_->RandomDelay(*connection, 1 - side, 0), connection, 1 - side,
                 std::move(down));
}

bool MemoryNetwork::Links::Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) {
  const auto found = links_.find(link);
  if (found == links_.end()) return false;
  const auto& [connection, side] = found->second;
  End& own = connection->ends[side];
  if (!own.open || !connection->up) return false;
  const int64_t bytes = static_cast<int64_t>(message->size());
  STROM_CHECK(bytes > 0 && bytes <= kMaxMessageBytes);
  const size_t index = static_cast<size_t>(channel);
  own.queued_bytes[index] += bytes;
  int64_t& last_ns = own.last_arrival_ns[index];
  const int64_t due_ns =
      std::max(now_ns + network_->RandomDelay(*connection, 1 - side, bytes), last_ns);
  if (channel != Channel::kUpdate) last_ns = due_ns;
  LinkEvent event;
  event.type = LinkEvent::Type::kMessage;
  event.channel = channel;
  event.payload = std::move(message);
  network_->Post(due_ns, connection, 1 - side, std::move(event));
  return true;
}

int64_t MemoryNetwork::Links::QueuedBytes(LinkId link) const {
  const End* own = Own(link);
  if (own == nullptr) return 0;
  return std::accumulate(std::begin(own->queued_bytes), std::end(own->queued_bytes), int64_t{0});
}

std::optional<Address> MemoryNetwork::Links::PeerAddress(LinkId link) const {
  const auto found = links_.find(link);
  if (found == links_.end()) return std::nullopt;
  const auto& [connection, side] = found->second;
  return network_->address(connection->ends[1 - side].host);
}

void MemoryNetwork::Links::Void(int64_t, LinkId link, Channel channel) {
  End* own = Own(link);
  if (own == nullptr) return;
  own->queued_bytes[static_cast<size_t>(channel)] = 0;
  own->voided_before[static_cast<size_t>(channel)] = network_->sequence_ + 1;
}

void MemoryNetwork::Links::HoldBack(int64_t now_ns, LinkId link, bool hold) {
  End* own = Own(link);
  if (own == nullptr) return;
  own->held_back = hold;
  if (hold) return;
  for (Delivery& delivery : std::exchange(own->held, {})) {
    delivery.due_ns = now_ns;
    network_->deliveries_.push(std::move(delivery));
  }
}

void MemoryNetwork::Links::Close(int64_t now_ns, LinkId link, const std::string& reason) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const auto& [connection, side] = found->second;
  End& own = connection->ends[side];
  if (!std::exchange(own.open, false)) return;
  // What is under way a closed link does not send again.
  const bool is_lost = network_->random_.Below(2) == 0;
  if (is_lost) std::fill_n(own.voided_before, kChannels, network_->sequence_ + 1);
  if (connection->stalls > 0) {
    connection->cut = true;  // the goodbye is lost; the peer's silence is under way
    return;
  }
  LinkEvent down;
  down.code = Code::kClosed;
  down.reason = reason;
  network_->Post(now_ns + network_->RandomDelay(*connection, 1 - side, 0), connection, 1 - side,
                 std::move(down));
}

}  // namespace strom
