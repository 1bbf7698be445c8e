/* strom_cuda.h: the C interface of libstrom_cuda.so, the codec on an NVIDIA device.
 *
 * It makes and applies the messages of libstrom.so, byte for byte and bit for bit, from parameters
 * and residuals that lie in device memory. It needs neither TensorFlow nor libstrom.so; the CUDA
 * runtime is inside. Conventions are strom.h's: functions return STROM_OK or a negative code, and
 * strom_cuda_last_error() says what failed; after STROM_DEVICE_LOST no other call will succeed on
 * the device either.
 *
 * Pointers marked "device" are memory of the device that was current when the codec was created.
 * Streams are cudaStream_t; NULL is the default one. Every call queues its work on the stream and
 * returns when it is done. Calls on one codec come one after another.
 */
#ifndef KERAS_STROM_CAPI_STROM_CUDA_H_
#define KERAS_STROM_CAPI_STROM_CUDA_H_

#include "capi/strom.h"
#include "cuda/device_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bumped whenever a declaration below changes, or a structure of device_segment.h, step_values.h or
 * strom.h. */
#define STROM_CUDA_ABI_VERSION 9

STROM_EXPORT int32_t strom_cuda_abi_version(void);
STROM_EXPORT const char* strom_cuda_last_error(void);

/* 0 where there is no device or no driver. */
STROM_EXPORT int strom_cuda_device_count(int32_t* count);

/* Working memory on the current device, which grows with what it is used for: about half of the
 * parameters' bytes. It is `memory`'s, until the codec is closed, or where that is NULL the CUDA
 * runtime's. A message larger than max_message_bytes (16 KiB to 4 GiB - 1) is split by span
 * range. */
STROM_EXPORT int strom_cuda_codec_create(int64_t max_message_bytes, const strom_cuda_memory* memory,
                                         strom_handle* codec);
STROM_EXPORT int strom_cuda_codec_close(strom_handle codec);

/* Has the memory ready that a step over such segments needs before it knows its entries, nearly all
 * of it, and all that strom_cuda_compare needs; their addresses are not used. */
STROM_EXPORT int strom_cuda_reserve(strom_handle codec, const strom_cuda_segment* segments,
                                    int64_t count);

/* One step over `count` segments, in ascending, non-overlapping offset order, of a flat space of
 * `elements` elements: find_entries, then write_messages. options->take_received and
 * includes_residual are not used; of `full` all holds that step_values.h says.
 * Segments either all have `before` and `value` or none has. One whose `after` is its `before`
 * sends nothing, its residual waits and is not looked at; where all are so, nothing but copying
 * happens and result->stepped is 0. An update that is not finite is refused as strom_replica_step
 * does: nothing is sent and what is finite is in the residual. Where memory runs out nothing is
 * sent either: the update is in the residual within rounding, and result->stepped is 1, or nothing
 * has changed. strom_cuda_step then succeeds with the message of a step without entries, where it
 * was `memory` that had none left and the step was done; find_entries fails. */
STROM_EXPORT int strom_cuda_step(strom_handle codec, int64_t elements,
                                 const strom_cuda_segment* segments, int64_t count,
                                 const strom_step_options* options, void* stream,
                                 strom_step_result* result);

/* The first half: residuals and values change, the entries stay on the device. */
STROM_EXPORT int strom_cuda_find_entries(strom_handle codec, int64_t elements,
                                         const strom_cuda_segment* segments, int64_t count,
                                         const strom_step_options* options, void* stream,
                                         strom_step_result* result);
/* The second half: codes the entries of the last find_entries, which stay; `coding` and `prefer`
 * are strom.h's STROM_CODING_* and STROM_PREFER_*, 0 and 0 in strom_cuda_step. BITMAP4 is refused:
 * its halves are no entries of find_entries. */
STROM_EXPORT int strom_cuda_write_messages(strom_handle codec, int32_t coding, int32_t prefer,
                                           void* stream, int64_t* message_bytes);

/* Undoes the sending of the last step or find_entries, whose segments must still be there: the
 * entries return to the residuals, within rounding, and leave the values. Once. */
STROM_EXPORT int strom_cuda_take_back(strom_handle codec, void* stream);

/* The entries of the last find_entries on the device: *count codes, each its element's index within
 * 2^21 elements times 2, plus 1 if it is negative, in the order of the flat space. Valid until the
 * codec's next call. */
STROM_EXPORT int strom_cuda_entries(strom_handle codec, const uint32_t** codes, int64_t* count);

/* The messages of the last step, on the host. *size gets message `index`'s bytes; `out` may be NULL
 * to ask the size. */
STROM_EXPORT int strom_cuda_messages(strom_handle codec, int64_t* count);
STROM_EXPORT int strom_cuda_message(strom_handle codec, int64_t index, uint8_t* out,
                                    int64_t capacity, int64_t* size);

/* Checks the whole message (host memory, `bytes` long, of a flat space of at most `elements`), then
 * adds it to the segments' `value`; their other pointers are not used. *skipped gets the number of
 * entries that lie in no segment. */
STROM_EXPORT int strom_cuda_apply(strom_handle codec, const uint8_t* message, int64_t bytes,
                                  int64_t elements, const strom_cuda_segment* segments,
                                  int64_t count, void* stream, int64_t* skipped);

/* differ[i] = 1 where a bit of segment i's `after` is another than in its `before`, else 0; the
 * other pointers are not used. What the last step or find_entries has left is gone then. */
STROM_EXPORT int strom_cuda_compare(strom_handle codec, const strom_cuda_segment* segments,
                                    int64_t count, void* stream, int32_t* differ);

/* Copies between the host's memory and the device's, in any direction. */
STROM_EXPORT int strom_cuda_copy(strom_handle codec, void* to, const void* from, int64_t bytes,
                                 void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KERAS_STROM_CAPI_STROM_CUDA_H_ */
