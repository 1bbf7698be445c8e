// The pieces of the flat space that a kernel works on, and their cutting into tiles.
#ifndef KERAS_STROM_CUDA_SEGMENTS_H_
#define KERAS_STROM_CUDA_SEGMENTS_H_

#include <cstdint>

#include "cuda/device.h"

namespace strom::cuda {

// What one block of the step kernel owns.
inline constexpr int kTile = 4096;

// Flat elements [offset, offset + size), size > 0, and where they lie on the device; ascending in a
// table. Tiles are counted through the table, each within one segment.
struct Segment {
  int64_t offset;
  int64_t size;
  int64_t first_tile;
  // `value` may be `before` or `after`. Without `before` and `value`, `after` is the update itself.
  const float* before;
  const float* after;
  float* value;
  float* residual;
};

struct SegmentTable {
  const Segment* segments;  // on the device
  int64_t count;            // > 0

  // The last segment for which `starts_after` is false of it; the first one if it is true of all.
  template <typename StartsAfter>
  STROM_DEVICE int64_t Last(StartsAfter starts_after) const {
    int64_t low = 0;
    int64_t high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (starts_after(segments[middle])) {
        high = middle;
      } else {
        low = middle;
      }
    }
    return low;
  }

  STROM_DEVICE const Segment& OfTile(int64_t tile) const {
    return segments[Last([=](const Segment& segment) { return segment.first_tile > tile; })];
  }

  // The last segment that starts at `element` or before; the first one if none does.
  STROM_DEVICE int64_t AtOrBefore(int64_t element) const {
    return Last([=](const Segment& segment) { return segment.offset > element; });
  }

  // The flat element with which a tile starts.
  STROM_DEVICE int64_t TileOffset(int64_t tile) const {
    const Segment& segment = OfTile(tile);
    return segment.offset + (tile - segment.first_tile) * kTile;
  }
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_SEGMENTS_H_
