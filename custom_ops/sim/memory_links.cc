#include "sim/memory_links.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace strom {

class MemoryNetwork::Host final : public LinkLayer {
 public:
  Host(MemoryNetwork* network, const Address& address) : network_(network), address_(address) {}

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override;
  void Accept(int64_t now_ns, LinkId link, Buffer welcome) override;
  void Refuse(int64_t now_ns, LinkId link, const std::string& reason) override;
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override;
  int64_t QueuedBytes(LinkId link) const override;
  void Void(int64_t now_ns, LinkId link, Channel channel) override;
  void HoldBack(int64_t now_ns, LinkId link, bool hold) override;
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override;

  struct Link {
    std::shared_ptr<Connection> connection;
    int side;  // which end is ours
    End& own() const { return connection->ends[side]; }
    int peer() const { return 1 - side; }
  };
  LinkId Add(const std::shared_ptr<Connection>& connection, int side) {
    links_[++last_link_] = {connection, side};
    connection->ends[side].host = this;
    connection->ends[side].link = last_link_;
    return last_link_;
  }

  MemoryNetwork* const network_;
  const Address address_;
  Sink sink_;
  bool alive_ = true;
  int64_t unreachable_until_ns_ = 0;
  LinkId last_link_ = 0;
  std::map<LinkId, Link> links_;
};

MemoryNetwork::MemoryNetwork(uint64_t seed, const MemoryNetworkOptions& options)
    : options_(options), random_(seed) {}
MemoryNetwork::~MemoryNetwork() = default;

LinkLayer* MemoryNetwork::AddHost(const Address& address) {
  hosts_.push_back(std::make_unique<Host>(this, address));
  return hosts_.back().get();
}

void MemoryNetwork::SetSink(LinkLayer* host, Sink sink) {
  static_cast<Host*>(host)->sink_ = std::move(sink);
}

void MemoryNetwork::Kill(LinkLayer* host) {
  Host* dying = static_cast<Host*>(host);
  dying->alive_ = false;
  for (auto& [id, link] : dying->links_) Cut(link.connection, now_ns_);
}

void MemoryNetwork::CutOff(LinkLayer* host, int64_t until_ns) {
  Host* lonely = static_cast<Host*>(host);
  lonely->unreachable_until_ns_ = until_ns;
  for (auto& [id, link] : lonely->links_) Cut(link.connection, now_ns_);
}

int64_t MemoryNetwork::NextDelivery() const {
  return deliveries_.empty() ? kNever : deliveries_.top().due_ns;
}

void MemoryNetwork::Deliver(int64_t now_ns) {
  now_ns_ = now_ns;
  while (!deliveries_.empty() && deliveries_.top().due_ns <= now_ns) {
    Delivery next = deliveries_.top();
    deliveries_.pop();
    Connection& connection = *next.connection;
    End& end = connection.ends[next.to];
    const bool is_message = next.event.type == LinkEvent::Type::kMessage;
    if (is_message && end.held_back) {
      end.held.push_back(std::move(next));
      continue;
    }
    if (is_message) {
      End& from = connection.ends[1 - next.to];
      const size_t channel = static_cast<size_t>(next.event.channel);
      if (next.sequence < from.voided_before[channel]) continue;
      from.queued_bytes[channel] -= static_cast<int64_t>(next.event.payload->size());
    }
    if (!end.open || end.host == nullptr || !end.host->alive_) continue;
    if (connection.cut && !next.ends_link) continue;
    if (next.event.type == LinkEvent::Type::kDown) end.open = false;
    if (next.event.type == LinkEvent::Type::kUp) connection.up = true;
    next.event.link = end.link;
    end.host->sink_(now_ns, std::move(next.event));
  }
}

int64_t MemoryNetwork::RandomDelay(const Connection& connection) {
  std::uniform_int_distribution<int64_t> jitter(0, connection.base_delay_ns);
  return options_.min_delay_ns + connection.base_delay_ns / 2 + jitter(random_);
}

void MemoryNetwork::Post(int64_t due_ns, const std::shared_ptr<Connection>& connection, int to,
                         LinkEvent event) {
  deliveries_.push({due_ns, ++sequence_, connection, to, std::move(event), false});
}

void MemoryNetwork::Cut(const std::shared_ptr<Connection>& connection, int64_t now_ns) {
  if (connection->cut) return;
  connection->cut = true;
  for (int end = 0; end < 2; ++end) {
    LinkEvent down;
    down.type = LinkEvent::Type::kDown;
    down.code = Code::kMasterLost;
    down.reason = "silent for " + std::to_string(options_.failure_timeout_ns / 1'000'000) + " ms";
    const int64_t due_ns = now_ns + options_.failure_timeout_ns + RandomDelay(*connection);
    deliveries_.push({due_ns, ++sequence_, connection, end, std::move(down), true});
  }
}

LinkId MemoryNetwork::Host::Connect(int64_t now_ns, const Address& to, const PublicKeyBytes&,
                                    Buffer hello) {
  MemoryNetwork& network = *network_;
  auto connection = std::make_shared<Connection>();
  connection->base_delay_ns = std::uniform_int_distribution<int64_t>(
      network.options_.min_delay_ns, network.options_.max_delay_ns)(network.random_);
  const LinkId link = Add(connection, 0);
  const auto target =
      std::find_if(network.hosts_.begin(), network.hosts_.end(),
                   [&](const auto& host) { return host->address_ == to && host->alive_; });
  if (target == network.hosts_.end() || now_ns < unreachable_until_ns_ ||
      now_ns < (*target)->unreachable_until_ns_) {
    LinkEvent down;
    down.code = Code::kUnreachable;
    down.reason = "no answer";
    network.Post(now_ns + network.options_.failure_timeout_ns / 4, connection, 0, std::move(down));
    return link;
  }
  (*target)->Add(connection, 1);
  LinkEvent event;
  event.type = LinkEvent::Type::kHello;
  event.payload = std::move(hello);
  network.Post(now_ns + network.RandomDelay(*connection), connection, 1, std::move(event));
  return link;
}

void MemoryNetwork::Host::Accept(int64_t now_ns, LinkId link, Buffer welcome) {
  const Link& at = links_.at(link);
  Connection& connection = *at.connection;
  LinkEvent initiator;
  initiator.type = LinkEvent::Type::kUp;
  initiator.payload = std::move(welcome);
  const int64_t there_ns = now_ns + network_->RandomDelay(connection);
  const int64_t back_ns = there_ns + network_->RandomDelay(connection);
  network_->Post(there_ns, at.connection, 0, std::move(initiator));
  LinkEvent responder;
  responder.type = LinkEvent::Type::kUp;
  responder.payload = MakeBuffer({});
  network_->Post(back_ns, at.connection, 1, std::move(responder));
  // What the initiator sends stands behind its first authentic packet.
  for (int64_t& arrival_ns : connection.ends[0].last_arrival_ns) arrival_ns = back_ns;
}

void MemoryNetwork::Host::Refuse(int64_t now_ns, LinkId link, const std::string& reason) {
  const Link& at = links_.at(link);
  at.own().open = false;
  LinkEvent down;
  down.code = Code::kRefused;
  down.reason = reason;
  network_->Post(now_ns + network_->RandomDelay(*at.connection), at.connection, at.peer(),
                 std::move(down));
}

bool MemoryNetwork::Host::Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) {
  auto found = links_.find(link);
  if (found == links_.end() || !found->second.own().open || !found->second.connection->up) {
    return false;
  }
  STROM_CHECK(!message->empty() && static_cast<int64_t>(message->size()) <= kMaxMessageBytes);
  const Link& at = found->second;
  End& own = at.own();
  own.queued_bytes[static_cast<size_t>(channel)] += static_cast<int64_t>(message->size());
  int64_t& last_ns = own.last_arrival_ns[static_cast<size_t>(channel)];
  int64_t due_ns = std::max(now_ns + network_->RandomDelay(*at.connection), last_ns);
  if (channel != Channel::kUpdate) last_ns = due_ns;
  LinkEvent event;
  event.type = LinkEvent::Type::kMessage;
  event.channel = channel;
  event.payload = std::move(message);
  network_->Post(due_ns, at.connection, at.peer(), std::move(event));
  return true;
}

int64_t MemoryNetwork::Host::QueuedBytes(LinkId link) const {
  auto found = links_.find(link);
  if (found == links_.end()) return 0;
  const auto& queued = found->second.own().queued_bytes;
  return std::accumulate(std::begin(queued), std::end(queued), int64_t{0});
}

void MemoryNetwork::Host::Void(int64_t, LinkId link, Channel channel) {
  auto found = links_.find(link);
  if (found == links_.end()) return;
  End& own = found->second.own();
  own.queued_bytes[static_cast<size_t>(channel)] = 0;
  own.voided_before[static_cast<size_t>(channel)] = network_->sequence_ + 1;
}

void MemoryNetwork::Host::HoldBack(int64_t now_ns, LinkId link, bool hold) {
  auto found = links_.find(link);
  if (found == links_.end()) return;
  End& own = found->second.own();
  own.held_back = hold;
  if (hold) return;
  for (Delivery& delivery : std::exchange(own.held, {})) {
    delivery.due_ns = now_ns;
    network_->deliveries_.push(std::move(delivery));
  }
}

void MemoryNetwork::Host::Close(int64_t now_ns, LinkId link, const std::string& reason) {
  auto found = links_.find(link);
  if (found == links_.end() || !found->second.own().open) return;
  const Link& at = found->second;
  at.own().open = false;
  LinkEvent down;
  down.code = Code::kClosed;
  down.reason = reason;
  network_->Post(now_ns + network_->RandomDelay(*at.connection), at.connection, at.peer(),
                 std::move(down));
}

}  // namespace strom
