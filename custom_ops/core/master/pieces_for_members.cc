#include "core/master/pieces_for_members.h"

#include <span>

#include "core/replication/near_values.h"
#include "core/replication/pieces.h"

namespace strom {

void PiecesForMembers::Send(BlobKind kind, int32_t rank, const std::vector<uint64_t>& had) {
  const auto [place, is_new] = copies_.try_emplace({kind, Lacking(hashes_, had)});
  auto& [name, chunks] = *place;
  if (is_new) chunks = Copy(kind, name.second);
  host_->SendBlob(rank, chunks);
}

std::vector<Buffer> PiecesForMembers::Copy(BlobKind kind,
                                           const std::vector<uint32_t>& pieces) const {
  const PieceGrid grid(values_->size());
  std::vector<Bytes> parts;
  std::vector<uint8_t> near;
  if (kind == BlobKind::kNearPieces) {
    for (const uint32_t piece : pieces) AppendNear(grid.Piece(std::span(*values_), piece), &near);
    parts = {near};
  } else {
    parts = grid.Parts(*values_, pieces);
  }
  parts.insert(parts.begin(), AsBytes(hashes_));
  return EncodeParts({kind, generation_, 0, 0, 0}, std::move(parts));
}

}  // namespace strom
