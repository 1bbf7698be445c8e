// Where a link's datagrams go and how long they are, on simulated paths: peers that move, copies
// from elsewhere, lengths found by search, and paths that become narrower.
#include "core/transport/link_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/transport/crypto.h"
#include "core/transport/endpoint.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

// A master and a worker that send each other what the test wants, and somebody else.
class PathTest : public testing::Test {
 protected:
  void Join(uint64_t seed, const PathOptions& path, int64_t datagram_bytes = 0) {
    network_ = std::make_unique<Network>(seed);
    network_->SetPaths(path);
    EndpointOptions options{.accepts = true, .datagram_bytes = datagram_bytes};
    options.private_key.fill(3);
    master_ = network_->Add(options);
    worker_ = network_->Add({.datagram_bytes = datagram_bytes});
    stranger_ = network_->Add({});
    network_->hooks(master_).on_event = [this](int64_t now_ns, LinkEvent event) {
      if (event.type == LinkEvent::Type::kHello) master().Accept(now_ns, event.link, nullptr);
      if (event.type == LinkEvent::Type::kUp) at_master_ = event.link;
      if (event.type == LinkEvent::Type::kMessage) master_got_.insert((*event.payload)[0]);
      master_lost_ |= event.type == LinkEvent::Type::kDown;
    };
    network_->hooks(worker_).on_event = [this](int64_t, LinkEvent event) {
      if (event.type == LinkEvent::Type::kMessage) worker_got_.insert((*event.payload)[0]);
      worker_lost_ |= event.type == LinkEvent::Type::kDown;
    };
    at_worker_ = worker().Connect(network_->now_ns(), network_->address(master_),
                                  DerivePublicKey(options.private_key), nullptr);
    ASSERT_TRUE(network_->RunUntil(10 * kSecond, [this] { return at_master_ != 0; }));
  }

  Endpoint& master() { return network_->endpoint(master_); }
  Endpoint& worker() { return network_->endpoint(worker_); }

  void Send(Endpoint* from, LinkId link, size_t size, uint8_t byte) {
    EXPECT_TRUE(from->Send(network_->now_ns(), link, Channel::kUpdate,
                           MakeBuffer(std::vector<uint8_t>(size, byte))));
  }

  [[nodiscard]] bool RunUntilAllArrived(int64_t duration_ns) {
    return network_->RunUntil(duration_ns, [this] {
      return master().QueuedBytes(at_master_) == 0 && worker().QueuedBytes(at_worker_) == 0;
    });
  }

  static int64_t DatagramBytes(const Endpoint& endpoint) {
    return endpoint.Links().at(0).datagram_bytes;
  }

  std::unique_ptr<Network> network_;
  Host master_ = 0, worker_ = 0, stranger_ = 0;
  LinkId at_master_ = 0, at_worker_ = 0;
  std::multiset<uint8_t> master_got_, worker_got_;
  bool master_lost_ = false, worker_lost_ = false;
};

// On long lines lengths are tried before the first round trip is known: with what the master sends
// at once it asks for them at once.
TEST_F(PathTest, FindsHowLongDatagramsMayBe) {
  const struct {
    int64_t mtu, least, most;
  } cases[] = {{9000, 8972, 8972}, {1500, 1472, 1472}, {1420, 1330, 1392},
               {1228, 1200, 1200}, {8896, 8300, 8868}, {0, 8972, 8972}};
  for (const auto& c : cases) {
    for (const int64_t delay_ns :
         {kMillisecond / 20, 60 * kMillisecond, 100 * kMillisecond, 250 * kMillisecond}) {
      SCOPED_TRACE("mtu " + std::to_string(c.mtu) + ", delay " +
                   std::to_string(delay_ns / kMillisecond) + " ms");
      at_master_ = 0;
      Join(1, {.loss = .02, .delay_ns = delay_ns, .mtu_bytes = c.mtu});
      Send(&master(), at_master_, 1, 1);
      network_->RunFor(10 * kSecond + 100 * delay_ns);
      for (const Endpoint* endpoint : {&master(), &worker()}) {
        EXPECT_GE(DatagramBytes(*endpoint), c.least);
        EXPECT_LE(DatagramBytes(*endpoint), c.most);
      }
      Send(&worker(), at_worker_, 3'000'000, 1);
      EXPECT_TRUE(RunUntilAllArrived(5 * kSecond + 100 * delay_ns));
    }
  }
}

TEST(LinkPath, AnAnswerFromBeforeSaysNothingOfANarrowerOrAnotherPath) {
  SimulatedRandom random(1);
  const Address first{.port = 1}, second{.port = 2};
  for (const bool moves : {false, true}) {
    LinkPath path(first, kLeastDatagramBytes, kMaxDatagramBytes, &random);
    path.HandleArrival(0, first, true);
    const auto asked = path.Poll(0, kMillisecond);
    ASSERT_TRUE(asked);
    ASSERT_GT(asked->datagram_bytes, kLeastDatagramBytes);
    if (moves) {
      path.HandleArrival(1, second, true);
      const auto challenge = path.Poll(1, kMillisecond);
      ASSERT_TRUE(challenge);
      path.HandleEcho(2, second, {challenge->token});
      ASSERT_EQ(path.peer(), second);
    } else {
      path.Narrow(1);
    }
    path.HandleEcho(3, path.peer(), {asked->token});
    EXPECT_EQ(path.datagram_bytes(), kLeastDatagramBytes);
  }
}

TEST_F(PathTest, AFixedLengthIsKept) {
  Join(2, {}, 1400);
  network_->SetTap([](Host, Host, Bytes datagram) { EXPECT_LE(datagram.size(), 1400u); });
  Send(&worker(), at_worker_, 100'000, 1);
  EXPECT_TRUE(RunUntilAllArrived(kSecond));
  EXPECT_EQ(DatagramBytes(worker()), 1400);
}

TEST_F(PathTest, LosesNothingWhenThePathBecomesNarrower) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    at_master_ = 0;
    master_got_.clear();
    worker_got_.clear();
    PathOptions path{.loss = .01, .jitter_ns = 100'000, .mtu_bytes = 9000};
    Join(seed, path);
    network_->RunFor(2 * kSecond);
    for (uint8_t i = 0; i < 20; ++i) {
      Send(&master(), at_master_, 1'000 + 50'000 * size_t{i}, i);
      Send(&worker(), at_worker_, 200'000 - 9'000 * size_t{i}, i);
    }
    network_->RunFor(kMillisecond * static_cast<int64_t>(seed - 10));
    path.mtu_bytes = 1400;
    network_->SetPaths(path);
    EXPECT_TRUE(RunUntilAllArrived(10 * kSecond));
    EXPECT_LE(DatagramBytes(master()), 1400);
    for (uint8_t i = 0; i < 20; ++i) {
      EXPECT_EQ(master_got_.count(i), 1u);
      EXPECT_EQ(worker_got_.count(i), 1u);
    }
    EXPECT_FALSE(master_lost_ || worker_lost_);
    network_->RunFor(10 * kSecond);
    EXPECT_GT(DatagramBytes(master()), 1200) << "it has searched again";
  }
}

TEST_F(PathTest, FollowsAPeerThatMoves) {
  for (uint64_t seed = 20; seed < 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    at_master_ = 0;
    Join(seed, {.loss = .02, .jitter_ns = 50'000});
    Send(&worker(), at_worker_, 2'000'000, 1);
    Send(&master(), at_master_, 2'000'000, 1);
    network_->RunFor(kMillisecond);
    const Address before = network_->address(worker_);
    network_->Move(worker_);
    ASSERT_NE(network_->address(worker_), before);
    EXPECT_TRUE(RunUntilAllArrived(2 * kSecond));
    EXPECT_EQ(master().PeerAddress(at_master_), network_->address(worker_));
    network_->RunFor(10 * kSecond);
    EXPECT_FALSE(master_lost_ || worker_lost_);
  }
}

TEST_F(PathTest, FollowsAnIdlePeerAndAMasterToo) {
  Join(30, {});
  network_->Move(worker_);
  network_->RunFor(3 * kSecond);
  EXPECT_EQ(master().PeerAddress(at_master_), network_->address(worker_));
  network_->Move(master_);
  network_->RunFor(3 * kSecond);
  EXPECT_EQ(worker().PeerAddress(at_worker_), network_->address(master_));
  network_->RunFor(10 * kSecond);
  EXPECT_FALSE(master_lost_ || worker_lost_);
}

TEST(LinkPath, APeerThatMovesIsFollowedHoweverLateItsAnswerIs) {
  SimulatedRandom random(1);
  const Address first{.port = 1}, second{.port = 2};
  LinkPath path(first, kLeastDatagramBytes, kLeastDatagramBytes, &random);
  path.HandleArrival(0, first, true);
  path.HandleArrival(0, second, true);
  const auto challenge = path.Poll(0, kMillisecond);
  ASSERT_TRUE(challenge);
  int challenges = 1;
  for (int64_t now_ns = 0; now_ns < kSecond; now_ns += kMillisecond) {
    challenges += path.Poll(now_ns, kMillisecond) ? 1 : 0;
  }
  EXPECT_EQ(challenges, 5) << "nobody there";
  EXPECT_EQ(path.NextTimeout(), kNever);
  path.HandleArrival(kSecond, second, true);
  const auto again = path.Poll(kSecond, kMillisecond);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->to, second);
  path.HandleEcho(kSecond, second, {challenge->token});
  EXPECT_EQ(path.peer(), second);
}

// The copies come first, so that they are what is authentic and the originals are the replays.
TEST_F(PathTest, CopiesFromElsewhereMoveNothing) {
  Join(31, {});
  network_->SetTap([this](Host from, Host to, Bytes datagram) {
    if (from == stranger_ || to == stranger_) return;
    network_->Inject(stranger_, to, {datagram.begin(), datagram.end()});
  });
  for (uint8_t i = 0; i < 50; ++i) {
    Send(&worker(), at_worker_, 100'000, i);
    Send(&master(), at_master_, 100'000, i);
  }
  EXPECT_TRUE(RunUntilAllArrived(5 * kSecond));
  network_->RunFor(10 * kSecond);
  EXPECT_EQ(master().PeerAddress(at_master_), network_->address(worker_));
  EXPECT_EQ(worker().PeerAddress(at_worker_), network_->address(master_));
  EXPECT_FALSE(master_lost_ || worker_lost_);
  EXPECT_EQ(master_got_.size(), 50u);
}

TEST_F(PathTest, ReplaysFromElsewhereMoveNothing) {
  Join(32, {});
  std::vector<std::vector<uint8_t>> recorded;
  network_->SetTap([&](Host, Host to, Bytes datagram) {
    if (to == master_) recorded.emplace_back(datagram.begin(), datagram.end());
  });
  Send(&worker(), at_worker_, 500'000, 1);
  EXPECT_TRUE(RunUntilAllArrived(kSecond));
  network_->SetTap({});
  const int64_t sent = master().counters().datagrams_sent;
  for (const auto& datagram : recorded) network_->Inject(stranger_, master_, datagram);
  network_->RunFor(10 * kMillisecond);
  EXPECT_LE(master().counters().datagrams_sent - sent, 2) << "nobody gets an answer";
  EXPECT_GE(master().counters().drop_replayed, std::ssize(recorded));
  EXPECT_EQ(master().PeerAddress(at_master_), network_->address(worker_));
}

}  // namespace
}  // namespace strom
