// Small messages share datagrams, and nobody above the link can tell.
#include "core/transport/bundle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "core/transport/counters.h"
#include "core/transport/link.h"
#include "core/transport/link_receiver.h"
#include "core/transport/link_sender.h"
#include "sim/random.h"

namespace strom {
namespace {

constexpr size_t kBodyBytes = 1168;

Buffer Filled(size_t size, uint8_t byte) { return MakeBuffer(std::vector<uint8_t>(size, byte)); }

std::vector<std::vector<uint8_t>> Split(Bytes bundle) {
  std::vector<std::vector<uint8_t>> messages;
  while (const auto message = NextBundled(&bundle)) {
    messages.emplace_back(message->begin(), message->end());
  }
  EXPECT_TRUE(bundle.empty());
  return messages;
}

TEST(Bundle, GivesItsMessagesBackInOrder) {
  const std::deque<Buffer> queue = {Filled(1, 1), Filled(300, 2), Filled(7, 3), Filled(900, 4)};
  ASSERT_EQ(CountBundled(queue, 400), 3u);
  const Buffer bundle = MakeBundle(queue, 3);
  EXPECT_TRUE(IsBundle(*bundle));
  const auto messages = Split(*bundle);
  ASSERT_EQ(messages.size(), 3u);
  for (size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(messages[i], *queue[i]);
}

TEST(Bundle, HoldsNoMoreThanFitsAndStopsAtTheFirstThatDoesNot) {
  EXPECT_EQ(CountBundled({}, 1000), 0u);
  EXPECT_EQ(CountBundled({Filled(998, 1)}, 1000), 1u);
  EXPECT_EQ(CountBundled({Filled(999, 1), Filled(1, 1)}, 1000), 0u);
  EXPECT_EQ(CountBundled({Filled(10, 1), Filled(5000, 1), Filled(10, 1)}, 1000), 1u);
}

TEST(Bundle, MalformedOnesAreSeen) {
  EXPECT_FALSE(IsBundle({}));
  const std::vector<std::vector<uint8_t>> malformed = {
      {1}, {0, 0}, {2, 0, 9}, {1, 0, 9, 5}, {1, 0, 9, 0, 0}};
  for (const auto& bytes : malformed) EXPECT_FALSE(IsBundle(bytes));
}

TEST(Bundle, AReceiverBreaksWithAPeerThatSendsAMalformedOne) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(0, &grants, &counters);
  const std::vector<uint8_t> payload = {5, 0, 1};
  EXPECT_FALSE(receiver.HandleData(0, {.length = 3, .is_bundle = true, .payload = payload}));
}

// Bundles of tiny messages behind one that is missing: they are counted as what they will be, and
// what is awaited gets through however full it is.
TEST(Bundle, WhatWaitsForAnEarlierMessageIsBoundedAsWhatItWillBe) {
  LinkCounters counters;
  Grants grants{GrantOptions{}};
  LinkReceiver receiver(0, &grants, &counters);
  std::vector<uint8_t> payload;
  while (payload.size() + 3 <= 1140) payload.insert(payload.end(), {1, 0, 7});
  const size_t messages = payload.size() / 3;
  DataPacket packet{.length = static_cast<uint32_t>(payload.size()),
                    .channel = Channel::kControl,
                    .is_bundle = true,
                    .payload = payload};
  for (uint32_t i = 1; i < 4000; ++i) {
    packet.sequence = packet.message = i;
    ASSERT_TRUE(receiver.HandleData(0, packet));
  }
  EXPECT_GT(counters.drop_over_limit, 0);
  EXPECT_LE(receiver.reassembly_bytes(), kMaxReassemblyBytes);
  EXPECT_EQ(grants.reassembly_bytes(), receiver.reassembly_bytes());
  const size_t taken = 3999 - static_cast<size_t>(counters.drop_over_limit);
  EXPECT_LE(static_cast<int64_t>(taken * messages) * kMessageOverheadBytes, kMaxReassemblyBytes);
  const std::vector<uint8_t> half(static_cast<size_t>(1000), 9);
  for (uint32_t part = 0; part < 2; ++part) {
    ASSERT_TRUE(receiver.HandleData(0, {.sequence = part == 0 ? 0u : 4000u,
                                        .message = 0,
                                        .length = 2000,
                                        .offset = 1000 * part,
                                        .channel = Channel::kControl,
                                        .payload = half}));
  }
  size_t received = 0;
  while (receiver.PollMessage()) ++received;
  EXPECT_EQ(received, taken * messages + 1);
  EXPECT_EQ(receiver.reassembly_bytes(), 0);
}

TEST(Bundle, AllLinksTogetherHoldABoundAndEachStillGetsAMessageThrough) {
  LinkCounters counters;
  Grants grants{{.reassembly_bytes = 20 << 20}};
  constexpr int kLinks = 8;
  std::vector<std::unique_ptr<LinkReceiver>> receivers;
  const std::vector<uint8_t> payload(100, 1);
  for (int link = 0; link < kLinks; ++link) {
    receivers.push_back(std::make_unique<LinkReceiver>(0, &grants, &counters));
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(receivers.back()->HandleData(0, {.sequence = i,
                                                   .message = i,
                                                   .length = uint32_t{4} << 20,
                                                   .channel = Channel::kUpdate,
                                                   .payload = payload}));
    }
    EXPECT_GE(receivers.back()->reassembly_bytes(), kMaxMessageBytes);
  }
  EXPECT_LE(grants.reassembly_bytes(), (20 << 20) + kLinks * kLeastReassemblyBytes);
  receivers.clear();
  EXPECT_EQ(grants.reassembly_bytes(), 0);
}

// Everything sent arrives once, and what is ordered in order, over a line that loses every tenth
// packet; most packets carry several messages.
TEST(Bundle, SmallMessagesShareDatagramsOnALossyLine) {
  for (const Channel channel : {Channel::kControl, Channel::kState, Channel::kUpdate}) {
    SimulatedRandom random(7);
    LinkCounters sent, received;
    Grants grants{GrantOptions{}};
    LinkSender sender(0, kBodyBytes, LinkOptions{}.failure_timeout_ns, {}, &sent);
    LinkReceiver receiver(0, &grants, &received);
    constexpr int kMessages = 2000;
    for (int i = 0; i < kMessages; ++i) {
      std::vector<uint8_t> message(static_cast<size_t>(4 + random.Below(200)));
      for (size_t b = 0; b < 4; ++b) message[b] = static_cast<uint8_t>(i >> (8 * b));
      sender.Queue(0, channel, MakeBuffer(std::move(message)));
    }
    std::vector<int> numbers;
    std::vector<uint8_t> body(kBodyBytes);
    int64_t packets = 0;
    for (int64_t now_ns = 0; sender.HasWork() && now_ns < 5'000'000'000; now_ns += 50'000) {
      sender.HandleTimeout(now_ns);
      receiver.HandleTimeout(now_ns);
      while (const size_t size = sender.PollData(now_ns, body)) {
        ++packets;
        if (random.Chance(.1)) continue;
        const auto packet = ParseData(Bytes(body.data(), size));
        ASSERT_TRUE(packet.has_value());
        ASSERT_TRUE(receiver.HandleData(now_ns, *packet));
      }
      if (sender.TakeProbe()) {
        ASSERT_TRUE(receiver.HandleProbe(now_ns, {sender.next_sequence(), 0}));
      }
      while (auto message = receiver.PollMessage()) {
        const auto& bytes = *message->payload;
        numbers.push_back(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24);
      }
      if (!receiver.status_due()) continue;
      StatusPacket status;
      receiver.TakeStatus(now_ns, &status);
      ASSERT_TRUE(sender.HandleStatus(now_ns, status));
    }
    EXPECT_LT(packets, kMessages / 5);
    EXPECT_EQ(sender.queued_bytes(), 0);
    EXPECT_EQ(receiver.reassembly_bytes(), 0);
    EXPECT_EQ(sent.messages_sent, kMessages);
    EXPECT_EQ(received.messages_received, kMessages);
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kMessages));
    if (channel == Channel::kUpdate) std::sort(numbers.begin(), numbers.end());
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
  }
}

}  // namespace
}  // namespace strom
