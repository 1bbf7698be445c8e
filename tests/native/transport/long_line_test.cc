// What links make of lines with long round trips, in virtual time: how much of the line's rate is
// carried, how long its queue gets, and how several share it.
#include "core/transport/long_line.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "core/transport/congestion.h"
#include "core/transport/endpoint.h"
#include "core/transport/handshake.h"
#include "core/transport/link_sender.h"
#include "rivals.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLineBytes = 12'500'000;  // 100 Mbit/s

// Workers that send to one master as fast as they may, each over a path of its own, all through
// the master's line.
class LongLine {
 public:
  // line_bytes = 0: each path has a rate of its own. (As `path` says.)
  LongLine(uint64_t seed, const PathOptions& path, int64_t line_bytes = 0) : network_(seed) {
    network_.SetPaths(path);
    options_.secret.fill(7);
    options_.private_key.fill(3);
    options_.accepts = true;
    key_ = DerivePublicKey(options_.private_key);
    master_ = network_.Add(options_);
    options_.accepts = false;
    if (line_bytes > 0) network_.SetLine(master_, line_bytes, path.buffer_bytes);
    network_.hooks(master_).on_event = [this](int64_t now_ns, LinkEvent event) {
      if (event.type == LinkEvent::Type::kHello) {
        network_.endpoint(master_).Accept(now_ns, event.link, MakeBuffer({1}));
      }
      if (event.type == LinkEvent::Type::kMessage) {
        received_[event.link] += static_cast<double>(event.payload->size());
      }
    };
  }

  void AddSender(const CongestionControl& control = {}) {
    EndpointOptions options = options_;
    options.congestion = control;
    const Host worker = network_.Add(options);
    const LinkId link = network_.endpoint(worker).Connect(
        network_.now_ns(), network_.address(master_), key_, MakeBuffer({1}));
    network_.hooks(worker).after = [this, worker, link](int64_t now_ns) {
      Endpoint& endpoint = network_.endpoint(worker);
      while (endpoint.QueuedBytes(link) < (8 << 20) &&
             endpoint.Send(now_ns, link, Channel::kUpdate, message_)) {
      }
    };
    workers_.push_back(worker);
  }

  // One that sends only what Send gives it.
  LinkId AddQuietSender() {
    workers_.push_back(network_.Add(options_));
    return network_.endpoint(workers_.back())
        .Connect(network_.now_ns(), network_.address(master_), key_, MakeBuffer({1}));
  }
  void Send(LinkId link, size_t bytes) {
    EXPECT_TRUE(network_.endpoint(workers_.back())
                    .Send(network_.now_ns(), link, Channel::kUpdate,
                          MakeBuffer(std::vector<uint8_t>(bytes, 5))));
  }
  double received_bytes() const {
    double sum = 0;
    for (const auto& [link, bytes] : received_) sum += bytes;
    return sum;
  }

  void RunFor(int64_t duration_ns) { network_.RunFor(duration_ns); }

  // The payload that each sender got across in this time, over the line's bytes.
  std::vector<double> Shares(int64_t duration_ns) {
    received_.clear();
    network_.RunFor(duration_ns);
    std::vector<double> shares;
    const double seconds = static_cast<double>(duration_ns) / kSecond;
    for (const auto& [link, bytes] : received_) {
      shares.push_back(bytes / (kLineBytes * seconds));
    }
    return shares;
  }
  LinkReport Report(size_t worker = 0) { return network_.endpoint(workers_[worker]).Links().at(0); }
  // Of the datagrams that the senders have sent since the last call, the share that was sent again.
  double Retransmitted() {
    double sent = 0, again = 0;
    for (const Host worker : workers_) {
      const EndpointCounters counters = network_.endpoint(worker).counters();
      sent += static_cast<double>(counters.datagrams_sent);
      again += static_cast<double>(counters.retransmitted_packets);
    }
    const double share = (again - again_before_) / (sent - sent_before_);
    sent_before_ = sent;
    again_before_ = again;
    return share;
  }
  Network& network() { return network_; }
  Host master() const { return master_; }
  Host worker(size_t i) const { return workers_[i]; }

 private:
  Network network_;
  EndpointOptions options_;
  PublicKeyBytes key_{};
  Host master_ = 0;
  std::vector<Host> workers_;
  std::map<LinkId, double> received_;
  double sent_before_ = 0, again_before_ = 0;
  const Buffer message_ = MakeBuffer(std::vector<uint8_t>(64 << 10, 5));
};

PathOptions Path(int64_t round_trip_ns, double loss = 0) {
  return {.loss = loss,
          .delay_ns = round_trip_ns / 2,
          .mtu_bytes = 1500,
          .rate_bytes = kLineBytes,
          .buffer_bytes = int64_t{2} << 20};
}

double Sum(const std::vector<double>& shares) {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

struct Case {
  int64_t round_trip_ns;
  double loss;
  double least_share;  // of the line's rate, in payload; 1448 of 1500 bytes are no headers
};

class LongLineTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Lines, LongLineTest,
    testing::Values(Case{20 * kMillisecond, 0, .93}, Case{20 * kMillisecond, .001, .93},
                    Case{100 * kMillisecond, 0, .93}, Case{100 * kMillisecond, .001, .93},
                    Case{100 * kMillisecond, .01, .92}, Case{200 * kMillisecond, .01, .92},
                    Case{300 * kMillisecond, .01, .92}, Case{100 * kMillisecond, .1, .8}));

TEST_P(LongLineTest, OneSenderFillsTheLineWithAShortQueue) {
  const auto [round_trip_ns, loss, least_share] = GetParam();
  LongLine line(1, Path(round_trip_ns, loss));
  line.AddSender();
  line.RunFor(2 * kSecond + 10 * round_trip_ns);
  line.Retransmitted();
  EXPECT_GE(Sum(line.Shares(10 * kSecond)), least_share);
  EXPECT_LE(line.Report().smoothed_round_trip_ns, round_trip_ns * 3 / 2);
  EXPECT_LE(line.Retransmitted(), 1.3 * loss + .01);
}

TEST(LongLine, ALineIsFullAfterAFewRoundTrips) {
  LongLine line(1, Path(100 * kMillisecond));
  line.AddSender();
  line.RunFor(kSecond);  // a handshake of two round trips, 16 packets in the next
  EXPECT_GE(Sum(line.Shares(kSecond)), .8);
}

TEST(LongLine, ADeepBufferIsNotFilled) {
  PathOptions path = Path(100 * kMillisecond);
  path.buffer_bytes = int64_t{32} << 20;  // 2.7 s
  LongLine line(1, path);
  line.AddSender();
  line.RunFor(3 * kSecond);
  for (int i = 0; i < 20; ++i) {
    EXPECT_GE(Sum(line.Shares(kSecond)), .92);
    EXPECT_LE(line.Report().smoothed_round_trip_ns, 140 * kMillisecond);
  }
}

TEST(LongLine, AShallowBufferLosesLittle) {
  PathOptions path = Path(100 * kMillisecond);
  path.buffer_bytes = int64_t{64} << 10;  // 5 ms
  LongLine line(1, path);
  line.AddSender();
  line.RunFor(3 * kSecond);
  line.Retransmitted();
  EXPECT_GE(Sum(line.Shares(10 * kSecond)), .9);
  EXPECT_LE(line.Retransmitted(), .05);
}

TEST(LongLine, PacketsThatOvertakeEachOtherAreNotTakenForLost) {
  for (const int64_t jitter_ns : {2 * kMillisecond, 10 * kMillisecond, 30 * kMillisecond}) {
    PathOptions path = Path(100 * kMillisecond);
    path.jitter_ns = jitter_ns;
    LongLine line(1, path);
    line.AddSender();
    line.RunFor(4 * kSecond);
    line.Retransmitted();
    EXPECT_GE(Sum(line.Shares(10 * kSecond)), .9) << jitter_ns;
    EXPECT_LE(line.Retransmitted(), .01) << jitter_ns;
  }
}

TEST(LongLine, ALineThatLosesHalfOfItsPacketsIsUsed) {
  LongLine line(1, Path(100 * kMillisecond, .5));
  line.AddSender();
  line.RunFor(40 * kSecond);
  EXPECT_GE(Sum(line.Shares(20 * kSecond)), .4);
}

// A policer lets 10 Mbit/s through and drops the rest: without a queue nothing but loss shows it.
TEST(LongLine, APolicerIsNotRunAgainst) {
  PathOptions path = Path(60 * kMillisecond);
  path.policed_bytes = kLineBytes / 10;
  path.bucket_bytes = int64_t{256} << 10;
  LongLine line(1, path);
  line.AddSender();
  line.RunFor(10 * kSecond);
  line.Retransmitted();
  EXPECT_GE(Sum(line.Shares(20 * kSecond)), .08);
  EXPECT_LE(line.Retransmitted(), .15);
}

TEST(LongLine, SeveralShareALine) {
  for (const size_t senders : {2, 4}) {
    PathOptions path = Path(100 * kMillisecond);
    path.rate_bytes = 0;
    LongLine line(1, path, kLineBytes);
    for (size_t i = 0; i < senders; ++i) {
      line.AddSender();
      line.RunFor(kSecond);
    }
    line.RunFor(30 * kSecond);  // who comes later gets its share slowly
    const std::vector<double> shares = line.Shares(10 * kSecond);
    EXPECT_GE(Sum(shares), .9) << senders;
    for (const double share : shares) {
      EXPECT_GE(share, .4 / static_cast<double>(senders)) << senders;
    }
    EXPECT_LE(line.Report().smoothed_round_trip_ns, 300 * kMillisecond) << senders;
  }
}

// Behind a queue of two round trips, whoever comes first. (What BBR 1 leaves to anybody who heeds
// loss is another matter: docs/decisions/long_lines.md.)
TEST(LongLine, CubicHasAShareOfACommonLine) {
  for (const bool cubic_first : {false, true}) {
    PathOptions path = Path(40 * kMillisecond);
    path.rate_bytes = 0;
    path.buffer_bytes = kLineBytes * 80 / 1000;
    LongLine line(cubic_first ? 2 : 1, path, kLineBytes);
    line.AddSender(cubic_first ? rivals::kCubic : CongestionControl{});
    line.RunFor(kSecond);
    line.AddSender(cubic_first ? CongestionControl{} : rivals::kCubic);
    line.RunFor(11 * kSecond);
    const std::vector<double> shares = line.Shares(20 * kSecond);
    EXPECT_GE(Sum(shares), .9);
    for (const double share : shares) EXPECT_GE(share, .2 * Sum(shares));
  }
}

// Steps of a training job: a message, then nothing for a while.
TEST(LongLine, AMessageNowAndThenGoesAtOnceEveryTime) {
  LongLine line(1, Path(100 * kMillisecond));
  const LinkId link = line.AddQuietSender();
  line.RunFor(2 * kSecond);
  for (int step = 0; step < 40; ++step) {
    line.Send(link, 256 << 10);
    const double before = line.received_bytes();
    line.RunFor(300 * kMillisecond);
    if (step < 10) continue;
    EXPECT_EQ(line.received_bytes() - before, 256 << 10) << step;
  }
}

TEST(LongLine, AShortLineIsLeftToTheOtherAlgorithm) {
  LongLine line(1, Path(2 * kMillisecond));
  line.AddSender();
  line.RunFor(kSecond);
  EXPECT_GE(Sum(line.Shares(2 * kSecond)), .9);
  EXPECT_FALSE(
      NextCongestionState({}, {.least_round_trip_ns = kLongLineNs - 1}, 4096).long_line.is_on());
  EXPECT_TRUE(
      NextCongestionState({}, {.least_round_trip_ns = kLongLineNs}, 4096).long_line.is_on());
}

TEST(LongLine, ALineThatOnlySeemedLongLeavesItsWindowToTheOtherAlgorithm) {
  CongestionState state;
  state = NextCongestionState(
      state, {.acknowledged = 16, .round_trip_ns = 5'000'000, .least_round_trip_ns = 5'000'000},
      4096);
  EXPECT_EQ(state.window_packets, 48);
  state =
      NextCongestionState(state, {.round_trip_ns = 400'000, .least_round_trip_ns = 400'000}, 4096);
  EXPECT_FALSE(state.long_line.is_on());
  EXPECT_TRUE(state.slow_start);
  EXPECT_EQ(state.window_packets, 48);
}

TEST(LongLine, ARouteThatBecomesShorterOrLongerIsFilledAgain) {
  LongLine line(1, Path(100 * kMillisecond));
  line.AddSender();
  line.RunFor(5 * kSecond);
  for (const int64_t round_trip_ns : {200 * kMillisecond, 50 * kMillisecond, kMillisecond}) {
    line.network().SetPaths(Path(round_trip_ns));
    line.RunFor(65 * kSecond);  // the least round trip is remembered for two periods at most
    EXPECT_GE(Sum(line.Shares(5 * kSecond)), .85) << round_trip_ns;
  }
}

TEST(RoundTripClock, AShortLineThatIsFullForMinutesStaysShort) {
  RoundTripClock clock;
  clock.Sample(0, 200'000);
  for (int64_t second = 1; second < 290; ++second) clock.Sample(second * kSecond, 5 * kMillisecond);
  EXPECT_EQ(clock.least_ns(), 5 * kMillisecond);
  EXPECT_EQ(clock.line_ns(), 200'000);
  for (int64_t second = 290; second < 602; ++second) {
    clock.Sample(second * kSecond, 5 * kMillisecond);
  }
  EXPECT_EQ(clock.line_ns(), 5 * kMillisecond);  // its route has become another one
}

}  // namespace
}  // namespace strom
