// Where a link's datagrams go and how long they may be.
//
// A peer whose authentic packets come from a new address is moved there once it has echoed a
// challenge from that very address; until then everything goes to the old one. So nobody who only
// copies packets can move or stop a link, and who holds the keys can aim it at no third party,
// because it must have read the token where it was sent. Challenges also find how long datagrams
// may be (core/transport/datagram_size.h).
#ifndef KERAS_STROM_CORE_TRANSPORT_LINK_PATH_H_
#define KERAS_STROM_CORE_TRANSPORT_LINK_PATH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/base/link_layer.h"
#include "core/base/random_source.h"
#include "core/base/types.h"
#include "core/transport/datagram_size.h"
#include "core/transport/packet.h"

namespace strom {

class LinkPath {
 public:
  // Lengths are those of DatagramSize. `random` outlives the path.
  LinkPath(const Address& peer, size_t least_bytes, size_t most_bytes, RandomSource* random);

  const Address& peer() const { return peer_; }
  size_t datagram_bytes() const { return size_.bytes(); }

  // An authentic packet came from there; `newest`: its number is the highest so far.
  void HandleArrival(int64_t now_ns, const Address& from, bool newest);
  void HandleChallenge(const Address& from, const ChallengePacket& challenge);
  void HandleEcho(int64_t now_ns, const Address& from, const EchoPacket& echo);
  // Long datagrams are lost again and again.
  void Narrow(int64_t now_ns);
  bool is_raised() const { return size_.is_raised(); }

  // An ECHO or a CHALLENGE to send now.
  struct Outgoing {
    PacketType type = PacketType::kEcho;
    Address to;
    uint64_t token = 0;
    size_t datagram_bytes = 0;  // padded to it; 0 = no padding
  };
  std::optional<Outgoing> Poll(int64_t now_ns, int64_t round_trip_ns);
  int64_t NextTimeout() const;

 private:
  // An address that the peer may have moved to.
  struct Candidate {
    Address address;
    uint64_t token = 0;
    int challenges = 0;
    int64_t due_ns = 0;  // of the next challenge; kNever: once another packet comes from there
  };

  // A length that the peer was asked for with padded challenges, which all bear the same token.
  struct AskedLength {
    uint64_t token = 0;  // 0 = none
    size_t bytes = 0;
  };
  // Before a round trip is known a length may be given up, and the next ones asked for, while the
  // answer to the first is still under way. From Ethernet's length to the longest the search takes
  // no more steps.
  static constexpr size_t kRememberedLengths = 8;

  std::optional<Outgoing> ChallengeCandidate(int64_t now_ns, int64_t patience_ns);
  uint64_t NewToken();
  DatagramSize SizeTo(const Address& peer) const;

  const size_t least_bytes_;
  const size_t most_bytes_;
  RandomSource* const random_;
  Address peer_;
  bool heard_ = false;
  std::optional<Candidate> candidate_;
  DatagramSize size_;
  std::array<AskedLength, kRememberedLengths> asked_{};  // the newest first
  std::deque<Outgoing> echoes_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_LINK_PATH_H_
