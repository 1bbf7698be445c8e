#include "bench/deeplearning4j.h"

#include <algorithm>
#include <cmath>

#include "bench/reference_passes.h"
#include "bench/widest_vectors.h"

namespace strom::bench {
namespace {

STROM_WIDEST_VECTORS
int64_t CountReached(const float* residual, int64_t size, float threshold) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += std::fabs(residual[i]) >= threshold;
  return count;
}

STROM_WIDEST_VECTORS
int64_t WriteList(float* __restrict residual, int64_t size, float threshold, int64_t limit,
                  int32_t* __restrict out) {
  int64_t count = 0;
  for (int64_t i = 0; i < size && count < limit; ++i) {
    const float value = residual[i];
    if (value >= threshold) {
      out[count++] = static_cast<int32_t>(i) + 1;
      residual[i] = value - threshold;
    } else if (value <= -threshold) {
      out[count++] = -static_cast<int32_t>(i) - 1;
      residual[i] = value + threshold;
    }
  }
  return count;
}

// Compares values rather than magnitudes first and signs then, which on residuals at random would
// be mispredicted at every sixth element and take four times as long.
STROM_WIDEST_VECTORS
int64_t WriteTwoBits(float* __restrict residual, int64_t size, float threshold,
                     int32_t* __restrict out) {
  const float half = threshold / 2;
  int64_t count = 0;
  for (int64_t start = 0; start < size; start += 16) {
    uint32_t word = 0;
    const int64_t end = std::min<int64_t>(16, size - start);
    for (int64_t bit = 0; bit < end; ++bit) {
      const float value = residual[start + bit];
      if (value >= threshold) {
        word |= uint32_t{1} << bit;
        residual[start + bit] = value - threshold;
        ++count;
      } else if (value <= -threshold) {
        word |= uint32_t{0x10001} << bit;
        residual[start + bit] = value + threshold;
        ++count;
      } else if (value <= -half) {
        word |= uint32_t{0x10000} << bit;
        residual[start + bit] = value + half;
        ++count;
      }
    }
    out[start / 16] = static_cast<int32_t>(word);
  }
  return count;
}

}  // namespace

int64_t EncodeThresholdList(const float* update, float* residual, int64_t size, float threshold,
                            int32_t* out) {
  AddPass(update, residual, size);
  return WriteList(residual, size, threshold, CountReached(residual, size, threshold), out);
}

int64_t EncodeTwoBits(const float* update, float* residual, int64_t size, float threshold,
                      int32_t* out) {
  AddPass(update, residual, size);
  return WriteTwoBits(residual, size, threshold, out);
}

}  // namespace strom::bench
