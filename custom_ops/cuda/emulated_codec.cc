// cuda/codec.cu for a machine without a device: not compiled by nvcc, its kernels run in the
// emulation. For tests only.
#include "cuda/codec.cu"
