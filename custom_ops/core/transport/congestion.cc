#include "core/transport/congestion.h"

#include <algorithm>

namespace strom {
namespace {

constexpr int64_t kSlowStartQueueNs = 3'000'000;
constexpr int64_t kCongestedQueueNs = 250'000;
constexpr double kCongestedFactor = 0.7;
constexpr double kPacingGain = 1.25;
constexpr double kSlowStartPacingGain = 2.5;  // the window doubles within the round

double LossFactor(const CongestionSample& sample) {
  if (sample.queue_delay_ns > kCongestedQueueNs) return kCongestedFactor;
  const double sent = static_cast<double>(sample.round_lost + sample.round_acknowledged);
  return 1 - static_cast<double>(sample.round_lost) / sent / 2;
}

}  // namespace

CongestionState NextCongestionState(CongestionState state, const CongestionSample& sample,
                                    double max_window_packets) {
  if (sample.least_round_trip_ns >= kLongLineNs) {
    state.long_line =
        NextLongLineState(state.long_line, sample, state.window_packets, max_window_packets);
    state.window_packets = state.long_line.window_packets;
    return state;
  }
  state.long_line = {};  // it only looked long while this process or the peer waited
  if (state.slow_start && (sample.round_lost > 0 || sample.queue_delay_ns > kSlowStartQueueNs)) {
    state.slow_start = false;
  }
  if (sample.window_limited) {
    const double acknowledged = static_cast<double>(sample.acknowledged);
    state.window_packets += state.slow_start ? acknowledged : acknowledged / state.window_packets;
  }
  if (sample.round_ended && sample.round_lost > 0) state.window_packets *= LossFactor(sample);
  state.window_packets = std::clamp(state.window_packets, kMinCongestionWindow, max_window_packets);
  return state;
}

double PacingRate(const CongestionState& state, int64_t path_round_trip_ns) {
  if (state.long_line.is_on()) return state.long_line.pacing_rate;
  const double gain = state.slow_start ? kSlowStartPacingGain : kPacingGain;
  return gain * state.window_packets /
         static_cast<double>(std::max<int64_t>(path_round_trip_ns, 1));
}

CongestionState ScaledCongestionState(CongestionState state, double ratio) {
  state.window_packets = std::max(state.window_packets * ratio, kMinCongestionWindow);
  state.long_line = ScaledLongLineState(state.long_line, ratio);
  return state;
}

}  // namespace strom
