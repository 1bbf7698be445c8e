// What the CUDA benchmark compares with, behind a C interface: the same update and selection with
// CUB. Built by benchmarks/cuda.py. Calls queue their work on the default stream.
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>

#include <cstdint>
#include <cub/device/device_select.cuh>

namespace {

struct Reaches {
  const float* residual;
  float threshold;

  __device__ bool operator()(int64_t i) const { return fabsf(residual[i]) >= threshold; }
};

__global__ void Add(const float4* update, float4* residual, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const float4 u = update[i];
  float4 r = residual[i];
  residual[i] = make_float4(r.x + u.x, r.y + u.y, r.z + u.z, r.w + u.w);
}

__global__ void Subtract(const int64_t* indices, const int64_t* count, float threshold,
                         float* residual) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < *count;
       i += stride) {
    residual[indices[i]] -= copysignf(threshold, residual[indices[i]]);
  }
}

constexpr int kThreads = 256;

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Room for `size` elements; `temporary` gets what CUB asks for.
EXPORT int baseline_cub_bytes(int64_t size, size_t* temporary) {
  return cub::DeviceSelect::If(nullptr, *temporary, thrust::counting_iterator<int64_t>(0),
                               static_cast<int64_t*>(nullptr), static_cast<int64_t*>(nullptr), size,
                               Reaches{nullptr, 1});
}

// residual += update; the indices that reach the threshold, in order; what they send leaves. `size`
// is a multiple of 4.
EXPORT int baseline_cub(const float* update, float* residual, int64_t size, float threshold,
                        int64_t* indices, int64_t* count, void* temporary, size_t bytes) {
  Add<<<Blocks(size / 4), kThreads>>>(reinterpret_cast<const float4*>(update),
                                      reinterpret_cast<float4*>(residual), size / 4);
  const cudaError_t code =
      cub::DeviceSelect::If(temporary, bytes, thrust::counting_iterator<int64_t>(0), indices, count,
                            size, Reaches{residual, threshold});
  if (code != cudaSuccess) return code;
  Subtract<<<1024, kThreads>>>(indices, count, threshold, residual);
  return cudaGetLastError();
}
