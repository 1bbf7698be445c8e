// TCP's congestion control as that of a link, for tests of how a link shares a line with it: CUBIC
// (RFC 9438) and BBR version 1 (Cardwell and others 2016), without what only matters in a kernel.
// Their state lives in the fields of LongLineState that fit.
#ifndef KERAS_STROM_TESTS_RIVALS_H_
#define KERAS_STROM_TESTS_RIVALS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/transport/congestion.h"

namespace strom::rivals {

inline constexpr double kSecondNs = 1e9;

// full_rate: the window before the last loss; turn_ns: when that was.
inline CongestionState NextCubic(CongestionState state, const CongestionSample& sample,
                                 double most) {
  LongLineState& own = state.long_line;
  own.phase = LongLineState::Phase::kCycle;
  own.least_ns = std::max<int64_t>(sample.least_round_trip_ns, 1);
  const double acknowledged = static_cast<double>(sample.acknowledged);
  if (sample.lost > 0 && sample.now_ns - own.turn_ns > sample.round_trip_ns) {
    own.full_rate = state.window_packets;
    state.window_packets *= .7;
    state.slow_start = false;
    own.turn_ns = sample.now_ns;
  } else if (state.slow_start) {
    state.window_packets += acknowledged;
  } else {
    constexpr double kC = .4;
    const double k = std::cbrt(own.full_rate * .3 / kC);
    const double t =
        static_cast<double>(sample.now_ns - own.turn_ns + sample.round_trip_ns) / kSecondNs;
    const double target = std::clamp(kC * std::pow(t - k, 3) + own.full_rate, state.window_packets,
                                     1.5 * state.window_packets);
    state.window_packets += (target - state.window_packets) / state.window_packets * acknowledged;
  }
  state.window_packets = std::clamp(state.window_packets, 4.0, most);
  own.pacing_rate = (state.slow_start ? 2 : 1.2) * state.window_packets /
                    static_cast<double>(std::max<int64_t>(sample.round_trip_ns, 1));
  return state;
}

inline CongestionState NextBbr1(CongestionState state, const CongestionSample& sample,
                                double most) {
  using Phase = LongLineState::Phase;
  LongLineState& own = state.long_line;
  if (!own.is_on()) {
    own.phase = Phase::kStart;
    own.least_ns = std::max<int64_t>(sample.least_round_trip_ns, 1);
    own.least_seen_ns = sample.now_ns;
  }
  if (sample.delivered_per_ns > 0 && (!sample.limited || sample.delivered_per_ns > own.rate)) {
    own.rate = std::max(own.rate, sample.delivered_per_ns);
  }
  const double rate = std::max(own.rate, own.rate_before);
  if (sample.round_ended) {
    if (++own.rounds % 5 == 0 && own.is_full) own.rate_before = std::exchange(own.rate, 0);
    if (!own.is_full && !sample.limited) {
      if (rate >= 1.25 * own.full_rate) {
        own.full_rate = rate;
        own.full_rounds = 0;
      } else if (++own.full_rounds >= 3) {
        own.is_full = true;
        own.phase = Phase::kDrain;
      }
    }
  }
  const double held = rate * static_cast<double>(own.least_ns);
  const double under_way = static_cast<double>(sample.in_flight);
  const bool expired = sample.now_ns - own.least_seen_ns > 10'000'000'000;
  if (sample.round_trip_ns <= own.least_ns || expired) {
    own.least_ns = sample.round_trip_ns;
    own.least_seen_ns = sample.now_ns;
  }
  if (expired && own.phase != Phase::kDip) {
    own.phase = Phase::kDip;
    own.dip_end_ns = sample.now_ns + 200'000'000 + sample.round_trip_ns;
  }
  if (own.phase == Phase::kDip && sample.now_ns > own.dip_end_ns) {
    own.phase = own.is_full ? Phase::kCycle : Phase::kStart;
  }
  if (own.phase == Phase::kDrain && under_way <= held) {
    own.phase = Phase::kCycle;
    own.turn = 2 + static_cast<int>(sample.now_ns / 1000 % 6);
    own.turn_ns = sample.now_ns;
  }
  if (own.phase == Phase::kCycle) {
    bool ends = sample.now_ns - own.turn_ns > own.least_ns;
    if (own.turn == 0) ends = ends && (sample.lost > 0 || under_way >= 1.25 * held);
    if (own.turn == 1) ends = ends || under_way <= held;
    if (ends) {
      own.turn = (own.turn + 1) % 8;
      own.turn_ns = sample.now_ns;
    }
  }
  const double window = own.phase == Phase::kDip ? 4 : (own.is_full ? 2 : 2.885) * held + 24;
  state.window_packets += static_cast<double>(sample.acknowledged);
  if (own.is_full || own.phase == Phase::kDip) {
    state.window_packets = std::min(state.window_packets, window);
  }
  state.window_packets = std::clamp(state.window_packets, 4.0, most);
  const std::array<double, 8> gains = {1.25, .75, 1, 1, 1, 1, 1, 1};
  const double gain = own.phase == Phase::kStart   ? 2.885
                      : own.phase == Phase::kDrain ? 1 / 2.885
                      : own.phase == Phase::kCycle ? gains[static_cast<size_t>(own.turn)]
                                                   : 1;
  const double first = 2.885 * state.window_packets / static_cast<double>(own.least_ns);
  own.pacing_rate = own.phase == Phase::kStart
                        ? std::max(own.pacing_rate, rate > 0 ? gain * rate : first)
                        : .99 * gain * rate;
  return state;
}

inline double PacedAsItSays(const CongestionState& state, int64_t path_round_trip_ns) {
  if (state.long_line.is_on()) return state.long_line.pacing_rate;
  return 2.5 * state.window_packets / static_cast<double>(std::max<int64_t>(path_round_trip_ns, 1));
}

inline constexpr CongestionControl kCubic = {.next = NextCubic, .pacing_rate = PacedAsItSays};
inline constexpr CongestionControl kBbr1 = {.next = NextBbr1, .pacing_rate = PacedAsItSays};

}  // namespace strom::rivals

#endif  // KERAS_STROM_TESTS_RIVALS_H_
