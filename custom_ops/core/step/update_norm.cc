#include "core/step/update_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace strom {
namespace {

// Elements that are summed in one piece; the pieces' sums are added up in order.
constexpr int64_t kMeasuredElements = int64_t{1} << 17;
// Partial sums that the compiler can keep in vectors: the order of additions is fixed as written.
constexpr int64_t kPartialSums = 8;

struct MeasuredPiece {
  const float* before;
  const float* after;
  int64_t size;
  double squares;
  double magnitudes;
};

std::vector<MeasuredPiece> CutPieces(std::span<const strom_segment> segments) {
  std::vector<MeasuredPiece> pieces;
  for (const strom_segment& segment : segments) {
    if (segment.after == segment.before) continue;
    for (int64_t done = 0; done < segment.size; done += kMeasuredElements) {
      const int64_t size = std::min(kMeasuredElements, segment.size - done);
      pieces.push_back({segment.before + done, segment.after + done, size, 0, 0});
    }
  }
  return pieces;
}

void Measure(MeasuredPiece* piece) {
  double squares[kPartialSums] = {}, magnitudes[kPartialSums] = {};
  const auto add = [&](int64_t i, int64_t lane) {
    const double u = static_cast<double>(piece->after[i] - piece->before[i]);
    squares[lane] += u * u;
    magnitudes[lane] += std::fabs(u);
  };
  int64_t i = 0;
  for (; i + kPartialSums <= piece->size; i += kPartialSums) {
    for (int64_t lane = 0; lane < kPartialSums; ++lane) add(i + lane, lane);
  }
  for (int64_t lane = 0; i < piece->size; ++i, ++lane) add(i, lane);
  for (int64_t lane = 0; lane < kPartialSums; ++lane) {
    piece->squares += squares[lane];
    piece->magnitudes += magnitudes[lane];
  }
}

}  // namespace

UpdateSize MeasureUpdate(std::span<const strom_segment> segments, const Parallel& parallel) {
  std::vector<MeasuredPiece> pieces = CutPieces(segments);
  const auto measure = [&](int64_t i) { Measure(&pieces[static_cast<size_t>(i)]); };
  (pieces.size() < 2 ? Parallel{} : parallel).For(static_cast<int64_t>(pieces.size()), measure);
  double squares = 0, mass = 0;
  for (const MeasuredPiece& piece : pieces) {
    squares += piece.squares;
    mass += piece.magnitudes;
  }
  return {std::sqrt(squares), mass};
}

}  // namespace strom
