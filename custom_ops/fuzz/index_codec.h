// Updates for fuzzed nodes that are quick to make, and to sum.
#ifndef KERAS_STROM_FUZZ_INDEX_CODEC_H_
#define KERAS_STROM_FUZZ_INDEX_CODEC_H_

#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/little_endian.h"
#include "core/replication/update.h"

namespace strom {

// An update is a list of indices, each of which gets one more, or one less where a bit says so: one
// that does not fit the parameters it is applied to shows at once. A list of an odd length cannot
// be summed.
class IndexCodec final : public UpdateCodec {
 public:
  static constexpr uint32_t kNegative = uint32_t{1} << 31;
  static constexpr uint32_t kNothing = kNegative - 1;

  Status Check(Bytes message, uint64_t size) const override {
    if (message.size() % 4 != 0) return {Code::kCorrupt, "half an index"};
    for (size_t at = 0; at < message.size(); at += 4) {
      const uint32_t index = IndexAt(message, at);
      if (index >= size && index != kNothing) return {Code::kCorrupt, "an index"};
    }
    return {};
  }
  void Apply(Bytes message, std::span<float> parameters) const override {
    for (size_t at = 0; at < message.size(); at += 4) {
      if (IndexAt(message, at) == kNothing) continue;
      parameters.data()[IndexAt(message, at)] += IsNegative(message, at) ? -1 : 1;
    }
  }
  bool CanSum(Bytes message) const override { return message.size() % 8 == 0; }
  std::vector<std::vector<uint8_t>> Sum(std::span<const Addend> addends,
                                        int64_t room) const override {
    std::map<uint32_t, int64_t> sum;
    for (const auto& [message, negative] : addends) {
      STROM_CHECK(CanSum(message));
      for (size_t at = 0; at < message.size(); at += 4) {
        sum[IndexAt(message, at)] += IsNegative(message, at) != negative ? -1 : 1;
      }
    }
    sum.erase(kNothing);
    std::vector<uint32_t> indices;
    for (const auto& [index, times] : sum) {
      indices.insert(indices.end(), static_cast<size_t>(std::abs(times)),
                     index | (times < 0 ? kNegative : 0));
    }
    if (indices.size() % 2 != 0) indices.push_back(kNothing);
    std::vector<uint8_t> message(static_cast<size_t>(room) + 4 * indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      StoreLittleEndian<uint32_t>(&message[static_cast<size_t>(room) + 4 * i], indices[i]);
    }
    return {message};
  }

 private:
  static uint32_t IndexAt(Bytes message, size_t at) {
    return LoadLittleEndian<uint32_t>(&message[at]) & ~kNegative;
  }
  static bool IsNegative(Bytes message, size_t at) {
    return (LoadLittleEndian<uint32_t>(&message[at]) & kNegative) != 0;
  }
};
inline const IndexCodec kIndexCodec;

inline Layout LayoutOf(uint64_t generation) { return {generation, 16, 5}; }

inline Buffer UpdateOf(const UpdateHeader& header, const std::vector<uint32_t>& indices) {
  std::vector<uint8_t> bytes(static_cast<size_t>(kUpdateHeaderBytes) + 4 * indices.size());
  WriteUpdateHeader(header, bytes);
  for (size_t i = 0; i < indices.size(); ++i) {
    StoreLittleEndian<uint32_t>(&bytes[static_cast<size_t>(kUpdateHeaderBytes) + 4 * i],
                                indices[i]);
  }
  return MakeBuffer(std::move(bytes));
}

}  // namespace strom

#endif  // KERAS_STROM_FUZZ_INDEX_CODEC_H_
