#include "core/master/pieces_for_members.h"

#include <utility>

#include "core/replication/blob.h"
#include "core/replication/pieces.h"

namespace strom {

void SendPieces(uint64_t generation, const std::vector<float>& values,
                const std::vector<uint64_t>& hashes,
                const std::map<int32_t, std::vector<uint64_t>>& had, GenerationHost* host) {
  // Mostly all lack the same, which is copied once.
  std::map<std::vector<uint32_t>, std::vector<int32_t>> ranks_without;
  for (const auto& [rank, own] : had) ranks_without[Lacking(hashes, own)].push_back(rank);
  const PieceGrid grid(values.size());
  for (const auto& [pieces, ranks] : ranks_without) {
    std::vector<Bytes> parts = grid.Parts(values, pieces);
    parts.insert(parts.begin(), AsBytes(hashes));
    const std::vector<Buffer> chunks =
        EncodeParts({BlobKind::kPieces, generation, 0, 0, 0}, std::move(parts));
    for (const int32_t rank : ranks) host->SendBlob(rank, chunks);
  }
}

}  // namespace strom
