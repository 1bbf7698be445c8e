#include "core/replication/pieces.h"

#include <bit>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/little_endian.h"

namespace strom {

namespace {

constexpr size_t kIndexBytes = sizeof(uint32_t);

Bytes BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

PieceGrid::PieceGrid(uint64_t elements)
    : elements_(elements),
      size_(std::bit_ceil(elements / kMostPieces + (elements % kMostPieces != 0))),
      count_(static_cast<size_t>(elements / size_ + (elements % size_ != 0))) {}

int64_t PieceGrid::MostBytes() const {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  return static_cast<int64_t>(std::min(elements_, kMost) * sizeof(float) + count_ * kIndexBytes);
}

std::vector<uint64_t> PieceGrid::Hashes(std::span<const float> values) const {
  std::vector<uint64_t> hashes;
  for (size_t index = 0; index < count_ && SizeOf(index) <= values.size(); ++index) {
    hashes.push_back(Hash(BytesOf(values.first(SizeOf(index)))));
    values = values.subspan(SizeOf(index));
  }
  return hashes;
}

std::vector<uint8_t> PieceGrid::List(std::span<const float> values,
                                     const std::vector<uint32_t>& indices) const {
  std::vector<uint8_t> list;
  size_t size = 0;
  for (const uint32_t index : indices) size += kIndexBytes + SizeOf(index) * sizeof(float);
  list.reserve(size);
  for (const uint32_t index : indices) {
    uint8_t number[kIndexBytes];
    StoreLittleEndian<uint32_t>(number, index);
    list.insert(list.end(), std::begin(number), std::end(number));
    const Bytes piece = BytesOf(values.subspan(index * size_, SizeOf(index)));
    list.insert(list.end(), piece.begin(), piece.end());
  }
  return list;
}

Status PieceGrid::Read(Bytes list, std::vector<uint32_t>* indices) const {
  indices->clear();
  while (!list.empty()) {
    size_t index = count_;
    if (list.size() >= kIndexBytes) index = LoadLittleEndian<uint32_t>(list.data());
    const bool follows = index < count_ && (indices->empty() || index > indices->back());
    if (!follows || list.size() - kIndexBytes < SizeOf(index) * sizeof(float)) {
      return {Code::kCorrupt, "a list of pieces that is none"};
    }
    indices->push_back(static_cast<uint32_t>(index));
    list = list.subspan(kIndexBytes + SizeOf(index) * sizeof(float));
  }
  return {};
}

std::pair<size_t, Bytes> PieceGrid::TakePiece(Bytes* list) const {
  const size_t index = LoadLittleEndian<uint32_t>(list->data());
  const Bytes values = list->subspan(kIndexBytes, SizeOf(index) * sizeof(float));
  *list = list->subspan(kIndexBytes + values.size());
  return {index, values};
}

bool PieceGrid::HasHashes(Bytes list, const std::vector<uint64_t>& hashes) const {
  while (!list.empty()) {
    const auto [index, values] = TakePiece(&list);
    if (Hash(values) != hashes[index]) return false;
  }
  return true;
}

void PieceGrid::Put(Bytes list, std::span<float> values) const {
  while (!list.empty()) {
    const auto [index, piece] = TakePiece(&list);
    std::memcpy(values.data() + index * size_, piece.data(), piece.size());
  }
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

uint64_t HashOfAll(const std::vector<uint64_t>& hashes) {
  uint64_t all = 0;
  for (const uint64_t hash : hashes) {
    uint8_t bytes[sizeof(hash)];
    StoreLittleEndian<uint64_t>(bytes, hash);
    all = Hash(bytes, all);
  }
  return all;
}

}  // namespace strom
