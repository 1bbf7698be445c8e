// An update on the wire: a 56-byte header, relayed unchanged, and a codec message
// (core/codec/message.h). docs/internals/control_messages.md has the header's field table.
#ifndef KERAS_STROM_CORE_REPLICATION_UPDATE_H_
#define KERAS_STROM_CORE_REPLICATION_UPDATE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/types.h"
#include "core/codec/message_sum.h"

namespace strom {

// The last part of what its origin contributes in one step.
inline constexpr uint32_t kLastPartFlag = 1;
// The sum of several updates (core/replication/merged_update.h).
inline constexpr uint32_t kMergedFlag = 2;
// In the place of the time between two merged messages, where each update passes by itself.
inline constexpr int64_t kNotMerging = -1;

// What a generation's updates have to fit: one flat space in one `fit`.
struct Layout {
  uint64_t generation = 0;
  uint64_t size = 0;
  uint64_t hash = 0;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct UpdateHeader {
  UpdateId id;
  uint64_t iteration = 0;
  Layout layout;
  uint32_t flags = 0;
  bool last_part() const { return (flags & kLastPartFlag) != 0; }
  bool merged() const { return (flags & kMergedFlag) != 0; }
};

// Writes the header into the first kUpdateHeaderBytes of `update`, which must be there.
void WriteUpdateHeader(const UpdateHeader& header, std::span<uint8_t> update);

// Reads the fixed fields; kCorrupt for a short update, unknown flags, a counter of 0, or a master's
// origin on what is not merged.
Status ParseUpdateHeader(Bytes update, UpdateHeader* header);

// What the relay needs to know of an update's values. Stateless; shared by all nodes.
class UpdateCodec {
 public:
  virtual ~UpdateCodec() = default;
  // Every check there is, so that Apply cannot fail; `size` is the flat space's.
  virtual Status Check(Bytes message, uint64_t size) const = 0;
  // parameters += the values of a checked message.
  virtual void Apply(Bytes message, std::span<float> parameters) const = 0;
  // Whether a checked message may take part in a sum; with most codecs none may.
  virtual bool CanSum(Bytes) const { return false; }
  // Messages, each behind `room` bytes, that add to every parameter exactly what the addends add
  // and take away; one that adds nothing where that is nothing. Each addend satisfies CanSum.
  virtual std::vector<std::vector<uint8_t>> Sum(std::span<const Addend> addends,
                                                int64_t room) const;
};

// The codec of core/codec/message.h.
const UpdateCodec& MessageCodec();

// For a relay of any bytes (net/bytes_agent.h): everything is valid and there are no parameters.
const UpdateCodec& BytesCodec();

// The one validation of an update, a pure function run before it is held, applied or relayed:
// header fields, the generation's layout, then the codec's checks. The words name what is wrong.
Status ValidateUpdate(Bytes update, const Layout& layout, const UpdateCodec& codec,
                      UpdateHeader* header);

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_UPDATE_H_
