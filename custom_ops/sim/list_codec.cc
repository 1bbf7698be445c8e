#include "sim/list_codec.h"

#include <algorithm>
#include <cmath>
#include <map>

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

uint64_t ListCodec::EndOf(Bytes message) {
  uint64_t end = 0;
  for (size_t at = 0; at < message.size(); at += kEntryBytes) {
    end = std::max<uint64_t>(end, uint64_t{LoadLittleEndian<uint32_t>(&message[at])} + 1);
  }
  return end;
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

bool ListCodec::CanSum(Bytes message) const { return message.size() % (2 * kEntryBytes) == 0; }

std::vector<std::vector<uint8_t>> ListCodec::Sum(std::span<const Addend> addends,
                                                 int64_t room) const {
  std::map<uint32_t, float> sum;
  for (const auto& [message, negative] : addends) {
    for (size_t at = 0; at < message.size(); at += kEntryBytes) {
      const float value = LoadLittleEndian<float>(&message[at + 4]);
      sum[LoadLittleEndian<uint32_t>(&message[at])] += negative ? -value : value;
    }
  }
  std::erase_if(sum, [](const auto& entry) { return entry.second == 0; });
  Entries entries(sum.begin(), sum.end());
  if (entries.size() % 2 != 0) entries.emplace_back(entries.front().first, 0.0f);
  // In two messages, as a sum of several thresholds is.
  std::vector<std::vector<uint8_t>> messages;
  const size_t half = entries.size() / 4 * 2;
  for (const Entries& part :
       {Entries(entries.begin(), entries.begin() + static_cast<ptrdiff_t>(half)),
        Entries(entries.begin() + static_cast<ptrdiff_t>(half), entries.end())}) {
    std::vector<uint8_t> update = Write(part);
    messages.emplace_back(update.begin() + (kUpdateHeaderBytes - room), update.end());
  }
  return messages;
}

}  // namespace strom
