// Runs kernels (cuda/device.h) on the processor, for tests on machines without a device. Never part
// of a library that is shipped.
//
// Blocks run one after another. Each thread of a block is a fiber of its own that runs until it
// waits for others, at a barrier or in a collective; a thread that waits for somebody who will
// never come stops the program, as it would hang a device. Within these waits the threads run in an
// order that a test chooses: a kernel whose outcome depends on it lacks a barrier. Shared memory
// holds garbage at first, as on a device.
//
// Without a stream all happens at once. A stream is one of an emulated GPU that the process has
// loaded (tests/native/emulated_gpu): what is queued there runs on its thread, later, and the
// addresses of its memory are opened for the kernels.
#ifndef KERAS_STROM_CUDA_EMULATION_H_
#define KERAS_STROM_CUDA_EMULATION_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

namespace strom::cuda::emulation {

enum class Order { kForward, kBackward };

// From the next launch on.
void SetOrder(Order order);

// body(kernel, shared) in every thread of every block.
void Run(int64_t blocks, size_t shared_bytes, void (*body)(const void* kernel, void* shared),
         const void* kernel);

// Has the stream do the work, in its order; false where its device is lost, which does none.
bool Launch(void* stream, std::function<void()> work);

// The same; at once where there is no stream.
template <typename Work>
bool Queue(void* stream, Work work) {
  if (stream != nullptr) return Launch(stream, std::move(work));
  work();
  return true;
}

// Returns when all is done that was queued there; false where its device is lost.
bool Await(void* stream);
// Where the host finds what lies at an address of the emulated GPU; any other address is itself.
void* HostAddress(const void* address);

// What an emulated GPU does for this, as tests/native/emulated_gpu/emulated_gpu.h says.
struct Gpu {
  int32_t (*launch)(void* stream, void (*function)(void* argument), void* argument) = nullptr;
  int32_t (*wait)(void* stream) = nullptr;
  void* (*host_address)(const void* device_address) = nullptr;
};
// From now on streams are this one's, and no longer those of the emulated GPU that the process has.
void UseGpu(const Gpu& gpu);

// What a running thread may ask for.
int ThreadIndex();
int64_t BlockIndex();
void SyncBlock();
uint64_t BitsFromLane(uint64_t bits, int lane);

// What `lane` of this warp gave as its `value`; all of the warp's lanes take part.
template <typename T>
T FromLane(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = BitsFromLane(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace strom::cuda::emulation

#endif  // KERAS_STROM_CUDA_EMULATION_H_
