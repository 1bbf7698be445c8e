#include "core/master/chiefs_values.h"

#include <algorithm>
#include <utility>

#include "core/base/hash.h"

namespace strom {

std::vector<uint32_t> ChiefsValues::LackingIn(std::span<const float> own) const {
  std::vector<uint32_t> lacking = Lacking(hashes_, grid_.Hashes(own));
  for (const auto& [sent, values] : answers_) {
    std::erase_if(lacking, [&](uint32_t index) { return std::ranges::binary_search(sent, index); });
  }
  return lacking;
}

std::optional<AskPieces> ChiefsValues::TakeQuestion(std::span<const float> own) {
  if (std::exchange(asked_, true)) return std::nullopt;
  awaited_ = LackingIn(own);
  if (awaited_.empty()) return std::nullopt;
  return AskPieces{generation_, number_, awaited_};
}

std::optional<int64_t> ChiefsValues::MostBytes(const BlobName& name) const {
  const bool asked = name.generation == generation_ && name.mark == number_ && !awaited_.empty();
  return asked ? std::optional(BytesOfFloats(grid_.ElementsOf(awaited_))) : std::nullopt;
}

std::string ChiefsValues::Add(std::vector<float> values) {
  if (values.size() != grid_.ElementsOf(awaited_)) {
    return "other pieces of the chief's values than were asked for";
  }
  for (size_t at = 0; const uint32_t index : awaited_) {
    const auto piece = std::span(values).subspan(at, grid_.SizeOf(index));
    if (Hash(AsBytes(piece)) != hashes_[index]) return "other values than it has announced";
    at += piece.size();
  }
  answers_[std::exchange(awaited_, {})] = std::move(values);
  return "";
}

bool ChiefsValues::Install(std::vector<float>* own) {
  if (!LackingIn(*own).empty()) {
    asked_ = false;
    return false;
  }
  for (auto& [indices, values] : answers_) {
    if (indices.size() == grid_.count()) {
      *own = std::move(values);
      continue;
    }
    own->resize(grid_.elements());
    for (size_t at = 0; const uint32_t index : indices) {
      const std::span<float> place = grid_.Piece(std::span(*own), index);
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(at), place.size(), place.begin());
      at += place.size();
    }
  }
  return true;
}

}  // namespace strom
