#include "core/endpoint.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/crypto.h"
#include "core/handshake.h"
#include "core/link.h"
#include "core/packet.h"

namespace strom {
namespace {

constexpr int64_t kHalfOpenNs = 3'000'000'000;
constexpr size_t kMaxHalfOpen = 256;
constexpr size_t kMaxRetriesQueued = 64;
constexpr int64_t kLeastJoinNs = 3'000'000'000;
constexpr int64_t kFirstHelloIntervalNs = 50'000'000;
constexpr int64_t kLastHelloIntervalNs = 1'000'000'000;
// Datagrams in a row for one link before the next one's turn: a batch for one address is cheaper to
// send.
constexpr int kTurnDatagrams = 32;

constexpr std::string_view kRejectedText =
    "the master answers but does not accept this job: the secret, the job id or the master's "
    "public "
    "key differ";

void CountSent(size_t bytes, LinkCounters* counters) {
  if (bytes == 0) return;
  ++counters->datagrams_sent;
  counters->bytes_sent += static_cast<int64_t>(bytes);
}

}  // namespace

PublicKeyBytes PublicKey(const std::array<uint8_t, 32>& private_key) {
  return DerivePublicKey(SecretKey(private_key));
}

// One connection from its first HELLO to its last CLOSE.
struct Connection {
  enum class Stage {
    kJoining,   // initiator: HELLO is out
    kAsked,     // responder: the relay has to Accept or Refuse
    kWelcomed,  // responder: WELCOME is out, the joiner's first packet is awaited
    kRefused,   // responder: remembered to repeat the refusal
    kUp,        // the link stands, or says goodbye
  };

  LinkId id = 0;
  Stage stage = Stage::kJoining;
  Address peer;
  int64_t deadline_ns = kNever;  // every stage but kUp ends then

  std::optional<Initiator> initiator;  // kJoining
  int64_t hello_ns = kNever;           // when the next HELLO goes out
  int64_t hello_interval_ns = kFirstHelloIntervalNs;

  std::optional<Responder> responder;  // kAsked
  HelloFields hello;                   // responder: what the joiner has sent
  std::vector<uint8_t> welcome;        // kWelcomed, kRefused
  bool welcome_due = false;

  LinkCounters counters;
  std::unique_ptr<Link> link;  // kWelcomed, kUp
  bool ready = false;          // stands in the ready queue

  bool is_responder() const { return hello.peer_connection != 0; }
  bool is_half_open() const { return is_responder() && stage != Stage::kUp; }
};

LinkReport Report(const Connection& connection) {
  const Link& link = *connection.link;
  const LinkSender& sender = link.sender();
  return {.link = connection.id,
          .peer = connection.peer,
          .counters = connection.counters,
          .smoothed_round_trip_ns = link.round_trip_ns(),
          .least_round_trip_ns = sender.round_trip().least_ns(),
          .queued_bytes = link.queued_bytes(),
          .in_flight_packets = sender.in_flight_packets(),
          .congestion_window_packets = static_cast<int64_t>(sender.congestion().window_packets),
          .grant_packets = sender.grant_packets(),
          .datagram_bytes = static_cast<int64_t>(link.datagram_bytes())};
}

struct Endpoint::State {
  State(const EndpointOptions& given, RandomSource* source);

  // Joining, as the master.
  void HandleHello(int64_t now_ns, const Address& from, Bytes datagram);
  size_t PollRetry(std::span<uint8_t> out, Address* to);
  void RepeatAnswer(Connection* connection, const Address& from);
  void Answer(int64_t now_ns, Connection* connection, Responder::Answer answer,
              Connection::Stage stage);
  // Joining, as a worker.
  void HandleRetry(int64_t now_ns, Connection* connection, Bytes datagram);
  void HandleWelcome(int64_t now_ns, Connection* connection, Bytes datagram);
  size_t PollHello(int64_t now_ns, Connection* connection, std::span<uint8_t> out);

  void Establish(Connection* connection);
  void HandleLinkDatagram(int64_t now_ns, Connection* connection, const PacketHeader& header,
                          Bytes datagram);
  size_t PollConnection(int64_t now_ns, Connection* connection, std::span<uint8_t> out);
  void TimeOut(int64_t now_ns, Connection* connection);
  void GiveUp(Connection* connection);
  LinkEvent& Emit(LinkEvent::Type type, LinkId link);
  void Tell(const Connection& connection, const Link::Notice& notice);
  void Down(LinkId link, Code code, std::string reason);

  // The table.
  Connection* Add(const Address& peer, Connection::Stage stage, int64_t deadline_ns);
  Connection* Find(LinkId link);
  Connection* FindByConnectionId(uint32_t id) { return Find(id ^ connection_id_mask); }
  uint32_t ConnectionId(LinkId link) const { return link ^ connection_id_mask; }
  void Refresh(Connection* connection);
  void Wake(Connection* connection);
  void Remove(LinkId link);

  SecretKey RandomKey();
  LinkOptions OptionsOfLink(LinkId link, bool asks_first) const;

  const EndpointOptions options;
  RandomSource* const random;
  const SecretKey job_key;
  const SecretKey static_key;
  CookieJar cookies;
  Grants grants;
  // Connection ids are link ids under a mask, so that those of an earlier process are strangers.
  uint32_t connection_id_mask = 0;

  // Parallel vectors: looking for the earliest deadline walks over one of them alone.
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<int64_t> deadlines;
  std::unordered_map<LinkId, size_t> index;
  std::map<PublicKeyBytes, LinkId> by_ephemeral;  // responders: every HELLO makes one connection
  size_t half_open = 0;
  Joiners joiners;
  LinkId next_link = 1;

  std::deque<LinkId> ready;  // may have something to send
  int turn = 0;              // datagrams the first of them has sent in a row
  std::deque<std::pair<Address, std::vector<uint8_t>>> retries;
  std::deque<LinkEvent> events;
  EndpointCounters counters;  // of connections that are gone, and of what belongs to none
};

Endpoint::Endpoint(const EndpointOptions& options, RandomSource* random)
    : state_(std::make_unique<State>(options, random)) {}

Endpoint::~Endpoint() = default;

// ---------------------------------------------------------------- the network's side

void Endpoint::HandleDatagram(int64_t now_ns, const Address& from, Bytes datagram) {
  State& state = *state_;
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
    state.HandleLinkDatagram(now_ns, connection, *header, datagram);
  }
}

size_t Endpoint::PollTransmit(int64_t now_ns, std::span<uint8_t> out, Address* to) {
  State& state = *state_;
  STROM_CHECK(out.size() >= std::max<size_t>(kHelloBytes, state.options.datagram_bytes));
  if (!state.retries.empty()) return state.PollRetry(out, to);
  size_t size = 0;
  while (size == 0 && !state.ready.empty()) {
    Connection* connection = state.Find(state.ready.front());
    if (connection != nullptr) {
      *to = connection->peer;
      size = state.PollConnection(now_ns, connection, out);
      CountSent(size, &connection->counters);
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
    const LinkId link = state.connections[i]->id;
    if (state.deadlines[i] <= now_ns) state.TimeOut(now_ns, state.connections[i].get());
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
  State& state = *state_;
  const int64_t patience_ns = state.options.join_timeout_ns > 0
                                  ? state.options.join_timeout_ns
                                  : std::max(state.options.failure_timeout_ns, kLeastJoinNs);
  Connection* connection = state.Add(to, Connection::Stage::kJoining, now_ns + patience_ns);
  connection->initiator.emplace(key, state.job_key, state.RandomKey(),
                                state.ConnectionId(connection->id),
                                hello == nullptr ? Bytes() : Bytes(*hello));
  connection->hello_ns = now_ns;
  state.Wake(connection);
  state.Refresh(connection);
  return connection->id;
}

void Endpoint::Accept(int64_t now_ns, LinkId link, Buffer welcome) {
  State& state = *state_;
  Connection* connection = state.Find(link);
  if (connection == nullptr || connection->stage != Connection::Stage::kAsked) return;
  auto answer = connection->responder->Accept(state.RandomKey(), state.ConnectionId(link),
                                              welcome == nullptr ? Bytes() : Bytes(*welcome));
  connection->link = std::make_unique<Link>(now_ns, answer.keys, connection->hello.peer_connection,
                                            state.OptionsOfLink(link, false), &state.grants,
                                            &connection->counters);
  state.Answer(now_ns, connection, std::move(answer), Connection::Stage::kWelcomed);
}

void Endpoint::Refuse(int64_t now_ns, LinkId link, const std::string& reason) {
  State& state = *state_;
  Connection* connection = state.Find(link);
  if (connection == nullptr || connection->stage != Connection::Stage::kAsked) return;
  auto answer = connection->responder->Refuse(state.RandomKey(), reason);
  state.Answer(now_ns, connection, std::move(answer), Connection::Stage::kRefused);
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
  return connection->peer;
}

int64_t Endpoint::RoundTrip(LinkId link) const {
  const Connection* connection = state_->Find(link);
  return connection == nullptr || connection->link == nullptr ? 0
                                                              : connection->link->round_trip_ns();
}

// ---------------------------------------------------------------- joining, as the master

void Endpoint::State::HandleHello(int64_t now_ns, const Address& from, Bytes datagram) {
  const auto hello = ParseHello(datagram);
  if (!hello || !options.accepts) {
    ++counters.drop_malformed;
    return;
  }
  if (const auto known = by_ephemeral.find(hello->ephemeral); known != by_ephemeral.end()) {
    RepeatAnswer(Find(known->second), from);
    return;
  }
  if (!cookies.IsValid(now_ns, from, *hello)) {
    if (hello->cookie != Cookie{}) ++counters.drop_bad_cookie;
    joiners.Note(from, Joiner::Progress::kHeard);
    if (retries.size() >= kMaxRetriesQueued) {
      ++counters.drop_over_limit;
      return;
    }
    retries.emplace_back(from, MakeRetry(*hello, cookies.Make(now_ns, from, hello->ephemeral)));
    return;
  }
  if (half_open >= kMaxHalfOpen) {
    ++counters.drop_over_limit;
    return;
  }
  auto responder = Responder::Open(static_key, job_key, *hello, datagram);
  if (!responder) {
    ++counters.drop_wrong_secret;
    joiners.Note(from, Joiner::Progress::kWrongSecret);
    return;
  }
  Connection* connection = Add(from, Connection::Stage::kAsked, now_ns + kHalfOpenNs);
  connection->hello = *hello;
  by_ephemeral[hello->ephemeral] = connection->id;
  ++half_open;
  joiners.Note(from, Joiner::Progress::kAsked);
  Emit(LinkEvent::Type::kHello, connection->id).payload = MakeBuffer(responder->payload());
  connection->responder = std::move(responder);
  Refresh(connection);
}

size_t Endpoint::State::PollRetry(std::span<uint8_t> out, Address* to) {
  const auto& [address, datagram] = retries.front();
  const size_t size = datagram.size();
  *to = address;
  std::copy(datagram.begin(), datagram.end(), out.begin());
  retries.pop_front();
  CountSent(size, &counters);
  return size;
}

// A repeated HELLO gets the same answer, to the same address, while its sender may lack it. On a
// connection that stands it has no effect.
void Endpoint::State::RepeatAnswer(Connection* connection, const Address& from) {
  if (connection->stage == Connection::Stage::kUp || connection->peer != from) {
    ++connection->counters.drop_replayed;
    return;
  }
  connection->welcome_due = !connection->welcome.empty();
  Wake(connection);
}

void Endpoint::State::Answer(int64_t now_ns, Connection* connection, Responder::Answer answer,
                             Connection::Stage stage) {
  connection->stage = stage;
  connection->responder.reset();
  connection->welcome = std::move(answer.datagram);
  connection->welcome_due = true;
  connection->deadline_ns = now_ns + kHalfOpenNs;
  Wake(connection);
  Refresh(connection);
}

// ---------------------------------------------------------------- joining, as a worker

void Endpoint::State::HandleRetry(int64_t now_ns, Connection* connection, Bytes datagram) {
  if (connection->stage != Connection::Stage::kJoining) {
    ++connection->counters.drop_replayed;
    return;
  }
  const bool first = !connection->initiator->retried();
  if (!connection->initiator->HandleRetry(datagram)) {
    ++connection->counters.drop_unauthentic;
    return;
  }
  if (!first) return;  // a newer cookie goes out with the next HELLO
  connection->hello_ns = now_ns;
  connection->hello_interval_ns = kFirstHelloIntervalNs;
  Wake(connection);
}

void Endpoint::State::HandleWelcome(int64_t now_ns, Connection* connection, Bytes datagram) {
  if (connection->stage != Connection::Stage::kJoining) {
    ++connection->counters.drop_replayed;
    return;
  }
  auto welcome = connection->initiator->HandleWelcome(datagram);
  if (!welcome) {
    ++connection->counters.drop_unauthentic;
    return;
  }
  const LinkId link = connection->id;
  if (!welcome->accepted) {
    Down(link, Code::kRefused, std::string(welcome->payload.begin(), welcome->payload.end()));
    Remove(link);
    return;
  }
  Establish(connection);
  connection->link =
      std::make_unique<Link>(now_ns, welcome->keys, welcome->peer_connection,
                             OptionsOfLink(link, true), &grants, &connection->counters);
  Emit(LinkEvent::Type::kUp, link).payload = MakeBuffer(std::move(welcome->payload));
  Wake(connection);
  Refresh(connection);
}

size_t Endpoint::State::PollHello(int64_t now_ns, Connection* connection, std::span<uint8_t> out) {
  if (now_ns < connection->hello_ns) return 0;
  connection->hello_ns = now_ns + connection->hello_interval_ns;
  connection->hello_interval_ns = std::min(2 * connection->hello_interval_ns, kLastHelloIntervalNs);
  const auto& hello = connection->initiator->hello();
  std::copy(hello.begin(), hello.end(), out.begin());
  return hello.size();
}

// ---------------------------------------------------------------- every connection

// The handshake is through: from here on the link alone decides, and the handshake's keys go.
void Endpoint::State::Establish(Connection* connection) {
  if (connection->is_half_open()) --half_open;
  connection->stage = Connection::Stage::kUp;
  connection->deadline_ns = kNever;
  connection->initiator.reset();
  connection->welcome = {};
  connection->welcome_due = false;
}

void Endpoint::State::HandleLinkDatagram(int64_t now_ns, Connection* connection,
                                         const PacketHeader& header, Bytes datagram) {
  if (connection->link == nullptr) {
    ++counters.drop_unknown_connection;
    return;
  }
  Link::Notice notice;
  if (!connection->link->HandleDatagram(now_ns, header, datagram, &notice)) return;
  if (connection->stage == Connection::Stage::kWelcomed) {
    joiners.Note(connection->peer, Joiner::Progress::kJoined);
    Establish(connection);
    Emit(LinkEvent::Type::kUp, connection->id).payload = MakeBuffer({});
  }
  while (auto message = connection->link->PollMessage()) {
    LinkEvent& event = Emit(LinkEvent::Type::kMessage, connection->id);
    event.channel = message->channel;
    event.payload = std::move(message->payload);
  }
  Tell(*connection, notice);
  if (connection->link->state() == Link::State::kOver) {
    Remove(connection->id);
    return;
  }
  Wake(connection);
  Refresh(connection);
}

size_t Endpoint::State::PollConnection(int64_t now_ns, Connection* connection,
                                       std::span<uint8_t> out) {
  size_t size = 0;
  if (connection->stage == Connection::Stage::kJoining) {
    size = PollHello(now_ns, connection, out);
  } else if (connection->welcome_due) {
    connection->welcome_due = false;
    size = connection->welcome.size();
    std::copy(connection->welcome.begin(), connection->welcome.end(), out.begin());
  } else if (connection->stage == Connection::Stage::kUp) {
    Link::Notice notice;
    size = connection->link->PollTransmit(now_ns, out, &notice);
    Tell(*connection, notice);
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
    Tell(*connection, notice);
    if (connection->link->state() == Link::State::kOver) {
      Remove(connection->id);
      return;
    }
  }
  Wake(connection);
  Refresh(connection);
}

void Endpoint::State::GiveUp(Connection* connection) {
  switch (connection->stage) {
    case Connection::Stage::kJoining:
      if (connection->initiator->retried()) {
        Down(connection->id, Code::kRejectedSecret, std::string(kRejectedText));
      } else {
        Down(connection->id, Code::kUnreachable, "nobody answers at this address");
      }
      return;
    case Connection::Stage::kAsked:
      Down(connection->id, Code::kTimeout, "the join was neither accepted nor refused in time");
      return;
    case Connection::Stage::kWelcomed:
      Down(connection->id, Code::kUnreachable, "the joiner did not answer the welcome");
      return;
    case Connection::Stage::kRefused:
    case Connection::Stage::kUp:
      return;
  }
}

void Endpoint::State::Tell(const Connection& connection, const Link::Notice& notice) {
  if (notice.type == Link::Notice::Type::kSuspect) {
    Emit(LinkEvent::Type::kSuspect, connection.id);
  } else if (notice.type == Link::Notice::Type::kDown) {
    Down(connection.id, notice.code, notice.reason);
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
      job_key(JobKey(options.secret, options.job_id)),
      static_key(options.private_key),
      cookies(RandomKey()),
      grants(options.grants) {
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

LinkOptions Endpoint::State::OptionsOfLink(LinkId link, bool asks_first) const {
  return {.failure_timeout_ns = options.failure_timeout_ns,
          .datagram_bytes = static_cast<size_t>(options.datagram_bytes),
          .first_sequence = options.first_link_sequence,
          .jitter_seed = ConnectionId(link),
          .asks_first = asks_first,
          .congestion = options.congestion};
}

}  // namespace strom
