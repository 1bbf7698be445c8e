// The ring by itself, on plain memory: against a model, at its edges, with a peer that lies, and
// with two threads that sleep and wake each other.
#include "net/shared_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <future>
#include <random>
#include <semaphore>
#include <utility>
#include <vector>

namespace strom {
namespace {

struct Memory {
  explicit Memory(size_t ring_bytes = kLeastRingBytes) : bytes(ring_bytes) {}
  Ring ring() { return {&positions, bytes}; }
  RingPositions positions;
  std::vector<uint8_t> bytes;
};

std::vector<uint8_t> RandomBytes(std::mt19937_64& random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

RingFrame FrameOf(Bytes payload) {
  return {.bytes = static_cast<uint32_t>(payload.size()),
          .message_bytes = static_cast<uint32_t>(payload.size()),
          .channel = Channel::kUpdate};
}

TEST(SharedRing, GivesBackEveryFrameInOrderWhateverTheSizes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    Memory memory(kLeastRingBytes << seed % 3);
    RingWriter writer(memory.ring());
    RingReader reader(memory.ring());
    std::deque<std::vector<uint8_t>> written;  // the model
    for (int turn = 0; turn < 2000; ++turn) {
      if (random() % 2 == 0) {
        std::vector<uint8_t> payload = RandomBytes(random, random() % (writer.max_payload() + 1));
        if (writer.Write(FrameOf(payload), payload)) {
          written.push_back(std::move(payload));
        } else {
          EXPECT_GT(writer.unread_bytes(), 0) << "an empty ring has room for every frame";
        }
      } else {
        writer.Publish();
        RingFrame frame;
        while (random() % 4 != 0 && reader.Next(&frame)) {
          ASSERT_FALSE(written.empty()) << "seed " << seed;
          std::vector<uint8_t> payload = {42};  // what is there already stays
          reader.Take(frame, &payload);
          payload.erase(payload.begin());
          ASSERT_EQ(payload, written.front()) << "seed " << seed;
          ASSERT_EQ(frame.channel, Channel::kUpdate);
          written.pop_front();
        }
        reader.Release();
      }
      ASSERT_FALSE(writer.broken() || reader.broken());
    }
  }
}

TEST(SharedRing, ShowsNothingBeforeItIsPublished) {
  Memory memory;
  RingWriter writer(memory.ring());
  RingReader reader(memory.ring());
  const std::vector<uint8_t> payload(100, 1);
  RingFrame frame;
  ASSERT_TRUE(writer.Write(FrameOf(payload), payload));
  EXPECT_FALSE(reader.Next(&frame));
  writer.Publish();
  EXPECT_TRUE(reader.Next(&frame));
  reader.Take(frame, nullptr);
  EXPECT_FALSE(reader.Next(&frame));
}

TEST(SharedRing, GivesRoomBackOnlyOnceItIsReleased) {
  Memory memory;
  RingWriter writer(memory.ring());
  RingReader reader(memory.ring());
  const std::vector<uint8_t> payload(writer.max_payload(), 1);
  while (writer.Write(FrameOf(payload), payload)) writer.Publish();
  EXPECT_GT(writer.unread_bytes(), 0);
  RingFrame frame;
  while (reader.Next(&frame)) reader.Take(frame, nullptr);
  EXPECT_FALSE(writer.Write(FrameOf(payload), payload));
  reader.Release();
  EXPECT_EQ(writer.unread_bytes(), 0);
  EXPECT_TRUE(writer.Write(FrameOf(payload), payload));
}

TEST(SharedRing, WakesASideOnceForEachTimeItAsked) {
  Memory memory;
  RingWriter writer(memory.ring());
  RingReader reader(memory.ring());
  const std::vector<uint8_t> payload(writer.max_payload(), 1);
  const auto write = [&] { return writer.Write(FrameOf(payload), payload); };
  RingFrame frame;

  ASSERT_TRUE(write());
  EXPECT_FALSE(writer.Publish()) << "nobody sleeps";
  EXPECT_FALSE(reader.AskForFrame()) << "a frame waits";
  reader.StopAsking();
  ASSERT_TRUE(reader.Next(&frame));
  reader.Take(frame, nullptr);
  EXPECT_FALSE(reader.Release()) << "nobody waits for room";
  EXPECT_TRUE(reader.AskForFrame());
  ASSERT_TRUE(write());
  EXPECT_TRUE(writer.Publish());
  ASSERT_TRUE(write());
  EXPECT_FALSE(writer.Publish()) << "it was woken already";

  while (write()) writer.Publish();
  EXPECT_TRUE(writer.AskForRoom(payload.size()));
  ASSERT_TRUE(reader.Next(&frame));
  reader.Take(frame, nullptr);
  EXPECT_TRUE(reader.Release());
  EXPECT_FALSE(reader.Release()) << "nothing new";
  EXPECT_FALSE(writer.AskForRoom(payload.size())) << "there is room";
}

// ---------------------------------------------------------------- a peer that lies

TEST(SharedRing, NoPositionOfTheReaderMakesTheWriterLeaveTheRing) {
  std::mt19937_64 random(1);
  const std::vector<uint8_t> payload(500, 7);
  int written = 0;  // after a lie, too
  for (int turn = 0; turn < 2000; ++turn) {
    Memory memory;  // the address sanitizer watches its ends
    RingWriter writer(memory.ring());
    for (int step = 0; step < 20; ++step) {
      written += writer.Write(FrameOf(payload), payload) && step > 0 ? 1 : 0;
      writer.Publish();
      const uint64_t lie = random() % 3 == 0 ? random() : random() % 12000;
      memory.positions.read = lie;
      EXPECT_GE(writer.unread_bytes(), 0);
      EXPECT_LE(writer.unread_bytes(), static_cast<int64_t>(memory.bytes.size()));
      writer.AskForRoom(payload.size());
    }
  }
  EXPECT_GT(written, 2000);
}

TEST(SharedRing, AReaderThatGoesBackOrPastTheEndIsFoundOut) {
  const std::vector<uint8_t> payload(1000, 7);
  for (const uint64_t lie : {uint64_t{16}, uint64_t{6144 + 16}, ~uint64_t{0}}) {
    Memory memory;
    RingWriter writer(memory.ring());
    RingReader reader(memory.ring());
    RingFrame frame;
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(writer.Write(FrameOf(payload), payload));
      writer.Publish();
      ASSERT_TRUE(reader.Next(&frame));
      reader.Take(frame, nullptr);
      reader.Release();
    }
    while (writer.Write(FrameOf(payload), payload)) writer.Publish();
    EXPECT_FALSE(writer.broken());
    memory.positions.read = lie;
    EXPECT_FALSE(writer.Write(FrameOf(payload), payload));
    EXPECT_TRUE(writer.broken()) << lie;
  }
}

TEST(SharedRing, NoPositionOrContentMakesTheReaderLeaveTheRingOrSpin) {
  std::mt19937_64 random(2);
  size_t all_frames = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    Memory memory;
    memory.bytes = RandomBytes(random, memory.bytes.size());
    RingReader reader(memory.ring());
    for (int step = 0; step < 8; ++step) {
      // Some frames are nearly right where the reader stands, so that what follows them is reached.
      uint64_t end = memory.positions.read;
      for (int i = 0; i < 4 && random() % 4 != 0; ++i) {
        const RingFrame frame = {.bytes = static_cast<uint32_t>(random() % 1200)};
        std::copy_n(reinterpret_cast<const uint8_t*>(&frame), sizeof(frame),
                    &memory.bytes[end % memory.bytes.size()]);
        end += sizeof(frame) + (frame.bytes + 15) / 16 * 16;
      }
      memory.positions.written = random() % 4 == 0 ? random() : end + random() % 3 * 16;
      std::vector<uint8_t> taken;
      RingFrame frame;
      size_t frames = 0;
      while (reader.Next(&frame)) {
        reader.Take(frame, &taken);
        ASSERT_LE(++frames, memory.bytes.size() / sizeof(frame));
      }
      all_frames += frames;
      ASSERT_LE(taken.size(), memory.bytes.size());
      reader.Release();
      reader.AskForFrame();
    }
  }
  EXPECT_GT(all_frames, 3000u);
}

TEST(SharedRing, AWriterThatGoesBackOrOverrunsIsFoundOut) {
  for (const uint64_t lie : {uint64_t{16}, uint64_t{4096 + 1024 + 32}, uint64_t{1040 + 8}}) {
    Memory memory;
    RingWriter writer(memory.ring());
    RingReader reader(memory.ring());
    const std::vector<uint8_t> payload(1024, 7);
    ASSERT_TRUE(writer.Write(FrameOf(payload), payload));
    writer.Publish();
    RingFrame frame;
    ASSERT_TRUE(reader.Next(&frame));
    reader.Take(frame, nullptr);
    memory.positions.written = lie;
    EXPECT_FALSE(reader.Next(&frame));
    EXPECT_TRUE(reader.broken()) << lie;
    EXPECT_FALSE(reader.Next(&frame)) << "and stays so";
  }
}

// ---------------------------------------------------------------- two threads

// Both sides sleep whenever they may, so that a lost wake-up would hang the test.
TEST(SharedRing, TwoThreadsMoveEverythingAndNeverMissAWakeUp) {
  constexpr int kFrames = 50'000;
  Memory memory;
  std::counting_semaphore<> reader_bell(0), writer_bell(0);
  auto read = std::async(std::launch::async, [&] {
    RingReader reader(memory.ring());
    std::mt19937_64 sizes(3), pauses(5);
    std::vector<uint8_t> payload;
    for (int i = 0; i < kFrames;) {
      RingFrame frame;
      while (reader.Next(&frame)) {
        payload.clear();
        reader.Take(frame, &payload);
        const size_t size = sizes() % 700;
        if (payload != std::vector<uint8_t>(size, static_cast<uint8_t>(i))) return i;
        ++i;
        if (pauses() % 3 == 0 && reader.Release()) writer_bell.release();
      }
      if (reader.broken()) return -1;
      if (reader.Release()) writer_bell.release();
      if (i < kFrames && reader.AskForFrame()) reader_bell.acquire();
      reader.StopAsking();
    }
    return kFrames;
  });
  RingWriter writer(memory.ring());
  std::mt19937_64 sizes(3), pauses(4);
  for (int i = 0; i < kFrames; ++i) {
    const std::vector<uint8_t> payload(sizes() % 700, static_cast<uint8_t>(i));
    while (!writer.Write(FrameOf(payload), payload)) {
      if (writer.Publish()) reader_bell.release();
      if (writer.AskForRoom(payload.size())) writer_bell.acquire();
      writer.StopAsking();
    }
    if (pauses() % 4 == 0 && writer.Publish()) reader_bell.release();
  }
  if (writer.Publish()) reader_bell.release();
  EXPECT_EQ(read.get(), kFrames);
}

}  // namespace
}  // namespace strom
