// What message.cc and message_apply.cc share.
#ifndef KERAS_STROM_CORE_CODEC_MESSAGE_PAYLOAD_H_
#define KERAS_STROM_CORE_CODEC_MESSAGE_PAYLOAD_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/codec/message.h"
#include "core/codec/rice.h"

namespace strom {

// Gives payloads with the kRiceSlack readable bytes behind them that a coder needs: most have them
// in the message itself, the last ones are copied.
class PayloadReader {
 public:
  // Valid until the next call.
  Bytes Read(const ParsedMessage::Span& span) {
    if (span.slack >= kRiceSlack) return span.payload;
    copy_.assign(span.payload.size() + kRiceSlack, 0);
    std::memcpy(copy_.data(), span.payload.data(), span.payload.size());
    return Bytes(copy_).first(span.payload.size());
  }

 private:
  std::vector<uint8_t> copy_;
};

// Into how many parts a row of `items` is cut: a few for each thread, so that a dense part of the
// model does not hold up the rest, and none smaller than `least`.
inline int64_t PartsFor(const Parallel& parallel, int64_t items, int64_t least) {
  return parallel.threads <= 1 ? 1 : std::clamp<int64_t>(items / least, 1, 4 * parallel.threads);
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_MESSAGE_PAYLOAD_H_
