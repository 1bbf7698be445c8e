// Endpoints on a simulated network: joins, delivery under every kind of harm, liveness, goodbyes.
#include "core/transport/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/transport/crypto.h"
#include "core/transport/handshake.h"
#include "core/transport/handshakes.h"
#include "core/transport/packet.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

Buffer Text(const std::string& text) { return MakeBuffer({text.begin(), text.end()}); }
std::string Text(const Buffer& buffer) { return {buffer->begin(), buffer->end()}; }

// A master that welcomes everybody and a worker that has joined, or tries to.
class Pair {
 public:
  explicit Pair(uint64_t seed, PathOptions path = {}, uint32_t first_sequence = 0) : network(seed) {
    network.SetPaths(path);
    EndpointOptions options;
    options.secret.fill(7);
    options.job_id.fill(9);
    options.private_key.fill(3);
    options.accepts = true;
    options.first_link_sequence = first_sequence;
    master_options = options;
    options.accepts = false;
    master_key = DerivePublicKey(options.private_key);
    options.private_key = {};
    worker_options = options;
  }

  void Start() {
    master = network.Add(master_options);
    worker = network.Add(worker_options);
    network.hooks(master).on_event = [this](int64_t now_ns, LinkEvent event) {
      if (event.type == LinkEvent::Type::kHello && accepts) {
        network.endpoint(master).Accept(now_ns, event.link, Text("welcome"));
      }
      if (event.type == LinkEvent::Type::kUp) at_master = event.link;
      master_events.push_back(std::move(event));
    };
    network.hooks(worker).on_event = [this](int64_t, LinkEvent event) {
      worker_events.push_back(std::move(event));
    };
    at_worker = network.endpoint(worker).Connect(network.now_ns(), network.address(master),
                                                 master_key, Text("hello"));
  }

  [[nodiscard]] bool Join() {
    Start();
    return network.RunUntil(10 * kSecond, [this] { return at_master != 0; });
  }

  static const LinkEvent* Find(const std::vector<LinkEvent>& events, LinkEvent::Type type) {
    for (const LinkEvent& event : events) {
      if (event.type == type) return &event;
    }
    return nullptr;
  }

  [[nodiscard]] bool RunUntilWorkerIsDown(int64_t duration_ns) {
    return network.RunUntil(
        duration_ns, [this] { return Find(worker_events, LinkEvent::Type::kDown) != nullptr; });
  }

  Network network;
  PublicKeyBytes master_key{};
  EndpointOptions master_options, worker_options;
  Host master = 0, worker = 0;
  LinkId at_master = 0, at_worker = 0;
  bool accepts = true;
  std::vector<LinkEvent> master_events, worker_events;
};

TEST(Endpoint, JoinsAndCarriesHelloAndWelcome) {
  Pair pair(1);
  ASSERT_TRUE(pair.Join());
  const LinkEvent* hello = Pair::Find(pair.master_events, LinkEvent::Type::kHello);
  const LinkEvent* up = Pair::Find(pair.worker_events, LinkEvent::Type::kUp);
  ASSERT_NE(hello, nullptr);
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(Text(hello->payload), "hello");
  EXPECT_EQ(Text(up->payload), "welcome");
  EXPECT_EQ(pair.network.endpoint(pair.master).PeerAddress(pair.at_master),
            pair.network.address(pair.worker));
}

Address MappedIpv4(uint8_t last) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  address.ip[12] = 10;
  address.ip[15] = last;
  return address;
}

// A HELLO whose cookie is valid, of somebody without the secret.
TEST(Handshakes, AHelloThatWasRefusedIsKnownAgainAndItsAddressIsSlow) {
  Handshakes handshakes;
  const Address stranger = MappedIpv4(1), other = MappedIpv4(2);
  ASSERT_TRUE(handshakes.MayOpen(0, stranger));
  handshakes.NoteRefused(0, stranger, Digest{1});
  EXPECT_TRUE(handshakes.IsRefused(Digest{1}));
  EXPECT_FALSE(handshakes.IsRefused(Digest{2}));
  int opened = 0;
  for (int64_t now_ns = 0; now_ns < kSecond; now_ns += kMillisecond / 8) {
    opened += handshakes.MayOpen(now_ns, stranger) ? 1 : 0;
  }
  EXPECT_LE(opened, 21);
  // Others still have all the time there is.
  opened = 0;
  for (int i = 0; i < 200; ++i) opened += handshakes.MayOpen(kSecond, other) ? 1 : 0;
  EXPECT_EQ(opened, Handshakes::kBurst);
  EXPECT_TRUE(handshakes.MayOpen(kSecond + Handshakes::kIntervalNs, other));
}

// Whoever has one IPv6 address has as a rule all that begin with the same 64 bits.
TEST(Handshakes, AllAddressesOfAnIpv6NetworkAreSlowOnceOneIs) {
  Handshakes handshakes;
  Address stranger, other;
  stranger.ip = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 1};
  other.ip = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 2};
  int opened = 0;
  for (uint32_t i = 0; i < 10'000; ++i) {
    stranger.ip[12] = static_cast<uint8_t>(i);
    stranger.ip[13] = static_cast<uint8_t>(i >> 8);
    if (!handshakes.MayOpen(i * kMillisecond / 10, stranger)) continue;
    ++opened;
    handshakes.NoteRefused(i * kMillisecond / 10, stranger, Digest{static_cast<uint8_t>(opened)});
  }
  EXPECT_LE(opened, 22);
  opened = 0;
  for (int i = 0; i < 200; ++i) opened += handshakes.MayOpen(kSecond, other) ? 1 : 0;
  EXPECT_EQ(opened, Handshakes::kBurst);
}

TEST(Handshakes, WhatIsRememberedIsBounded) {
  Handshakes handshakes;
  Address from = MappedIpv4(0);
  Digest key{};
  for (uint32_t i = 0; i < 5000; ++i) {
    from.ip[12] = key[0] = static_cast<uint8_t>(i);
    from.ip[13] = key[1] = static_cast<uint8_t>(i >> 8);
    handshakes.NoteRefused(i, from, key);
  }
  EXPECT_TRUE(handshakes.IsRefused(key));
  EXPECT_FALSE(handshakes.IsRefused(Digest{}));
}

TEST(Endpoint, ReportsEachLinkAndCountsAllOfThem) {
  Pair pair(17, {.loss = .02});
  pair.worker_options.datagram_bytes = 1200;  // what is sent takes a while
  ASSERT_TRUE(pair.Join());
  Endpoint& worker = pair.network.endpoint(pair.worker);
  Endpoint& master = pair.network.endpoint(pair.master);
  const Buffer message = MakeBuffer(std::vector<uint8_t>(2'000'000, 1));
  worker.Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate, message);
  pair.network.RunFor(kMillisecond);
  ASSERT_EQ(worker.Links().size(), 1u);
  const LinkReport busy = worker.Links()[0];
  EXPECT_EQ(busy.link, pair.at_worker);
  EXPECT_EQ(busy.peer, pair.network.address(pair.master));
  EXPECT_GT(busy.in_flight_packets, 0);
  EXPECT_GT(busy.grant_packets, 0);
  EXPECT_GT(busy.queued_bytes, 0);
  EXPECT_GE(busy.congestion_window_packets + 1, busy.in_flight_packets);  // it is cut to whole ones
  EXPECT_GE(busy.smoothed_round_trip_ns, busy.least_round_trip_ns);
  EXPECT_GE(busy.least_round_trip_ns, 100'000);

  ASSERT_TRUE(
      pair.network.RunUntil(kSecond, [&] { return worker.QueuedBytes(pair.at_worker) == 0; }));
  const LinkCounters sent = worker.Links()[0].counters;
  const LinkCounters received = master.Links()[0].counters;
  EXPECT_EQ(sent.messages_sent, 1);
  EXPECT_EQ(received.messages_received, 1);
  EXPECT_GT(sent.retransmitted_packets, 0);
  EXPECT_GT(sent.bytes_sent, received.bytes_received);
  EXPECT_GT(received.bytes_received, 2'000'000);

  worker.Close(pair.network.now_ns(), pair.at_worker, "");
  pair.network.RunFor(kSecond);
  EXPECT_TRUE(worker.Links().empty());
  EXPECT_GE(worker.counters().bytes_sent, sent.bytes_sent) << "what is gone stays counted";
}

TEST(Endpoint, TellsAnUnreachableMasterFromARejectedSecret) {
  Pair unreachable(2);
  unreachable.network.SetPaths({.blocked = true});
  unreachable.Start();
  ASSERT_TRUE(unreachable.RunUntilWorkerIsDown(15 * kSecond));
  EXPECT_EQ(unreachable.worker_events.back().code, Code::kUnreachable);

  Pair wrong_secret(3);
  wrong_secret.worker_options.secret.fill(8);
  wrong_secret.Start();
  ASSERT_TRUE(wrong_secret.RunUntilWorkerIsDown(15 * kSecond));
  EXPECT_EQ(wrong_secret.worker_events.back().code, Code::kRejectedSecret);
  EXPECT_GT(wrong_secret.network.endpoint(wrong_secret.master).counters().drop_wrong_secret, 0);
  EXPECT_TRUE(wrong_secret.master_events.empty());
}

TEST(Endpoint, RejectsAnotherJobAndAnotherMasterKey) {
  Pair job(4);
  job.worker_options.job_id.fill(1);
  job.Start();
  ASSERT_TRUE(job.RunUntilWorkerIsDown(15 * kSecond));
  EXPECT_EQ(job.worker_events.back().code, Code::kRejectedSecret);

  Pair key(5);
  key.master_key = DerivePublicKey(SecretKey({1}));
  key.Start();
  ASSERT_TRUE(key.RunUntilWorkerIsDown(15 * kSecond));
  EXPECT_EQ(key.worker_events.back().code, Code::kRejectedSecret);
}

TEST(Endpoint, CarriesARefusalInWords) {
  Pair pair(6, {.loss = .2});
  pair.accepts = false;
  pair.Start();
  auto& hooks = pair.network.hooks(pair.master);
  hooks.on_event = [&](int64_t now_ns, LinkEvent event) {
    if (event.type == LinkEvent::Type::kHello) {
      pair.network.endpoint(pair.master).Refuse(now_ns, event.link, "rank 3 is taken");
    }
  };
  ASSERT_TRUE(pair.RunUntilWorkerIsDown(10 * kSecond));
  EXPECT_EQ(pair.worker_events.back().code, Code::kRefused);
  EXPECT_EQ(pair.worker_events.back().reason, "rank 3 is taken");
}

TEST(Endpoint, JoinsThroughHeavyLoss) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair pair(seed, {.loss = .3, .duplication = .1, .corruption = .05, .jitter_ns = kMillisecond});
    EXPECT_TRUE(pair.Join()) << "seed " << seed;
  }
}

TEST(Endpoint, APeerThatIsHeldBackWaitsAndLosesNothing) {
  Pair pair(7, {.loss = .02});
  ASSERT_TRUE(pair.Join());
  Endpoint& master = pair.network.endpoint(pair.master);
  Endpoint& worker = pair.network.endpoint(pair.worker);
  const auto arrived = [&] {
    return std::count_if(pair.master_events.begin(), pair.master_events.end(),
                         [](const LinkEvent& e) { return e.type == LinkEvent::Type::kMessage; });
  };
  constexpr int kMessages = 100;
  master.HoldBack(pair.network.now_ns(), pair.at_master, true);
  for (int i = 0; i < kMessages; ++i) {
    worker.Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate,
                MakeBuffer(std::vector<uint8_t>(200'000, static_cast<uint8_t>(i))));
  }
  pair.network.RunFor(3 * kSecond);
  EXPECT_LT(arrived(), kMessages / 2);  // what had been granted before
  EXPECT_GT(worker.QueuedBytes(pair.at_worker), 10'000'000);

  master.HoldBack(pair.network.now_ns(), pair.at_master, false);
  EXPECT_TRUE(pair.network.RunUntil(30 * kSecond, [&] { return arrived() == kMessages; }));
}

TEST(Endpoint, WhatIsVoidedIsGivenUpAndTheRestArrives) {
  Pair pair(8, {.loss = .02});
  ASSERT_TRUE(pair.Join());
  Endpoint& worker = pair.network.endpoint(pair.worker);
  for (int i = 0; i < 50; ++i) {
    worker.Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate,
                MakeBuffer(std::vector<uint8_t>(200'000, 1)));
  }
  pair.network.RunFor(2 * kMillisecond);
  worker.Void(pair.network.now_ns(), pair.at_worker, Channel::kUpdate);
  worker.Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate, Text("later"));
  const auto last_arrived = [&] {
    const LinkEvent& last = pair.master_events.back();
    return last.type == LinkEvent::Type::kMessage && Text(last.payload) == "later";
  };
  EXPECT_TRUE(pair.network.RunUntil(kSecond, last_arrived));
  EXPECT_TRUE(
      pair.network.RunUntil(kSecond, [&] { return worker.QueuedBytes(pair.at_worker) == 0; }));
  EXPECT_LT(pair.master_events.size(), 50u);
}

// What one side sends and the other has to get.
class Traffic {
 public:
  Traffic(SimulatedRandom* random, int messages) {
    for (int i = 0; i < messages; ++i) {
      const int64_t kind = random->Below(10);
      const int64_t bound = kind == 0 ? 200'000 : kind < 4 ? 8'000 : 900;
      std::vector<uint8_t> bytes(static_cast<size_t>(1 + random->Below(bound)));
      random->Fill(bytes);
      const Channel channel = static_cast<Channel>(random->Below(kChannels));
      sent_.emplace_back(channel, MakeBuffer(std::move(bytes)));
    }
  }

  void SendAll(Endpoint* endpoint, int64_t now_ns, LinkId link) {
    for (const auto& [channel, message] : sent_) {
      EXPECT_TRUE(endpoint->Send(now_ns, link, channel, message));
    }
  }

  // Every message once, ordered channels in order.
  void ExpectArrived(const std::vector<LinkEvent>& events) const {
    std::map<Channel, std::vector<std::string>> sent, received;
    for (const auto& [channel, message] : sent_) sent[channel].push_back(Text(message));
    for (const LinkEvent& event : events) {
      if (event.type == LinkEvent::Type::kMessage) {
        received[event.channel].push_back(Text(event.payload));
      }
    }
    EXPECT_TRUE(received[Channel::kControl] == sent[Channel::kControl]);
    EXPECT_TRUE(received[Channel::kState] == sent[Channel::kState]);
    auto& updates = received[Channel::kUpdate];
    std::sort(updates.begin(), updates.end());
    std::sort(sent[Channel::kUpdate].begin(), sent[Channel::kUpdate].end());
    EXPECT_TRUE(updates == sent[Channel::kUpdate]);
  }

 private:
  std::vector<std::pair<Channel, Buffer>> sent_;
};

void DeliversBothWays(uint64_t seed, const PathOptions& path, uint32_t first_sequence,
                      int messages) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Pair pair(seed, path, first_sequence);
  ASSERT_TRUE(pair.Join());
  Traffic down(&pair.network.random(), messages), up(&pair.network.random(), messages);
  Endpoint& master = pair.network.endpoint(pair.master);
  Endpoint& worker = pair.network.endpoint(pair.worker);
  down.SendAll(&master, pair.network.now_ns(), pair.at_master);
  up.SendAll(&worker, pair.network.now_ns(), pair.at_worker);
  EXPECT_TRUE(pair.network.RunUntil(60 * kSecond, [&] {
    return master.QueuedBytes(pair.at_master) == 0 && worker.QueuedBytes(pair.at_worker) == 0;
  }));
  down.ExpectArrived(pair.worker_events);
  up.ExpectArrived(pair.master_events);
  EXPECT_EQ(Pair::Find(pair.worker_events, LinkEvent::Type::kDown), nullptr);
  EXPECT_EQ(Pair::Find(pair.master_events, LinkEvent::Type::kDown), nullptr);
}

class EndpointUnderLoss : public testing::TestWithParam<double> {};

TEST_P(EndpointUnderLoss, DeliversEveryMessageOnceAndInOrder) {
  for (uint64_t seed = 100; seed < 110; ++seed) {
    const PathOptions path{.loss = GetParam(),
                           .duplication = .02,
                           .corruption = .02,
                           .delay_ns = 30'000,
                           .jitter_ns = 100'000};
    DeliversBothWays(seed, path, 0, 60);
  }
}

INSTANTIATE_TEST_SUITE_P(Loss, EndpointUnderLoss, testing::Values(0, .01, .05, .2));

TEST(Endpoint, DeliversAcrossTheWrapOfLinkSequences) {
  const PathOptions path{.loss = .05, .duplication = .02, .jitter_ns = 100'000};
  for (uint64_t seed = 200; seed < 205; ++seed) DeliversBothWays(seed, path, 0xffffff80, 60);
}

TEST(Endpoint, DeliversThroughThousandsOfKeyChanges) {
  Pair pair(18, {.loss = .02, .duplication = .02, .jitter_ns = 100'000});
  for (EndpointOptions* options : {&pair.master_options, &pair.worker_options}) {
    options->packets_per_key_phase = 2;
    options->datagram_bytes = 1200;
  }
  ASSERT_TRUE(pair.Join());
  Endpoint& master = pair.network.endpoint(pair.master);
  Endpoint& worker = pair.network.endpoint(pair.worker);
  Traffic down(&pair.network.random(), 1500), up(&pair.network.random(), 1500);
  down.SendAll(&master, pair.network.now_ns(), pair.at_master);
  up.SendAll(&worker, pair.network.now_ns(), pair.at_worker);
  EXPECT_TRUE(pair.network.RunUntil(120 * kSecond, [&] {
    return master.QueuedBytes(pair.at_master) == 0 && worker.QueuedBytes(pair.at_worker) == 0;
  }));
  down.ExpectArrived(pair.worker_events);
  up.ExpectArrived(pair.master_events);
  ASSERT_EQ(worker.Links().size(), 1u);
  EXPECT_GT(worker.Links()[0].key_phase, 2000);
}

TEST(Endpoint, SmallMessagesCostOneDatagramAndOneStatus) {
  Pair pair(7);
  pair.master_options.datagram_bytes = pair.worker_options.datagram_bytes = 1200;
  ASSERT_TRUE(pair.Join());
  pair.network.RunFor(10 * kMillisecond);
  const int64_t before = pair.network.datagrams_sent();
  for (int i = 0; i < 20; ++i) {
    Endpoint& worker = pair.network.endpoint(pair.worker);
    worker.Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate,
                Text(std::string(800, 'u')));
    ASSERT_TRUE(
        pair.network.RunUntil(kSecond, [&] { return worker.QueuedBytes(pair.at_worker) == 0; }));
  }
  EXPECT_EQ(pair.network.datagrams_sent() - before, 40);
}

TEST(Endpoint, ReportsASilentPeerAsSuspectAndThenAsLost) {
  Pair pair(8);
  ASSERT_TRUE(pair.Join());
  pair.network.RunFor(20 * kSecond);
  EXPECT_EQ(Pair::Find(pair.worker_events, LinkEvent::Type::kSuspect), nullptr);
  const int64_t start_ns = pair.network.now_ns();
  pair.network.Kill(pair.master);
  ASSERT_TRUE(pair.network.RunUntil(10 * kSecond, [&] {
    return Pair::Find(pair.worker_events, LinkEvent::Type::kSuspect) != nullptr;
  }));
  EXPECT_LE(pair.network.now_ns() - start_ns, 1500 * kMillisecond);
  ASSERT_TRUE(pair.RunUntilWorkerIsDown(10 * kSecond));
  EXPECT_EQ(pair.worker_events.back().code, Code::kMasterLost);
  EXPECT_EQ(pair.worker_events.back().reason, "no authentic packet for 5.0 s");
}

TEST(Endpoint, SurvivesItsOwnPause) {
  Pair pair(9);
  ASSERT_TRUE(pair.Join());
  pair.network.RunFor(kSecond);
  pair.network.SetPaused(pair.worker, true);
  pair.network.RunFor(4300 * kMillisecond);
  pair.network.SetPaused(pair.worker, false);
  pair.network.RunFor(5 * kSecond);
  EXPECT_EQ(Pair::Find(pair.worker_events, LinkEvent::Type::kDown), nullptr);
  EXPECT_EQ(Pair::Find(pair.master_events, LinkEvent::Type::kDown), nullptr);
}

TEST(Endpoint, TellsThePeerWhyItCloses) {
  Pair pair(10, {.loss = .1});
  ASSERT_TRUE(pair.Join());
  pair.network.endpoint(pair.master)
      .Close(pair.network.now_ns(), pair.at_master, "superseded by attempt 2");
  ASSERT_TRUE(pair.RunUntilWorkerIsDown(kSecond));
  EXPECT_EQ(pair.worker_events.back().code, Code::kClosed);
  EXPECT_EQ(pair.worker_events.back().reason, "superseded by attempt 2");
  EXPECT_FALSE(pair.network.endpoint(pair.master)
                   .Send(pair.network.now_ns(), pair.at_master, Channel::kControl, Text("x")));
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.network.endpoint(pair.master).NextTimeout(), kNever);
}

TEST(Endpoint, ReplayedDatagramsChangeNothing) {
  Pair pair(11);
  std::vector<std::vector<uint8_t>> to_master;
  pair.network.SetTap([&](Host, Host to, Bytes datagram) {
    if (to == pair.master) to_master.emplace_back(datagram.begin(), datagram.end());
  });
  ASSERT_TRUE(pair.Join());
  pair.network.endpoint(pair.worker)
      .Send(pair.network.now_ns(), pair.at_worker, Channel::kUpdate, Text("once"));
  pair.network.RunFor(100 * kMillisecond);
  const size_t events = pair.master_events.size();
  const auto recorded = to_master;
  for (const auto& datagram : recorded) pair.network.Inject(pair.worker, pair.master, datagram);
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.master_events.size(), events);
  EXPECT_GT(pair.network.endpoint(pair.master).counters().drop_replayed, 0);
}

TEST(Endpoint, ACookieOfAnEarlierSlotIsRenewed) {
  Pair pair(12);
  std::vector<uint8_t> hello;
  pair.network.SetTap([&](Host, Host to, Bytes datagram) {
    if (to == pair.master && datagram[0] == (kWireVersion << 4 | 1)) {
      hello.assign(datagram.begin(), datagram.end());
    }
  });
  ASSERT_TRUE(pair.Join());
  pair.network.endpoint(pair.worker).Close(pair.network.now_ns(), pair.at_worker, "");
  pair.network.RunFor(30 * kSecond);
  const size_t events = pair.master_events.size();
  pair.network.Inject(pair.worker, pair.master, hello);
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.master_events.size(), events);
  EXPECT_EQ(pair.network.endpoint(pair.master).counters().drop_bad_cookie, 1);
}

TEST(Endpoint, AFloodOfHellosLeavesNothingBehind) {
  Pair pair(13);
  ASSERT_TRUE(pair.Join());
  const int64_t sent = pair.network.endpoint(pair.master).counters().datagrams_sent;
  SimulatedRandom random(1);
  Endpoint& master = pair.network.endpoint(pair.master);
  std::vector<uint8_t> hello(1200);
  for (int i = 0; i < 10'000; ++i) {
    random.Fill(hello);
    WriteHeader({.type = PacketType::kHello}, hello.data());
    std::fill(hello.begin() + 20, hello.begin() + 36, uint8_t{0});  // no cookie
    master.HandleDatagram(pair.network.now_ns(), pair.network.address(pair.worker), hello);
  }
  pair.network.RunFor(kMillisecond);
  EXPECT_LE(master.counters().datagrams_sent - sent, 70);
  EXPECT_GT(master.counters().drop_over_limit, 9'000);
  EXPECT_EQ(Pair::Find(pair.master_events, LinkEvent::Type::kDown), nullptr);
}

// Who reads a HELLO can read the RETRY that answers it, and so have a cookie of its own for a copy.
TEST(Endpoint, ACopyOfAHelloThatComesFirstKeepsItsSenderFromNothing) {
  for (const int64_t delay_ns : {5 * kMillisecond, 150 * kMillisecond, 400 * kMillisecond}) {
    SCOPED_TRACE(std::to_string(delay_ns / kMillisecond) + " ms to the master");
    Pair pair(14, {.delay_ns = delay_ns});
    pair.Start();
    Network& network = pair.network;
    const Host bystander = network.Add({});
    network.SetPath(bystander, pair.master, {});
    network.SetPath(pair.master, bystander, {});
    std::vector<uint8_t> copy;
    network.SetTap([&](Host from, Host to, Bytes datagram) {
      const PacketType type = ParseHeader(datagram)->type;
      if (from == pair.worker && type == PacketType::kHello && copy.empty()) {
        copy.assign(datagram.begin(), datagram.end());
        network.Inject(bystander, pair.master, copy);
      } else if (to == bystander && type == PacketType::kRetry) {
        PacketCipher::Keys keys;
        const Bytes ephemeral = Bytes(copy).subspan(36, 32);
        Hkdf({}, ephemeral, *Text("strom retry: key"), keys.key.bytes());
        Hkdf({}, ephemeral, *Text("strom retry: initial nonce"), keys.initial.bytes());
        std::vector<uint8_t> body(datagram.size());
        ASSERT_TRUE(PacketCipher(Aead::Use::kOpen, keys)
                        .Open(ParseHeader(datagram)->number, datagram, body.data()));
        std::copy_n(body.begin(), kCookieBytes, copy.begin() + 20);
        network.Inject(bystander, pair.master, copy);
      }
    });
    ASSERT_TRUE(network.RunUntil(4 * kSecond, [&] { return pair.at_master != 0; }));
    ASSERT_GE(pair.master_events.size(), 2u);
    EXPECT_EQ(pair.master_events[0].type, LinkEvent::Type::kHello);
    EXPECT_EQ(pair.master_events[1].type, LinkEvent::Type::kUp) << "one HELLO, one link";
    Endpoint& master = network.endpoint(pair.master);
    EXPECT_TRUE(network.RunUntil(4 * kSecond, [&] {
      return master.PeerAddress(pair.at_master) == network.address(pair.worker);
    }));
    master.Send(network.now_ns(), pair.at_master, Channel::kControl, Text("down"));
    network.endpoint(pair.worker)
        .Send(network.now_ns(), pair.at_worker, Channel::kControl, Text("up"));
    network.RunFor(4 * kSecond);
    ASSERT_EQ(pair.master_events.size(), 3u);
    EXPECT_EQ(Text(pair.master_events[2].payload), "up");
    ASSERT_EQ(pair.worker_events.size(), 2u);
    EXPECT_EQ(Text(pair.worker_events[1].payload), "down");
  }
}

TEST(Endpoint, WhoMovesWhileItJoinsJoinsFromItsNewAddress) {
  Pair pair(16, {.delay_ns = 5 * kMillisecond});
  pair.Start();
  pair.network.RunFor(12 * kMillisecond);  // HELLO, RETRY; HELLO with the cookie is on its way
  ASSERT_TRUE(pair.master_events.empty());
  pair.network.Move(pair.worker);
  ASSERT_TRUE(pair.network.RunUntil(3 * kSecond, [&] { return pair.at_master != 0; }));
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.network.endpoint(pair.master).PeerAddress(pair.at_master),
            pair.network.address(pair.worker));
}

TEST(Endpoint, HalfOpenJoinsEndAfterThreeSeconds) {
  Pair pair(14);
  pair.Start();
  ASSERT_TRUE(pair.network.RunUntil(kSecond, [&] { return !pair.master_events.empty(); }));
  pair.network.Kill(pair.worker);
  pair.network.RunFor(4 * kSecond);
  ASSERT_EQ(pair.master_events.back().type, LinkEvent::Type::kDown);
  EXPECT_EQ(Pair::Find(pair.master_events, LinkEvent::Type::kUp), nullptr);
  EXPECT_EQ(pair.network.endpoint(pair.master).NextTimeout(), kNever);
}

TEST(Endpoint, GarbageAndMutatedDatagramsAreCountedAndHarmless) {
  Pair pair(15, {.duplication = .05});
  std::vector<std::vector<uint8_t>> recorded;
  pair.network.SetTap([&](Host, Host, Bytes datagram) {
    if (recorded.size() < 300) recorded.emplace_back(datagram.begin(), datagram.end());
  });
  ASSERT_TRUE(pair.Join());
  Traffic traffic(&pair.network.random(), 30);
  traffic.SendAll(&pair.network.endpoint(pair.worker), pair.network.now_ns(), pair.at_worker);
  pair.network.RunFor(kMillisecond);
  SimulatedRandom random(2);
  Endpoint& master = pair.network.endpoint(pair.master);
  Endpoint& worker = pair.network.endpoint(pair.worker);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> datagram(static_cast<size_t>(random.Below(1400)));
    random.Fill(datagram);
    if (random.Chance(.7)) {
      datagram = recorded[static_cast<size_t>(random.Below(static_cast<int64_t>(recorded.size())))];
      const int64_t flips = 1 + random.Below(4);
      for (int64_t flip = 0; flip < flips; ++flip) {
        const size_t at = static_cast<size_t>(random.Below(static_cast<int64_t>(datagram.size())));
        datagram[at] ^= static_cast<uint8_t>(1 + random.Below(255));
      }
    }
    Endpoint& target = random.Chance(.5) ? master : worker;
    target.HandleDatagram(pair.network.now_ns(), pair.network.address(pair.worker), datagram);
  }
  ASSERT_TRUE(
      pair.network.RunUntil(10 * kSecond, [&] { return worker.QueuedBytes(pair.at_worker) == 0; }));
  traffic.ExpectArrived(pair.master_events);
  EXPECT_EQ(Pair::Find(pair.master_events, LinkEvent::Type::kDown), nullptr);
  EXPECT_EQ(Pair::Find(pair.worker_events, LinkEvent::Type::kDown), nullptr);
}

TEST(Endpoint, ManyWorkersShareOneMaster) {
  Pair pair(16, {.loss = .02, .jitter_ns = 50'000});
  ASSERT_TRUE(pair.Join());
  std::vector<Host> workers;
  std::vector<LinkId> links;
  std::map<Host, int> received;
  for (int i = 0; i < 12; ++i) {
    const Host host = pair.network.Add(pair.worker_options);
    workers.push_back(host);
    pair.network.hooks(host).on_event = [&, host](int64_t, LinkEvent event) {
      if (event.type == LinkEvent::Type::kMessage) ++received[host];
    };
    links.push_back(pair.network.endpoint(host).Connect(
        pair.network.now_ns(), pair.network.address(pair.master), pair.master_key, Text("hello")));
  }
  const auto ups = [&] {
    return std::count_if(pair.master_events.begin(), pair.master_events.end(),
                         [](const LinkEvent& e) { return e.type == LinkEvent::Type::kUp; });
  };
  ASSERT_TRUE(pair.network.RunUntil(5 * kSecond, [&] { return ups() == 13; }));
  std::set<LinkId> at_master;
  for (const LinkEvent& e : pair.master_events) {
    if (e.type == LinkEvent::Type::kUp) at_master.insert(e.link);
  }
  const Buffer shared = Text(std::string(50'000, 's'));
  for (LinkId link : at_master) {
    EXPECT_TRUE(pair.network.endpoint(pair.master)
                    .Send(pair.network.now_ns(), link, Channel::kUpdate, shared));
  }
  EXPECT_TRUE(pair.network.RunUntil(5 * kSecond, [&] {
    return std::all_of(workers.begin(), workers.end(), [&](Host h) { return received[h] == 1; });
  }));
}

}  // namespace
}  // namespace strom
