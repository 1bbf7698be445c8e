// What the relay's benchmark sends, and what it counts, the same over every transport: messages of
// one size, checked at both ends as they arrive, sent one way for as long as the receiver wants
// (goodput), or to and fro one at a time (round trips).
#ifndef KERAS_STROM_BENCH_RELAY_TRAFFIC_H_
#define KERAS_STROM_BENCH_RELAY_TRAFFIC_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace strom::bench {

// What one process is to do; relay_peer.cc reads it from the command line.
struct PeerOptions {
  std::string role;       // receive, send, echo or ask
  std::string transport;  // relay, shared_memory, tcp or tls
  std::string address;    // a literal: where to listen, or the peer's
  uint16_t port = 0;
  int64_t message_bytes = 64 << 10;
  int senders = 1;             // receive: it starts when so many are there
  double warm_up_seconds = 0;  // receive: before the seconds that count
  double seconds = 1;          // receive: those that count; ask: the longest it goes on
  int64_t round_trips = 1000;  // ask
  std::string congestion;      // tcp, tls: the algorithm; "" = the system's
  int64_t gather_bytes = 0;    // tcp, tls, send: messages wait until they are so long together
};

inline constexpr int kMaxSenders = 64;

// A few messages that are sent over and over, so that making them costs no transport anything.
// The first and the last 8 bytes belong together.
class Messages {
 public:
  explicit Messages(int64_t message_bytes);
  const Buffer& Next() { return messages_[next_++ % messages_.size()]; }

 private:
  std::vector<Buffer> messages_;
  size_t next_ = 0;
};

// What every receiver does with a message. Throws when its ends do not belong together.
void CheckMessage(Bytes message);

// What has arrived so far; written by the receiving threads, read by another.
struct Arrivals {
  std::array<std::atomic<int64_t>, kMaxSenders> messages{};  // whole ones, by sender
};

// The processor's time of this process, in user and kernel mode.
double ProcessorSeconds();
double NowSeconds();

// Samples `arrivals` while a receiver works: the warm-up, then the seconds that count.
// Returns {"seconds", "messages": [by sender], "total_messages", "cpu_seconds"}; the last two are
// of everything since the start.
std::string MeasureArrivals(const PeerOptions& options, const Arrivals& arrivals);

// Round trips as a JSON list of microseconds.
std::string MicrosecondsJson(const std::vector<double>& seconds);

// Ready to be reached at `port`; the driver waits for this line.
void PrintReady(uint16_t port);
void PrintLine(const std::string& json);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_TRAFFIC_H_
