// How connections come to be: the stages of a handshake on either side, until a link stands.
#include <algorithm>
#include <string_view>

#include "core/transport/endpoint_state.h"

namespace strom {
namespace {

constexpr int64_t kHalfOpenNs = 3'000'000'000;
constexpr size_t kMaxHalfOpen = 256;
constexpr size_t kMaxRetriesQueued = 64;
constexpr int64_t kLeastJoinNs = 3'000'000'000;
constexpr int64_t kFirstHelloIntervalNs = 50'000'000;
constexpr int64_t kLastHelloIntervalNs = 250'000'000;  // a dozen tries within the least patience
// Who is awaited for a failure timeout alone is to have several tries within it, too.
constexpr int64_t kHellosPerTimeout = 10;

constexpr std::string_view kRejectedText =
    "the master answers but does not accept this job: the secret, the job id or the master's "
    "public key differ";

}  // namespace

// ---------------------------------------------------------------- joining, as the master

void Endpoint::State::HandleHello(int64_t now_ns, const Address& from, Bytes datagram) {
  const auto hello = ParseHello(datagram);
  if (!hello || !options.accepts) {
    ++counters.drop_malformed;
    return;
  }
  const auto known = by_ephemeral.find(hello->ephemeral);
  Connection* const earlier = known == by_ephemeral.end() ? nullptr : Find(known->second);
  // Whoever copies a HELLO may be here before its sender, which then comes from another address: it
  // is answered, too, once it has shown that it receives there.
  const bool is_from_elsewhere =
      earlier != nullptr && earlier->is_half_open() && earlier->peer != from;
  if (earlier != nullptr && !is_from_elsewhere) {
    RepeatAnswer(earlier, from);
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
  if (is_from_elsewhere) {
    RepeatAnswer(earlier, from);
    return;
  }
  // By all of it: one that was damaged on its way comes again whole.
  const Digest whole = Sha256({datagram});
  if (handshakes.IsRefused(whole)) {
    ++counters.drop_wrong_secret;
    return;
  }
  if (half_open >= kMaxHalfOpen || !handshakes.MayOpen(now_ns, from)) {
    ++counters.drop_over_limit;
    return;
  }
  auto responder = Responder::Open(static_key, job_key, *hello, datagram);
  if (!responder) {
    ++counters.drop_wrong_secret;
    handshakes.NoteRefused(now_ns, from, whole);
    joiners.Note(from, Joiner::Progress::kWrongSecret);
    return;
  }
  Connection* connection = Add(from, Connection::Stage::kAsked, now_ns + kHalfOpenNs);
  connection->hello = *hello;
  connection->welcome_to = from;
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

// A repeated HELLO gets the same answer while its sender may lack it, at the address from which it
// has come this time. On a connection that stands it has no effect.
void Endpoint::State::RepeatAnswer(Connection* connection, const Address& from) {
  if (connection->stage == Connection::Stage::kUp) {
    ++connection->counters.drop_replayed;
    return;
  }
  connection->welcome_to = from;
  connection->welcome_due = !connection->welcome.empty();
  Wake(connection);
}

void Endpoint::State::Accept(int64_t now_ns, Connection* connection, Bytes welcome) {
  auto answer = connection->responder->Accept(RandomKey(), ConnectionId(connection->id), welcome);
  MakeLink(now_ns, connection, answer.keys, connection->hello.peer_connection,
           /*asks_first=*/false);
  Answer(now_ns, connection, std::move(answer), Connection::Stage::kWelcomed);
}

void Endpoint::State::Refuse(int64_t now_ns, Connection* connection, const std::string& reason) {
  Answer(now_ns, connection, connection->responder->Refuse(RandomKey(), reason),
         Connection::Stage::kRefused);
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

LinkId Endpoint::State::Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                                Bytes hello) {
  const int64_t patience_ns = options.join_timeout_ns > 0
                                  ? options.join_timeout_ns
                                  : std::max(options.failure_timeout_ns, kLeastJoinNs);
  Connection* connection = Add(to, Connection::Stage::kJoining, now_ns + patience_ns);
  connection->initiator.emplace(key, job_key, RandomKey(), ConnectionId(connection->id), hello);
  connection->hello_ns = now_ns;
  connection->hello_interval_ns = kFirstHelloIntervalNs;
  Wake(connection);
  Refresh(connection);
  return connection->id;
}

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
  MakeLink(now_ns, connection, welcome->keys, welcome->peer_connection, /*asks_first=*/true);
  Emit(LinkEvent::Type::kUp, link).payload = MakeBuffer(std::move(welcome->payload));
  Wake(connection);
  Refresh(connection);
}

size_t Endpoint::State::PollHello(int64_t now_ns, Connection* connection, std::span<uint8_t> out) {
  if (now_ns < connection->hello_ns) return 0;
  connection->hello_ns = now_ns + connection->hello_interval_ns;
  const int64_t longest_ns = std::clamp(options.failure_timeout_ns / kHellosPerTimeout,
                                        kFirstHelloIntervalNs, kLastHelloIntervalNs);
  connection->hello_interval_ns = std::min(2 * connection->hello_interval_ns, longest_ns);
  const auto& hello = connection->initiator->hello();
  std::copy(hello.begin(), hello.end(), out.begin());
  return hello.size();
}

// ---------------------------------------------------------------- either side

void Endpoint::State::MakeLink(int64_t now_ns, Connection* connection, const ConnectionKeys& keys,
                               uint32_t peer_connection, bool asks_first) {
  const bool is_fixed = options.datagram_bytes != 0;
  const size_t fixed_bytes = static_cast<size_t>(options.datagram_bytes);
  LinkOptions link_options{.failure_timeout_ns = options.failure_timeout_ns,
                           .least_datagram_bytes = is_fixed ? fixed_bytes : kLeastDatagramBytes,
                           .most_datagram_bytes = is_fixed ? fixed_bytes : kMaxDatagramBytes,
                           .first_sequence = options.first_link_sequence,
                           .jitter_seed = ConnectionId(connection->id),
                           .asks_first = asks_first,
                           .congestion = options.congestion};
  if (options.packets_per_key_phase != 0) {
    link_options.keys.packets_per_phase = options.packets_per_key_phase;
  }
  connection->link =
      std::make_unique<Link>(now_ns, Link::Peer{connection->peer, peer_connection, keys},
                             link_options, random, &grants, &connection->counters);
}

// The handshake is through: from here on the link alone decides, and the handshake's keys go.
void Endpoint::State::Establish(Connection* connection) {
  if (connection->is_half_open()) --half_open;
  connection->stage = Connection::Stage::kUp;
  connection->deadline_ns = kNever;
  connection->initiator.reset();
  connection->welcome = {};
  connection->welcome_due = false;
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

}  // namespace strom
