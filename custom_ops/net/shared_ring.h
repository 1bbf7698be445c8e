// One direction of a link between two processes of one host: frames in a ring of shared memory, one
// writer, one reader, no locks. Knows memory only; who maps it and who wakes whom is the caller's
// affair (net/same_host_links.h).
//
// The memory belongs to both processes, so everything the other side stores there is untrusted: its
// position is checked each time it is read, a header is copied out before it is looked at, and own
// positions are never read back. A peer that breaks the rules makes the ring `broken`; it cannot
// make this side read or write outside of it, loop or wait.
#ifndef KERAS_STROM_NET_SHARED_RING_H_
#define KERAS_STROM_NET_SHARED_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"

namespace strom {

// What both sides see of each other. Bytes count up for ever; a position's place in the ring is the
// position modulo the ring's size.
struct RingPositions {
  alignas(64) uint64_t written = 0;  // the writer's: frames end here
  uint32_t writer_waits = 0;         // 1: wake the writer when there is room
  alignas(64) uint64_t read = 0;     // the reader's: it is past these
  uint32_t reader_sleeps = 0;        // 1: wake the reader when there is a frame
};
static_assert(sizeof(RingPositions) == 128);

struct Ring {
  RingPositions* positions = nullptr;
  std::span<uint8_t> bytes;  // a power of two, kLeastRingBytes or more
};

inline constexpr size_t kLeastRingBytes = 4096;

struct RingFrame {
  enum class Kind : uint8_t {
    kFirst,  // opens a message
    kNext,   // goes on with the message that is open on its channel
    kVoid,   // the open message was given up; no payload
  };
  uint32_t bytes = 0;          // payload of this frame
  uint32_t message_bytes = 0;  // of the whole message
  Channel channel = Channel::kControl;
  Kind kind = Kind::kFirst;
  uint16_t zero = 0;
  uint32_t also_zero = 0;
};
static_assert(sizeof(RingFrame) == 16);

class RingWriter {
 public:
  explicit RingWriter(const Ring& ring);

  int64_t ring_bytes() const { return static_cast<int64_t>(ring_.bytes.size()); }
  // The longest payload of a frame in this ring.
  size_t max_payload() const;
  // Appends a frame, which the reader sees after Publish. False: there is no room now.
  bool Write(const RingFrame& frame, Bytes payload);
  // True: the reader sleeps and must be woken.
  bool Publish();
  // Before sleeping: asks to be woken once a frame with this payload may fit. False: it does now.
  bool AskForRoom(size_t payload_bytes);
  // Asks to be woken at the reader's next step.
  void AskForProgress();
  void StopAsking();

  // Ring bytes that the reader has not gone past.
  int64_t unread_bytes() const;
  // The reader's position made no sense. Nothing is written any more.
  bool broken() const { return broken_; }

 private:
  bool HasRoom(size_t payload_bytes);

  const Ring ring_;
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  uint64_t read_ = 0;  // the reader's position when it was last looked at
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(const Ring& ring);

  // Copies the next frame's header out. False: no frame waits, or the ring is broken.
  bool Next(RingFrame* frame);
  // Appends the payload of the frame that Next has given to *to, or skips it where `to` is null.
  void Take(const RingFrame& frame, std::vector<uint8_t>* to);
  // Gives what was taken back to the writer. True: the writer waits for that and must be woken.
  bool Release();
  // Before sleeping: asks to be woken for the next frame. False: one waits already.
  bool AskForFrame();
  void StopAsking();

  bool broken() const { return broken_; }

 private:
  uint64_t Available();

  const Ring ring_;
  uint64_t read_ = 0;
  uint64_t released_ = 0;
  uint64_t written_ = 0;  // the writer's position when it was last looked at
  bool broken_ = false;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_SHARED_RING_H_
