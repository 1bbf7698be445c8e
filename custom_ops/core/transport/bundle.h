// Several small messages of one channel as one, so that they share a datagram: most of a small
// message's cost is its packet's. The link bundles what waits when it is about to send, never waits
// for more to come, and gives the messages out one by one again.
//
// A bundle is u16 length and bytes, for each message (docs/internals/packets.md).
#ifndef KERAS_STROM_CORE_TRANSPORT_BUNDLE_H_
#define KERAS_STROM_CORE_TRANSPORT_BUNDLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/base/types.h"

namespace strom {

// What each message takes besides its bytes.
inline constexpr size_t kBundledFieldBytes = 2;

// How many messages from the front of the queue fit into `bytes` together; less than two are no
// bundle.
size_t CountBundled(const std::deque<Buffer>& queue, size_t bytes);
// The first `count` messages of the queue as one.
Buffer MakeBundle(const std::deque<Buffer>& queue, size_t count);

// Takes the next message off the front of a bundle. Nothing: it is malformed; an empty bundle has
// been read to its end.
std::optional<Bytes> NextBundled(Bytes* bundle);
// Whether all of it can be read.
bool IsBundle(Bytes bundle);

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_BUNDLE_H_
