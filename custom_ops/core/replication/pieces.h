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
  // The elements of a piece.
  size_t SizeOf(size_t index) const {
    return static_cast<size_t>(std::min<uint64_t>(size_, elements_ - index * size_));
  }
  // Whether it has these pieces; ascending.
  bool Has(const std::vector<uint32_t>& indices) const {
    return std::ranges::adjacent_find(indices, std::greater_equal()) == indices.end() &&
           (indices.empty() || indices.back() < count_);
  }
  // The hash of each piece that `values` have whole, from the first on: they may be fewer than the
  // grid's.
  std::vector<uint64_t> Hashes(std::span<const float> values) const;

  // Of values that are as many as the grid's.
  template <typename Number>
  std::span<Number> Piece(std::span<Number> values, uint32_t index) const {
    return values.subspan(index * size_, SizeOf(index));
  }
  // The elements of these pieces.
  uint64_t ElementsOf(const std::vector<uint32_t>& indices) const;
  // The bytes of these pieces of `values`, which outlive them.
  std::vector<Bytes> Parts(std::span<const float> values,
                           const std::vector<uint32_t>& indices) const;

 private:
  uint64_t elements_ = 0;
  uint64_t size_ = 1;  // elements of a piece
  size_t count_ = 0;
};

// The indices at which `had` has not the hash that `wanted` has.
std::vector<uint32_t> Lacking(const std::vector<uint64_t>& wanted,
                              const std::vector<uint64_t>& had);

// Puts pieces, which come one behind the other, into their places, and looks at their hashes.
class PieceTaker {
 public:
  // A place that takes as many bytes as it has, and the hash of what belongs there.
  struct Place {
    std::span<float> values;
    uint64_t hash = 0;
  };
  // The places outlive this. `what` comes, for errors.
  PieceTaker(std::vector<Place> places, const char* what)
      : places_(std::move(places)), what_(what) {}
  virtual ~PieceTaker() = default;

  // The next bytes. kCorrupt where they are more than there are places for.
  Status Take(Bytes bytes);
  bool IsWhole() const { return next_ == places_.size(); }
  // Whether every piece so far has its hash; one that has not holds no values of use.
  virtual bool HaveTheirHashes() const { return true; }

 protected:
  static bool HasItsHash(const Place& place);

 private:
  // Takes the first of these bytes, which are some, for a place. What is left of them; *is_full:
  // whether the place has all.
  virtual Status Fill(const Place& place, Bytes* bytes, bool* is_full) = 0;

  std::vector<Place> places_;
  const char* const what_;
  size_t next_ = 0;  // the place that is being filled
};

// Of pieces as they are.
class WholePieceTaker final : public PieceTaker {
 public:
  explicit WholePieceTaker(std::vector<Place> places) : PieceTaker(std::move(places), "values") {}

 private:
  // kCorrupt where a piece is another one than that of the hash.
  Status Fill(const Place& place, Bytes* bytes, bool* is_full) override;

  size_t filled_ = 0;  // bytes of the place
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_PIECES_H_
