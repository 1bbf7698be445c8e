// What a node's peers may send, drawn from a fuzzer's input: messages of every kind.
#ifndef KERAS_STROM_FUZZ_FUZZED_PEER_H_
#define KERAS_STROM_FUZZ_FUZZED_PEER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/little_endian.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/merged_update.h"
#include "core/replication/update.h"
#include "fuzz/fuzz_input.h"
#include "fuzz/index_codec.h"

namespace strom {

class Input : public FuzzInput {
 public:
  using FuzzInput::FuzzInput;
  size_t Below(size_t end) { return Take<uint8_t>() % end; }
  std::vector<uint8_t> Raw(size_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = Take();
    return bytes;
  }
  // A number that this job may use, or any.
  uint64_t Number() {
    static constexpr uint64_t kUsual[] = {0, 1, 2, 3, 4, 16, 40, 64, uint64_t{1} << 20};
    const size_t pick = Below(24);
    if (pick < std::size(kUsual)) return kUsual[pick];
    if (pick < 20) return (uint64_t{1} << 32) + pick - 11;  // origins of the first master
    if (pick < 23) return Take<uint8_t>();
    return Take<uint64_t>();
  }
};

// Fills a message's fields: an archive, as those that write and read them (core/base/archive.h).
class Drawn {
 public:
  explicit Drawn(Input* input) : input_(*input) {}
  template <typename... Field>
  void operator()(Field&... fields) {
    (Draw(fields), ...);
  }

 private:
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Draw(Number& value) {
    value = static_cast<Number>(input_.Number());
  }
  template <size_t size>
  void Draw(std::array<uint8_t, size>& token) {
    token.fill(static_cast<uint8_t>(input_.Below(8)));
  }
  void Draw(std::string& text) {
    static constexpr size_t kSizes[] = {0, 0, 0, 1, 600, kMaxOptionsBytes, 100'000, 3 << 20};
    const bool is_long = input_.Below(16) == 0;
    text.assign(kSizes[input_.Below(is_long ? std::size(kSizes) : 5)], 'x');
  }
  void Draw(VersionVector& vector) {
    for (size_t n = input_.Below(5); n > 0; --n) vector[input_.Number()] = input_.Number();
  }
  void Draw(std::vector<UpdateId>& ids) {
    for (size_t n = input_.Below(5); n > 0; --n) {
      const uint64_t origin = input_.Number();
      ids.push_back({origin, input_.Number()});
    }
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Draw(std::vector<Number>& numbers) {
    numbers.resize(input_.Below(5));
    for (Number& number : numbers) Draw(number);
  }
  template <typename Item>
    requires requires(Item item, Drawn& drawn) { item.Fields(drawn); }
  void Draw(std::vector<Item>& items) {
    for (size_t n = input_.Below(4); n > 0; --n) items.emplace_back().Fields(*this);
  }

  Input& input_;
};

// What a peer may send: drawn messages of every kind.
class Peer {
 public:
  // `is_parent`: it may be the master, or a parent in the tree.
  Peer(Input* input, bool is_parent, bool merges)
      : input_(*input), is_parent_(is_parent), kinds_(merges ? 29 : 28) {}

  // Mostly what a worker sends: another message costs it its link at the master.
  Buffer Control() {
    static constexpr uint8_t kOfWorkers[] = {
        Attach::kType,          Attach::kType,    Announce::kType,   Done::kType,
        Verification::kType,    Placed::kType,    Orphan::kType,     AskState::kType,
        AskSnapshot::kType,     AskResume::kType, ReplicaCut::kType, Have::kType,
        strom::AskJoint::kType, Stepping::kType};
    const size_t pick = input_.Below(2 * std::size(kOfWorkers));
    const uint8_t type =
        pick < std::size(kOfWorkers)
            ? kOfWorkers[pick]
            : static_cast<uint8_t>(1 +
                                   input_.Below(is_parent_ || input_.Below(8) == 0 ? kinds_ : 2));
    ControlMessage message;
    Alternative(type, &message);
    // The encoder cuts words and takes care of nothing else.
    return EncodeControl(message);
  }
  // For a worker that begins.
  Buffer Question() {
    AskPieces ask;
    Drawn drawn(&input_);
    ask.Fields(drawn);
    return EncodeControl(ask);
  }
  Buffer Raw() { return MakeBuffer(input_.Raw(1 + input_.Below(64))); }
  std::vector<Buffer> Chunks() {
    BlobName name;
    name.kind = static_cast<BlobKind>(1 + input_.Below(12));
    name.generation = input_.Number();
    name.key = input_.Number();
    name.mark = input_.Number();
    static constexpr size_t kSizes[] = {0, 1, 8, 64, 64, 128, 4104};
    const std::vector<uint8_t> values(kSizes[input_.Below(std::size(kSizes))]);
    return EncodeBlob(name, Bytes(values));
  }
  Buffer AnyChunk() {
    std::vector<uint8_t> bytes(45 + input_.Below(32));
    bytes[0] = static_cast<uint8_t>(1 + input_.Below(13));
    for (const size_t at : {1, 9, 17}) StoreLittleEndian<uint64_t>(&bytes[at], input_.Number());
    StoreLittleEndian<uint32_t>(&bytes[25], 1);
    for (const size_t at : {29, 37}) StoreLittleEndian<uint64_t>(&bytes[at], input_.Number());
    return MakeBuffer(std::move(bytes));
  }
  Buffer Update() {
    UpdateHeader header;
    header.id = {std::max<uint64_t>(1, input_.Number()), std::max<uint64_t>(1, input_.Number())};
    header.iteration = input_.Number();
    header.layout = LayoutOf(1 + input_.Below(3));
    if (input_.Below(8) == 0) header.layout.size = input_.Number();
    header.flags = input_.Below(4) == 0 ? 0 : kLastPartFlag;
    std::vector<uint32_t> indices(input_.Below(5));
    for (uint32_t& index : indices) index = static_cast<uint32_t>(input_.Below(18));
    return UpdateOf(header, indices);
  }
  // A merged update of such: of any, or the next ones of the origins that `next` says.
  Buffer Merged(uint64_t generation, const std::function<UpdateId()>& next) {
    const size_t name = input_.Below(4);
    UpdateId id;
    if (name < 2 && is_parent_) id = {MasterOrigin(1 + name), 1 + input_.Below(6)};
    if (name == 2) id = {std::max<uint64_t>(1, input_.Number()), 1};
    Layout layout = LayoutOf(generation);
    Merger merger;
    for (size_t n = 1 + input_.Below(5); n > 0 || merger.updates() == 0; n -= n > 0 ? 1 : 0) {
      UpdateHeader header;
      header.id = next();
      if (input_.Below(16) == 0) header.id = {1 + input_.Number() % 100, 1 + input_.Number() % 9};
      header.iteration = input_.Number();
      header.layout = layout;
      std::vector<uint32_t> indices(input_.Below(5));
      for (uint32_t& index : indices) index = static_cast<uint32_t>(input_.Below(16));
      (void)merger.Add(UpdateOf(header, indices));
    }
    if (input_.Below(32) == 0) layout.size = input_.Number();
    std::vector<uint8_t> bytes = *merger.Write(id, layout, kIndexCodec);
    if (input_.Below(8) == 0) {  // of its contents, or parts
      const size_t body = bytes.size() - static_cast<size_t>(kUpdateHeaderBytes);
      bytes[static_cast<size_t>(kUpdateHeaderBytes) + input_.Number() % body] ^= input_.Take();
    }
    return MakeBuffer(std::move(bytes));
  }

 private:
  template <size_t index = 0>
  void Alternative(uint8_t type, ControlMessage* message) {
    if constexpr (index < std::variant_size_v<ControlMessage>) {
      if (std::variant_alternative_t<index, ControlMessage>::kType != type) {
        return Alternative<index + 1>(type, message);
      }
      Drawn drawn(&input_);
      message->emplace<index>().Fields(drawn);
    }
  }

  Input& input_;
  const bool is_parent_;
  const size_t kinds_;  // of control messages
};

}  // namespace strom

#endif  // KERAS_STROM_FUZZ_FUZZED_PEER_H_
