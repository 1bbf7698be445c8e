// What a link does that endpoints do not show: VOID, priorities, bounds, narrower paths.
#include "core/transport/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/transport/counters.h"
#include "sim/network.h"

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

Buffer Filled(size_t size, uint8_t byte) { return MakeBuffer(std::vector<uint8_t>(size, byte)); }

// Two links face to face. Datagrams arrive 50 us later unless the test takes them.
class LinkTest : public testing::Test {
 protected:
  explicit LinkTest(LinkOptions options = {})
      : left_(now_ns_, {RightAddress(), 1, Keys(1, 2)}, options, &random_, &left_grants_,
              &left_counters_),
        right_(now_ns_, {LeftAddress(), 2, Keys(2, 1)}, options, &random_, &right_grants_,
               &right_counters_) {}

  static Address LeftAddress() { return {.port = 1}; }
  static Address RightAddress() { return {.port = 2}; }

  static ConnectionKeys Keys(uint8_t send, uint8_t receive) {
    ConnectionKeys keys;
    keys.send.bytes()[0] = send;
    keys.receive.bytes()[0] = receive;
    return keys;
  }

  // Everything `link` wants to send now.
  std::vector<std::vector<uint8_t>> Take(Link* link) {
    std::vector<std::vector<uint8_t>> datagrams;
    std::vector<uint8_t> out(kMaxDatagramBytes);
    Link::Notice notice;
    Address to;
    while (const size_t size = link->PollTransmit(now_ns_, out, &to, &notice)) {
      datagrams.emplace_back(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size));
    }
    if (notice.type != Link::Notice::Type::kNone) notice_ = notice;
    return datagrams;
  }

  void Give(Link* link, const std::vector<std::vector<uint8_t>>& datagrams) {
    for (const auto& datagram : datagrams) {
      Link::Notice notice;
      const Address from = link == &left_ ? RightAddress() : LeftAddress();
      EXPECT_TRUE(link->HandleDatagram(now_ns_, from, *ParseHeader(datagram), datagram, &notice));
      if (notice.type != Link::Notice::Type::kNone) notice_ = notice;
    }
  }

  // Both sides talk for a while; `lost` datagrams from the left are dropped at random.
  void Run(int64_t duration_ns, double lost = 0) {
    for (const int64_t end_ns = now_ns_ + duration_ns; now_ns_ < end_ns; now_ns_ += 50'000) {
      Link::Notice notice;
      left_.HandleTimeout(now_ns_, &notice);
      right_.HandleTimeout(now_ns_, &notice);
      if (notice.type != Link::Notice::Type::kNone) notice_ = notice;
      auto to_right = Take(&left_);
      std::erase_if(to_right, [&](const auto& datagram) {
        return datagram.size() > longest_bytes_ || random_.Chance(lost);
      });
      Give(&right_, to_right);
      Give(&left_, Take(&right_));
      Collect();
    }
  }

  void Collect() {
    while (auto message = right_.PollMessage()) received_.push_back(std::move(*message));
  }

  std::string Order() const {  // first byte of every message, as it came
    std::string order;
    for (const auto& message : received_) order += static_cast<char>((*message.payload)[0]);
    return order;
  }

  int64_t now_ns_ = 1'000'000'000;
  size_t longest_bytes_ = kMaxDatagramBytes;  // that passes from the left
  SimulatedRandom random_{1};
  LinkCounters left_counters_, right_counters_;
  Grants left_grants_{GrantOptions{}}, right_grants_{GrantOptions{}};
  Link left_, right_;
  std::vector<DeliveredMessage> received_;
  Link::Notice notice_;
};

TEST_F(LinkTest, SmallerChannelsGoFirstAndInterruptOnce) {
  left_.Send(now_ns_, Channel::kUpdate, Filled(200'000, 'u'));
  Give(&right_, Take(&left_));  // it has started
  left_.Send(now_ns_, Channel::kUpdate, Filled(10, 'v'));
  left_.Send(now_ns_, Channel::kState, Filled(10, 's'));
  left_.Send(now_ns_, Channel::kControl, Filled(10, 'c'));
  Run(20 * kMillisecond);
  EXPECT_EQ(Order(), "csuv");
}

TEST_F(LinkTest, AVoidedMessageIsSkippedAndItsChannelGoesOn) {
  for (int round = 0; round < 20; ++round) {
    received_.clear();
    left_.Send(now_ns_, Channel::kState, Filled(300'000, 'a'));
    left_.Send(now_ns_, Channel::kState, Filled(500, 'b'));
    Run((round % 5) * 50'000, .2);
    left_.Void(now_ns_, Channel::kState);
    left_.Send(now_ns_, Channel::kState, Filled(500, 'z'));
    left_.Send(now_ns_, Channel::kUpdate, Filled(500, 'u'));
    Run(200 * kMillisecond, .2);
    EXPECT_THAT(Order(), testing::HasSubstr("z")) << "round " << round;
    EXPECT_THAT(Order(), testing::HasSubstr("u")) << "round " << round;
    EXPECT_THAT(Order(), testing::Not(testing::HasSubstr("za")));
    EXPECT_EQ(left_.queued_bytes(), 0);
    EXPECT_EQ(left_.sender().in_flight_packets(), 0);
    EXPECT_EQ(right_.reassembly_bytes(), 0);
  }
  EXPECT_GT(left_counters_.messages_voided, 20);
  EXPECT_GT(right_counters_.messages_voided_by_peer, 5);
}

// That it may go on is said once, in a packet that may be lost.
TEST_F(LinkTest, WhatIsQueuedWhereNothingMayLeaveHasTheOtherSideAskedSoon) {
  right_.HoldBack(true);
  while (left_.sender().grant_packets() > 0) {
    left_.Send(now_ns_, Channel::kUpdate, Filled(10, 'u'));
    Run(kMillisecond);
  }
  Run(20 * kMillisecond);
  ASSERT_EQ(left_.queued_bytes(), 0);
  right_.HoldBack(false);
  EXPECT_FALSE(Take(&right_).empty());
  left_.Send(now_ns_, Channel::kUpdate, Filled(10, 'z'));
  Run(110 * kMillisecond);
  EXPECT_EQ(Order().back(), 'z');
}

// A dead peer is to be noticed after a fifth of a second.
class ImpatientLinkTest : public LinkTest {
 protected:
  ImpatientLinkTest() : LinkTest({.failure_timeout_ns = 200 * kMillisecond}) {}
};

TEST_F(ImpatientLinkTest, NobodySuspectsWhoIsIdle) {
  left_.Send(now_ns_, Channel::kUpdate, Filled(10, 'u'));
  Run(1000 * kMillisecond);
  EXPECT_EQ(Order(), "u");
  EXPECT_EQ(notice_.type, Link::Notice::Type::kNone) << notice_.reason;
}

// The line loses half of the packets still.
TEST_F(ImpatientLinkTest, ASilenceOfHalfThatTimeIsMadeUpForInTheOtherHalf) {
  for (int round = 0; round < 20; ++round) {
    received_.clear();
    left_.Send(now_ns_, Channel::kUpdate, Filled(10, 'u'));
    Run(100 * kMillisecond, /*lost=*/1);
    ASSERT_EQ(Order(), "");
    Run(80 * kMillisecond, /*lost=*/.5);
    ASSERT_EQ(Order(), "u") << "round " << round;
    Run(20 * kMillisecond);
  }
  EXPECT_EQ(left_.state(), Link::State::kOpen);
}

TEST_F(ImpatientLinkTest, EndsWhereThePathTakesOnlyShorterDatagramsThanTheFirst) {
  left_.Send(now_ns_, Channel::kUpdate, Filled(100'000, 'a'));
  Run(20 * kMillisecond);
  ASSERT_EQ(Order(), "a");
  longest_bytes_ = 1000;
  left_.Send(now_ns_, Channel::kUpdate, Filled(100'000, 'b'));
  left_.Send(now_ns_, Channel::kControl, Filled(100, 'c'));
  Run(150 * kMillisecond);
  EXPECT_EQ(Order(), "ac");
  ASSERT_EQ(left_.state(), Link::State::kOpen) << notice_.reason;
  Run(30 * kMillisecond);
  EXPECT_EQ(left_.state(), Link::State::kOver);
  EXPECT_EQ(notice_.type, Link::Notice::Type::kDown);
  EXPECT_EQ(notice_.code, Code::kUnreachable);
  EXPECT_THAT(notice_.reason, testing::StartsWith("a datagram of 1200 bytes was lost each of "));
  EXPECT_LT(left_counters_.retransmitted_packets, 3000);
}

TEST_F(ImpatientLinkTest, StaysWhereThePathTakesLongDatagramsAgainInTime) {
  longest_bytes_ = 1000;
  left_.Send(now_ns_, Channel::kUpdate, Filled(100'000, 'b'));
  Run(100 * kMillisecond);
  EXPECT_EQ(Order(), "");
  longest_bytes_ = kMaxDatagramBytes;
  Run(100 * kMillisecond);
  EXPECT_EQ(Order(), "b");
  EXPECT_EQ(left_.state(), Link::State::kOpen) << notice_.reason;
}

class ShortPhasesLinkTest : public LinkTest {
 protected:
  ShortPhasesLinkTest() : LinkTest({.keys = {.packets_per_phase = 3}}) {}
};

// It goes on asking, and never says that it has the new keys.
TEST_F(ShortPhasesLinkTest, ThatOfAPeerThatDoesNotFollowIntoNewKeysEnds) {
  PacketProtection peer(Keys(2, 1), {});
  const auto ask = [&] {
    std::vector<uint8_t> probe(kMaxDatagramBytes);
    const size_t size = WriteProbe({}, std::span(probe).subspan(kHeaderBytes));
    probe.resize(kHeaderBytes + size + kTagBytes);
    peer.Seal(PacketType::kProbe, 1, probe);
    Give(&left_, {probe});
  };
  size_t sealed = 0;
  while (sealed < 65'536) {
    ASSERT_EQ(left_.state(), Link::State::kOpen) << "after " << sealed << " packets";
    ask();
    sealed += Take(&left_).size();
  }
  EXPECT_EQ(left_.key_phase(), 1u);
  for (int i = 0; i < 8 && left_.state() == Link::State::kOpen; ++i) {
    ask();
    (void)Take(&left_);
  }
  EXPECT_EQ(left_.state(), Link::State::kOver);
  EXPECT_EQ(notice_.code, Code::kCorrupt);
  EXPECT_THAT(notice_.reason, testing::HasSubstr("does not follow into new keys"));
}

TEST_F(LinkTest, ReassemblyStaysUnderItsBoundWhenTheFirstPacketIsLost) {
  for (int i = 0; i < 12; ++i) {
    left_.Send(now_ns_, Channel::kUpdate, Filled(static_cast<size_t>(kMaxMessageBytes), 'm'));
  }
  int64_t most = 0;
  for (int i = 0; i < 4000 && left_.queued_bytes() > 0; ++i) {
    Run(50'000, .05);
    most = std::max(most, right_.reassembly_bytes());
  }
  EXPECT_EQ(left_.queued_bytes(), 0);
  EXPECT_EQ(received_.size(), 12u);
  EXPECT_LE(most, kMaxReassemblyBytes);
  EXPECT_EQ(right_counters_.drop_over_limit, 0);
}

TEST(LinkReceiver, DropsWhatWouldPassTheBoundAndTakesItLater) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(0, &grants, &counters);
  const std::vector<uint8_t> payload(100, 1);
  DataPacket packet{.length = static_cast<uint32_t>(kMaxMessageBytes),
                    .channel = Channel::kUpdate,
                    .payload = payload};
  for (uint32_t i = 0; i < 100; ++i) {
    packet.sequence = packet.message = i;
    EXPECT_TRUE(receiver.HandleData(i, packet));
  }
  EXPECT_LE(receiver.reassembly_bytes(), kMaxReassemblyBytes);
  // The rest of the room is for what the ordered channels wait for.
  EXPECT_EQ(counters.drop_over_limit, 93);
  StatusPacket status;
  receiver.TakeStatus(kMillisecond, &status);
  EXPECT_EQ(status.cumulative, 7u);
}

// Every second packet is missing: what one STATUS cannot tell the next one does.
TEST(LinkReceiver, TellsMoreGapsThanOneStatusHolds) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(0, &grants, &counters);
  const std::vector<uint8_t> payload(1, 1);
  constexpr uint32_t kPackets = 700;
  for (uint32_t s = 1; s < kPackets; s += 2) {
    DataPacket packet{.sequence = s, .message = s, .length = 1, .payload = payload};
    packet.channel = Channel::kUpdate;
    EXPECT_TRUE(receiver.HandleData(0, packet));
  }
  std::set<uint32_t> missing;
  StatusPacket status;
  for (int i = 0; i < 4; ++i) {
    receiver.TakeStatus(1000 * kMillisecond, &status);
    EXPECT_EQ(status.cumulative, 0u);
    EXPECT_EQ(status.untold, 200u * static_cast<uint32_t>(i));
    for (uint16_t gap = 0; gap < status.gap_count; ++gap) missing.insert(status.gaps[gap].offset);
  }
  EXPECT_EQ(missing.size(), kPackets / 2);
  EXPECT_EQ(status.complete_up_to, kPackets);
  receiver.TakeStatus(1000 * kMillisecond, &status);
  EXPECT_EQ(status.untold, 0u) << "and begins again";
}

TEST(LinkReceiver, RefusesWhatLiesBeyondItsWindow) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(10, &grants, &counters);
  const std::vector<uint8_t> payload(1, 1);
  DataPacket packet{.sequence = 10 + kWindowPackets, .length = 1, .payload = payload};
  EXPECT_FALSE(receiver.HandleData(0, packet));
  EXPECT_FALSE(receiver.HandleProbe(0, {.next_sequence = 11 + kWindowPackets}));
}

// The two halves of a link on a path that becomes too narrow for what is under way.
class NarrowingPath {
 public:
  static constexpr size_t kShort = 1000, kLong = 8000;

  explicit NarrowingPath(uint64_t seed) : random_(seed) { sender_.SetBodyBytes(kLong); }

  void Send(Channel channel, size_t size, uint8_t byte) {
    sender_.Queue(now_ns_, channel, Filled(size, byte));
  }

  // True when all that was queued is acknowledged.
  [[nodiscard]] bool Run(int64_t duration_ns) {
    const int64_t end_ns = now_ns_ + duration_ns;
    for (; now_ns_ < end_ns && sender_.HasWork(); now_ns_ += 50'000) {
      sender_.HandleTimeout(now_ns_);
      receiver_.HandleTimeout(now_ns_);
      while (const size_t size = sender_.PollData(now_ns_, body_)) Carry(size);
      if (sender_.TakeProbe()) {
        EXPECT_TRUE(receiver_.HandleProbe(now_ns_, {sender_.next_sequence(), 0}));
      }
      for (; !way_.empty() && way_.begin()->first <= now_ns_; way_.erase(way_.begin())) {
        const auto packet = ParseData(way_.begin()->second);
        EXPECT_TRUE(packet.has_value());
        EXPECT_TRUE(receiver_.HandleData(now_ns_, *packet));
      }
      while (auto message = receiver_.PollMessage()) received_.push_back(std::move(*message));
      if (receiver_.status_due()) {
        StatusPacket status;
        receiver_.TakeStatus(now_ns_, &status);
        EXPECT_TRUE(sender_.HandleStatus(now_ns_, status));
      }
      if (!narrow_ || !sender_.LosesLongPackets(now_ns_)) continue;
      sender_.SetBodyBytes(kShort);
      ++shrinks_;
    }
    return !sender_.HasWork();
  }

  LinkSender& sender() { return sender_; }
  const LinkReceiver& receiver() const { return receiver_; }
  int64_t now_ns() const { return now_ns_; }
  int shrinks() const { return shrinks_; }
  const std::vector<DeliveredMessage>& received() const { return received_; }
  void Narrow() { narrow_ = true; }

 private:
  // Up to 5 ms on the way, so that a long packet may come after its first part was sent again.
  void Carry(size_t size) {
    if (random_.Chance(narrow_ && size > kShort ? .97 : .05)) return;
    way_.emplace(now_ns_ + 50'000 + random_.Below(random_.Chance(.1) ? 5'000'000 : 200'000),
                 std::vector<uint8_t>(body_.begin(), body_.begin() + static_cast<long>(size)));
  }

  SimulatedRandom random_;
  int64_t now_ns_ = kMillisecond;
  LinkCounters counters_;
  LinkSender sender_{0, kShort, LinkOptions{}.failure_timeout_ns, {}, &counters_};
  Grants grants_{GrantOptions{}};
  LinkReceiver receiver_{0, &grants_, &counters_};
  std::vector<uint8_t> body_ = std::vector<uint8_t>(kLong);
  std::multimap<int64_t, std::vector<uint8_t>> way_;
  std::vector<DeliveredMessage> received_;
  bool narrow_ = false;
  int shrinks_ = 0;
};

TEST(Link, LosesNothingWhenThePathBecomesNarrower) {
  int shrinks = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    NarrowingPath path(seed);
    SimulatedRandom random(seed + 1000);
    std::array<std::vector<size_t>, kChannels> sent, received;
    for (int i = 0; i < 60; ++i) {
      const size_t channel = static_cast<size_t>(random.Below(kChannels));
      const size_t size = static_cast<size_t>(1 + random.Below(random.Chance(.3) ? 200'000 : 9000));
      sent[channel].push_back(size);
      path.Send(static_cast<Channel>(channel), size, static_cast<uint8_t>(size));
    }
    (void)path.Run(random.Below(4 * kMillisecond));
    path.Narrow();
    EXPECT_TRUE(path.Run(5'000 * kMillisecond));
    for (const DeliveredMessage& message : path.received()) {
      const std::vector<uint8_t>& bytes = *message.payload;
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), static_cast<uint8_t>(bytes.size())),
                static_cast<std::ptrdiff_t>(bytes.size()));
      received[static_cast<size_t>(message.channel)].push_back(bytes.size());
    }
    std::sort(sent[2].begin(), sent[2].end());  // updates arrive as they complete
    std::sort(received[2].begin(), received[2].end());
    EXPECT_EQ(received, sent);
    EXPECT_EQ(path.receiver().reassembly_bytes(), 0);
    shrinks += path.shrinks() > 0;
  }
  EXPECT_GT(shrinks, 20);
}

TEST(Link, WhatWasCutAnewCanBeGivenUp) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    NarrowingPath path(seed);
    SimulatedRandom random(seed);
    for (int i = 0; i < 30; ++i) path.Send(Channel::kState, 9000, 1);
    path.Narrow();
    (void)path.Run(random.Below(60 * kMillisecond));
    path.sender().Void(path.now_ns(), Channel::kState);
    path.Send(Channel::kState, 100, 2);
    EXPECT_TRUE(path.Run(5'000 * kMillisecond));
    ASSERT_FALSE(path.received().empty());
    EXPECT_EQ(path.received().back().payload->front(), 2);
    EXPECT_EQ(path.receiver().reassembly_bytes(), 0);
  }
}

TEST(ByteRanges, CoverAMessageInWhateverOrderItsPartsCome) {
  SimulatedRandom random(5);
  for (int round = 0; round < 200; ++round) {
    ByteRanges ranges;
    std::vector<bool> here(60);
    while (!std::all_of(here.begin(), here.end(), [](bool h) { return h; })) {
      EXPECT_FALSE(ranges.Covers(60));
      const uint32_t begin = static_cast<uint32_t>(random.Below(60));
      const uint32_t end = std::min<uint32_t>(60, begin + 1 + random.Below(10));
      ranges.Add(begin, end);
      std::fill(here.begin() + begin, here.begin() + end, true);
      EXPECT_LE(ranges.count(), 30u);
    }
    EXPECT_TRUE(ranges.Covers(60));
  }
}

// However long a peer goes on: neither the numbers it skips nor the messages it begins add up.
TEST(LinkReceiver, RefusesMessagesThatNoWindowHolds) {
  const std::vector<uint8_t> byte(1);
  const auto accepted = [&](const auto& packet_of) {
    LinkCounters counters;
    Grants grants{GrantOptions{}};
    LinkReceiver receiver(0, &grants, &counters);
    uint32_t sequence = 0;
    while (sequence < 10 * kWindowPackets && receiver.HandleData(0, packet_of(sequence))) {
      ++sequence;
    }
    return sequence;
  };
  const uint32_t begun = accepted([&](uint32_t sequence) {
    return DataPacket{.sequence = sequence,
                      .message = sequence,
                      .length = 2,
                      .channel = Channel::kUpdate,
                      .payload = byte};
  });
  const uint32_t voided = accepted([&](uint32_t sequence) {
    return DataPacket{.sequence = sequence,
                      .message = sequence + 1,
                      .length = 2,
                      .channel = Channel::kControl,
                      .is_void = true};
  });
  EXPECT_LE(begun, 2 * kWindowPackets);
  EXPECT_LE(voided, 2 * kWindowPackets);
}

TEST(LinkReceiver, KeepsAYoungGapToItself) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(0, &grants, &counters);
  const std::vector<uint8_t> payload(1, 1);
  DataPacket packet{.length = 2, .channel = Channel::kUpdate, .payload = payload};
  const auto arrive = [&](int64_t now_ns, uint32_t sequence) {
    packet.sequence = packet.message = sequence;
    EXPECT_TRUE(receiver.HandleData(now_ns, packet));
  };
  StatusPacket status;
  arrive(0, 0);
  arrive(1000, 2);
  receiver.TakeStatus(2000, &status);
  EXPECT_EQ(status.gap_count, 0);
  EXPECT_EQ(status.complete_up_to, 1u) << "nothing is claimed of what is not reported";
  receiver.TakeStatus(600'000, &status);
  EXPECT_EQ(status.gap_count, 1) << "old enough";
  arrive(601'000, 4);
  arrive(601'000, 5);
  EXPECT_FALSE(receiver.status_due());
  arrive(601'000, 6);
  EXPECT_TRUE(receiver.status_due()) << "three later packets";
  receiver.TakeStatus(601'000, &status);
  ASSERT_EQ(status.gap_count, 2);
  EXPECT_EQ(status.gaps[1].offset, 2u);
}

// A peer that holds the keys and says anything: every field drawn, most of them near the truth.
TEST(Link, SurvivesAPeerThatKeepsNoRule) {
  SimulatedRandom random(3);
  int64_t broken = 0;
  for (int session = 0; session < 60; ++session) {
    LinkCounters counters;
    Grants grants{GrantOptions{}};
    ConnectionKeys keys;
    const uint32_t first = static_cast<uint32_t>(random.Next());
    Link link(0, {Address{}, 1, keys}, LinkOptions{.first_sequence = first}, &random, &grants,
              &counters);
    PacketProtection peer({.send = keys.receive, .receive = keys.send}, {});
    const auto near = [&](uint32_t base) {
      return random.Chance(.02) ? static_cast<uint32_t>(random.Next())
                                : base + static_cast<uint32_t>(random.Below(40));
    };
    std::vector<uint8_t> out(kMaxDatagramBytes), payload(200);
    int64_t now_ns = 0;
    for (int packet = 0; packet < 500 && link.state() == Link::State::kOpen; ++packet) {
      now_ns += 20'000;
      if (random.Chance(.1)) link.Send(now_ns, Channel::kUpdate, Filled(30'000, 'x'));
      if (random.Chance(.01)) link.Void(now_ns, Channel::kUpdate);
      const std::span<uint8_t> body = std::span(out).subspan(kHeaderBytes);
      size_t size = 0;
      const PacketType type = static_cast<PacketType>(4 + random.Below(3));
      if (type == PacketType::kData) {
        const bool is_void = random.Chance(.2);
        const Bytes fragment = Bytes(payload).first(is_void ? 0 : 1 + random.Below(200));
        size = WriteData({.sequence = near(first),
                          .message = static_cast<uint32_t>(random.Below(6)),
                          .length = static_cast<uint32_t>(1 + random.Below(900)),
                          .offset = is_void || random.Chance(.5) ? 0u : 200u,
                          .channel = static_cast<Channel>(random.Below(kChannels)),
                          .is_void = is_void,
                          .payload = fragment},
                         body);
      } else if (type == PacketType::kStatus) {
        StatusPacket status{
            .cumulative = near(first), .complete_up_to = near(first), .grant_edge = near(first)};
        status.gap_count = static_cast<uint16_t>(random.Below(3));
        for (size_t i = 0; i < status.gap_count; ++i) status.gaps[i] = {near(0), 3};
        size = WriteStatus(status, body);
      } else {
        size = WriteProbe({.next_sequence = near(first)}, body);
      }
      const std::span<uint8_t> datagram = std::span(out).first(kHeaderBytes + size + kTagBytes);
      peer.Seal(type, 1, datagram);
      Link::Notice notice;
      EXPECT_TRUE(link.HandleDatagram(now_ns, {}, *ParseHeader(datagram), datagram, &notice));
      broken += notice.code == Code::kCorrupt;
      std::vector<uint8_t> answer(kMaxDatagramBytes);
      Address to;
      for (int i = 0; i < 4; ++i) (void)link.PollTransmit(now_ns, answer, &to, &notice);
      link.HandleTimeout(now_ns, &notice);
      while (link.PollMessage()) {
      }
      EXPECT_LE(link.reassembly_bytes(), kMaxReassemblyBytes);
      EXPECT_GE(link.queued_bytes(), 0);
    }
  }
  EXPECT_GT(broken, 30) << "a broken rule must end the link";
}

TEST(Congestion, GrowsFastUntilTheFirstLossThenSlowly) {
  CongestionState state;
  state = NextCongestionState(state, {.acknowledged = 32, .window_limited = true}, 4096);
  EXPECT_EQ(state.window_packets, 64);
  state = NextCongestionState(
      state,
      {.window_limited = true, .round_ended = true, .round_acknowledged = 99, .round_lost = 1},
      4096);
  EXPECT_FALSE(state.slow_start);
  EXPECT_NEAR(state.window_packets, 64 * .995, 1e-9);
  const double before = state.window_packets;
  state = NextCongestionState(
      state, {.acknowledged = static_cast<int64_t>(before), .window_limited = true}, 4096);
  EXPECT_NEAR(state.window_packets, before + 1, .05);
  state = NextCongestionState(
      state,
      {.round_ended = true, .round_acknowledged = 99, .round_lost = 1, .queue_delay_ns = 1'000'000},
      4096);
  EXPECT_NEAR(state.window_packets, (before + 1) * .7, .05);
}

TEST(Congestion, AnIdleApplicationDoesNotGrowTheWindow) {
  CongestionState state;
  for (int i = 0; i < 100; ++i) state = NextCongestionState(state, {.acknowledged = 1}, 4096);
  EXPECT_EQ(state.window_packets, kInitialCongestionWindow);
}

TEST(SequenceSet, FindsMembersAndHolesAcrossWordsAndTheWrap) {
  SequenceSet set;
  const uint32_t from = 0xffffff00, to = 0x200;
  EXPECT_EQ(set.NextMember(from, to), to);
  EXPECT_EQ(set.NextHole(from, to), from);
  for (uint32_t s = from; s != 0x100; ++s) set.Insert(s);
  EXPECT_EQ(set.NextHole(from, to), 0x100u);
  set.Erase(0xfffffffe);
  EXPECT_EQ(set.NextHole(from, to), 0xfffffffeu);
  EXPECT_EQ(set.NextMember(0xfffffffe, to), 0xffffffffu);
  EXPECT_EQ(set.NextMember(0x100, to), to);
}

}  // namespace
}  // namespace strom
