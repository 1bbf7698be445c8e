// Congestion control on lines with long round trips, after BBR (Cardwell and others 2016, and
// draft-ietf-ccwg-bbr): the rate at which the path delivers and its least round trip are measured,
// and packets leave at that rate, whatever is lost on the way
// (docs/internals/transport.md, "Long lines").
//
// A start doubles the rate each round until it does not grow any more; a drain takes away the queue
// that this has made; then a cycle of eight turns sends a quarter more for a round trip, a quarter
// less for another, and as measured in the others. When for 10 s no round trip was about as short
// as the least one known, half as much is under way for a while, to see the line without its queue.
//
// Loss matters where it comes with a queue and is more than 2 % beyond the line's own, or is more
// than a fifth: then less is under way, and slowly more again. The line's own loss is what is lost
// while packets are sent as fast as they were delivered and no queue stands; what it has of more
// than a tenth is sent on top.
#ifndef KERAS_STROM_CORE_TRANSPORT_LONG_LINE_H_
#define KERAS_STROM_CORE_TRANSPORT_LONG_LINE_H_

#include <cstdint>

namespace strom {

struct CongestionSample;

struct LongLineState {
  enum class Phase : uint8_t { kOff, kStart, kDrain, kCycle, kDip };

  Phase phase = Phase::kOff;  // off: the line is not long
  double window_packets = 0;
  double pacing_rate = 0;  // packets a nanosecond

  // The most that was delivered, in packets a nanosecond: of the cycle and of the one before.
  double rate = 0, rate_before = 0;
  bool rate_is_whole = false;  // some sample of the cycle was not limited by what there was to send
  double full_rate = 0;        // start: the rate when it last grew
  int full_rounds = 0;         // ... and the rounds since
  bool is_full = false;        // it does not grow any more

  int turn = 0;                                    // of the cycle
  int64_t turn_ns = 0;                             // when it began
  int rounds = 0;                                  // since the cycle began
  bool crowded = false;                            // in this cycle
  int64_t level_acknowledged = 0, level_lost = 0;  // in turns that send as was measured

  int64_t least_ns = 0;        // the line's round trip without a queue
  int64_t least_seen_ns = 0;   // when one was about as short
  int64_t dip_least_ns = 0;    // dip: the least so far
  int64_t dip_end_ns = 0;      // ... and its end; 0 = too much is under way yet
  double ceiling_packets = 0;  // what the path's queue takes; 0 = not known
  double own_loss = 0;         // the share of packets that the line loses by itself

  bool is_on() const { return phase != Phase::kOff; }
};

// A line whose least round trip is shorter is none.
inline constexpr int64_t kLongLineNs = 3'000'000;

// What follows from one STATUS. `window_packets` is where a state that is off begins.
LongLineState NextLongLineState(LongLineState state, const CongestionSample& sample,
                                double window_packets, double max_window_packets);

// The same in packets that are `ratio` times as many for as many bytes.
LongLineState ScaledLongLineState(LongLineState state, double ratio);

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_LONG_LINE_H_
