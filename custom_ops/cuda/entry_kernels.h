// From the tiles' slots to the codes of core/codec/entries.h in one row, and where each span's
// begin.
#ifndef KERAS_STROM_CUDA_ENTRY_KERNELS_H_
#define KERAS_STROM_CUDA_ENTRY_KERNELS_H_

#include <cstdint>

#include "core/codec/entries.h"
#include "cuda/device.h"
#include "cuda/segments.h"
#include "cuda/step_kernels.h"

namespace strom::cuda {

// A block takes as many tiles as a warp has lanes; tile i's codes go to codes[starts[i]...].
struct CompactTiles {
  SegmentTable table;
  const SlotCode* slots;
  const int64_t* starts;  // tiles + 1
  int64_t tiles;
  uint32_t* codes;

  static constexpr int kTilesPerBlock = 32;

  struct Shared {
    int64_t starts[kTilesPerBlock + 1];
    int64_t offsets[kTilesPerBlock];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const int64_t first = BlockIndex() * kTilesPerBlock;
    const int here = static_cast<int>(Min<int64_t>(kTilesPerBlock, tiles - first));
    if (ThreadIndex() <= kTilesPerBlock) {
      shared.starts[ThreadIndex()] = starts[first + Min(ThreadIndex(), here)];
    }
    if (ThreadIndex() < here)
      shared.offsets[ThreadIndex()] = table.TileOffset(first + ThreadIndex());
    SyncBlock();
    const int64_t end = shared.starts[kTilesPerBlock];
    for (int64_t i = shared.starts[0] + ThreadIndex(); i < end; i += kBlockThreads) {
      int tile = 0;  // the last one that starts at i or before
      STROM_UNROLL
      for (int step = kTilesPerBlock / 2; step > 0; step /= 2) {
        if (shared.starts[tile + step] <= i) tile += step;
      }
      const SlotCode code = slots[(first + tile) * kTile + (i - shared.starts[tile])];
      const int64_t element = shared.offsets[tile] + (code >> 1);
      codes[i] = static_cast<uint32_t>(element % kChunk) << 1 | (code & 1);
    }
  }
};

// span_starts[s] = the number of entries before flat element s * 2^log2_span, for s in [0, spans].
struct FindSpans {
  SegmentTable table;
  const SlotCode* slots;
  const int64_t* starts;
  int64_t tiles;
  int64_t spans;
  int log2_span;
  int64_t* span_starts;

  struct Shared {};

  STROM_DEVICE void Run(Shared&) const {
    const int64_t span = BlockIndex() * kBlockThreads + ThreadIndex();
    if (span > spans) return;
    span_starts[span] = span == spans ? starts[tiles] : EntriesBefore(span << log2_span);
  }

  STROM_DEVICE int64_t EntriesBefore(int64_t element) const {
    const Segment& segment = table.segments[table.AtOrBefore(element)];
    if (segment.offset >= element) return starts[segment.first_tile];
    const int64_t index = Min(element - segment.offset, segment.size);
    const int64_t tile = segment.first_tile + index / kTile;
    if (tile == tiles) return starts[tiles];
    const SlotCode* const slot = slots + tile * kTile;
    const int64_t wanted = index % kTile;
    int64_t low = 0;
    int64_t high = starts[tile + 1] - starts[tile];
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (slot[middle] >> 1 < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return starts[tile] + low;
  }
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_ENTRY_KERNELS_H_
