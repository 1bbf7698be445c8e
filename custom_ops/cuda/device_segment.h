/* Plain values of capi/strom_cuda.h, which includes this file: C. */
#ifndef KERAS_STROM_CUDA_DEVICE_SEGMENT_H_
#define KERAS_STROM_CUDA_DEVICE_SEGMENT_H_

#include <stdint.h>

/* A piece of the flat space and where it lies on the device; as strom_segment, with the residual of
 * the same elements. Loads are widest where all pointers are multiples of 16. With `before` and
 * `value` NULL, `after` is the update itself: r += s * after, and no value is written. */
typedef struct {
  int64_t offset;
  int64_t size;
  const float* before; /* device */
  const float* after;  /* device */
  float* value;        /* device; may alias `before` or `after` */
  float* residual;     /* device; aliases nothing */
  const char* name;    /* of the variable, for errors; may be NULL */
} strom_cuda_segment;

/* Where a codec has its working memory on the device from. `allocate` returns NULL where there is
 * none left; both are called on the thread that calls the codec. */
typedef struct {
  void* context;
  void* (*allocate)(void* context, int64_t bytes);
  void (*release)(void* context, void* memory);
} strom_cuda_memory;

#endif /* KERAS_STROM_CUDA_DEVICE_SEGMENT_H_ */
