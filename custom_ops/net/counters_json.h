// The counters of an endpoint and its socket as JSON, for people and their tools.
#ifndef KERAS_STROM_NET_COUNTERS_JSON_H_
#define KERAS_STROM_NET_COUNTERS_JSON_H_

#include <string>

#include "core/endpoint.h"
#include "net/udp_socket.h"

namespace strom {

// One object: the endpoint's counters, the socket's, and "links", an object for each link that
// stands. Bytes are those on the wire: 28 (IPv4 and UDP header) a datagram are added.
std::string CountersJson(const Endpoint& endpoint, const UdpSocket& socket);

}  // namespace strom

#endif  // KERAS_STROM_NET_COUNTERS_JSON_H_
