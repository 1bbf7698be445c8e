#include "sim/list_codec.h"

#include <cmath>

#include "core/base/little_endian.h"

namespace strom {
namespace {

constexpr size_t kEntryBytes = 8;

}  // namespace

std::vector<uint8_t> ListCodec::Write(const Entries& entries) {
  std::vector<uint8_t> update(kUpdateHeaderBytes + entries.size() * kEntryBytes);
  uint8_t* at = update.data() + kUpdateHeaderBytes;
  for (const auto& [index, value] : entries) {
    StoreLittleEndian<uint32_t>(at, index);
    StoreLittleEndian<float>(at + 4, value);
    at += kEntryBytes;
  }
  return update;
}

Status ListCodec::Check(Bytes message, uint64_t size) const {
  if (message.size() % kEntryBytes != 0) return {Code::kCorrupt, "half an entry"};
  for (size_t at = 0; at < message.size(); at += kEntryBytes) {
    if (LoadLittleEndian<uint32_t>(&message[at]) >= size) {
      return {Code::kCorrupt, "an index beyond the layout"};
    }
    if (!std::isfinite(LoadLittleEndian<float>(&message[at + 4]))) {
      return {Code::kCorrupt, "a value that is not finite"};
    }
  }
  return {};
}

void ListCodec::Apply(Bytes message, std::span<float> parameters) const {
  for (size_t at = 0; at < message.size(); at += kEntryBytes) {
    parameters[LoadLittleEndian<uint32_t>(&message[at])] +=
        LoadLittleEndian<float>(&message[at + 4]);
  }
}

}  // namespace strom
