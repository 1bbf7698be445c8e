#include "core/master/chiefs_values.h"

#include <algorithm>
#include <utility>

namespace strom {

std::vector<uint32_t> ChiefsValues::LackingIn(std::span<const float> own) const {
  std::vector<uint32_t> lacking = Lacking(hashes_, grid_.Hashes(own));
  std::erase_if(lacking, [&](uint32_t index) { return sent_.contains(index); });
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
  return asked ? std::optional(grid_.MostBytes()) : std::nullopt;
}

std::string ChiefsValues::Add(std::vector<uint8_t> list) {
  std::vector<uint32_t> indices;
  const Status whole = grid_.Read(list, &indices);
  if (!whole.ok()) return whole.message;
  if (indices != awaited_) return "other pieces of the chief's values than were asked for";
  if (!grid_.HasHashes(list, hashes_)) return "other values than it has announced";
  sent_.insert(indices.begin(), indices.end());
  lists_.push_back(std::move(list));
  awaited_.clear();
  return "";
}

bool ChiefsValues::Install(std::vector<float>* own) {
  if (!LackingIn(*own).empty()) {
    asked_ = false;
    return false;
  }
  own->resize(grid_.elements());
  for (const std::vector<uint8_t>& list : lists_) grid_.Put(list, *own);
  return true;
}

}  // namespace strom
