// The messages of one link over a pair of rings: queues in our own memory, cut into frames as there
// is room, and put together again on the other side. It delivers as LinkLayer promises: control and
// state in order, each channel by itself, and smaller channels first when several wait.
//
// Knows shared memory but no descriptors: who is asleep and must be woken is a result that the
// caller reads (net/same_host_links.h).
#ifndef KERAS_STROM_NET_SAME_HOST_LINK_H_
#define KERAS_STROM_NET_SAME_HOST_LINK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/transport/counters.h"
#include "net/shared_ring.h"

namespace strom {

class SameHostLink {
 public:
  using Deliver = std::function<void(Channel channel, Buffer message)>;

  SameHostLink(const Ring& out, const Ring& in) : writer_(out), reader_(in) {}

  void Queue(Channel channel, Buffer message);
  // Gives up what is not wholly in the ring; the peer forgets what it has in part.
  void Void(Channel channel);
  // Queued, or in the ring and not yet taken by the peer.
  int64_t queued_bytes() const { return waiting_bytes_ + writer_.unread_bytes(); }

  // Writes what is queued while there is room, about `most_bytes`. True: wake the peer.
  bool Transmit(int64_t most_bytes);
  // Delivers what has arrived, about `most_bytes`. True: wake the peer.
  bool Receive(int64_t most_bytes, const Deliver& deliver);
  // Before sleeping: asks the peer to wake us. False: there is something to do already.
  bool PrepareToSleep(bool reads);
  void Awake();

  // The peer broke the rules; the link must end.
  bool broken() const { return broken_ || writer_.broken() || reader_.broken(); }
  // Messages and their bytes; there are no datagrams.
  const LinkCounters& counters() const { return counters_; }

 private:
  struct Outgoing {  // one channel's way out
    std::deque<Buffer> queue;
    size_t written = 0;  // bytes of the first one that are in the ring
    bool void_due = false;
  };
  struct Incoming {  // one channel's way in
    std::vector<uint8_t> message;
    size_t length = 0;  // of the open message; 0 = none is
  };

  // The channel whose frame comes next; kChannels = nothing waits.
  size_t NextChannel() const;
  // The payload that this channel's next frame has.
  Bytes NextPayload(size_t channel) const;
  bool WriteFrame(size_t channel);
  void TakeFrame(const RingFrame& frame, const Deliver& deliver);

  RingWriter writer_;
  RingReader reader_;
  std::array<Outgoing, kChannels> outgoing_;
  std::array<Incoming, kChannels> incoming_;
  int64_t waiting_bytes_ = 0;  // queued and not in the ring
  bool broken_ = false;
  LinkCounters counters_;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_SAME_HOST_LINK_H_
