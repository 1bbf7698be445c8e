// Grants by themselves, and what they are for: many senders to one through a small buffer.
#include "core/transport/grants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
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

TEST(Grants, NobodyIsActiveAfterAPause) {
  Grants grants(GrantOptions{});
  Grants::Sender sender;
  grants.NoteArrival(0, 1, &sender);
  EXPECT_EQ(grants.ActiveSenders(Grants::kPeriodNs), 1);
  EXPECT_EQ(grants.ActiveSenders(2 * Grants::kPeriodNs), 0);
  EXPECT_EQ(grants.ActiveSenders(100 * Grants::kPeriodNs), 0);
}

// ---------------------------------------------------------------- incast

struct Incast {
  double retransmitted;  // of the datagrams sent
  double fairness;       // Jain's index
  double goodput;        // of the line's rate, in payload
};

// `senders` workers send to one master as fast as they may, through a line of 1 Gbit/s.
Incast RunIncast(int senders, int64_t buffer_bytes, int64_t mtu_bytes = 1500) {
  EndpointOptions options;
  constexpr int64_t kRate = 125'000'000;
  Network network(1);
  network.SetPaths({.delay_ns = 30'000, .mtu_bytes = mtu_bytes});
  options.secret.fill(7);
  options.private_key.fill(3);
  options.accepts = true;
  const PublicKeyBytes key = DerivePublicKey(options.private_key);
  const Host master = network.Add(options);
  network.SetLine(master, kRate, buffer_bytes);
  std::map<LinkId, int64_t> received;
  network.hooks(master).on_event = [&](int64_t now_ns, LinkEvent event) {
    if (event.type == LinkEvent::Type::kHello) {
      network.endpoint(master).Accept(now_ns, event.link, MakeBuffer({1}));
    }
    if (event.type == LinkEvent::Type::kMessage) {
      received[event.link] += static_cast<int64_t>(event.payload->size());
    }
  };
  const Buffer message = MakeBuffer(std::vector<uint8_t>(64 << 10, 5));
  options.accepts = false;
  std::vector<Host> workers;
  for (int i = 0; i < senders; ++i) {
    const Host worker = network.Add(options);
    const LinkId link = network.endpoint(worker).Connect(network.now_ns(), network.address(master),
                                                         key, MakeBuffer({1}));
    network.hooks(worker).after = [&, worker, link](int64_t now_ns) {
      Endpoint& endpoint = network.endpoint(worker);
      while (endpoint.QueuedBytes(link) < (1 << 20) &&
             endpoint.Send(now_ns, link, Channel::kUpdate, message)) {
      }
    };
    workers.push_back(worker);
  }
  network.RunFor(200 * kMillisecond);
  received.clear();
  const auto count = [&](int64_t LinkCounters::* field) {
    return std::accumulate(workers.begin(), workers.end(), 0.0, [&](double sum, Host worker) {
      return sum + static_cast<double>(network.endpoint(worker).counters().*field);
    });
  };
  const double sent = count(&LinkCounters::datagrams_sent);
  const double retransmitted = count(&LinkCounters::retransmitted_packets);
  constexpr int64_t kDurationNs = 400 * kMillisecond;
  network.RunFor(kDurationNs);

  double sum = 0, squares = 0;
  for (const auto& [link, bytes] : received) {
    sum += static_cast<double>(bytes);
    squares += static_cast<double>(bytes) * static_cast<double>(bytes);
  }
  return {.retransmitted = (count(&LinkCounters::retransmitted_packets) - retransmitted) /
                           (count(&LinkCounters::datagrams_sent) - sent),
          .fairness = sum * sum / (senders * squares),
          .goodput = sum / (kRate * static_cast<double>(kDurationNs) / kSecond)};
}

class IncastTest : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(Buffers, IncastTest, testing::Values(64 << 10, 128 << 10, 512 << 10));

// What the line carries of payload, and what the protocol promises of that.
constexpr double kPayloadOfLine = 1144.0 / 1228;
constexpr double kGoodput = .9 * kPayloadOfLine;

TEST_P(IncastTest, EightSendersShareALineFairlyAndLoseLittle) {
  const Incast incast = RunIncast(8, GetParam());
  EXPECT_LE(incast.retransmitted, .02);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.goodput, kGoodput);
}

TEST_P(IncastTest, OneSenderAloneFillsTheLine) {
  const Incast incast = RunIncast(1, GetParam());
  EXPECT_LE(incast.retransmitted, .01);
  EXPECT_GE(incast.goodput, kGoodput);
}

// Jumbo frames: what a buffer holds of them is few packets.
TEST(Incast, LongDatagramsShareALineToo) {
  const Incast incast = RunIncast(8, 512 << 10, 9000);
  EXPECT_LE(incast.retransmitted, .02);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.goodput, kGoodput);
}

TEST(Incast, ManySendersGetAtLeastAFewPacketsEach) {
  const Incast incast = RunIncast(32, 128 << 10);
  EXPECT_LE(incast.retransmitted, .05);
  EXPECT_GE(incast.fairness, .95);
  EXPECT_GE(incast.goodput, kGoodput);
}

}  // namespace
}  // namespace strom
