// Packet layouts: what is written is read back, and nothing malformed is taken.
#include "core/transport/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/little_endian.h"
#include "sim/network.h"

namespace strom {
namespace {

TEST(Packet, HeadersComeBackAsWritten) {
  std::vector<uint8_t> datagram(32);
  WriteHeader({.type = PacketType::kStatus, .connection = 0xaabbccdd, .number = 1ull << 40},
              datagram.data());
  const auto header = ParseHeader(datagram);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->type, PacketType::kStatus);
  EXPECT_EQ(header->connection, 0xaabbccdd);
  EXPECT_EQ(header->number, 1ull << 40);
  EXPECT_FALSE(ParseHeader(Bytes(datagram).first(31)));
  for (const size_t at : {0, 1, 2, 3}) {
    auto harmed = datagram;
    harmed[at] = 0xff;
    EXPECT_FALSE(ParseHeader(harmed)) << "byte " << at;
  }
}

TEST(Packet, DataMustLieWithinItsMessage) {
  std::vector<uint8_t> out(100);
  const std::vector<uint8_t> payload(10, 7);
  DataPacket packet{.sequence = 5,
                    .message = 6,
                    .length = 30,
                    .offset = 20,
                    .timestamp_us = 9,
                    .channel = Channel::kUpdate,
                    .payload = payload};
  const auto parse = [&] { return ParseData(Bytes(out.data(), WriteData(packet, out))); };
  const auto parsed = parse();
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->offset, 20u);
  EXPECT_EQ(parsed->payload.size(), 10u);
  packet.offset = 21;
  EXPECT_FALSE(parse());
  packet.offset = 0xfffffffa;
  EXPECT_FALSE(parse());
  packet = {.length = static_cast<uint32_t>(kMaxMessageBytes) + 1, .payload = payload};
  EXPECT_FALSE(parse());
  packet = {.length = 30};
  EXPECT_FALSE(parse()) << "a fragment without bytes";
  packet.is_void = true;
  EXPECT_TRUE(parse());
  packet.payload = payload;
  EXPECT_FALSE(parse()) << "VOID carries nothing";
}

TEST(Packet, StatusGapsMustBeAscendingAndBelowTheirEnd) {
  StatusPacket packet{.cumulative = 0xfffffff0, .complete_up_to = 0x10};
  packet.gap_count = 2;
  packet.gaps[0] = {0, 4};
  packet.gaps[1] = {8, 24};
  std::vector<uint8_t> out(1000);
  StatusPacket parsed;
  const auto parse = [&] {
    return ParseStatus(Bytes(out.data(), WriteStatus(packet, out)), &parsed);
  };
  ASSERT_TRUE(parse());
  EXPECT_EQ(parsed.gaps[1].length, 24);
  packet.untold = 1;
  EXPECT_FALSE(parse()) << "of what the STATUS says nothing";
  packet.untold = 0;
  packet.gaps[1].length = 25;
  EXPECT_FALSE(parse()) << "past complete_up_to";
  packet.gaps[1] = {3, 1};
  EXPECT_FALSE(parse()) << "overlapping";
  packet.gaps[1] = {8, 0};
  EXPECT_FALSE(parse()) << "empty";
}

TEST(Packet, AReasonIsCutBetweenCharacters) {
  std::string reason = "x";
  while (reason.size() <= kMaxReasonBytes) reason += "\xe2\x82\xac";  // the euro sign
  std::vector<uint8_t> body(1200);
  const size_t size = WriteClose(reason, body);
  EXPECT_EQ(size, 1 + (kMaxReasonBytes - 1) / 3 * 3);
  EXPECT_EQ(*ParseClose(Bytes(body).first(size)), reason.substr(0, size));
  EXPECT_EQ(CutReason("short"), "short");
}

// Makes the fields of a random body nearly right, so that some are taken.
void ShapeAsData(std::vector<uint8_t>* body) {
  for (const size_t high : {10, 11, 14, 15}) (*body)[high] = 0;  // of the length and the offset
  (*body)[20] %= 4, (*body)[21] &= 1, (*body)[22] = (*body)[23] = 0;
}
void ShapeAsStatus(SimulatedRandom* random, std::vector<uint8_t>* body) {
  const auto store = [&](size_t at, uint32_t value) {
    StoreLittleEndian<uint32_t>(&(*body)[at], value);
  };
  store(4, LoadLittleEndian<uint32_t>(body->data()) + static_cast<uint32_t>(random->Below(1000)));
  const size_t gaps = (body->size() - StatusPacket::kFieldBytes) / StatusPacket::kGapBytes;
  body->resize(StatusPacket::kFieldBytes + gaps * StatusPacket::kGapBytes);
  StoreLittleEndian<uint16_t>(&(*body)[18], static_cast<uint16_t>(gaps));
  store(20, static_cast<uint32_t>(random->Below(20)));
  for (size_t i = 0; i < gaps; ++i) {
    const size_t at = StatusPacket::kFieldBytes + i * StatusPacket::kGapBytes;
    store(at, static_cast<uint32_t>(40 * i) + static_cast<uint32_t>(random->Below(60)));
    StoreLittleEndian<uint16_t>(&(*body)[at + 4], static_cast<uint16_t>(random->Below(40)));
  }
}

TEST(Packet, RandomBodiesAreTakenOnlyWhole) {
  SimulatedRandom random(1);
  StatusPacket status;
  int fragments = 0, statuses = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> body(static_cast<size_t>(random.Below(120)));
    random.Fill(body);
    if (body.size() >= DataPacket::kFieldBytes && i % 3 == 0) ShapeAsData(&body);
    if (body.size() >= StatusPacket::kFieldBytes && i % 3 == 1) ShapeAsStatus(&random, &body);
    if (const auto data = ParseData(body); data && !data->is_void) {
      ++fragments;
      EXPECT_LE(data->offset + data->payload.size(), data->length);
    }
    if (ParseStatus(body, &status)) {
      ++statuses;
      ASSERT_LE(status.gap_count, StatusPacket::kMaxGaps);
      uint64_t end = status.untold;
      for (size_t gap = 0; gap < status.gap_count; ++gap) {
        EXPECT_GE(status.gaps[gap].offset, end);
        end = uint64_t{status.gaps[gap].offset} + status.gaps[gap].length;
      }
      EXPECT_LE(end, status.complete_up_to - status.cumulative);
    }
    (void)ParseProbe(body);
    (void)ParseClose(body);
  }
  EXPECT_GT(fragments, 500);
  EXPECT_GT(statuses, 500);
}

TEST(Packet, TheReplayWindowTakesEveryNumberOnce) {
  ReplayWindow window;
  const uint64_t last = 2 * ReplayWindow::kNumbers;
  for (uint64_t n : {uint64_t{0}, uint64_t{5}, uint64_t{3}, ReplayWindow::kNumbers - 1, last}) {
    EXPECT_TRUE(window.MayBeNew(n)) << n;
    window.Add(n);
    EXPECT_FALSE(window.MayBeNew(n)) << n;
  }
  EXPECT_FALSE(window.MayBeNew(4)) << "too old to tell";
  EXPECT_TRUE(window.MayBeNew(last - 1));
  EXPECT_TRUE(window.MayBeNew(last - ReplayWindow::kNumbers + 1));
}

TEST(Packet, SequencesCompareAcrossTheWrap) {
  EXPECT_TRUE(Before(0xffffffff, 0));
  EXPECT_FALSE(Before(0, 0xffffffff));
  EXPECT_FALSE(Before(7, 7));
}

}  // namespace
}  // namespace strom
