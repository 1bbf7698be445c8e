// Puts fragments together and gives messages out whole: every message number of a channel once, or
// never where the sender has given it up. Used by the receiving half of a link.
//
// Memory: messages that are partly here or wait for an earlier one of their channel hold at most
// kMaxReassemblyBytes, counted as what they will take when they are given out, message by message.
// All links of a process together hold at most what its grants say, and beyond that each may hold
// kLeastReassemblyBytes. A fragment that would pass either is refused and stays unacknowledged; the
// message that an ordered channel waits for is never refused, so that others cannot stop it.
#ifndef KERAS_STROM_CORE_TRANSPORT_REASSEMBLY_H_
#define KERAS_STROM_CORE_TRANSPORT_REASSEMBLY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/base/types.h"
#include "core/transport/byte_ranges.h"
#include "core/transport/grants.h"
#include "core/transport/packet.h"

namespace strom {

struct LinkCounters;

inline constexpr int64_t kMaxReassemblyBytes = int64_t{40} << 20;
// What a message takes besides its bytes, on its way to the node.
inline constexpr int64_t kMessageOverheadBytes = 256;
// Within these bounds room is kept for the message that each ordered channel waits for.
inline constexpr int64_t kAwaitedBytes = 2 * (kMaxMessageBytes + kMessageOverheadBytes);
// What a link may hold however much the others do: so much that a message gets through.
inline constexpr int64_t kLeastReassemblyBytes = kAwaitedBytes + kAwaitedBytes / 2;

struct DeliveredMessage {
  Channel channel = Channel::kControl;
  Buffer payload;
};

class Reassembly {
 public:
  // Both outlive it.
  Reassembly(Grants* grants, LinkCounters* counters) : grants_(grants), counters_(counters) {}
  ~Reassembly() { Hold(-bytes_); }
  Reassembly(const Reassembly&) = delete;
  Reassembly& operator=(const Reassembly&) = delete;

  enum class Verdict {
    kTaken,      // or of no more use
    kEnded,      // ... and with it a message ends
    kOverLimit,  // there is no room for it now
    kBroken,     // no honest peer sends this
  };
  // A packet whose sequence is new.
  Verdict Take(const DataPacket& packet);

  // Messages in the order of their delivery.
  std::optional<DeliveredMessage> PollMessage();

  // Bytes of messages that are partly here or wait for an earlier one.
  int64_t bytes() const { return bytes_; }

 private:
  // A message of which some fragments have arrived.
  struct Partial {
    std::vector<uint8_t> bytes;
    ByteRanges arrived;
  };
  struct Whole {
    Buffer bytes;  // null = nothing to deliver
    bool is_bundle = false;
    int64_t CostBytes() const;
  };
  // Which numbers of a channel are done: delivered, given up, or whole and waiting for their turn.
  struct Numbers {
    uint32_t next = 0;                          // every number before it is done
    std::unordered_map<uint32_t, Whole> later;  // done after it
  };

  void Hold(int64_t bytes) {
    bytes_ += bytes;
    grants_->NoteReassembly(bytes);
  }
  bool IsAwaited(const DataPacket& packet) const;
  bool HasRoom(const DataPacket& packet, int64_t bytes) const;
  Verdict TakeFragment(const DataPacket& packet);
  void GiveUp(const DataPacket& packet);
  bool MayComplete(const DataPacket& last, const Whole& whole, int64_t held) const;
  Verdict Complete(const DataPacket& last, Whole whole);
  void Finish(Channel channel, uint32_t number, Whole whole);
  void Deliver(Channel channel, Whole whole);

  Grants* const grants_;
  LinkCounters* const counters_;
  std::unordered_map<uint64_t, Partial> partial_;
  std::array<Numbers, kChannels> numbers_;
  std::deque<DeliveredMessage> delivered_;
  int64_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_REASSEMBLY_H_
