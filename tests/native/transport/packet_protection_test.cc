// The keys of a connection as they change: both sides at once, through loss and reordering, and
// with a peer, or somebody between, who does not keep the rules.
#include "core/transport/packet_protection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "sim/random.h"

namespace strom {
namespace {

using Verdict = PacketProtection::Verdict;
using Datagram = std::vector<uint8_t>;

ConnectionKeys Keys(uint8_t send, uint8_t receive) {
  ConnectionKeys keys;
  keys.send.bytes()[0] = send;
  keys.receive.bytes()[0] = receive;
  return keys;
}

// Two sides that change keys after three packets, unless a test says otherwise.
class KeyPhasesTest : public testing::Test {
 protected:
  explicit KeyPhasesTest(uint64_t packets_per_phase = 3, uint64_t first_number = 0)
      : left_(Keys(1, 2), {packets_per_phase, first_number}),
        right_(Keys(2, 1), {packets_per_phase, first_number}) {}

  static Datagram Seal(PacketProtection* side, uint8_t byte = 7) {
    Datagram datagram(kHeaderBytes + 1 + kTagBytes);
    datagram[kHeaderBytes] = byte;
    side->Seal(PacketType::kData, 5, datagram);
    return datagram;
  }

  Verdict Open(PacketProtection* side, const Datagram& datagram, uint8_t byte = 7) {
    Datagram body(datagram.size());
    const Verdict verdict = side->Open(now_ns_, *ParseHeader(datagram), datagram, body.data());
    EXPECT_TRUE(verdict != Verdict::kAuthentic || body[0] == byte);
    return verdict;
  }

  int64_t now_ns_ = 1'000'000'000;
  PacketProtection left_, right_;
};

TEST_F(KeyPhasesTest, GoOnAfterSoManyPacketsOnceThePeerWasHeard) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Open(&right_, Seal(&left_)), Verdict::kAuthentic);
  EXPECT_EQ(left_.send_phase(), 0u) << "nothing was heard yet";
  EXPECT_EQ(Open(&left_, Seal(&right_)), Verdict::kAuthentic);
  const Datagram next = Seal(&left_);
  EXPECT_EQ(left_.send_phase(), 1u);
  EXPECT_TRUE(ParseHeader(next)->key_phase);
  EXPECT_EQ(ParseHeader(next)->number, 10u) << "numbers go on";
  EXPECT_EQ(Open(&right_, next), Verdict::kAuthentic);
  EXPECT_EQ(right_.send_phase(), 1u) << "its own packets follow at once";
}

TEST_F(KeyPhasesTest, AreNotChangedAgainBeforeThePeerHasFollowed) {
  EXPECT_EQ(Open(&right_, Seal(&left_)), Verdict::kAuthentic);
  EXPECT_EQ(Open(&left_, Seal(&right_)), Verdict::kAuthentic);
  for (int i = 0; i < 100; ++i) (void)Seal(&left_);
  EXPECT_EQ(left_.send_phase(), 1u);
}

TEST_F(KeyPhasesTest, OpenWhatWasUnderWayWhenTheyChanged) {
  EXPECT_EQ(Open(&left_, Seal(&right_)), Verdict::kAuthentic);
  std::vector<Datagram> sent;
  for (int i = 0; i < 6; ++i) sent.push_back(Seal(&left_));
  ASSERT_EQ(left_.send_phase(), 1u);
  // From the last to the first: three of the new phase, three of the old.
  for (int i = 5; i >= 1; --i) {
    EXPECT_EQ(Open(&right_, sent[static_cast<size_t>(i)]), Verdict::kAuthentic) << i;
    EXPECT_EQ(Open(&right_, sent[static_cast<size_t>(i)]), Verdict::kReplayed) << i;
  }
  now_ns_ += 4'000'000'000;
  EXPECT_EQ(Open(&right_, sent[0]), Verdict::kUnauthentic) << "the old keys are gone by now";
}

TEST_F(KeyPhasesTest, AForgedFlagChangesNothing) {
  for (int round = 0; round < 20; ++round) {
    Datagram forged = Seal(&left_);
    forged[1] ^= 1;
    EXPECT_EQ(Open(&right_, forged), Verdict::kUnauthentic);
    forged[1] ^= 1;
    EXPECT_EQ(Open(&right_, forged), Verdict::kAuthentic);
    EXPECT_EQ(Open(&left_, Seal(&right_)), Verdict::kAuthentic);
  }
  EXPECT_GT(left_.send_phase(), 3u);
}

TEST_F(KeyPhasesTest, APeerThatGoesOnUnansweredIsNotFollowed) {
  // `rogue` has the left side's keys and hears what it likes.
  PacketProtection rogue(Keys(1, 2), {1, 0}), answering(Keys(2, 1), {1, 0});
  EXPECT_EQ(Open(&right_, Seal(&rogue)), Verdict::kAuthentic);
  EXPECT_EQ(Open(&rogue, Seal(&answering)), Verdict::kAuthentic);
  const Datagram first = Seal(&rogue);
  EXPECT_EQ(Open(&right_, first), Verdict::kUnauthentic) << "the right side has said nothing yet";
  EXPECT_EQ(right_.send_phase(), 0u);
}

TEST_F(KeyPhasesTest, RefuseNumbersFromBeyondTheEnd) {
  PacketProtection late(Keys(1, 2), {3, uint64_t{1} << 62});
  EXPECT_EQ(Open(&right_, Seal(&late)), Verdict::kMalformed);
}

// But not before 2^16 packets, however few a phase has.
TEST(PacketProtection, IsSpentAfterFourPhasesThatThePeerDoesNotFollow) {
  const struct {
    uint64_t packets_per_phase, most;
  } cases[] = {{3, 65'536}, {20'000, 80'000}};
  for (const auto& c : cases) {
    PacketProtection side(Keys(1, 2), {c.packets_per_phase, 0});
    Datagram datagram(kHeaderBytes + 1 + kTagBytes);
    for (uint64_t i = 0; i + 1 < c.most; ++i) side.Seal(PacketType::kData, 5, datagram);
    EXPECT_FALSE(side.IsSpent());
    side.Seal(PacketType::kData, 5, datagram);
    EXPECT_TRUE(side.IsSpent());
  }
}

class SpentKeys : public KeyPhasesTest {
 protected:
  SpentKeys() : KeyPhasesTest(kPacketsPerPhase, (uint64_t{1} << 31) - 4) {}
};

TEST_F(SpentKeys, NumbersPassTheThirtySecondBit) {
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Open(&right_, Seal(&left_)), Verdict::kAuthentic);
  EXPECT_FALSE(left_.IsSpent());
}

// Both sides talk at random over a line that loses, repeats and reorders; either may be the first
// to go on. What the window of numbers and the previous keys cover is opened, and once only.
TEST(PacketProtection, ThousandsOfChangesThroughLossAndReordering) {
  for (const uint64_t packets_per_phase : {1, 2, 5}) {
    SimulatedRandom random(packets_per_phase);
    PacketProtection sides[2] = {PacketProtection(Keys(1, 2), {packets_per_phase, 0}),
                                 PacketProtection(Keys(2, 1), {packets_per_phase, 0})};
    std::deque<Datagram> lines[2];
    int64_t authentic = 0, refused = 0, now_ns = 0;
    while (sides[0].send_phase() < 3000) {
      now_ns += 1000;
      const size_t side = static_cast<size_t>(random.Below(2));
      if (random.Chance(.5)) {
        Datagram datagram(kHeaderBytes + 1 + kTagBytes);
        sides[side].Seal(PacketType::kData, 5, datagram);
        if (!random.Chance(.1)) lines[side].push_back(datagram);
        if (random.Chance(.1)) lines[side].push_back(datagram);
      }
      std::deque<Datagram>& line = lines[1 - side];
      if (line.empty()) continue;
      const auto next = line.begin() + random.Below(std::min<int64_t>(4, std::ssize(line)));
      Datagram body(next->size());
      const Verdict verdict = sides[side].Open(now_ns, *ParseHeader(*next), *next, body.data());
      authentic += verdict == Verdict::kAuthentic;
      refused += verdict == Verdict::kUnauthentic;
      line.erase(next);
      const int64_t apart = static_cast<int64_t>(sides[0].send_phase() - sides[1].send_phase());
      ASSERT_LE(std::abs(apart), 1);
    }
    // Packets overtaken by two changes are lost; that takes a tiny phase and much reordering.
    EXPECT_LT(refused, authentic / (packets_per_phase > 2 ? 100 : 5));
  }
}

}  // namespace
}  // namespace strom
