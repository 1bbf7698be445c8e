// A GPU of the host's memory, for tests of what TensorFlow does with one: devices of the type "GPU"
// for a TensorFlow that has none, by its interface for plug-ins
// (tensorflow/c/experimental/stream_executor). tests/support/emulated_gpu.py builds and loads it.
//
// What it keeps of a real one:
//   - The host cannot touch device memory. What TensorFlow sees as a device's addresses is a
//   mapping
//     without any right; whoever reads or writes there without a copy stops the process. The same
//     pages are mapped a second time, and only what runs on a stream is told where.
//   - Work is queued: each stream is a thread that does its work in order, whenever it likes. What
//     reads without waiting for the stream reads what was there before; fresh memory is full of
//     NaN.
//   - Memory ends: an allocation beyond the configured bytes fails.
//
// Kernels that run there get the op's stream, as for every device of a plug-in, by
// TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status) of tensorflow/c/kernels.h.
// These functions are visible in the whole process; who does not link to this library finds them
// with dlsym(RTLD_DEFAULT, "strom_emulated_gpu_...").
#ifndef KERAS_STROM_TESTS_EMULATED_GPU_H_
#define KERAS_STROM_TESTS_EMULATED_GPU_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Before TensorFlow loads the library: how many devices, the memory of each, and how long a stream
// without work lets new work wait, in microseconds (0 = not at all), so that what does not wait for
// it is found out.
void strom_emulated_gpu_configure(int32_t devices, int64_t bytes, int32_t delay);

// Where the host finds the byte at `device_address`, an address as a tensor on a device has it;
// NULL for any other address. Only functions that a stream runs may use it, and only with addresses
// of what the stream is in order with.
void* strom_emulated_gpu_host_address(const void* device_address);

// Queues function(argument) on `stream`, an SP_Stream. Returns at once: 1, or 0 where the device is
// lost, which calls nothing.
int32_t strom_emulated_gpu_launch(void* stream, void (*function)(void* argument), void* argument);

// Waits until all that `stream` has been given by now is done; 0 where the device is lost, else 1.
int32_t strom_emulated_gpu_wait(void* stream);

// From now on every work of the device, and every allocation there, fails, as on a card that has
// fallen off its bus.
void strom_emulated_gpu_lose(int32_t device);

// What has happened so far, in all devices together.
typedef struct {
  int64_t to_device;    // bytes copied to devices
  int64_t from_device;  // bytes copied from devices
  int64_t within;       // bytes copied from a device to itself
  int64_t launches;     // functions queued by strom_emulated_gpu_launch
  int64_t waits;        // how often the host has waited for a whole device
  int64_t pinned;       // bytes of host memory that TensorFlow has had registered, now
} strom_emulated_gpu_counts;

void strom_emulated_gpu_count(strom_emulated_gpu_counts* counts);

#ifdef __cplusplus
}
#endif

#endif  // KERAS_STROM_TESTS_EMULATED_GPU_H_
