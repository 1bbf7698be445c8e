#include "core/replication/update.h"

#include <string>

#include "core/base/little_endian.h"
#include "core/replication/merged_update.h"

namespace strom {

namespace {

std::string Name(const UpdateId& id) {
  return "update " + std::to_string(id.counter) + " of origin " + std::to_string(id.origin);
}

class AnyBytes final : public UpdateCodec {
 public:
  Status Check(Bytes, uint64_t) const override { return {}; }
  void Apply(Bytes, std::span<float>) const override {}
};

}  // namespace

std::vector<std::vector<uint8_t>> UpdateCodec::Sum(std::span<const Addend> addends,
                                                   int64_t room) const {
  STROM_CHECK(addends.empty());
  return {std::vector<uint8_t>(static_cast<size_t>(room))};
}

const UpdateCodec& BytesCodec() {
  static const AnyBytes codec;
  return codec;
}

void WriteUpdateHeader(const UpdateHeader& header, std::span<uint8_t> update) {
  STROM_CHECK(update.size() >= static_cast<size_t>(kUpdateHeaderBytes));
  StoreLittleEndian<uint64_t>(&update[0], header.id.origin);
  StoreLittleEndian<uint64_t>(&update[8], header.id.counter);
  StoreLittleEndian<uint64_t>(&update[16], header.iteration);
  StoreLittleEndian<uint64_t>(&update[24], header.layout.size);
  StoreLittleEndian<uint64_t>(&update[32], header.layout.hash);
  StoreLittleEndian<uint64_t>(&update[40], header.layout.generation);
  StoreLittleEndian<uint32_t>(&update[48], header.flags);
  StoreLittleEndian<uint32_t>(&update[52], 0);
}

Status ParseUpdateHeader(Bytes update, UpdateHeader* header) {
  if (update.size() < static_cast<size_t>(kUpdateHeaderBytes)) {
    return {Code::kCorrupt,
            "an update of " + std::to_string(update.size()) + " bytes is shorter than its header"};
  }
  header->id.origin = LoadLittleEndian<uint64_t>(&update[0]);
  header->id.counter = LoadLittleEndian<uint64_t>(&update[8]);
  header->iteration = LoadLittleEndian<uint64_t>(&update[16]);
  header->layout.size = LoadLittleEndian<uint64_t>(&update[24]);
  header->layout.hash = LoadLittleEndian<uint64_t>(&update[32]);
  header->layout.generation = LoadLittleEndian<uint64_t>(&update[40]);
  header->flags = LoadLittleEndian<uint32_t>(&update[48]);
  if (header->id.origin == 0 || header->id.counter == 0) {
    return {Code::kCorrupt, "an update's origin and counter start at 1"};
  }
  if ((header->flags & ~(kLastPartFlag | kMergedFlag)) != 0 ||
      LoadLittleEndian<uint32_t>(&update[52]) != 0) {
    return {Code::kCorrupt, Name(header->id) + " has flags that this version does not know"};
  }
  if (IsOfMaster(header->id.origin) && !header->merged()) {
    return {Code::kCorrupt, Name(header->id) + " has a master's origin and is not merged"};
  }
  return {};
}

Status ValidateUpdate(Bytes update, const Layout& layout, const UpdateCodec& codec,
                      UpdateHeader* header) {
  Status parsed = ParseUpdateHeader(update, header);
  if (!parsed.ok()) return parsed;
  if (header->layout.generation != layout.generation) {
    return {Code::kCorrupt, Name(header->id) + " belongs to generation " +
                                std::to_string(header->layout.generation) +
                                ", this is generation " + std::to_string(layout.generation)};
  }
  if (header->layout != layout) {
    return {Code::kCorrupt, Name(header->id) + " is for " + std::to_string(header->layout.size) +
                                " parameters of another layout than this generation's " +
                                std::to_string(layout.size)};
  }
  const Bytes body = update.subspan(kUpdateHeaderBytes);
  Status checked =
      header->merged() ? CheckMerged(body, layout.size, codec) : codec.Check(body, layout.size);
  if (!checked.ok()) return {checked.code, Name(header->id) + ": " + checked.message};
  return {};
}

}  // namespace strom
