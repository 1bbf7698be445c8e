#include "core/replication/pieces.h"

#include <bit>
#include <cstring>
#include <string>

#include "core/base/hash.h"

namespace strom {

PieceGrid::PieceGrid(uint64_t elements)
    : elements_(elements),
      size_(std::bit_ceil(elements / kMostPieces + (elements % kMostPieces != 0))),
      count_(static_cast<size_t>(elements / size_ + (elements % size_ != 0))) {}

std::vector<uint64_t> PieceGrid::Hashes(std::span<const float> values) const {
  std::vector<uint64_t> hashes;
  for (size_t index = 0; index < count_ && SizeOf(index) <= values.size(); ++index) {
    hashes.push_back(Hash(AsBytes(values.first(SizeOf(index)))));
    values = values.subspan(SizeOf(index));
  }
  return hashes;
}

uint64_t PieceGrid::ElementsOf(const std::vector<uint32_t>& indices) const {
  uint64_t elements = 0;
  for (const uint32_t index : indices) elements += SizeOf(index);
  return elements;
}

std::vector<Bytes> PieceGrid::Parts(std::span<const float> values,
                                    const std::vector<uint32_t>& indices) const {
  std::vector<Bytes> parts;
  for (const uint32_t index : indices) parts.push_back(AsBytes(Piece(values, index)));
  return parts;
}

std::vector<uint32_t> Lacking(const std::vector<uint64_t>& wanted,
                              const std::vector<uint64_t>& had) {
  std::vector<uint32_t> lacking;
  for (size_t index = 0; index < wanted.size(); ++index) {
    if (index >= had.size() || had[index] != wanted[index]) {
      lacking.push_back(static_cast<uint32_t>(index));
    }
  }
  return lacking;
}

Status PieceTaker::Take(Bytes bytes) {
  while (!bytes.empty()) {
    if (IsWhole()) {
      return {Code::kCorrupt, std::string("more pieces of ") + what_ + " than were to come"};
    }
    bool is_full = false;
    Status status = Fill(places_[next_], &bytes, &is_full);
    if (!status.ok()) return status;
    next_ += is_full;
  }
  return {};
}

bool PieceTaker::HasItsHash(const Place& place) {
  return Hash(AsBytes(place.values)) == place.hash;
}

Status WholePieceTaker::Fill(const Place& place, Bytes* bytes, bool* is_full) {
  const size_t size = std::min(bytes->size(), place.values.size_bytes() - filled_);
  std::memcpy(reinterpret_cast<uint8_t*>(place.values.data()) + filled_, bytes->data(), size);
  filled_ += size;
  *bytes = bytes->subspan(size);
  *is_full = filled_ == place.values.size_bytes();
  if (!*is_full) return {};
  filled_ = 0;
  if (HasItsHash(place)) return {};
  return {Code::kCorrupt, "a piece of other values than its hash says"};
}

}  // namespace strom
