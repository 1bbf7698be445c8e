// An update's values as a plain list of (u32 index, f32 value): a codec that a simulation can read.
// The values are small integers, so sums are exact in any order and replicas compare bit for bit.
#ifndef KERAS_STROM_SIM_LIST_CODEC_H_
#define KERAS_STROM_SIM_LIST_CODEC_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/replication/update.h"

namespace strom {

class ListCodec final : public UpdateCodec {
 public:
  using Entries = std::vector<std::pair<uint32_t, float>>;

  // The entries behind room for an update's header.
  // One more than the highest index in it.
  static uint64_t EndOf(Bytes message);
  static std::vector<uint8_t> Write(const Entries& entries);
  Status Check(Bytes message, uint64_t size) const override;
  void Apply(Bytes message, std::span<float> parameters) const override;
  // A list of an odd number of entries stands for what cannot be summed.
  bool CanSum(Bytes message) const override;
  std::vector<std::vector<uint8_t>> Sum(std::span<const Addend> addends,
                                        int64_t room) const override;
};

inline const ListCodec kListCodec;

}  // namespace strom

#endif  // KERAS_STROM_SIM_LIST_CODEC_H_
