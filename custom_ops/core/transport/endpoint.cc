#include "core/transport/endpoint.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/transport/endpoint_state.h"

namespace strom {
namespace {

// Datagrams in a row for one link before the next one's turn: a batch for one address is cheaper to
// send.
constexpr int kTurnDatagrams = 32;

LinkReport Report(const Connection& connection) {
  const Link& link = *connection.link;
  const LinkSender& sender = link.sender();
  return {.link = connection.id,
          .peer = link.path().peer(),
          .counters = connection.counters,
          .smoothed_round_trip_ns = link.round_trip_ns(),
          .least_round_trip_ns = sender.round_trip().least_ns(),
          .queued_bytes = link.queued_bytes(),
          .in_flight_packets = sender.in_flight_packets(),
          .congestion_window_packets = static_cast<int64_t>(sender.congestion().window_packets),
          .grant_packets = sender.grant_packets(),
          .datagram_bytes = static_cast<int64_t>(link.path().datagram_bytes()),
          .key_phase = static_cast<int64_t>(link.key_phase())};
}

}  // namespace

void CountSent(size_t bytes, LinkCounters* counters) {
  if (bytes == 0) return;
  ++counters->datagrams_sent;
  counters->bytes_sent += static_cast<int64_t>(bytes);
}

Endpoint::Endpoint(const EndpointOptions& options, RandomSource* random)
    : state_(std::make_unique<State>(options, random)) {}

Endpoint::~Endpoint() = default;

// ---------------------------------------------------------------- the network's side

void Endpoint::HandleDatagram(int64_t now_ns, const Address& from, Bytes datagram) {
  State& state = *state_;
  if (state.forgotten) return;
  const auto header = ParseHeader(datagram);
  Connection* connection = header && header->type != PacketType::kHello
                               ? state.FindByConnectionId(header->connection)
                               : nullptr;
  LinkCounters& counters = connection == nullptr ? state.counters : connection->counters;
  ++counters.datagrams_received;
  counters.bytes_received += static_cast<int64_t>(datagram.size());
  if (!header) {
    ++state.counters.drop_malformed;
    return;
  }
  if (header->type == PacketType::kHello) {
    state.HandleHello(now_ns, from, datagram);
    return;
  }
  if (connection == nullptr) {
    ++state.counters.drop_unknown_connection;
    return;
  }
  if (header->type == PacketType::kRetry) {
    state.HandleRetry(now_ns, connection, datagram);
  } else if (header->type == PacketType::kWelcome) {
    state.HandleWelcome(now_ns, connection, datagram);
  } else {
    state.HandleLinkDatagram(now_ns, from, connection, *header, datagram);
  }
}

size_t Endpoint::PollTransmit(int64_t now_ns, std::span<uint8_t> out, Address* to) {
  State& state = *state_;
  STROM_CHECK(out.size() >= kMaxDatagramBytes);
  if (!state.retries.empty()) return state.PollRetry(out, to);
  size_t size = 0;
  while (size == 0 && !state.ready.empty()) {
    Connection* connection = state.Find(state.ready.front());
    if (connection != nullptr) {
      size = state.PollConnection(now_ns, connection, out, to);
      connection = state.Find(state.ready.front());  // the link may have ended
      if (connection != nullptr) CountSent(size, &connection->counters);
    }
    if (size > 0 && ++state.turn < kTurnDatagrams) break;
    state.turn = 0;
    state.ready.pop_front();
    if (connection == nullptr) continue;
    connection->ready = false;
    if (size > 0) state.Wake(connection);
  }
  return size;
}

int64_t Endpoint::NextTimeout() const {
  const auto& deadlines = state_->deadlines;
  const auto earliest = std::min_element(deadlines.begin(), deadlines.end());
  return earliest == deadlines.end() ? kNever : *earliest;
}

void Endpoint::HandleTimeout(int64_t now_ns) {
  State& state = *state_;
  for (size_t i = 0; i < state.connections.size();) {
    if (state.deadlines[i] > now_ns) {
      ++i;
      continue;
    }
    const LinkId link = state.connections[i]->id;
    state.TimeOut(now_ns, state.connections[i].get());
    // Removing one moves the last into its place.
    if (i < state.connections.size() && state.connections[i]->id == link) ++i;
  }
}

// ---------------------------------------------------------------- the relay's side

std::optional<LinkEvent> Endpoint::PollEvent() {
  if (state_->events.empty()) return std::nullopt;
  LinkEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

LinkId Endpoint::Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                         Buffer hello) {
  if (state_->forgotten) {
    const LinkId link = state_->next_link++;
    state_->Down(link, Code::kClosed, "this process is a fork and has no keys");
    return link;
  }
  return state_->Connect(now_ns, to, key, hello == nullptr ? Bytes() : Bytes(*hello));
}

void Endpoint::Accept(int64_t now_ns, LinkId link, Buffer welcome) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr || connection->stage != Connection::Stage::kAsked) return;
  state_->Accept(now_ns, connection, welcome == nullptr ? Bytes() : Bytes(*welcome));
}

void Endpoint::Refuse(int64_t now_ns, LinkId link, const std::string& reason) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr || connection->stage != Connection::Stage::kAsked) return;
  state_->Refuse(now_ns, connection, reason);
}

bool Endpoint::Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr || connection->stage != Connection::Stage::kUp ||
      connection->link->state() != Link::State::kOpen) {
    return false;
  }
  STROM_CHECK(!message->empty() && message->size() <= static_cast<size_t>(kMaxMessageBytes));
  connection->link->Send(now_ns, channel, std::move(message));
  state_->Wake(connection);
  state_->Refresh(connection);
  return true;
}

int64_t Endpoint::QueuedBytes(LinkId link) const {
  const Connection* connection = state_->Find(link);
  return connection == nullptr || connection->link == nullptr ? 0
                                                              : connection->link->queued_bytes();
}

void Endpoint::Void(int64_t now_ns, LinkId link, Channel channel) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr || connection->link == nullptr) return;
  connection->link->Void(now_ns, channel);
  state_->Wake(connection);
  state_->Refresh(connection);
}

void Endpoint::HoldBack(int64_t, LinkId link, bool hold) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr || connection->link == nullptr) return;
  connection->link->HoldBack(hold);
  state_->Wake(connection);
}

void Endpoint::Close(int64_t now_ns, LinkId link, const std::string& reason) {
  Connection* connection = state_->Find(link);
  if (connection == nullptr) return;
  if (connection->stage == Connection::Stage::kAsked) {
    Refuse(now_ns, link, reason);
    return;
  }
  if (connection->link == nullptr) {
    if (connection->stage == Connection::Stage::kJoining) state_->Remove(link);
    return;
  }
  state_->Establish(connection);
  connection->link->Close(now_ns, reason);
  state_->Wake(connection);
  state_->Refresh(connection);
}

void Endpoint::Forget() { state_->Forget(); }

bool Endpoint::SaysGoodbye() const {
  return std::any_of(state_->connections.begin(), state_->connections.end(), [](const auto& c) {
    return c->link != nullptr && c->link->state() == Link::State::kClosing;
  });
}

EndpointCounters Endpoint::counters() const {
  EndpointCounters sum = state_->counters;
  for (const auto& connection : state_->connections) sum += connection->counters;
  return sum;
}

std::vector<LinkReport> Endpoint::Links() const {
  std::vector<LinkReport> reports;
  for (const auto& connection : state_->connections) {
    if (connection->stage == Connection::Stage::kUp) reports.push_back(Report(*connection));
  }
  return reports;
}

const Joiners& Endpoint::joiners() const { return state_->joiners; }

std::optional<Address> Endpoint::PeerAddress(LinkId link) const {
  const Connection* connection = state_->Find(link);
  if (connection == nullptr) return std::nullopt;
  return connection->link == nullptr ? connection->peer : connection->link->path().peer();
}

// ---------------------------------------------------------------- links

void Endpoint::State::HandleLinkDatagram(int64_t now_ns, const Address& from,
                                         Connection* connection, const PacketHeader& header,
                                         Bytes datagram) {
  if (connection->link == nullptr) {
    ++counters.drop_unknown_connection;
    return;
  }
  Link::Notice notice;
  if (!connection->link->HandleDatagram(now_ns, from, header, datagram, &notice)) return;
  if (connection->stage == Connection::Stage::kWelcomed) {
    joiners.Note(from, Joiner::Progress::kJoined);
    Establish(connection);
    Emit(LinkEvent::Type::kUp, connection->id).payload = MakeBuffer({});
  }
  while (auto message = connection->link->PollMessage()) {
    LinkEvent& event = Emit(LinkEvent::Type::kMessage, connection->id);
    event.channel = message->channel;
    event.payload = std::move(message->payload);
  }
  if (!Conclude(connection, notice)) return;
  Wake(connection);
  Refresh(connection);
}

size_t Endpoint::State::PollConnection(int64_t now_ns, Connection* connection,
                                       std::span<uint8_t> out, Address* to) {
  size_t size = 0;
  *to = connection->peer;
  if (connection->stage == Connection::Stage::kJoining) {
    size = PollHello(now_ns, connection, out);
  } else if (connection->welcome_due) {
    connection->welcome_due = false;
    *to = connection->welcome_to;
    size = connection->welcome.size();
    std::copy(connection->welcome.begin(), connection->welcome.end(), out.begin());
  } else if (connection->stage == Connection::Stage::kUp) {
    Link::Notice notice;
    size = connection->link->PollTransmit(now_ns, out, to, &notice);
    if (!Conclude(connection, notice)) return 0;
  }
  Refresh(connection);
  return size;
}

void Endpoint::State::TimeOut(int64_t now_ns, Connection* connection) {
  if (now_ns >= connection->deadline_ns) {
    GiveUp(connection);
    Remove(connection->id);
    return;
  }
  if (connection->stage == Connection::Stage::kUp) {
    Link::Notice notice;
    connection->link->HandleTimeout(now_ns, &notice);
    if (!Conclude(connection, notice)) return;
  }
  Wake(connection);
  Refresh(connection);
}

bool Endpoint::State::Conclude(Connection* connection, const Link::Notice& notice) {
  if (notice.type == Link::Notice::Type::kSuspect) {
    Emit(LinkEvent::Type::kSuspect, connection->id);
  } else if (notice.type == Link::Notice::Type::kDown) {
    Down(connection->id, notice.code, notice.reason);
  }
  if (connection->link->state() != Link::State::kOver) return true;
  Remove(connection->id);
  return false;
}

void Endpoint::State::Forget() {
  forgotten = true;
  job_key = SecretKey();
  static_key = StaticKey();
  cookies = CookieJar(SecretKey());
  retries.clear();
  while (!connections.empty()) {
    const Connection& last = *connections.back();
    // Of one that was refused or said goodbye nobody expects to hear.
    const bool is_over = last.link != nullptr && last.link->state() != Link::State::kOpen;
    if (last.stage != Connection::Stage::kRefused && !is_over) {
      Down(last.id, Code::kClosed, "this process is a fork and has no keys");
    }
    Remove(last.id);
  }
}

void Endpoint::State::Down(LinkId link, Code code, std::string reason) {
  LinkEvent& event = Emit(LinkEvent::Type::kDown, link);
  event.code = code;
  event.reason = std::move(reason);
}

LinkEvent& Endpoint::State::Emit(LinkEvent::Type type, LinkId link) {
  LinkEvent& event = events.emplace_back();
  event.type = type;
  event.link = link;
  return event;
}

// ---------------------------------------------------------------- the table

Endpoint::State::State(const EndpointOptions& given, RandomSource* source)
    : options(given),
      random(source),
      job_key(JobKey(options.secret.bytes(), options.job_id)),
      static_key(options.private_key),
      cookies(RandomKey()),
      grants(options.grants) {
  options.secret = options.private_key = SecretKey();
  std::array<uint8_t, 4> mask;
  random->Fill(mask);
  connection_id_mask = uint32_t{mask[0]} << 24 | uint32_t{mask[1]} << 16 | uint32_t{mask[2]} << 8 |
                       uint32_t{mask[3]};
}

Connection* Endpoint::State::Add(const Address& peer, Connection::Stage stage,
                                 int64_t deadline_ns) {
  if (ConnectionId(next_link) == 0) ++next_link;  // 0 stands for "none yet" on the wire
  auto connection = std::make_unique<Connection>();
  connection->id = next_link++;
  connection->peer = peer;
  connection->stage = stage;
  connection->deadline_ns = deadline_ns;
  index[connection->id] = connections.size();
  deadlines.push_back(deadline_ns);
  connections.push_back(std::move(connection));
  return connections.back().get();
}

Connection* Endpoint::State::Find(LinkId link) {
  const auto found = index.find(link);
  return found == index.end() ? nullptr : connections[found->second].get();
}

void Endpoint::State::Refresh(Connection* connection) {
  int64_t deadline_ns = connection->deadline_ns;
  if (connection->stage == Connection::Stage::kJoining) {
    deadline_ns = std::min(deadline_ns, connection->hello_ns);
  } else if (connection->stage == Connection::Stage::kUp) {
    deadline_ns = std::min(deadline_ns, connection->link->NextTimeout());
  }
  deadlines[index[connection->id]] = deadline_ns;
}

void Endpoint::State::Wake(Connection* connection) {
  if (std::exchange(connection->ready, true)) return;
  ready.push_back(connection->id);
}

void Endpoint::State::Remove(LinkId link) {
  const size_t place = index[link];
  const Connection& connection = *connections[place];
  if (connection.is_responder()) {
    by_ephemeral.erase(connection.hello.ephemeral);
    if (connection.is_half_open()) --half_open;
  }
  counters += connection.counters;
  index.erase(link);
  if (place + 1 < connections.size()) {
    connections[place] = std::move(connections.back());
    deadlines[place] = deadlines.back();
    index[connections[place]->id] = place;
  }
  connections.pop_back();
  deadlines.pop_back();
}

SecretKey Endpoint::State::RandomKey() {
  SecretKey key;
  random->Fill(key.bytes());
  return key;
}

}  // namespace strom
