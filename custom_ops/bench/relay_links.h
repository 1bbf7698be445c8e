// The benchmark's peers over our own links: an Endpoint on an IoLoop, with nothing of the relay
// above. Messages are made and taken on the I/O thread, as relaying does.
#ifndef KERAS_STROM_BENCH_RELAY_LINKS_H_
#define KERAS_STROM_BENCH_RELAY_LINKS_H_

#include "bench/relay_traffic.h"

namespace strom::bench {

// Runs the role that `options` names to its end and prints its results. Throws on any failure.
void RunOverLinks(const PeerOptions& options);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_LINKS_H_
