#include "core/master/pieces_for_members.h"

#include <utility>

#include "core/replication/blob.h"
#include "core/replication/near_values.h"
#include "core/replication/pieces.h"

namespace strom {

namespace {

// Sends each rank what `parts_of` makes of the pieces that it lacks.
template <typename PartsOf>
void Send(const BlobName& name, const std::vector<uint64_t>& hashes, const HashesByRank& had,
          GenerationHost* host, PartsOf parts_of) {
  // Mostly all lack the same, which is copied once.
  std::map<std::vector<uint32_t>, std::vector<int32_t>> ranks_without;
  for (const auto& [rank, own] : had) ranks_without[Lacking(hashes, own)].push_back(rank);
  for (const auto& [pieces, ranks] : ranks_without) {
    std::vector<Bytes> parts = parts_of(pieces);
    parts.insert(parts.begin(), AsBytes(hashes));
    const std::vector<Buffer> chunks = EncodeParts(name, std::move(parts));
    for (const int32_t rank : ranks) host->SendBlob(rank, chunks);
  }
}

}  // namespace

void SendPieces(uint64_t generation, const std::vector<float>& values,
                const std::vector<uint64_t>& hashes, const HashesByRank& had,
                GenerationHost* host) {
  const PieceGrid grid(values.size());
  Send({BlobKind::kPieces, generation, 0, 0, 0}, hashes, had, host,
       [&](const std::vector<uint32_t>& pieces) { return grid.Parts(values, pieces); });
}

void SendNearPieces(uint64_t generation, const std::vector<float>& values,
                    const std::vector<uint64_t>& hashes, const HashesByRank& had,
                    GenerationHost* host) {
  const PieceGrid grid(values.size());
  std::map<uint32_t, std::vector<uint8_t>> near;  // by piece
  Send({BlobKind::kNearPieces, generation, 0, 0, 0}, hashes, had, host,
       [&](const std::vector<uint32_t>& pieces) {
         std::vector<Bytes> parts;
         for (const uint32_t piece : pieces) {
           const auto [place, is_new] = near.try_emplace(piece);
           if (is_new) AppendNear(grid.Piece(std::span(values), piece), &place->second);
           parts.emplace_back(place->second);
         }
         return parts;
       });
}

}  // namespace strom
