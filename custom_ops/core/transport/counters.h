// What is counted of links and endpoints, and the snapshot of one link that people get to see.
#ifndef KERAS_STROM_CORE_TRANSPORT_COUNTERS_H_
#define KERAS_STROM_CORE_TRANSPORT_COUNTERS_H_

#include <cstdint>
#include <iterator>

#include "core/base/link_layer.h"

namespace strom {

// Of one connection, from its first HELLO on. Bytes are UDP payload.
struct LinkCounters {
  int64_t datagrams_sent = 0, datagrams_received = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t retransmitted_packets = 0;
  int64_t messages_sent = 0, messages_received = 0;
  int64_t messages_voided = 0;          // given up here
  int64_t messages_voided_by_peer = 0;  // given up there, after they had started
  // Drops by reason; every dropped datagram adds to exactly one.
  int64_t drop_malformed = 0, drop_unauthentic = 0, drop_replayed = 0, drop_over_limit = 0;

  LinkCounters& operator+=(const LinkCounters& other);
};

// Of all connections that there are and were, and of what belongs to none.
struct EndpointCounters : LinkCounters {
  int64_t drop_unknown_connection = 0, drop_bad_cookie = 0, drop_wrong_secret = 0;
};

// A counter and the name it is shown by.
template <typename Counters>
struct CounterField {
  const char* name;
  int64_t Counters::* value;
};

inline constexpr CounterField<LinkCounters> kLinkCounterFields[] = {
    {"datagrams_sent", &LinkCounters::datagrams_sent},
    {"datagrams_received", &LinkCounters::datagrams_received},
    {"bytes_sent", &LinkCounters::bytes_sent},
    {"bytes_received", &LinkCounters::bytes_received},
    {"retransmitted_packets", &LinkCounters::retransmitted_packets},
    {"messages_sent", &LinkCounters::messages_sent},
    {"messages_received", &LinkCounters::messages_received},
    {"messages_voided", &LinkCounters::messages_voided},
    {"messages_voided_by_peer", &LinkCounters::messages_voided_by_peer},
    {"drop_malformed", &LinkCounters::drop_malformed},
    {"drop_unauthentic", &LinkCounters::drop_unauthentic},
    {"drop_replayed", &LinkCounters::drop_replayed},
    {"drop_over_limit", &LinkCounters::drop_over_limit},
};
static_assert(sizeof(LinkCounters) == sizeof(int64_t) * std::size(kLinkCounterFields));

inline constexpr CounterField<EndpointCounters> kEndpointCounterFields[] = {
    {"drop_unknown_connection", &EndpointCounters::drop_unknown_connection},
    {"drop_bad_cookie", &EndpointCounters::drop_bad_cookie},
    {"drop_wrong_secret", &EndpointCounters::drop_wrong_secret},
};

inline LinkCounters& LinkCounters::operator+=(const LinkCounters& other) {
  for (const auto& field : kLinkCounterFields) this->*field.value += other.*field.value;
  return *this;
}

// How one established link stands now.
struct LinkReport {
  LinkId link = 0;
  Address peer;
  LinkCounters counters;
  int64_t smoothed_round_trip_ns = 0;  // 0 before the first sample, as the next one
  int64_t least_round_trip_ns = 0;
  int64_t queued_bytes = 0;  // of messages queued or unacknowledged
  int64_t in_flight_packets = 0;
  int64_t congestion_window_packets = 0;
  int64_t grant_packets = 0;  // fresh packets that the peer allows now
  int64_t datagram_bytes = 0;
  int64_t key_phase = 0;  // how often the keys of what is sent have changed
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_COUNTERS_H_
