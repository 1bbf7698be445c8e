// How much may be under way to one process, divided among the links that send to it
// (docs/internals/transport.md, "Receiver grants"): many senders at once would overflow the buffer
// of the last switch before it, though each of them alone would not.
//
// Senders whose DATA arrives are active and share the budget evenly. One that is alone starts with
// all of it and gets one byte more for each that arrives, so that a fast or long line fills; the
// first byte of another ends that. Nobody has to say that it falls silent: its share returns after
// two periods without DATA, and what it was granted last it keeps.
//
// A process that sends, too, grants as much on top as it has under way itself. What it tells its
// senders waits behind that in its own line's queue, so that much of the budget is never before the
// receiver but on its way to be used again.
//
// On a long line (core/transport/long_line.h) a budget for the last switch says nothing: there a
// sender is granted by what arrives from it in a round trip (core/transport/link_receiver.cc), and
// its own pacing keeps the switch's queue short.
//
// Nobody knows how large that buffer is. While several send, a period in which more than 1/64 is
// lost makes the budget a quarter smaller, and any other a little larger again. (Lines that lose
// less by themselves do not count; on those that lose more the least budget is still enough for 1
// Gbit/s.)
#ifndef KERAS_STROM_CORE_TRANSPORT_GRANTS_H_
#define KERAS_STROM_CORE_TRANSPORT_GRANTS_H_

#include <cstdint>

namespace strom {

// What a sender may have under way that has not been heard yet.
inline constexpr uint32_t kIdleGrantPackets = 16;
// What every active sender may have under way, however many there are.
inline constexpr uint32_t kLeastGrantPackets = 2;

struct GrantOptions {
  int64_t shared_bytes = int64_t{256} << 10;  // divided among the active senders, at most
  int64_t lone_bytes = int64_t{4} << 20;      // the most for one that is alone, or for all
  // What the incomplete messages of all senders together may hold before each may only hold as much
  // as one message.
  int64_t reassembly_bytes = int64_t{512} << 20;
};

class Grants {
 public:
  static constexpr int64_t kPeriodNs = 10'000'000;
  // The most for one on a long line. Most of it is on the line, not before the receiver; it may be
  // more than the socket's buffer.
  static constexpr int64_t kLongLineBytes = int64_t{16} << 20;

  // One sender's place; it may end at any time.
  class Sender {
    friend class Grants;
    int64_t period_ = -2;  // when its DATA came last
  };

  explicit Grants(const GrantOptions& options)
      : options_(options), budget_bytes_(options.shared_bytes) {}

  // DATA of `sender` has arrived. True: it was idle, and waits for more than its idle grant.
  bool NoteArrival(int64_t now_ns, int64_t bytes, Sender* sender);
  // So many packets did not arrive.
  void NoteLoss(int64_t packets) { lost_packets_ += packets; }
  // By so many bytes more, or less, is under way from this process, over all short lines.
  void NoteOwnUnderWay(int64_t bytes) { own_bytes_ += bytes; }
  // What each active sender may have under way.
  int64_t ShareBytes(int64_t now_ns) const;
  // What messages that are partly here hold, over all senders.
  void NoteReassembly(int64_t bytes) { reassembly_bytes_ += bytes; }
  int64_t reassembly_bytes() const { return reassembly_bytes_; }
  bool HasReassemblyRoom(int64_t bytes) const {
    return reassembly_bytes_ + bytes <= options_.reassembly_bytes;
  }

  // Senders heard in this period or the one before.
  int64_t ActiveSenders(int64_t now_ns) const;

 private:
  void EndPeriod(int64_t next_period);

  const GrantOptions options_;
  int64_t reassembly_bytes_ = 0;
  int64_t own_bytes_ = 0;  // under way from here
  int64_t budget_bytes_;
  int64_t period_ = 0;
  int64_t heard_ = 0;                               // senders of this period
  int64_t newly_heard_ = 0;                         // ... that were silent in the one before
  int64_t heard_before_ = 0;                        // senders of the period before
  int64_t lone_bytes_ = 0;                          // arrived since there was only one
  int64_t arrived_packets_ = 0, lost_packets_ = 0;  // in this period
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_GRANTS_H_
