#include "core/step/own_model.h"

#include <algorithm>
#include <cstddef>

#include "core/codec/entries.h"

namespace strom {
namespace {

// A divisor of kChunk, so that no piece crosses a chunk's border.
constexpr int64_t kPieceElements = int64_t{1} << 17;

struct Piece {
  const float* before;
  const float* residual;  // null where all of it is zero
  float* value;
  int64_t size;
};

std::vector<Piece> CutPieces(std::span<const strom_segment> segments,
                             const ResidualStore& residuals) {
  std::vector<Piece> pieces;
  for (const strom_segment& segment : segments) {
    for (int64_t done = 0; done < segment.size;) {
      const int64_t element = segment.offset + done;
      const int64_t size = std::min(kPieceElements - element % kPieceElements, segment.size - done);
      const float* const residual = residuals.Find(element / kChunk);
      pieces.push_back({segment.before + done,
                        residual == nullptr ? nullptr : residual + element % kChunk,
                        segment.value + done, size});
      done += size;
    }
  }
  return pieces;
}

void Add(const Piece& piece, float sign) {
  if (piece.residual == nullptr) {
    if (piece.value != piece.before) std::copy_n(piece.before, piece.size, piece.value);
    return;
  }
  for (int64_t i = 0; i < piece.size; ++i) {
    const float before = piece.before[i];
    const float residual = piece.residual[i];
    // Not before + 0, which would turn -0 into 0.
    piece.value[i] = residual == 0 ? before : before + sign * residual;
  }
}

}  // namespace

void AddResiduals(std::span<const strom_segment> segments, float sign,
                  const ResidualStore& residuals, const Parallel& parallel) {
  const std::vector<Piece> pieces = CutPieces(segments, residuals);
  const auto add = [&](int64_t i) { Add(pieces[static_cast<size_t>(i)], sign); };
  (pieces.size() < 2 ? Parallel{} : parallel).For(static_cast<int64_t>(pieces.size()), add);
}

void UndoProgress(std::span<const strom_segment> segments, ResidualStore* residuals) {
  for (const strom_segment& segment : segments) {
    if (segment.before == segment.value || segment.before == nullptr) continue;
    for (int64_t i = 0; i < segment.size; ++i) {
      const int64_t element = segment.offset + i;
      float* const residual = residuals->Find(element / kChunk);
      if (residual != nullptr) residual[element % kChunk] -= segment.value[i] - segment.before[i];
      segment.value[i] = segment.before[i];
    }
  }
}

}  // namespace strom
