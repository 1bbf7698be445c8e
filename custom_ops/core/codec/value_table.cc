#include "core/codec/value_table.h"

#include <cmath>
#include <cstddef>

#include "core/base/little_endian.h"
#include "core/base/varint.h"
#include "core/codec/message_layout.h"

namespace strom {
namespace {

constexpr int kRunsBytes = 5;      // of the number of runs, at most
constexpr size_t kValueBytes = 2;  // of a run's value

}  // namespace

int64_t TableBytesBound(int64_t runs) {
  return runs < 2 ? 0 : kRunsBytes + runs * (kCountBytes + static_cast<int64_t>(kValueBytes));
}

bool IsTableValue(float value) {
  return value > 0 && std::isnormal(value) && TableValue(value) == value;
}

void WriteValueTable(std::span<const ValueRun> runs, std::vector<uint8_t>* out) {
  const size_t start = out->size();
  out->resize(start + static_cast<size_t>(TableBytesBound(static_cast<int64_t>(runs.size()))));
  size_t position = start;
  position += WriteVarint(out->data() + position, static_cast<int64_t>(runs.size()));
  for (const ValueRun& run : runs) {
    STROM_CHECK(run.count > 0 && IsTableValue(run.value));
    position += WriteVarint(out->data() + position, run.count);
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(run.value) >> 16);
    StoreLittleEndian<uint16_t>(out->data() + position, bits);
    position += kValueBytes;
  }
  out->resize(position);
}

const char* ValueTable::Read(Bytes bytes, size_t* position, int64_t count) {
  const int64_t runs = ReadVarint(bytes, position, kRunsBytes);
  // Each takes three bytes at least: nobody makes this one ask for more memory than they sent.
  if (runs < 2 || runs > static_cast<int64_t>((bytes.size() - *position) / (1 + kValueBytes))) {
    return "its table of values has no valid length";
  }
  runs_.reserve(static_cast<size_t>(runs));
  int64_t end = 0;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t entries = ReadVarint(bytes, position, kCountBytes);
    if (entries < 1) return "a run of its table of values is empty or malformed";
    if (bytes.size() - *position < kValueBytes) return "its table of values is cut off";
    const uint32_t bits = LoadLittleEndian<uint16_t>(bytes.data() + *position);
    *position += kValueBytes;
    const auto value = std::bit_cast<float>(bits << 16);
    if (!IsTableValue(value)) return "a value of its table is not positive and finite";
    end += entries;
    runs_.push_back({end, value});
  }
  return end == count ? nullptr : "the runs of its table do not add up to its entries";
}

}  // namespace strom
