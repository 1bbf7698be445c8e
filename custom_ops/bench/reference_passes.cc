#include "bench/reference_passes.h"

#include "bench/widest_vectors.h"

namespace strom::bench {

STROM_WIDEST_VECTORS
void AddPass(const float* __restrict update, float* __restrict residual, int64_t size) {
  for (int64_t i = 0; i < size; ++i) residual[i] += update[i];
}

STROM_WIDEST_VECTORS
void ScalePass(float* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] *= 1.0000001f;
}

STROM_WIDEST_VECTORS
void UpdatePass(const float* __restrict before, const float* __restrict after,
                float* __restrict residual, int64_t size) {
  for (int64_t i = 0; i < size; ++i) residual[i] += after[i] - before[i];
}

STROM_WIDEST_VECTORS
void DifferencePass(const float* __restrict before, float* __restrict after,
                    float* __restrict residual, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    residual[i] += after[i] - before[i];
    after[i] = before[i];
  }
}

}  // namespace strom::bench
