// What the simulated datagram network promises of its paths: each fault does what it says.
#include "sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/transport/crypto.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

std::vector<uint8_t> Datagram(size_t payload_bytes) { return std::vector<uint8_t>(payload_bytes); }

// How many of `count` datagrams arrive, one a microsecond.
int64_t Arrivals(Path* path, int count, size_t payload_bytes, SimulatedRandom* random) {
  int64_t arrived = 0;
  for (int i = 0; i < count; ++i) {
    const auto arrivals = path->Carry(i * 1000, Datagram(payload_bytes), random);
    arrived += static_cast<int64_t>(arrivals.size());
  }
  return arrived;
}

TEST(PathTest, ALongerPacketThanTheMtuVanishes) {
  SimulatedRandom random(1);
  Path path({.mtu_bytes = 1500});
  EXPECT_EQ(Arrivals(&path, 10, 1500 - kIpAndUdpBytes, &random), 10);
  EXPECT_EQ(Arrivals(&path, 10, 1501 - kIpAndUdpBytes, &random), 0);
}

TEST(PathTest, BurstsHaveTheirShareAndLength) {
  SimulatedRandom random(2);
  constexpr int64_t kSpacingNs = 10'000;
  Path path({.burst = .001, .burst_ns = kMillisecond});
  int lost = 0, bursts = 0;
  bool in_burst = false;
  for (int i = 0; i < 200'000; ++i) {
    const bool gone = path.Carry(i * kSpacingNs, Datagram(100), &random).empty();
    lost += gone ? 1 : 0;
    bursts += gone && !in_burst ? 1 : 0;
    in_burst = gone;
  }
  EXPECT_NEAR(static_cast<double>(lost) / bursts, kMillisecond / kSpacingNs, 15);
  EXPECT_NEAR(bursts, 200'000 * .001 / (1 + .1), 40);
}

TEST(PathTest, ARateSpacesPacketsAndItsBufferDropsTheTail) {
  SimulatedRandom random(3);
  constexpr int64_t kPacket = 1000;
  Path path({.delay_ns = 0, .rate_bytes = 1'000'000, .buffer_bytes = 10 * kPacket});
  std::vector<int64_t> times;
  for (int i = 0; i < 30; ++i) {
    for (const auto& arrival : path.Carry(0, Datagram(kPacket - kIpAndUdpBytes), &random)) {
      times.push_back(arrival.time_ns);
    }
  }
  ASSERT_EQ(times.size(), 10u);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i], static_cast<int64_t>(i + 1) * kMillisecond);
  }
  EXPECT_EQ(path.Carry(kSecond, Datagram(100), &random).size(), 1u);  // it has drained
}

TEST(PathTest, TheSameSeedGivesTheSameFate) {
  const PathOptions harm = {
      .loss = .1, .duplication = .1, .corruption = .1, .jitter_ns = 1000, .burst = .05};
  const auto fate = [&] {
    SimulatedRandom random(4);
    Path path(harm);
    std::vector<std::pair<int64_t, std::vector<uint8_t>>> all;
    for (int i = 0; i < 1000; ++i) {
      for (auto& arrival : path.Carry(i, Datagram(50), &random)) {
        all.emplace_back(arrival.time_ns, std::move(arrival.datagram));
      }
    }
    return all;
  };
  EXPECT_EQ(fate(), fate());
}

// A responder and an initiator that is connected to it.
struct Pair {
  explicit Pair(uint64_t seed) : network(seed) {
    EndpointOptions options;
    options.private_key.fill(3);
    options.accepts = true;
    options.failure_timeout_ns = kSecond;
    master = network.Add(options);
    const PublicKeyBytes key = DerivePublicKey(options.private_key);
    options.accepts = false;
    worker = network.Add(options);
    network.hooks(master).on_event = [this](int64_t now_ns, LinkEvent event) {
      if (event.type == LinkEvent::Type::kHello) {
        network.endpoint(master).Accept(now_ns, event.link, MakeBuffer({}));
      }
      if (event.type == LinkEvent::Type::kMessage) arrivals_ns.push_back(now_ns);
    };
    network.hooks(worker).on_event = [this](int64_t, LinkEvent event) {
      up = event.type == LinkEvent::Type::kUp;
    };
    link = network.endpoint(worker).Connect(network.now_ns(), network.address(master), key,
                                            MakeBuffer({1}));
    EXPECT_TRUE(network.RunUntil(kSecond, [this] { return up; }));
  }
  void Send(size_t bytes) {
    network.endpoint(worker).Send(network.now_ns(), link, Channel::kUpdate,
                                  MakeBuffer(Datagram(bytes)));
  }

  Network network;
  Host master = 0, worker = 0;
  LinkId link = 0;
  bool up = false;
  std::vector<int64_t> arrivals_ns;
};

TEST(NetworkTest, AHostsLineIsSharedByAllItsPaths) {
  Pair pair(1);
  pair.network.SetLine(pair.master, 1'000'000, 64 << 10);
  const int64_t start_ns = pair.network.now_ns();
  pair.Send(100'000);
  ASSERT_TRUE(pair.network.RunUntil(5 * kSecond, [&] { return pair.arrivals_ns.size() == 1; }));
  EXPECT_GE(pair.arrivals_ns[0] - start_ns, 100 * kMillisecond);
}

TEST(NetworkTest, ARestartedProcessKnowsNothingOfItsPredecessorsLinks) {
  Pair pair(2);
  pair.network.Kill(pair.master);
  pair.network.Restart(pair.master);
  pair.Send(100);
  EXPECT_TRUE(pair.network.RunUntil(5 * kSecond, [&] { return !pair.up; }));
  EXPECT_TRUE(pair.arrivals_ns.empty());
  EXPECT_GT(pair.network.endpoint(pair.master).counters().drop_unknown_connection, 0);
}

TEST(NetworkTest, WhatIsSentToAnAddressThatMovedAwayIsLost) {
  Pair pair(3);
  const Address before = pair.network.address(pair.master);
  pair.network.RunFor(kSecond);  // what the link asks about its path is answered by now
  pair.network.Move(pair.master);
  EXPECT_NE(pair.network.address(pair.master), before);
  const int64_t received = pair.network.endpoint(pair.master).counters().datagrams_received;
  pair.Send(100);
  pair.network.RunFor(kMillisecond);
  EXPECT_TRUE(pair.arrivals_ns.empty());
  EXPECT_EQ(pair.network.endpoint(pair.master).counters().datagrams_received, received);
}

TEST(NetworkTest, AWayIsCutUntilTheLastOfItsCutsEndsWhateverPathIsSet) {
  Pair pair(4);
  pair.network.SetBlocked(pair.master, pair.worker, true);
  pair.network.SetOneWayBlocked(pair.worker, pair.master, true);
  pair.network.SetPath(pair.worker, pair.master, {.loss = .01});
  pair.network.SetBlocked(pair.master, pair.worker, false);
  pair.Send(100);
  pair.network.RunFor(kSecond / 2);
  EXPECT_TRUE(pair.arrivals_ns.empty());
  pair.network.SetOneWayBlocked(pair.worker, pair.master, false);
  EXPECT_TRUE(pair.network.RunUntil(kSecond, [&] { return !pair.arrivals_ns.empty(); }));
}

}  // namespace
}  // namespace strom
