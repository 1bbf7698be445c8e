// What happens to datagrams on their way: loss one by one and in bursts, duplication, corruption,
// delay, reordering, a rate with a finite buffer before it, a policer, and a longest datagram.
#ifndef KERAS_STROM_SIM_PATH_H_
#define KERAS_STROM_SIM_PATH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "sim/random.h"

namespace strom {

// IPv4 and UDP headers, which a link's rate and a path's MTU count too.
inline constexpr int64_t kIpAndUdpBytes = 28;

// One direction between two hosts.
struct PathOptions {
  double loss = 0;         // each datagram with this probability
  double duplication = 0;  // arrives twice
  double corruption = 0;   // arrives with one bit flipped, or cut short
  int64_t delay_ns = 50'000;
  int64_t jitter_ns = 0;  // added, uniform; more than the spacing of datagrams reorders them
  bool blocked = false;   // nothing passes
  int64_t mtu_bytes = 0;  // longer packets (payload + kIpAndUdpBytes) vanish unsaid; 0 = no limit
  // With this probability a datagram begins a burst, in which all are lost (Gilbert's model, but a
  // burst has a length in time: in one counted in datagrams a quiet link would be dead for long).
  double burst = 0;
  int64_t burst_ns = 2'000'000;               // a burst's mean length
  int64_t rate_bytes = 0;                     // a second, headers included; 0 = no limit
  int64_t buffer_bytes = int64_t{128} << 10;  // before the rate; what does not fit is lost
  // A policer: what comes faster than this is lost at once, but for `bucket_bytes` after a pause.
  int64_t policed_bytes = 0;  // a second, headers included; 0 = none
  int64_t bucket_bytes = int64_t{64} << 10;
};

// The options that are not their defaults, for people: "loss 5 %, burst 1 % of 8".
std::string Describe(const PathOptions& options);

// A line of finite rate and the buffer before it.
class Bottleneck {
 public:
  // rate_bytes = 0: no limit.
  void Set(int64_t rate_bytes, int64_t buffer_bytes) {
    rate_bytes_ = rate_bytes;
    buffer_bytes_ = buffer_bytes;
  }
  // When the last bit of a packet that arrives now has left; nothing = the buffer is full.
  std::optional<int64_t> Pass(int64_t now_ns, int64_t bytes);

 private:
  int64_t rate_bytes_ = 0;
  int64_t buffer_bytes_ = 0;
  int64_t busy_until_ns_ = 0;
};

// Tokens come at a rate and fill a bucket; a packet that finds too few of them is lost.
class Policer {
 public:
  // rate_bytes = 0: everything passes.
  void Set(int64_t rate_bytes, int64_t bucket_bytes) {
    rate_bytes_ = rate_bytes;
    bucket_bytes_ = bucket_bytes;
    tokens_ = static_cast<double>(bucket_bytes);
  }
  bool Passes(int64_t now_ns, int64_t bytes);

 private:
  int64_t rate_bytes_ = 0;
  int64_t bucket_bytes_ = 0;
  double tokens_ = 0;
  int64_t filled_ns_ = 0;
};

// A path with its state.
class Path {
 public:
  explicit Path(const PathOptions& options) { Set(options); }

  const PathOptions& options() const { return options_; }
  void Set(const PathOptions& options);

  struct Arrival {
    int64_t time_ns;
    std::vector<uint8_t> datagram;
  };
  // The fate of a datagram that is sent now: none, one or two arrivals.
  std::vector<Arrival> Carry(int64_t now_ns, Bytes datagram, SimulatedRandom* random);
  // For networks without packets: whether one more transmission would be lost, and the line.
  bool Loses(int64_t now_ns, SimulatedRandom* random);
  Bottleneck& bottleneck() { return bottleneck_; }

 private:
  bool InBurst(int64_t now_ns, SimulatedRandom* random);

  PathOptions options_;
  Bottleneck bottleneck_;
  Policer policer_;
  int64_t burst_until_ns_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_PATH_H_
