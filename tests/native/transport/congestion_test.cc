// Congestion control as a function, and links that run under another one.
#include "core/transport/congestion.h"

#include <gtest/gtest.h>

#include "core/transport/counters.h"
#include "core/transport/link.h"
#include "core/transport/link_sender.h"
#include "core/transport/sequence_set.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr double kMost = 4096;

TEST(Congestion, SlowStartDoublesTheWindowInARound) {
  CongestionState state;
  state = NextCongestionState(state, {.acknowledged = 32, .window_limited = true}, kMost);
  EXPECT_EQ(state.window_packets, 64);
  EXPECT_TRUE(state.slow_start);
}

TEST(Congestion, AQueueEndsSlowStartAndThenTheWindowGrowsByOneARound) {
  CongestionState state{.window_packets = 100};
  state = NextCongestionState(
      state, {.acknowledged = 100, .window_limited = true, .queue_delay_ns = 4 * kMillisecond},
      kMost);
  EXPECT_FALSE(state.slow_start);
  EXPECT_EQ(state.window_packets, 101);
}

TEST(Congestion, LossWithAQueueCostsMoreThanTheLinesOwn) {
  const CongestionState before{.window_packets = 100, .slow_start = false};
  const CongestionSample alone{.round_ended = true, .round_acknowledged = 90, .round_lost = 10};
  CongestionSample with_queue = alone;
  with_queue.queue_delay_ns = kMillisecond;
  EXPECT_DOUBLE_EQ(NextCongestionState(before, alone, kMost).window_packets, 95);
  EXPECT_DOUBLE_EQ(NextCongestionState(before, with_queue, kMost).window_packets, 70);
}

TEST(Congestion, AWindowThatIsNotUsedDoesNotGrowAndNoneLeavesItsBounds) {
  const CongestionState idle = NextCongestionState({}, {.acknowledged = 5}, kMost);
  EXPECT_EQ(idle.window_packets, kInitialCongestionWindow);
  CongestionState state{.window_packets = 5, .slow_start = false};
  const CongestionSample loss{.round_ended = true, .round_lost = 10};
  for (int i = 0; i < 9; ++i) state = NextCongestionState(state, loss, kMost);
  EXPECT_EQ(state.window_packets, kMinCongestionWindow);
  state =
      NextCongestionState({.window_packets = 10}, {.acknowledged = 9, .window_limited = true}, 12);
  EXPECT_EQ(state.window_packets, 12);
}

TEST(RoundTripClock, ForgetsTheLeastRoundTripOfARouteThatIsGone) {
  RoundTripClock clock;
  const auto run = [&](int64_t from_ns, int64_t round_trip_ns) {
    for (int64_t i = 0; i < 1000; ++i) clock.Sample(from_ns + i * kSecond / 10, round_trip_ns);
  };
  run(0, kMillisecond);
  EXPECT_EQ(clock.queue_delay_ns(), 0);
  clock.Sample(100 * kSecond, 5 * kMillisecond);
  EXPECT_EQ(clock.least_ns(), kMillisecond) << "a longer one may be a queue";
  run(100 * kSecond, 5 * kMillisecond);
  EXPECT_EQ(clock.least_ns(), 5 * kMillisecond);
  EXPECT_EQ(clock.queue_delay_ns(), 0);
}

TEST(RoundTripClock, TakesAWaitForAProcessorForNoQueue) {
  RoundTripClock clock;
  for (int64_t i = 0; i < 100; ++i) {
    clock.Sample(i * kMillisecond, i % 4 == 0 ? 200'000 : 20 * kMillisecond);
  }
  EXPECT_EQ(clock.queue_delay_ns(), 0);
  EXPECT_EQ(clock.path_ns(), 200'000);
  EXPECT_GT(clock.smoothed_ns(), 5 * kMillisecond);
  for (int64_t i = 100; i < 120; ++i) clock.Sample(i * kMillisecond, 2 * kMillisecond);
  EXPECT_EQ(clock.queue_delay_ns(), 1'800'000) << "a queue shows in every sample";
}

// Another algorithm: always the same window, at a gigabit a second.
CongestionState FixedWindow(CongestionState state, const CongestionSample&, double) {
  state.window_packets = 10;
  return state;
}
double FixedRate(const CongestionState&, int64_t) { return 1e-4; }

TEST(CongestionControl, ALinkRunsUnderTheOneThatItIsGiven) {
  LinkCounters counters;
  LinkSender sender(0, 1168, LinkOptions{}.failure_timeout_ns,
                    {.next = FixedWindow, .pacing_rate = FixedRate}, &counters);
  const Buffer message = MakeBuffer(std::vector<uint8_t>(1 << 20, 1));
  sender.Queue(0, Channel::kUpdate, message);
  std::vector<uint8_t> body(1168);
  StatusPacket status;
  status.grant_edge = kWindowPackets;
  for (int64_t now_ns = 0; now_ns < 500 * kMillisecond; now_ns += 100'000) {
    while (sender.PollData(now_ns, body) > 0) {
    }
    if (now_ns > 0) {
      EXPECT_LE(sender.in_flight_packets(), 10);
    }
    status.cumulative = status.complete_up_to = sender.next_sequence();
    ASSERT_TRUE(sender.HandleStatus(now_ns, status));
  }
  EXPECT_EQ(sender.queued_bytes(), 0);
}

}  // namespace
}  // namespace strom
