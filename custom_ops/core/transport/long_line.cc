#include "core/transport/long_line.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/transport/congestion.h"

namespace strom {
namespace {

using Phase = LongLineState::Phase;

constexpr double kStartGain = 2.885;  // 2 / ln 2: the least that doubles what is under way
constexpr double kStartGrowth = 1.25;
constexpr int kStartRounds = 3;
constexpr double kMargin = .99;  // a rate that is measured a little too high must not make a queue
constexpr std::array<double, 8> kTurnGains = {1.25,    .75,     kMargin, kMargin,
                                              kMargin, kMargin, kMargin, kMargin};
constexpr int kUpTurn = 0, kDownTurn = 1, kAfterDownTurn = 2;
constexpr int kLevelTurn = 4;  // from here on no report is of packets of the first two
constexpr int64_t kMostDownRounds = 3;
constexpr int kRateRounds = 5;        // a cycle's rate is known for so many rounds at least
constexpr double kWindowGain = 2;     // of what the line holds
constexpr double kBatchPackets = 24;  // ... and what waits for pacing and for a STATUS
constexpr int64_t kRoundTripPatienceNs = 10'000'000'000;
constexpr int64_t kLeastDipNs = 200'000'000;
constexpr double kDipGain = .5;

constexpr double kToleratedLoss = .02;
constexpr double kPolicedLoss = .2;
constexpr int64_t kLeastLost = 3;  // in a round; fewer say nothing
constexpr int64_t kLeastLostOfStart = 8;
constexpr int64_t kLeastCounted = 32;  // packets that tell the line's own loss
constexpr double kCrowdedFactor = .85;
constexpr double kCeilingGrowth = 1.25;  // a cycle
constexpr double kNearlyAll = .95;
constexpr double kBorneLoss = .1;
constexpr double kMostOwnLoss = .6;

double Rate(const LongLineState& state) { return std::max(state.rate, state.rate_before); }

// What the line holds without a queue, in packets.
double Held(const LongLineState& state) {
  return Rate(state) * static_cast<double>(state.least_ns);
}

double Gain(const LongLineState& state) {
  switch (state.phase) {
    case Phase::kStart:
      return kStartGain;
    case Phase::kDrain:
      return 1 / kStartGain;
    case Phase::kCycle:
      return kTurnGains[static_cast<size_t>(state.turn)];
    case Phase::kDip:
    case Phase::kOff:
      break;
  }
  return 1;
}

// The share of what is sent that makes up for what the line will lose. Probing bears a tenth of
// loss by itself; and a policer loses what is sent on top, which must not seem to need more of it.
double OnTop(const LongLineState& state) { return std::max(state.own_loss - kBorneLoss, 0.0); }

bool HasQueue(const LongLineState& state, const CongestionSample& sample) {
  return sample.round_trip_ns > state.least_ns + state.least_ns / 8;
}

double LostShare(int64_t lost, int64_t acknowledged) {
  return static_cast<double>(lost) / static_cast<double>(std::max<int64_t>(lost + acknowledged, 1));
}

void BeginTurn(int64_t now_ns, int turn, LongLineState* state) {
  state->turn = turn;
  state->turn_ns = now_ns;
  if (turn != kUpTurn || state->rounds < kRateRounds) return;
  state->rounds = 0;
  if (state->rate_is_whole) {
    state->rate_before = std::exchange(state->rate, 0);
    state->rate_is_whole = false;
  }
  if (!std::exchange(state->crowded, false)) state->ceiling_packets *= kCeilingGrowth;
  if (state->ceiling_packets > kWindowGain * Held(*state)) state->ceiling_packets = 0;
}

// Links that began together probe at different times: the turn follows from the microsecond.
void BeginCycle(int64_t now_ns, LongLineState* state) {
  state->phase = Phase::kCycle;
  BeginTurn(now_ns, kAfterDownTurn + static_cast<int>(now_ns / 1000 % 6), state);
}

void TakeRate(const CongestionSample& sample, LongLineState* state) {
  if (sample.delivered_per_ns <= 0) return;
  if (!sample.limited || sample.delivered_per_ns > Rate(*state)) {
    state->rate = std::max(state->rate, sample.delivered_per_ns);
  }
  if (!sample.limited) state->rate_is_whole = true;
}

void EndStart(LongLineState* state) {
  state->is_full = true;
  state->phase = Phase::kDrain;
}

void TakeRound(const CongestionSample& sample, LongLineState* state) {
  ++state->rounds;
  if (!state->is_full && !sample.limited && sample.delivered_per_ns > 0) {
    if (Rate(*state) >= state->full_rate * kStartGrowth) {
      state->full_rate = Rate(*state);
      state->full_rounds = 0;
    } else if (++state->full_rounds >= kStartRounds) {
      EndStart(state);
    }
  }
  if (sample.round_lost < (state->phase == Phase::kStart ? kLeastLostOfStart : kLeastLost)) return;
  const double lost = LostShare(sample.round_lost, sample.round_acknowledged) - state->own_loss;
  const bool has_queue = HasQueue(*state, sample);
  // At a start the loss that others' queues make says nothing of one's own share.
  const bool counts = has_queue && state->phase != Phase::kStart;
  if (lost <= (counts ? kToleratedLoss : kPolicedLoss)) return;
  if (has_queue) {
    state->crowded = true;
    const double under_way = std::min(static_cast<double>(sample.in_flight), state->window_packets);
    state->ceiling_packets = std::max(Held(*state), kCrowdedFactor * under_way);
  }
  if (state->phase == Phase::kStart) EndStart(state);
  if (state->phase == Phase::kCycle && state->turn == kUpTurn) {
    BeginTurn(sample.now_ns, kDownTurn, state);
  }
}

// The least round trip, and the dip that looks for it.
void TakeRoundTrip(const CongestionSample& sample, LongLineState* state) {
  state->least_ns = std::min(state->least_ns, sample.round_trip_ns);
  if (sample.round_trip_ns <= state->least_ns + state->least_ns / 16) {
    state->least_seen_ns = sample.now_ns;
  }
  if (state->phase != Phase::kDip) {
    if (sample.now_ns - state->least_seen_ns <= kRoundTripPatienceNs) return;
    state->phase = Phase::kDip;
    state->dip_least_ns = sample.round_trip_ns;
    state->dip_end_ns = 0;
    return;
  }
  state->dip_least_ns = std::min(state->dip_least_ns, sample.round_trip_ns);
  if (state->dip_end_ns == 0 && static_cast<double>(sample.in_flight) <= state->window_packets) {
    state->dip_end_ns = sample.now_ns + std::max(kLeastDipNs, state->least_ns);
  }
  if (state->dip_end_ns == 0 || sample.now_ns < state->dip_end_ns) return;
  state->least_ns = state->dip_least_ns;
  state->least_seen_ns = sample.now_ns;
  if (state->is_full) {
    BeginCycle(sample.now_ns, state);
  } else {
    state->phase = Phase::kStart;
  }
}

// From what has become of packets that were sent no faster than the line had delivered.
void LearnOwnLoss(bool has_queue, LongLineState* state) {
  if (!has_queue && state->level_lost + state->level_acknowledged < kLeastCounted) return;
  const double share = has_queue ? 0 : LostShare(state->level_lost, state->level_acknowledged);
  state->own_loss = std::min((state->own_loss + share) / 2, kMostOwnLoss);
  state->level_lost = state->level_acknowledged = 0;
}

void EndTurn(const CongestionSample& sample, LongLineState* state) {
  const int next = (state->turn + 1) % static_cast<int>(kTurnGains.size());
  if (next == kUpTurn) LearnOwnLoss(HasQueue(*state, sample), state);
  BeginTurn(sample.now_ns, next, state);
}

void TakeTurn(const CongestionSample& sample, LongLineState* state) {
  // Without those that the line will lose.
  const double under_way = static_cast<double>(sample.in_flight) * (1 - OnTop(*state));
  const double allowed = state->window_packets * (1 - OnTop(*state));
  if (state->phase == Phase::kDrain && under_way <= Held(*state)) {
    BeginCycle(sample.now_ns, state);
  }
  if (state->phase != Phase::kCycle) return;
  if (state->turn >= kLevelTurn) {
    state->level_acknowledged += sample.acknowledged;
    state->level_lost += sample.lost;
  }
  bool ends = sample.now_ns - state->turn_ns > state->least_ns;
  // More is under way only after a while. Less is sent until the queue is gone; another's stays.
  if (state->turn == kUpTurn) {
    const double most = std::min(kTurnGains[kUpTurn] * Held(*state), kNearlyAll * allowed);
    ends = ends && (sample.lost > 0 || under_way >= most);
  }
  if (state->turn == kDownTurn) {
    const bool is_long = sample.now_ns - state->turn_ns > kMostDownRounds * state->least_ns;
    ends = is_long || under_way <= Held(*state);
  }
  if (ends) EndTurn(sample, state);
}

void SetWindow(const CongestionSample& sample, double max_window_packets, LongLineState* state) {
  const double sent_for_one = 1 / (1 - OnTop(*state));
  const double held = Held(*state) * sent_for_one;
  const double acknowledged = static_cast<double>(sample.acknowledged);
  double window = state->window_packets;
  if (!state->is_full) {
    if (held == 0 || window < kStartGain * held + kBatchPackets) window += acknowledged;
  } else {
    window = kWindowGain * held + kBatchPackets;
    if (state->ceiling_packets > 0) window = std::min(window, state->ceiling_packets);
  }
  if (state->phase == Phase::kDip) window = std::min(window, kDipGain * held);
  state->window_packets = std::clamp(window, kMinCongestionWindow, max_window_packets);

  const double rate = Gain(*state) * Rate(*state) * sent_for_one;
  const double least_rate = kMinCongestionWindow / static_cast<double>(state->least_ns);
  const bool only_up = state->phase == Phase::kStart;  // early samples are small
  state->pacing_rate = std::max({rate, least_rate, only_up ? state->pacing_rate : 0});
}

}  // namespace

LongLineState NextLongLineState(LongLineState state, const CongestionSample& sample,
                                double window_packets, double max_window_packets) {
  if (!state.is_on()) {
    state.phase = Phase::kStart;
    state.window_packets = window_packets;
    state.least_ns = std::max<int64_t>(sample.least_round_trip_ns, 1);
    state.least_seen_ns = sample.now_ns;
    state.pacing_rate = kStartGain * window_packets / static_cast<double>(state.least_ns);
  }
  TakeRate(sample, &state);
  if (sample.round_ended) TakeRound(sample, &state);
  TakeRoundTrip(sample, &state);
  TakeTurn(sample, &state);
  SetWindow(sample, max_window_packets, &state);
  return state;
}

LongLineState ScaledLongLineState(LongLineState state, double ratio) {
  for (double* packets : {&state.window_packets, &state.pacing_rate, &state.rate,
                          &state.rate_before, &state.full_rate, &state.ceiling_packets}) {
    *packets *= ratio;
  }
  return state;
}

}  // namespace strom
