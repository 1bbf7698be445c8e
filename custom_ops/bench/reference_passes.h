// The plain loops that our kernels are compared with: what must be read and written, and nothing
// else. Compiled for the widest vectors that this processor has.
#ifndef KERAS_STROM_BENCH_REFERENCE_PASSES_H_
#define KERAS_STROM_BENCH_REFERENCE_PASSES_H_

#include <cstdint>

namespace strom::bench {

// "ref": residual += update. Two reads, one write; no encoder can do with less.
void AddPass(const float* update, float* residual, int64_t size);

// One read, one write, as in applying a dense message.
void ScalePass(float* values, int64_t size);

// residual += after - before. Three reads, one write, as in a whole step of a worker whose values
// include its residual.
void UpdatePass(const float* before, const float* after, float* residual, int64_t size);

// residual += after - before; after = before. Three reads, two writes, as in a whole step of one
// whose values do not.
void DifferencePass(const float* before, float* after, float* residual, int64_t size);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_REFERENCE_PASSES_H_
