// UpdateCodec over core/codec/message.h.
#include <string>

#include "core/codec/message.h"
#include "core/replication/update.h"

namespace strom {

namespace {

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
};

}  // namespace

const UpdateCodec& MessageCodec() {
  static const CodecOfMessages codec;
  return codec;
}

}  // namespace strom
