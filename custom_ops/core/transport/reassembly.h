// Puts fragments together and gives messages out whole: every message number of a channel once, or
// never where the sender has given it up. Used by the receiving half of a link.
//
// Memory: messages that are partly here or wait for an earlier one of their channel hold at most
// kMaxReassemblyBytes. A sender that keeps the protocol stays below it; a fragment that would pass
// it is refused and stays unacknowledged.
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
#include "core/transport/packet.h"

namespace strom {

struct LinkCounters;

inline constexpr int64_t kMaxReassemblyBytes = int64_t{32} << 20;

struct DeliveredMessage {
  Channel channel = Channel::kControl;
  Buffer payload;
};

class Reassembly {
 public:
  explicit Reassembly(LinkCounters* counters) : counters_(counters) {}

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
  };
  // Which numbers of a channel are done: delivered, given up, or whole and waiting for their turn.
  struct Numbers {
    uint32_t next = 0;                          // every number before it is done
    std::unordered_map<uint32_t, Whole> later;  // done after it
  };

  Verdict TakeFragment(const DataPacket& packet);
  void GiveUp(const DataPacket& packet);
  Verdict Complete(const DataPacket& last, Buffer bytes);
  void Finish(Channel channel, uint32_t number, Whole whole);
  void Deliver(Channel channel, Whole whole);

  LinkCounters* const counters_;
  std::unordered_map<uint64_t, Partial> partial_;
  std::array<Numbers, kChannels> numbers_;
  std::deque<DeliveredMessage> delivered_;
  int64_t bytes_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_REASSEMBLY_H_
