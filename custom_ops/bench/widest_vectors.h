// Compiles a function once for each width of vectors and runs the widest that this processor has:
// the loops that ours are compared with get every instruction that ours use.
#ifndef KERAS_STROM_BENCH_WIDEST_VECTORS_H_
#define KERAS_STROM_BENCH_WIDEST_VECTORS_H_

#if defined(__x86_64__)
#define STROM_WIDEST_VECTORS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STROM_WIDEST_VECTORS
#endif

#endif  // KERAS_STROM_BENCH_WIDEST_VECTORS_H_
