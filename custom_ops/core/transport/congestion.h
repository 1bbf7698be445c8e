// How many packets may be under way, and how fast they leave: congestion control as pure functions
// over a small value, so that another algorithm is another pair of functions
// (docs/internals/transport.md, "Loss recovery and congestion").
//
// Slow start from 32 packets, left on loss or a queue of more than 3 ms; then one packet more each
// round trip. Loss that comes with a queue is congestion and costs 30 %; loss without one is the
// line's own and costs half its fraction.
#ifndef KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_
#define KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_

#include <cstdint>

namespace strom {

inline constexpr double kMinCongestionWindow = 4;
inline constexpr double kInitialCongestionWindow = 32;

struct CongestionState {
  double window_packets = kInitialCongestionWindow;
  bool slow_start = true;
};

// What one STATUS has told.
struct CongestionSample {
  int64_t acknowledged = 0;     // packets newly acknowledged
  bool window_limited = false;  // the window, not the application, bounded what was under way
  bool round_ended = false;     // a round trip has passed since the last time this was true
  int64_t round_acknowledged = 0;
  int64_t round_lost = 0;
  int64_t queue_delay_ns = 0;  // what the path's round trip is above the least one
};

CongestionState NextCongestionState(CongestionState state, const CongestionSample& sample,
                                    double max_window_packets);

// How fast packets may leave, in packets a nanosecond: faster than the window empties, so that
// pacing spreads bursts and does not bound the rate.
double PacingRate(const CongestionState& state, int64_t path_round_trip_ns);

// The algorithm of a link.
struct CongestionControl {
  CongestionState (*next)(CongestionState, const CongestionSample&,
                          double max_window_packets) = NextCongestionState;
  double (*pacing_rate)(const CongestionState&, int64_t path_round_trip_ns) = PacingRate;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_
