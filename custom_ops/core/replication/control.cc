#include "core/replication/control.h"

#include <utility>

#include "core/base/archive.h"
#include "core/base/text.h"

namespace strom {

namespace {

template <typename Message>
Buffer Encode(Message message) {
  FieldWriter writer;
  message.Fields(writer);
  return MakeBuffer(writer.Take());
}

// The text of a message, and how long it may be; null = it has none.
struct Text {
  std::string* text = nullptr;
  size_t most_bytes = 0;
};
template <typename Message>
Text TextOf(Message* message) {
  if constexpr (requires { message->options_text; }) {
    return {&message->options_text, kMaxOptionsBytes};
  } else if constexpr (std::is_same_v<Message, Orphan>) {
    return {&message->reason, kMaxOrphanBytes};
  } else if constexpr (std::is_same_v<Message, Failure>) {
    return {&message->reason, kMaxWordsBytes};
  } else if constexpr (std::is_same_v<Message, Notice>) {
    return {&message->text, kMaxWordsBytes};
  } else {
    return {};
  }
}

template <typename Message>
Status Parse(Bytes bytes, const char* what, Message* message) {
  FieldReader reader(bytes);
  message->Fields(reader);
  if (const Text text = TextOf(message);
      text.text != nullptr && reader.ok() && text.text->size() > text.most_bytes) {
    return {Code::kCorrupt, std::string(what) + " with a text of " +
                                std::to_string(text.text->size()) + " bytes, where " +
                                std::to_string(text.most_bytes) + " are the most"};
  }
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
Buffer EncodePeerHello(const PeerHello& hello) { return Encode(hello); }
Buffer EncodeWelcome(const Welcome& welcome) { return Encode(welcome); }

Buffer EncodeControl(const ControlMessage& message) {
  return std::visit(
      [](auto value) {
        FieldWriter writer;
        if (const Text text = TextOf(&value); text.text != nullptr) {
          // Options differ by any byte: WorkerNode refuses longer ones.
          text.text->resize(CutText(*text.text, text.most_bytes).size());
        }
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

Status ParsePeerHello(Bytes bytes, PeerHello* hello) {
  return Parse(bytes, "a peer's hello", hello);
}

Status ParseWelcome(Bytes bytes, Welcome* welcome) { return Parse(bytes, "a welcome", welcome); }

Status ParseControl(Bytes bytes, ControlMessage* message) {
  if (bytes.empty()) return {Code::kCorrupt, "an empty control message"};
  return ParseAlternative(bytes[0], bytes.subspan(1), message);
}

}  // namespace strom
