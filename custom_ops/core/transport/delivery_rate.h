// How fast the path delivers packets, measured at the sender: packets acknowledged over the time in
// which they were delivered (draft-cheng-iccrg-delivery-rate-estimation).
//
// Every packet remembers where delivery stood when it left. When it is acknowledged, what has been
// delivered since, over the longer of the times of sending and of acknowledging, is a sample. So a
// peer whose acknowledgements come in heaps does not look faster than the packets were sent.
#ifndef KERAS_STROM_CORE_TRANSPORT_DELIVERY_RATE_H_
#define KERAS_STROM_CORE_TRANSPORT_DELIVERY_RATE_H_

#include <algorithm>
#include <cstdint>

namespace strom {

class DeliveryRate {
 public:
  // What one packet remembers.
  struct Stamp {
    int64_t delivered = 0;      // packets acknowledged when it left
    int64_t delivered_ns = 0;   // ... and when the last of them was
    int64_t first_sent_ns = 0;  // when that one had left
    bool limited = false;       // the path could have carried more than there was to send
  };

  struct Sample {
    double packets_per_ns = 0;  // 0 = none
    bool limited = false;
    bool round_ended = false;  // what left after the last time this was true has arrived
  };

  // A packet leaves while `in_flight` others are under way.
  Stamp Send(int64_t now_ns, int64_t in_flight) {
    if (in_flight == 0) first_sent_ns_ = delivered_ns_ = now_ns;
    return {delivered_, delivered_ns_, first_sent_ns_, delivered_ < limited_until_};
  }

  // There is nothing to send though more might be under way than `in_flight`.
  void NoteLimited(int64_t in_flight) {
    limited_until_ = delivered_ + std::max<int64_t>(in_flight, 1);
  }

  void Acknowledge(int64_t now_ns, int64_t sent_ns, const Stamp& stamp) {
    ++delivered_;
    delivered_ns_ = now_ns;
    if (has_newest_ && sent_ns < newest_sent_ns_) return;
    has_newest_ = true;
    newest_ = stamp;
    newest_sent_ns_ = sent_ns;
  }

  // Of what was acknowledged since the last call. A time below `least_ns` is too short to say.
  Sample Take(int64_t least_ns) {
    Sample sample;
    if (!has_newest_) return sample;
    has_newest_ = false;
    first_sent_ns_ = newest_sent_ns_;
    if (newest_.delivered >= round_end_) {
      round_end_ = delivered_;
      sample.round_ended = true;
    }
    const int64_t sending_ns = newest_sent_ns_ - newest_.first_sent_ns;
    const int64_t interval_ns = std::max(sending_ns, delivered_ns_ - newest_.delivered_ns);
    if (interval_ns < std::max<int64_t>(least_ns, 1)) return sample;
    sample.packets_per_ns =
        static_cast<double>(delivered_ - newest_.delivered) / static_cast<double>(interval_ns);
    sample.limited = newest_.limited;
    return sample;
  }

 private:
  int64_t delivered_ = 0;
  int64_t delivered_ns_ = 0;
  int64_t first_sent_ns_ = 0;
  int64_t limited_until_ = 0;
  int64_t round_end_ = 0;
  bool has_newest_ = false;  // of those acknowledged since the last sample, the one sent last
  int64_t newest_sent_ns_ = 0;
  Stamp newest_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_DELIVERY_RATE_H_
