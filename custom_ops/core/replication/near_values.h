// Values for a receiver that has nearly the same: of each float come the low bits, which say which
// of those near its own it is. That is how a `fit` in asynchronous mode ends: all have added the
// same updates, each in another order, so that a worker's parameters are the master's but for
// rounding.
//
// An error of rounding is as large as the larger numbers of a sum let it be, so what is near has
// one measure for a block of values and not one for each: the unit, which is the distance of floats
// at the block's largest value. A value below that lies between two multiples of the unit, and
// further bits say where. docs/internals/control_messages.md, "Pieces", has the layout.
#ifndef KERAS_STROM_CORE_REPLICATION_NEAR_VALUES_H_
#define KERAS_STROM_CORE_REPLICATION_NEAR_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/replication/pieces.h"

namespace strom {

// What is fewer than 2^(kNearBits - 1) whole units away is near.
inline constexpr int kNearBits = 6;
inline constexpr size_t kNearBlock = 1024;  // values

// Appends a piece: its length, and its blocks.
void AppendNear(std::span<const float> values, std::vector<uint8_t>* bytes);

// Of such pieces, whose places hold what is near to them.
class NearPieceTaker final : public PieceTaker {
 public:
  explicit NearPieceTaker(std::vector<Place> places)
      : PieceTaker(std::move(places), "near values") {}

  bool HaveTheirHashes() const override { return are_near_; }

 private:
  // kCorrupt where no piece is so long.
  Status Fill(const Place& place, Bytes* bytes, bool* is_full) override;

  std::vector<uint8_t> piece_;  // what is here of it
  bool are_near_ = true;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_NEAR_VALUES_H_
