// The outgoing half of a link: cuts queued messages into DATA packets, remembers them until the
// peer's STATUS names them, resends what it reports missing, and paces all of it.
//
// Memory: the queue holds what the caller put in (its bound is the caller's affair); what is under
// way is at most kWindowPackets packets of at most two started messages and those before them.
#ifndef KERAS_STROM_CORE_TRANSPORT_LINK_SENDER_H_
#define KERAS_STROM_CORE_TRANSPORT_LINK_SENDER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/transport/congestion.h"
#include "core/transport/delivery_rate.h"
#include "core/transport/packet.h"
#include "core/transport/sequence_ring.h"
#include "core/transport/sequence_set.h"

namespace strom {

struct LinkCounters;

// The least of what came within the last one to two periods.
class LeastOfPeriods {
 public:
  explicit LeastOfPeriods(int64_t period_ns) : period_ns_(period_ns) {}
  void Sample(int64_t now_ns, int64_t value);
  int64_t value() const { return least_; }  // 0 before the first sample

 private:
  const int64_t period_ns_;
  int64_t period_end_ns_ = 0;
  int64_t least_ = 0;
  int64_t least_of_period_ = 0;
};

// Three round-trip times: the least of the last 30 to 60 s, the smoothed one, and the path's, which
// is the least of the last 8 to 16 samples: it includes queues on the path but not the time that a
// process waited for a processor.
class RoundTripClock {
 public:
  void Sample(int64_t now_ns, int64_t round_trip_ns);
  bool has_sample() const { return smoothed_ns_ > 0; }
  int64_t smoothed_ns() const { return has_sample() ? smoothed_ns_ : kGuessNs; }
  int64_t least_ns() const { return least_.value(); }  // 0 before the first sample
  // What the line is taken for, short or long. A short one that is full for a minute has a least
  // round trip with a queue in it; it stays short.
  int64_t line_ns() const { return IsShort() ? shortest_.value() : least_ns(); }
  int64_t path_ns() const { return has_sample() ? std::min(few_ns_, few_before_ns_) : kGuessNs; }
  int64_t queue_delay_ns() const { return has_sample() ? path_ns() - least_ns() : 0; }

 private:
  static constexpr int64_t kGuessNs = 500'000;  // before the first sample
  // A route that has become longer is taken for a queue for two periods at most; where it was that
  // of a short line, for two of the longer ones.
  static constexpr int64_t kPeriodNs = 30'000'000'000;
  static constexpr int64_t kShortLinePeriodNs = 300'000'000'000;
  bool IsShort() const { return shortest_.value() < kLongLineNs; }
  static constexpr int kFewSamples = 8;
  int64_t smoothed_ns_ = 0;
  int64_t few_ns_ = kNever;         // the least since the last change of kFewSamples
  int64_t few_before_ns_ = kNever;  // ... and of those before
  int samples_ = 0;
  LeastOfPeriods least_{kPeriodNs};
  LeastOfPeriods shortest_{kShortLinePeriodNs};
};

class LinkSender {
 public:
  // DATA bodies are at most `body_bytes` long; a peer that says nothing for `failure_timeout_ns` is
  // given up by then. `counters` outlives the sender.
  LinkSender(uint32_t first_sequence, size_t body_bytes, int64_t failure_timeout_ns,
             const CongestionControl& control, LinkCounters* counters);
  ~LinkSender();

  void Queue(int64_t now_ns, Channel channel, Buffer message);
  int64_t queued_bytes() const { return queued_bytes_; }
  // True while anything is queued or unacknowledged, be it the word that a message was given up.
  bool HasWork() const;

  // Gives up every message of `channel` that is not yet acknowledged. Those that have started are
  // resent as VOID, so that the peer's sequences stay whole.
  void Void(int64_t now_ns, Channel channel);

  // False: the peer acknowledged what was never sent.
  [[nodiscard]] bool HandleStatus(int64_t now_ns, const StatusPacket& status);

  // Writes the next DATA body; 0 = nothing may leave now.
  size_t PollData(int64_t now_ns, std::span<uint8_t> out);
  // True once when the peer has to be asked what arrived (lost tails).
  bool TakeProbe();

  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;

  // DATA bodies are at most so long from now on. What is under way and longer is cut anew where it
  // has to be resent.
  void SetBodyBytes(size_t body_bytes);
  // True when packets longer than the first ones are lost again and again while others pass.
  bool LosesLongPackets(int64_t now_ns) const;
  // What a path does that takes no packets as long as the first ones: the oldest packet was lost
  // again and again, while the peer's STATUS came.
  struct Stuck {
    size_t body_bytes = 0;
    int64_t losses = 0;
    int64_t ns = 0;
    bool is_over = false;  // for most of the failure timeout
  };
  std::optional<Stuck> FindStuck(int64_t now_ns) const;

  uint32_t next_sequence() const { return next_; }
  int64_t in_flight_packets() const { return in_flight_; }
  // Fresh packets that the peer allows now.
  int64_t grant_packets() const { return Before(next_, grant_edge_) ? grant_edge_ - next_ : 0; }
  const RoundTripClock& round_trip() const { return round_trip_; }
  const CongestionState& congestion() const { return congestion_; }

 private:
  struct Message;
  // What is known of one sequence.
  struct Slot {
    Message* message = nullptr;
    uint32_t sequence = 0;
    uint32_t offset = 0;
    uint32_t size = 0;
    bool resent = false;
    bool lost = false;        // stands in lost_
    bool on_the_way = false;  // counts as under way
    int64_t sent_ns = 0;
    DeliveryRate::Stamp stamp = {};
  };
  // The end of a fragment that was cut anew: it still needs a sequence. Of size 0: the end of a
  // message that was given up.
  struct Remainder {
    Message* message = nullptr;
    uint32_t offset = 0;
    uint32_t size = 0;
  };

  // What to send.
  Slot* OldestLost();
  bool HasFresh() const;
  bool HasWindow() const;
  bool TakeToken(int64_t now_ns);
  // How many packets of the present size are as long as so many of the first.
  double AsManyBytes(double first_packets) const;
  double PacingRate() const;
  bool IsStuck() const;
  Slot* NextFresh();
  Message* OpenMessage();
  Message* Start(Channel channel);
  void CloseOpen(const Message* message);
  void PutOnTheWay(int64_t now_ns, Slot* slot);
  void TakeOffTheWay(Slot* slot);
  Slot& Assign(Message* message, uint32_t offset, uint32_t size);
  size_t Write(int64_t now_ns, const Slot& slot, std::span<uint8_t> out) const;

  void Split(Slot* slot);
  Slot* NextRemainder();

  // What arrived.
  void AcknowledgeRange(int64_t now_ns, uint32_t from, uint32_t to);
  void Acknowledge(int64_t now_ns, uint32_t sequence);
  bool CameLate(int64_t now_ns, const Slot& slot) const;
  int64_t ReorderNs() const;
  bool MayBeLate(int64_t now_ns, const Slot& slot) const;
  void ReportMissing(int64_t now_ns, uint32_t sequence);
  void Resend(Slot* slot);
  void AdaptWindow(int64_t now_ns, int64_t acknowledged, int64_t lost, bool window_limited);

  void VoidStarted(int64_t now_ns, Channel channel);
  void CloseVoid(int64_t now_ns, Message* message);
  void ArmProbe(int64_t now_ns);
  Slot& SlotOf(uint32_t sequence) { return slots_[sequence]; }

  bool OnLongLine() const { return congestion_.long_line.is_on(); }
  uint32_t WindowPackets() const;

  size_t fragment_bytes_;
  const size_t first_fragment_bytes_;
  const CongestionControl control_;
  LinkCounters* const counters_;

  std::array<std::deque<Buffer>, kChannels> queues_;
  std::array<uint32_t, kChannels> next_message_{};
  int64_t queued_bytes_ = 0;

  std::vector<std::unique_ptr<Message>> messages_;  // every one ever made, for reuse
  std::vector<Message*> free_messages_;
  std::array<Message*, 2> open_{};  // started, not wholly sent; the later one goes first
  size_t open_count_ = 0;

  SequenceRing<Slot> slots_;  // from oldest_ to next_
  SequenceSet pending_;       // sent or lost, not acknowledged
  uint32_t oldest_;           // everything before it is acknowledged
  uint32_t next_;             // the next fresh sequence
  uint32_t grant_edge_;
  int64_t in_flight_ = 0;             // pending, not known to be lost, and not long ago
  std::deque<uint32_t> lost_;         // to be resent, oldest report first
  std::deque<Remainder> remainders_;  // go before anything fresh
  int64_t long_lost_ = 0;             // losses of long packets since one has arrived
  int64_t long_lost_ns_ = kNever;     // when the first of them was reported
  int64_t oldest_lost_ = 0;           // losses of the packet oldest_
  int64_t oldest_lost_ns_ = kNever;   // when the first of them was reported

  RoundTripClock round_trip_;
  DeliveryRate delivery_;
  int64_t reorder_ns_ = 0;  // long lines: how much later than others packets have come
  CongestionState congestion_;
  uint32_t round_end_;
  int64_t round_acknowledged_ = 0;
  int64_t round_lost_ = 0;

  double tokens_;
  int64_t tokens_ns_ = 0;
  int64_t rest_end_ns_ = 0;     // out of tokens: nothing leaves before a batch may
  int64_t pacing_ns_ = kNever;  // that time, while something waits for it

  const int64_t failure_timeout_ns_;
  const int64_t most_probe_ns_;  // between two probes on a short line
  int64_t probe_ns_ = kNever;
  int probes_ = 0;  // since the last progress
  bool probe_wanted_ = false;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_LINK_SENDER_H_
