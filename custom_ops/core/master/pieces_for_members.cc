#include "core/master/pieces_for_members.h"

#include <utility>

#include "core/replication/blob.h"
#include "core/replication/near_values.h"
#include "core/replication/pieces.h"

namespace strom {

namespace {

std::vector<Buffer> Encode(BlobKind kind, uint64_t generation, const std::vector<uint64_t>& hashes,
                           std::vector<Bytes> parts) {
  parts.insert(parts.begin(), AsBytes(hashes));
  return EncodeParts({kind, generation, 0, 0, 0}, std::move(parts));
}

// Sends each rank what `encode` makes of the pieces that it lacks.
template <typename EncodeThese>
void Send(const std::vector<uint64_t>& hashes, const HashesByRank& had, GenerationHost* host,
          EncodeThese encode) {
  // Mostly all lack the same, which is copied once.
  std::map<std::vector<uint32_t>, std::vector<int32_t>> ranks_without;
  for (const auto& [rank, own] : had) ranks_without[Lacking(hashes, own)].push_back(rank);
  for (const auto& [pieces, ranks] : ranks_without) {
    const std::vector<Buffer> chunks = encode(pieces);
    for (const int32_t rank : ranks) host->SendBlob(rank, chunks);
  }
}

}  // namespace

std::vector<Buffer> EncodePieces(uint64_t generation, const std::vector<float>& values,
                                 const std::vector<uint64_t>& hashes,
                                 const std::vector<uint32_t>& pieces) {
  return Encode(BlobKind::kPieces, generation, hashes,
                PieceGrid(values.size()).Parts(values, pieces));
}

void SendPieces(uint64_t generation, const std::vector<float>& values,
                const std::vector<uint64_t>& hashes, const HashesByRank& had,
                GenerationHost* host) {
  Send(hashes, had, host, [&](const std::vector<uint32_t>& pieces) {
    return EncodePieces(generation, values, hashes, pieces);
  });
}

void SendNearPieces(uint64_t generation, const std::vector<float>& values,
                    const std::vector<uint64_t>& hashes, const HashesByRank& had,
                    GenerationHost* host) {
  const PieceGrid grid(values.size());
  std::map<uint32_t, std::vector<uint8_t>> near;  // by piece
  Send(hashes, had, host, [&](const std::vector<uint32_t>& pieces) {
    std::vector<Bytes> parts;
    for (const uint32_t piece : pieces) {
      const auto [place, is_new] = near.try_emplace(piece);
      if (is_new) AppendNear(grid.Piece(std::span(values), piece), &place->second);
      parts.emplace_back(place->second);
    }
    return Encode(BlobKind::kNearPieces, generation, hashes, std::move(parts));
  });
}

}  // namespace strom
