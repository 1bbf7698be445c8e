// Values of which only those pieces travel that their receiver does not have: the start of a `fit`,
// where workers have mostly the parameters with which the last one has ended, or have loaded the
// same. A piece is named by its hash.
#ifndef KERAS_STROM_CORE_REPLICATION_PIECES_H_
#define KERAS_STROM_CORE_REPLICATION_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace strom {

// How many there are at most, so that their hashes fit in a control message.
inline constexpr size_t kMostPieces = 256;

// `elements` values in pieces of equal size, but for the last.
class PieceGrid {
 public:
  explicit PieceGrid(uint64_t elements);

  uint64_t elements() const { return elements_; }
  size_t count() const { return count_; }
  // Whether it has these pieces; ascending.
  bool Has(const std::vector<uint32_t>& indices) const {
    return std::ranges::adjacent_find(indices, std::greater_equal()) == indices.end() &&
           (indices.empty() || indices.back() < count_);
  }
  // The most bytes that a list of pieces has.
  int64_t MostBytes() const;
  // The hash of each piece that `values` have whole, from the first on: they may be fewer than the
  // grid's.
  std::vector<uint64_t> Hashes(std::span<const float> values) const;

  // These pieces of `values`, which are as many as the grid's: of each its u32 index and its
  // values, one piece behind the other.
  std::vector<uint8_t> List(std::span<const float> values,
                            const std::vector<uint32_t>& indices) const;
  // The indices of a list, ascending. kCorrupt where it is none.
  Status Read(Bytes list, std::vector<uint32_t>* indices) const;
  // Of a list that Read has read: whether its pieces have these hashes.
  bool HasHashes(Bytes list, const std::vector<uint64_t>& hashes) const;
  // Puts its pieces into values that are as many as the grid's.
  void Put(Bytes list, std::span<float> values) const;

 private:
  size_t SizeOf(size_t index) const {
    return static_cast<size_t>(std::min<uint64_t>(size_, elements_ - index * size_));
  }

  // Of a list that Read has read: takes its first piece off, the index and the values' bytes.
  std::pair<size_t, Bytes> TakePiece(Bytes* list) const;

  uint64_t elements_ = 0;
  uint64_t size_ = 1;  // elements of a piece
  size_t count_ = 0;
};

// The indices at which `had` has not the hash that `wanted` has.
std::vector<uint32_t> Lacking(const std::vector<uint64_t>& wanted,
                              const std::vector<uint64_t>& had);

// One hash of all pieces.
uint64_t HashOfAll(const std::vector<uint64_t>& hashes);

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_PIECES_H_
