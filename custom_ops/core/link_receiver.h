// The incoming half of a link: puts fragments together, gives messages out whole, and tells the
// sender what is missing.
//
// Memory: messages that are partly here or wait for an earlier one of their channel hold at most
// kMaxReassemblyBytes. A sender that keeps the protocol (two open messages, one window) stays below
// it; fragments of another that would pass it are dropped and stay unacknowledged.
#ifndef KERAS_STROM_CORE_LINK_RECEIVER_H_
#define KERAS_STROM_CORE_LINK_RECEIVER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/packet.h"
#include "core/sequence_set.h"
#include "core/types.h"

namespace strom {

struct LinkCounters;

inline constexpr int64_t kMaxReassemblyBytes = int64_t{32} << 20;

struct DeliveredMessage {
  Channel channel = Channel::kControl;
  Buffer payload;
};

class LinkReceiver {
 public:
  LinkReceiver(uint32_t first_sequence, LinkCounters* counters);

  // False: the peer broke the protocol; the link cannot go on.
  [[nodiscard]] bool HandleData(int64_t now_ns, const DataPacket& packet);
  [[nodiscard]] bool HandleProbe(int64_t now_ns, const ProbePacket& packet);

  // Messages in the order of their delivery.
  std::optional<DeliveredMessage> PollMessage();

  // While true nothing is granted beyond what has been.
  void HoldBack(bool hold);

  bool status_due() const { return status_due_; }
  // Fills in the STATUS to send now.
  void TakeStatus(int64_t now_ns, StatusPacket* status);

  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;

  // Bytes of messages that are partly here or wait for an earlier one.
  int64_t reassembly_bytes() const { return reassembly_bytes_; }

 private:
  // A message of which some fragments have arrived.
  struct Partial {
    std::vector<uint8_t> bytes;
    uint32_t received = 0;
  };
  // A message that will never come; late fragments of it are ignored until all its sequences are
  // behind.
  struct Voided {
    uint64_t key = 0;
    uint32_t last_sequence = 0;
  };

  bool Advance(int64_t now_ns, uint32_t end);
  bool TakeFragment(const DataPacket& packet, bool* over_limit);
  bool TakeVoid(const DataPacket& packet);
  bool Complete(Channel channel, uint32_t number, Buffer message);
  void Deliver(Channel channel, Buffer message);
  bool IsVoided(uint64_t key) const;
  void ForgetVoided();
  void NoteArrival(int64_t now_ns, uint32_t timestamp_us);

  LinkCounters* const counters_;

  uint32_t cumulative_;  // everything before it has arrived
  uint32_t end_;         // one after the highest known to have been sent
  uint32_t grant_edge_;  // sequences before it may be sent
  bool held_back_ = false;
  SequenceSet arrived_;
  std::vector<int64_t> noticed_ns_;  // by sequence modulo the window: when it was found missing

  std::unordered_map<uint64_t, Partial> partial_;
  std::vector<Voided> voided_;
  int64_t reassembly_bytes_ = 0;

  // Channels in order: the next number to deliver, and whole messages after it (null = voided).
  std::array<uint32_t, kChannels> next_message_{};
  std::array<std::unordered_map<uint32_t, Buffer>, kChannels> waiting_;
  std::deque<DeliveredMessage> delivered_;

  bool status_due_ = false;
  int64_t status_ns_ = kNever;  // latest time for the next STATUS
  int unreported_ = 0;          // packets since the last one
  bool young_gap_ = false;      // a gap may be reported once end_ passes young_gap_end_
  uint32_t young_gap_end_ = 0;
  uint32_t echo_timestamp_us_ = 0;
  int64_t echo_ns_ = kNever;  // when the packet to be echoed arrived
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_LINK_RECEIVER_H_
