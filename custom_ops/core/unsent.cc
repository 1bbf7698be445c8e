#include "core/unsent.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/entries.h"

namespace strom {
namespace {

// A divisor of kChunk, so that no piece crosses a chunk's border.
constexpr int64_t kPieceElements = int64_t{1} << 17;

struct Piece {
  const float* shared;
  const float* residual;  // null where all of it is zero
  float* value;
  int64_t size;
};

std::vector<Piece> CutPieces(std::span<const strom_segment> segments, float* const* shared,
                             const ResidualStore& residuals) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (shared[i] == nullptr) continue;
    const strom_segment& segment = segments[i];
    for (int64_t done = 0; done < segment.size;) {
      const int64_t element = segment.offset + done;
      const int64_t size = std::min(kPieceElements - element % kPieceElements, segment.size - done);
      const float* const residual = residuals.Find(element / kChunk);
      pieces.push_back({shared[i] + done,
                        residual == nullptr ? nullptr : residual + element % kChunk,
                        segment.value + done, size});
      done += size;
    }
  }
  return pieces;
}

void Add(const Piece& piece) {
  if (piece.residual == nullptr) {
    std::copy_n(piece.shared, piece.size, piece.value);
    return;
  }
  for (int64_t i = 0; i < piece.size; ++i) piece.value[i] = piece.shared[i] + piece.residual[i];
}

}  // namespace

std::vector<strom_segment> SharedSegments(std::span<const strom_segment> segments,
                                          float* const* shared) {
  std::vector<strom_segment> result(segments.begin(), segments.end());
  for (size_t i = 0; i < result.size(); ++i) {
    if (shared[i] != nullptr) result[i].value = shared[i];
  }
  return result;
}

void AddUnsent(std::span<const strom_segment> segments, float* const* shared,
               const ResidualStore& residuals, const Parallel& parallel) {
  const std::vector<Piece> pieces = CutPieces(segments, shared, residuals);
  const auto add = [&](int64_t i) { Add(pieces[static_cast<size_t>(i)]); };
  (pieces.size() < 2 ? Parallel{} : parallel).For(static_cast<int64_t>(pieces.size()), add);
}

}  // namespace strom
