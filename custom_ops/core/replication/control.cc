#include "core/replication/control.h"

#include <utility>

#include "core/base/archive.h"

namespace strom {

namespace {

template <typename Message>
Buffer Encode(Message message) {
  FieldWriter writer;
  message.Fields(writer);
  return MakeBuffer(writer.Take());
}

template <typename Message>
Status Parse(Bytes bytes, const char* what, Message* message) {
  FieldReader reader(bytes);
  message->Fields(reader);
  if (!reader.ok() || !reader.left().empty()) {
    return {Code::kCorrupt, std::string(what) + " of " + std::to_string(bytes.size()) +
                                " bytes does not have its fields' length"};
  }
  return {};
}

// Tries the alternatives of ControlMessage one after another by their type.
template <size_t index = 0>
Status ParseAlternative(uint8_t type, Bytes fields, ControlMessage* message) {
  if constexpr (index == std::variant_size_v<ControlMessage>) {
    return {Code::kCorrupt, "unknown control message type " + std::to_string(type)};
  } else {
    using Alternative = std::variant_alternative_t<index, ControlMessage>;
    if (type != Alternative::kType) return ParseAlternative<index + 1>(type, fields, message);
    return Parse(fields, "a control message", &message->emplace<Alternative>());
  }
}

}  // namespace

Buffer EncodeHello(const Hello& hello) { return Encode(hello); }
Buffer EncodeChildHello(const ChildHello& hello) { return Encode(hello); }
Buffer EncodeWelcome(const Welcome& welcome) { return Encode(welcome); }

Buffer EncodeControl(const ControlMessage& message) {
  return std::visit(
      [](auto value) {
        FieldWriter writer;
        writer(decltype(value)::kType);
        value.Fields(writer);
        return MakeBuffer(writer.Take());
      },
      message);
}

Status ParseHello(Bytes bytes, Hello* hello) {
  // The version stands first and alone decides how the rest reads.
  FieldReader reader(bytes);
  reader(hello->version);
  if (reader.ok() && hello->version != kProtocolVersion) return {};
  return Parse(bytes, "a hello", hello);
}

Status ParseChildHello(Bytes bytes, ChildHello* hello) {
  return Parse(bytes, "a child's hello", hello);
}

Status ParseWelcome(Bytes bytes, Welcome* welcome) { return Parse(bytes, "a welcome", welcome); }

Status ParseControl(Bytes bytes, ControlMessage* message) {
  if (bytes.empty()) return {Code::kCorrupt, "an empty control message"};
  return ParseAlternative(bytes[0], bytes.subspan(1), message);
}

}  // namespace strom
