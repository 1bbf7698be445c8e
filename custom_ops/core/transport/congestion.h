// How many packets may be under way, and how fast they leave: congestion control as pure functions
// over a small value, so that another algorithm is another set of functions
// (docs/internals/transport.md, "Loss recovery and congestion").
//
// On short lines: slow start from 32 packets, left on loss or a queue of more than 3 ms; then one
// packet more each round trip. Loss that comes with a queue is congestion and costs 30 %; loss
// without one is the line's own and costs half its fraction. Long lines, whose least round trip is
// 3 ms or more: core/transport/long_line.h.
#ifndef KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_
#define KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_

#include <cstdint>

#include "core/transport/long_line.h"

namespace strom {

inline constexpr double kMinCongestionWindow = 4;
inline constexpr double kInitialCongestionWindow = 32;

struct CongestionState {
  double window_packets = kInitialCongestionWindow;
  bool slow_start = true;
  LongLineState long_line = {};
};

// What one STATUS has told.
struct CongestionSample {
  int64_t now_ns = 0;
  int64_t acknowledged = 0;     // packets newly acknowledged
  int64_t lost = 0;             // ... and newly reported missing
  bool window_limited = false;  // the window, not the application, bounded what was under way
  bool round_ended = false;     // a round trip has passed since the last time this was true
  int64_t round_acknowledged = 0;
  int64_t round_lost = 0;
  int64_t queue_delay_ns = 0;  // what the path's round trip is above the least one
  int64_t round_trip_ns = 0;   // the path's
  int64_t least_round_trip_ns = 0;
  int64_t in_flight = 0;        // packets under way
  double delivered_per_ns = 0;  // packets (core/transport/delivery_rate.h); 0 = not measured
  bool limited = false;         // ... while there was less to send than the path might have carried
};

CongestionState NextCongestionState(CongestionState state, const CongestionSample& sample,
                                    double max_window_packets);

// How fast packets may leave, in packets a nanosecond. On a short line faster than the window
// empties, so that pacing spreads bursts and does not bound the rate.
double PacingRate(const CongestionState& state, int64_t path_round_trip_ns);

// The same state in packets of another length: `ratio` times as many are as many bytes.
CongestionState ScaledCongestionState(CongestionState state, double ratio);

// The algorithm of a link.
struct CongestionControl {
  CongestionState (*next)(CongestionState, const CongestionSample&,
                          double max_window_packets) = NextCongestionState;
  double (*pacing_rate)(const CongestionState&, int64_t path_round_trip_ns) = PacingRate;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_CONGESTION_H_
