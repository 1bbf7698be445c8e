// Inside an endpoint: its connections and what happens to them. Shared by endpoint.cc (the table,
// the links) and endpoint_joining.cc (everything before a link stands); nobody else includes it.
#ifndef KERAS_STROM_CORE_TRANSPORT_ENDPOINT_STATE_H_
#define KERAS_STROM_CORE_TRANSPORT_ENDPOINT_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/transport/endpoint.h"
#include "core/transport/handshake.h"
#include "core/transport/handshakes.h"
#include "core/transport/link.h"

namespace strom {

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
  Address peer;                  // as it joined; once the link stands its path knows better
  int64_t deadline_ns = kNever;  // every stage but kUp ends then

  std::optional<Initiator> initiator;  // kJoining
  int64_t hello_ns = kNever;           // when the next HELLO goes out
  int64_t hello_interval_ns = 0;       // ... and the pause after it

  std::optional<Responder> responder;  // kAsked
  HelloFields hello;                   // responder: what the joiner has sent
  std::vector<uint8_t> welcome;        // kWelcomed, kRefused
  Address welcome_to;                  // who has sent the HELLO last, and received at it before
  bool welcome_due = false;

  LinkCounters counters;
  std::unique_ptr<Link> link;  // kWelcomed, kUp
  bool ready = false;          // stands in the ready queue

  bool is_responder() const { return hello.peer_connection != 0; }
  bool is_half_open() const { return is_responder() && stage != Stage::kUp; }
};

// Adds a datagram of so many bytes, if it is one.
void CountSent(size_t bytes, LinkCounters* counters);

struct Endpoint::State {
  State(const EndpointOptions& given, RandomSource* source);

  // Joining, as the master (endpoint_joining.cc).
  void HandleHello(int64_t now_ns, const Address& from, Bytes datagram);
  size_t PollRetry(std::span<uint8_t> out, Address* to);
  void RepeatAnswer(Connection* connection, const Address& from);
  void Answer(int64_t now_ns, Connection* connection, Responder::Answer answer,
              Connection::Stage stage);
  void Accept(int64_t now_ns, Connection* connection, Bytes welcome);
  void Refuse(int64_t now_ns, Connection* connection, const std::string& reason);
  // Joining, as a worker (endpoint_joining.cc).
  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key, Bytes hello);
  void HandleRetry(int64_t now_ns, Connection* connection, Bytes datagram);
  void HandleWelcome(int64_t now_ns, Connection* connection, Bytes datagram);
  size_t PollHello(int64_t now_ns, Connection* connection, std::span<uint8_t> out);

  // The end of every join (endpoint_joining.cc).
  void MakeLink(int64_t now_ns, Connection* connection, const ConnectionKeys& keys,
                uint32_t peer_connection, bool asks_first);
  void Establish(Connection* connection);
  void GiveUp(Connection* connection);

  // Links.
  void HandleLinkDatagram(int64_t now_ns, const Address& from, Connection* connection,
                          const PacketHeader& header, Bytes datagram);
  size_t PollConnection(int64_t now_ns, Connection* connection, std::span<uint8_t> out,
                        Address* to);
  void TimeOut(int64_t now_ns, Connection* connection);
  // Passes on what the link has to say; removes it when it is over. True: it is still there.
  bool Conclude(Connection* connection, const Link::Notice& notice);
  void Forget();
  LinkEvent& Emit(LinkEvent::Type type, LinkId link);
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

  EndpointOptions options;  // without the secrets
  RandomSource* const random;
  SecretKey job_key;
  StaticKey static_key;
  CookieJar cookies;
  Grants grants;
  bool forgotten = false;  // nothing is taken or sent any more
  // Connection ids are link ids under a mask, so that those of an earlier process are strangers.
  uint32_t connection_id_mask = 0;

  // Parallel vectors: looking for the earliest deadline walks over one of them alone.
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<int64_t> deadlines;
  std::unordered_map<LinkId, size_t> index;
  std::map<PublicKeyBytes, LinkId> by_ephemeral;  // responders: every HELLO makes one connection
  size_t half_open = 0;
  Handshakes handshakes;
  Joiners joiners;
  LinkId next_link = 1;

  std::deque<LinkId> ready;  // may have something to send
  int turn = 0;              // datagrams the first of them has sent in a row
  std::deque<std::pair<Address, std::vector<uint8_t>>> retries;
  std::deque<LinkEvent> events;
  EndpointCounters counters;  // of connections that are gone, and of what belongs to none
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_ENDPOINT_STATE_H_
