// UpdateCodec over core/codec/message.h.
#include <string>
#include <vector>

#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/message_sum.h"
#include "core/codec/message_writer.h"
#include "core/replication/update.h"

namespace strom {

namespace {

// A merged update has room for what stands around its messages.
constexpr int64_t kMaxSumBytes = kMaxMessageBytes / 2;

class CodecOfMessages final : public UpdateCodec {
 public:
  Status Check(Bytes message, uint64_t size) const override {
    ParsedMessage parsed;
    Status status = ParseMessage(message, &parsed);
    if (!status.ok()) return status;
    if (static_cast<uint64_t>(parsed.elements()) > size) {
      return {Code::kCorrupt, "a message for " + std::to_string(parsed.elements()) +
                                  " parameters where there are " + std::to_string(size)};
    }
    return {};
  }
  void Apply(Bytes message, std::span<float> parameters) const override {
    ApplyMessage(OpenValidatedMessage(message), 0, parameters);
  }
  bool CanSum(Bytes message) const override { return strom::CanSum(OpenValidatedMessage(message)); }
  std::vector<std::vector<uint8_t>> Sum(std::span<const Addend> addends,
                                        int64_t room) const override {
    auto sums = SumMessages(addends, kMaxSumBytes, room);
    return sums.empty() ? WriteEntries({}, EntryList(), kMaxSumBytes, room) : std::move(sums);
  }
};

}  // namespace

const UpdateCodec& MessageCodec() {
  static const CodecOfMessages codec;
  return codec;
}

}  // namespace strom
