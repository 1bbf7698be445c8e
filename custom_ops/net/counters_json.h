// The counters of an endpoint and its socket as JSON, for people and their tools.
#ifndef KERAS_STROM_NET_COUNTERS_JSON_H_
#define KERAS_STROM_NET_COUNTERS_JSON_H_

#include <string>

#include "core/transport/endpoint.h"
#include "net/same_host_links.h"
#include "net/udp_socket.h"

namespace strom {

// One object: the endpoint's counters, the socket's, and "links", an object for each link that
// stands. Bytes are those on the wire, where 28 (IPv4 and UDP header) a datagram are added, and
// those of messages through shared memory, which are also given apart.
std::string CountersJson(const Endpoint& endpoint, const SameHostLinks& same_host,
                         const UdpSocket& socket);

}  // namespace strom

#endif  // KERAS_STROM_NET_COUNTERS_JSON_H_
