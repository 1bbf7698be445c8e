// The incoming half of a link: which sequences have arrived, what to tell the sender of them and
// when, and how much it may send. Messages are put together in core/transport/reassembly.h.
#ifndef KERAS_STROM_CORE_TRANSPORT_LINK_RECEIVER_H_
#define KERAS_STROM_CORE_TRANSPORT_LINK_RECEIVER_H_

#include <cstdint>
#include <optional>

#include "core/base/types.h"
#include "core/transport/grants.h"
#include "core/transport/packet.h"
#include "core/transport/reassembly.h"
#include "core/transport/sequence_ring.h"
#include "core/transport/sequence_set.h"

namespace strom {

struct LinkCounters;

class LinkReceiver {
 public:
  // `grants` and `counters` outlive the receiver.
  LinkReceiver(uint32_t first_sequence, Grants* grants, LinkCounters* counters);
  ~LinkReceiver();

  // False: the peer broke the protocol; the link cannot go on.
  [[nodiscard]] bool HandleData(int64_t now_ns, const DataPacket& packet);
  [[nodiscard]] bool HandleProbe(int64_t now_ns, const ProbePacket& packet);

  // Messages in the order of their delivery.
  std::optional<DeliveredMessage> PollMessage() { return reassembly_.PollMessage(); }

  // The least round trip to the sender; 0 = not known. One that is far away is granted what it
  // needs to fill its line, and is told a little less often what arrived.
  void SetRoundTrip(int64_t least_ns) { round_trip_ns_ = least_ns; }

  // What the other half of this link has under way; on a long line most of it is in no queue.
  void SetUnderWay(int64_t bytes);

  // While true nothing is granted beyond what has been.
  void HoldBack(bool hold);

  bool status_due() const { return status_due_; }
  // Fills in the STATUS to send now.
  void TakeStatus(int64_t now_ns, StatusPacket* status);

  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;

  // Bytes of messages that are partly here or wait for an earlier one.
  int64_t reassembly_bytes() const { return reassembly_.bytes(); }

 private:
  bool Advance(int64_t now_ns, uint32_t end);
  void NoteArrival(int64_t now_ns, uint32_t timestamp_us);

  void CountRound(int64_t now_ns, int64_t bytes);
  int64_t ShareBytes(int64_t now_ns) const;
  uint32_t NextGrantEdge(int64_t now_ns);
  void NoteLoss(uint32_t from, uint32_t to);

  Grants* const grants_;
  Grants::Sender sender_;
  LinkCounters* const counters_;

  uint32_t cumulative_;   // everything before it has arrived
  uint32_t end_;          // one after the highest known to have been sent
  uint32_t lost_up_to_;   // gaps before it have been told of
  uint32_t untold_from_;  // the next STATUS begins here, when it lies past cumulative_
  uint32_t grant_edge_;   // sequences before it may be sent
  bool held_back_ = false;
  int64_t under_way_bytes_ = 0;         // as it was told to grants_
  uint32_t share_ = kIdleGrantPackets;  // what the sender may have under way, when it was told last
  int64_t packet_bytes_;                // the longest payload, lately
  SequenceSet arrived_;                 // from cumulative_ on
  uint32_t arrived_count_ = 0;
  SequenceRing<int64_t> noticed_ns_;  // from cumulative_ to end_: when it was found missing
  Reassembly reassembly_;

  // Long lines: what arrives in a round trip.
  int64_t round_trip_ns_ = 0;
  int64_t round_ns_ = 0;     // when this one began
  int64_t round_bytes_ = 0;  // ... and what has arrived since
  int64_t most_bytes_ = 0;   // the most in one, lately

  bool status_due_ = false;
  int64_t status_ns_ = kNever;  // latest time for the next STATUS
  uint32_t unreported_ = 0;     // packets since the last one
  bool young_gap_ = false;      // a gap may be reported once end_ passes young_gap_end_
  uint32_t young_gap_end_ = 0;
  uint32_t echo_timestamp_us_ = 0;
  int64_t echo_ns_ = kNever;  // when the packet to be echoed arrived
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_LINK_RECEIVER_H_
