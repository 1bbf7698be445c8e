// How long datagrams of one link may be: starts at a length that passes everywhere and searches
// upwards with padded challenges, raised only by what has arrived (RFC 8899 in small).
//
// The owner sends what NextChallenge asks for and says what came of it.
#ifndef KERAS_STROM_CORE_TRANSPORT_DATAGRAM_SIZE_H_
#define KERAS_STROM_CORE_TRANSPORT_DATAGRAM_SIZE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace strom {

class DatagramSize {
 public:
  // Lengths are UDP payload. `least` passes without a test; nothing beyond `most` is tried.
  // `header_bytes`: IP and UDP.
  DatagramSize(size_t least, size_t most, size_t header_bytes);

  size_t bytes() const { return passed_; }
  bool is_raised() const { return passed_ > least_; }

  // Begins to search; until then nothing is asked for.
  void Start(int64_t now_ns);
  // The length of the challenge to send now; 0 = none. One that has not been answered within
  // `patience_ns` is sent again, then given up: the length counts as too long.
  size_t NextChallenge(int64_t now_ns, int64_t patience_ns);
  // A challenge of this length has arrived. Where it was given up before, its answer was only late.
  void HandleAnswer(int64_t now_ns, size_t bytes);
  // What is longer than `least` does not pass any more.
  void Narrow(int64_t now_ns);

  int64_t NextTimeout() const { return due_ns_; }

 private:
  size_t Candidate() const;

  size_t least_;
  size_t most_;
  std::array<size_t, 2> rungs_;  // tried first: Ethernet's own lengths
  size_t passed_;                // the longest known to pass
  size_t too_long_;              // the shortest that was given up
  size_t challenge_ = 0;         // its length, while one is out
  int attempts_ = 0;
  int64_t due_ns_ = kNever;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_DATAGRAM_SIZE_H_
