// Running sums: of one value a thread within a block, and of an array of counts by one block.
#ifndef KERAS_STROM_CUDA_SCAN_H_
#define KERAS_STROM_CUDA_SCAN_H_

#include <cstdint>

#include "cuda/device.h"

namespace strom::cuda {

// The sum of the values of the threads before this one, and in *total that of all of them. All
// threads of the block call it; `warp_sums` is shared and free again on return.
template <typename T>
STROM_DEVICE T SumBefore(T value, T (&warp_sums)[kBlockWarps], T* total) {
  T up_to_here = value;
  STROM_UNROLL
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const T other = FromLaneBelow(up_to_here, distance);
    if (LaneIndex() >= distance) up_to_here += other;
  }
  if (LaneIndex() == kWarpLanes - 1) warp_sums[WarpIndex()] = up_to_here;
  SyncBlock();
  T before = up_to_here - value;
  T all = 0;
  STROM_UNROLL
  for (int warp = 0; warp < kBlockWarps; ++warp) {
    const T sum = warp_sums[warp];
    if (warp < WarpIndex()) before += sum;
    all += sum;
  }
  SyncBlock();
  *total = all;
  return before;
}

// starts[i] = counts[0] + ... + counts[i - 1] for i in [0, size]. One block: a billion parameters
// have 244 000 tiles, which it walks through in 60 rounds.
struct ScanCounts {
  const uint32_t* counts;
  int64_t size;
  int64_t* starts;

  static constexpr int kItems = 16;  // of one thread in one round

  struct Shared {
    int64_t warp_sums[kBlockWarps];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    int64_t done = 0;
    for (int64_t round = 0; round < size; round += kBlockThreads * kItems) {
      const int64_t first = round + ThreadIndex() * kItems;
      uint32_t items[kItems];
      int64_t sum = 0;
      STROM_UNROLL
      for (int i = 0; i < kItems; ++i) {
        items[i] = first + i < size ? counts[first + i] : 0;
        sum += items[i];
      }
      int64_t total = 0;
      int64_t start = done + SumBefore(sum, shared.warp_sums, &total);
      STROM_UNROLL
      for (int i = 0; i < kItems; ++i) {
        if (first + i < size) starts[first + i] = start;
        start += items[i];
      }
      done += total;
    }
    if (ThreadIndex() == 0) starts[size] = done;
  }
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_SCAN_H_
