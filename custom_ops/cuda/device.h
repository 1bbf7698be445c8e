// The few words in which the kernels are written: threads and blocks, barriers, what the lanes of a
// warp tell each other. nvcc turns them into the machine's own; any other compiler gives them to
// the emulation (cuda/emulation.h), so that tests run the very same kernels without a device.
//
// A kernel is a struct of its arguments with a nested `Shared`, the memory that the threads of a
// block share, and `Run`, which every thread executes. cuda/memory.h launches it.
#ifndef KERAS_STROM_CUDA_DEVICE_H_
#define KERAS_STROM_CUDA_DEVICE_H_

#include <cstdint>

#if defined(__CUDACC__)
#define STROM_DEVICE __device__ __forceinline__
#define STROM_UNROLL _Pragma("unroll")
#else
#include <bit>

#include "cuda/emulation.h"
#define STROM_DEVICE inline
#define STROM_UNROLL
#endif

namespace strom::cuda {

inline constexpr int kBlockThreads = 256;  // of every kernel
inline constexpr int kWarpLanes = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpLanes;

#if defined(__CUDACC__)

STROM_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
STROM_DEVICE int64_t BlockIndex() { return blockIdx.x; }

// A barrier of the block; what its threads wrote before it, all of them read after it.
STROM_DEVICE void SyncBlock() { __syncthreads(); }

// Collectives of a warp, which all of its lanes call. T is an integer or a float of 4 or 8 bytes.
template <typename T>
STROM_DEVICE T FromLaneBelow(T value, int distance) {  // the lanes under `distance` get their own
  return __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(distance));
}
template <typename T>
STROM_DEVICE T FromLaneXor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
STROM_DEVICE bool AnyLane(bool predicate) { return __any_sync(0xffffffffu, predicate) != 0; }

STROM_DEVICE uint32_t BitsOf(float x) { return __float_as_uint(x); }
STROM_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
STROM_DEVICE int CountOnes(uint32_t x) { return __popc(x); }
STROM_DEVICE int LowestOne(uint32_t x) { return __ffs(static_cast<int>(x)) - 1; }

#else

inline int ThreadIndex() { return emulation::ThreadIndex(); }
inline int64_t BlockIndex() { return emulation::BlockIndex(); }

inline void SyncBlock() { emulation::SyncBlock(); }

template <typename T>
T FromLaneBelow(T value, int distance) {
  const int lane = ThreadIndex() % kWarpLanes;
  return emulation::FromLane(value, lane < distance ? lane : lane - distance);
}
template <typename T>
T FromLaneXor(T value, int mask) {
  return emulation::FromLane(value, (ThreadIndex() % kWarpLanes) ^ mask);
}
inline bool AnyLane(bool predicate) {
  for (int mask = 1; mask < kWarpLanes; mask *= 2) {
    const bool other = FromLaneXor<uint32_t>(predicate, mask) != 0;
    predicate = predicate || other;
  }
  return predicate;
}

inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline int CountOnes(uint32_t x) { return std::popcount(x); }
inline int LowestOne(uint32_t x) { return std::countr_zero(x); }

#endif

STROM_DEVICE int LaneIndex() { return ThreadIndex() % kWarpLanes; }
STROM_DEVICE int WarpIndex() { return ThreadIndex() / kWarpLanes; }

template <typename T>
STROM_DEVICE T Min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
STROM_DEVICE T Max(T a, T b) {
  return a < b ? b : a;
}

// Four floats in one access; the address is a multiple of 16.
struct alignas(16) FourFloats {
  float x[4];
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_DEVICE_H_
