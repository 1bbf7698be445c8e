// Grants by themselves, and what they are for: many senders to one through a small buffer.
#include "core/transport/grants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/transport/crypto.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

TEST(Grants, ActiveSendersShareTheBudgetEvenly) {
  Grants grants({.shared_bytes = 800, .lone_bytes = 10'000});
  std::vector<Grants::Sender> senders(8);
  for (Grants::Sender& sender : senders) EXPECT_TRUE(grants.NoteArrival(1, 100, &sender));
  EXPECT_EQ(grants.ActiveSenders(1), 8);
  EXPECT_EQ(grants.ShareBytes(1), 100);
  EXPECT_FALSE(grants.NoteArrival(2, 100, &senders[0])) << "it is active already";
}

TEST(Grants, TheShareOfOneThatFallsSilentGoesToTheOthers) {
  Grants grants({.shared_bytes = 800});
  Grants::Sender steady, brief;
  EXPECT_TRUE(grants.NoteArrival(0, 1, &brief));
  for (int64_t now_ns = 0; now_ns < 5 * Grants::kPeriodNs; now_ns += kMillisecond) {
    grants.NoteArrival(now_ns, 1, &steady);
    const bool both = now_ns < 2 * Grants::kPeriodNs;
    EXPECT_EQ(grants.ActiveSenders(now_ns), both ? 2 : 1) << now_ns;
  }
  EXPECT_TRUE(grants.NoteArrival(5 * Grants::kPeriodNs, 1, &brief)) << "it starts anew";
  EXPECT_EQ(grants.ShareBytes(5 * Grants::kPeriodNs), 400);
}

TEST(Grants, ALoneSenderGetsMoreAsItSendsUntilItIsNotAlone) {
  Grants grants({.shared_bytes = 1000, .lone_bytes = 5000});
  Grants::Sender first, second;
  for (int i = 0; i < 3; ++i) grants.NoteArrival(0, 500, &first);
  EXPECT_EQ(grants.ShareBytes(0), 2500);
  for (int i = 0; i < 30; ++i) grants.NoteArrival(0, 500, &first);
  EXPECT_EQ(grants.ShareBytes(0), 5000);
  grants.NoteArrival(0, 500, &second);
  EXPECT_EQ(grants.ShareBytes(0), 500);
}

TEST(Grants, LossWhileSeveralSendMakesTheBudgetSmallerForAWhile) {
  Grants grants({.shared_bytes = 6400});
  std::vector<Grants::Sender> senders(2);
  int64_t now_ns = 0;
  const auto run_period = [&](int64_t lost_in_a_hundred) {
    for (int i = 0; i < 50; ++i) {
      for (Grants::Sender& sender : senders) grants.NoteArrival(now_ns, 1, &sender);
    }
    grants.NoteLoss(lost_in_a_hundred);
    now_ns += Grants::kPeriodNs;
  };
  run_period(1);  // as a line may lose by itself
  run_period(10);
  EXPECT_EQ(grants.ShareBytes(now_ns), 3200);
  run_period(0);
  EXPECT_EQ(grants.ShareBytes(now_ns), 2400);
  for (int i = 0; i < 20; ++i) run_period(10);
  EXPECT_EQ(grants.ShareBytes(now_ns), 800) << "a quarter is left";
  for (int i = 0; i < 60; ++i) run_period(0);
  EXPECT_EQ(grants.ShareBytes(now_ns), 3200);
}

TEST(Grants, WhoSendsGrantsAsMuchOnTop) {
  Grants grants({.shared_bytes = 1000, .lone_bytes = 5000});
  std::vector<Grants::Sender> senders(2);
  for (Grants::Sender& sender : senders) grants.NoteArrival(0, 1, &sender);
  grants.NoteOwnUnderWay(2000);
  EXPECT_EQ(grants.ShareBytes(0), 1500);
  grants.NoteOwnUnderWay(10'000);
  EXPECT_EQ(grants.ShareBytes(0), 2500) << "no more than one would get";
  grants.NoteOwnUnderWay(-12'000);
  EXPECT_EQ(grants.ShareBytes(0), 500);
}

TEST(Grants, NobodyIsActiveAfterAPause) {
  Grants grants(GrantOptions{});
  Grants::Sender sender;
  grants.NoteArrival(0, 1, &sender);
  EXPECT_EQ(grants.ActiveSenders(Grants::kPeriodNs), 1);
  EXPECT_EQ(grants.ActiveSenders(2 * Grants::kPeriodNs), 0);
  EXPECT_EQ(grants.ActiveSenders(100 * Grants::kPeriodNs), 0);
}

// ---------------------------------------------------------------- incast

struct Traffic {
  double up = 0, down = 0;   // goodput, of the line's rate, in payload
  double retransmitted = 0;  // of the datagrams that the senders sent
  double fairness = 0;       // Jain's index of what came up
};

// Workers that send to one master as fast as they may, and it to them where it `answers`. They
// share the master's line, which has a buffer in each direction.
class Crowd {
 public:
  Crowd(int workers, bool answers, int64_t rate_bytes, int64_t buffer_bytes,
        int64_t mtu_bytes = 1500)
      : rate_bytes_(rate_bytes) {
    network_.SetPaths({.delay_ns = 30'000, .mtu_bytes = mtu_bytes});
    EndpointOptions options;
    options.secret.fill(7);
    options.private_key.fill(3);
    options.accepts = true;
    const PublicKeyBytes key = DerivePublicKey(options.private_key);
    const Host master = network_.Add(options);
    network_.SetLine(master, rate_bytes, buffer_bytes);
    network_.hooks(master).on_event = [=, this](int64_t now_ns, const LinkEvent& event) {
      Endpoint& endpoint = network_.endpoint(master);
      if (event.type == LinkEvent::Type::kHello) {
        endpoint.Accept(now_ns, event.link, MakeBuffer({1}));
      }
      if (event.type == LinkEvent::Type::kUp && answers) answered_.push_back(event.link);
      if (event.type == LinkEvent::Type::kMessage) up_bytes_[event.link] += Size(event);
    };
    network_.hooks(master).after = [=, this](int64_t now_ns) {
      for (const LinkId link : answered_) Fill(now_ns, master, link);
    };
    options.accepts = false;
    for (int i = 0; i < workers; ++i) {
      const Host worker = network_.Add(options);
      const LinkId link = network_.endpoint(worker).Connect(
          network_.now_ns(), network_.address(master), key, MakeBuffer({1}));
      network_.hooks(worker).on_event = [this](int64_t, const LinkEvent& event) {
        if (event.type == LinkEvent::Type::kMessage) down_bytes_ += Size(event);
      };
      network_.hooks(worker).after = [=, this](int64_t now_ns) { Fill(now_ns, worker, link); };
      workers_.push_back(worker);
    }
    // Until all links stand and have measured their round trips.
    network_.RunFor(2 * kSecond);
    sends_ = true;
  }

  Traffic RunFor(int64_t duration_ns) {
    up_bytes_.clear();
    down_bytes_ = 0;
    const double sent = Count(&LinkCounters::datagrams_sent);
    const double again = Count(&LinkCounters::retransmitted_packets);
    network_.RunFor(duration_ns);
    double sum = 0, squares = 0;
    for (const auto& [link, bytes] : up_bytes_) {
      sum += bytes;
      squares += bytes * bytes;
    }
    const double line_bytes =
        static_cast<double>(rate_bytes_) * static_cast<double>(duration_ns) / kSecond;
    return {.up = sum / line_bytes,
            .down = down_bytes_ / line_bytes,
            .retransmitted = (Count(&LinkCounters::retransmitted_packets) - again) /
                             (Count(&LinkCounters::datagrams_sent) - sent),
            .fairness = sum * sum / (static_cast<double>(workers_.size()) * squares)};
  }

 private:
  static double Size(const LinkEvent& event) { return static_cast<double>(event.payload->size()); }

  void Fill(int64_t now_ns, Host host, LinkId link) {
    Endpoint& endpoint = network_.endpoint(host);
    while (sends_ && endpoint.QueuedBytes(link) < (1 << 20) &&
           endpoint.Send(now_ns, link, Channel::kUpdate, message_)) {
    }
  }

  double Count(int64_t LinkCounters::* field) {
    return std::accumulate(workers_.begin(), workers_.end(), 0.0, [&](double sum, Host worker) {
      return sum + static_cast<double>(network_.endpoint(worker).counters().*field);
    });
  }

  const int64_t rate_bytes_;
  const Buffer message_ = MakeBuffer(std::vector<uint8_t>(64 << 10, 5));
  Network network_{1};
  std::vector<Host> workers_;
  std::vector<LinkId> answered_;
  bool sends_ = false;
  std::map<LinkId, double> up_bytes_;
  double down_bytes_ = 0;
};

constexpr int64_t kGigabitBytes = 125'000'000;

// `senders` workers send to one master as fast as they may, through a line of 1 Gbit/s.
Traffic RunIncast(int senders, int64_t buffer_bytes, int64_t mtu_bytes = 1500) {
  Crowd crowd(senders, /*answers=*/false, kGigabitBytes, buffer_bytes, mtu_bytes);
  crowd.RunFor(200 * kMillisecond);
  return crowd.RunFor(400 * kMillisecond);
}

class IncastTest : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(Buffers, IncastTest, testing::Values(64 << 10, 128 << 10, 512 << 10));

// What the line carries of payload, and what the protocol promises of that.
constexpr double kPayloadOfLine = 1144.0 / 1228;
constexpr double kGoodput = .9 * kPayloadOfLine;

TEST_P(IncastTest, EightSendersShareALineFairlyAndLoseLittle) {
  const Traffic incast = RunIncast(8, GetParam());
  EXPECT_LE(incast.retransmitted, .02);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.up, kGoodput);
}

TEST_P(IncastTest, OneSenderAloneFillsTheLine) {
  const Traffic incast = RunIncast(1, GetParam());
  EXPECT_LE(incast.retransmitted, .01);
  EXPECT_GE(incast.up, kGoodput);
}

// Jumbo frames: what a buffer holds of them is few packets.
TEST(Incast, LongDatagramsShareALineToo) {
  const Traffic incast = RunIncast(8, 512 << 10, 9000);
  EXPECT_LE(incast.retransmitted, .02);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.up, kGoodput);
}

TEST(Incast, ManySendersGetAtLeastAFewPacketsEach) {
  const Traffic incast = RunIncast(32, 128 << 10);
  EXPECT_LE(incast.retransmitted, .05);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.up, kGoodput);
}

// ---------------------------------------------------------------- both ways at once

struct BothWays {
  int64_t rate_bytes;
  int64_t buffer_bytes;
};

class BothWaysTest : public testing::TestWithParam<std::tuple<BothWays, int>> {};

INSTANTIATE_TEST_SUITE_P(Lines, BothWaysTest,
                         testing::Combine(testing::Values(BothWays{kGigabitBytes / 10, 128 << 10},
                                                          BothWays{kGigabitBytes / 10, 512 << 10},
                                                          BothWays{kGigabitBytes / 4, 2 << 20},
                                                          BothWays{kGigabitBytes, 64 << 10},
                                                          BothWays{kGigabitBytes, 512 << 10},
                                                          BothWays{kGigabitBytes, 2 << 20}),
                                          testing::Values(2, 8)));

// What a master is sent does not suffer from what it sends, whose queue holds up its grants.
TEST_P(BothWaysTest, FillBothDirections) {
  const auto& [line, workers] = GetParam();
  Crowd crowd(workers, /*answers=*/true, line.rate_bytes, line.buffer_bytes);
  for (int i = 0; i < 2; ++i) {
    const Traffic traffic = crowd.RunFor(400 * kMillisecond);
    EXPECT_GE(traffic.up, .75 * kPayloadOfLine);
    EXPECT_GE(traffic.down, .75 * kPayloadOfLine);
    if (i == 0) continue;  // links are still looking for their rate
    EXPECT_LE(traffic.retransmitted, .04);
  }
}

}  // namespace
}  // namespace strom
