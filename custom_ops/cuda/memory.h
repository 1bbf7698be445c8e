// The device as the host sees it: memory, copies and launches on a stream. Failures are
// DeviceError (cuda/device_error.h). Compiled by anything but nvcc, kernels run in the emulation,
// and device memory is the host's, or on a stream of an emulated GPU that GPU's (cuda/emulation.h).
#ifndef KERAS_STROM_CUDA_MEMORY_H_
#define KERAS_STROM_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "core/base/types.h"
#include "cuda/device.h"
#include "cuda/device_error.h"
#include "cuda/device_segment.h"

#if defined(__CUDACC__)
#include <cuda.h>
#include <cuda_runtime.h>
#endif

namespace strom::cuda {

// cudaStream_t; null is the default stream.
using Stream = void*;

#if defined(__CUDACC__)

// Whether no call of this process succeeds on the device any more.
inline bool IsLost(cudaError_t code) {
  switch (code) {
    case cudaErrorAssert:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorMpsClientTerminated:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorSystemNotReady:
    case cudaErrorUnknown:
#if CUDART_VERSION >= 13000  // whose header is sure to have these
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
      return true;
    default:
      return false;
  }
}

inline void Check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw DeviceError(
      IsLost(code) ? Code::kDeviceLost : Code::kInternal,
      std::string(call) + " failed: " + cudaGetErrorName(code) + ": " + cudaGetErrorString(code));
}

// How kernels reach what lies at a device's address.
template <typename T>
T* Reach(T* address) {
  return address;
}

inline void* AllocateDevice(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}
inline void FreeDevice(void* memory) { (void)cudaFree(memory); }

// Host memory that the device copies to and from directly.
inline void* AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return memory;
}
inline void FreePinned(void* memory) { (void)cudaFreeHost(memory); }

// In any direction, in the stream's order.
inline void Copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
}
inline void Synchronize(Stream stream) {
  Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

// 0 where there is no device or no driver, or one too old for this library; `why` says which.
inline int DeviceCount(std::string* why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  const auto version = [](int number) {
    return std::to_string(number / 1000) + '.' + std::to_string(number % 1000 / 10);
  };
  *why = code == cudaSuccess ? "there is none" : cudaGetErrorString(code);
  *why += driver == 0 ? " (no driver here; " : " (the driver is for CUDA " + version(driver) + "; ";
  *why += "the library was built with CUDA " + version(CUDART_VERSION) + ")";
  return 0;
}
inline int CurrentDevice() {
  int device = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
inline void SetCurrentDevice(int device) { Check(cudaSetDevice(device), "cudaSetDevice"); }

// A CUcontext, which is what a thread works with: a process's share of a device. Null is none yet.
using Context = void*;

// Null where the driver has no such function.
template <typename Function>
Function DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 4000;  // CUDA 4.0 made them as they are
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  const bool is_there = code == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<Function>(function) : nullptr;
}

// Of the calling thread.
inline Context CurrentContext() {
  static const auto get = DriverFunction<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}
inline void SetCurrentContext(Context context) {
  static const auto set = DriverFunction<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent");
  if (set != nullptr) (void)set(static_cast<CUcontext>(context));
}

template <typename Kernel>
__global__ void __launch_bounds__(kBlockThreads) RunKernel(const Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  kernel.Run(shared);
}

// Runs `blocks` blocks of the kernel in the stream's order; none if `blocks` is 0.
template <typename Kernel>
void Launch(Stream stream, int64_t blocks, const Kernel& kernel) {
  if (blocks == 0) return;
  STROM_CHECK(blocks > 0 && blocks <= 0x7fffffff);
  // What this call itself says: cudaGetLastError might tell of an earlier one.
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  Check(cudaLaunchKernel(reinterpret_cast<const void*>(&RunKernel<Kernel>),
                         dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads), arguments, 0,
                         static_cast<cudaStream_t>(stream)),
        "a kernel's launch");
}

// Fails where the library has no such kernel for the device, or the driver cannot compile it.
template <typename Kernel>
void RequireKernel() {
  cudaFuncAttributes attributes;
  Check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&RunKernel<Kernel>)),
        "looking for a kernel for this device");
}

#else

inline void Check(bool done, const char* call) {
  if (done) return;
  throw DeviceError(Code::kDeviceLost, std::string(call) + " failed: the emulated GPU is lost");
}

template <typename T>
T* Reach(T* address) {
  return static_cast<T*>(emulation::HostAddress(address));
}

inline void* AllocateDevice(size_t bytes) { return ::operator new(bytes); }
inline void FreeDevice(void* memory) { ::operator delete(memory); }
inline void* AllocatePinned(size_t bytes) { return ::operator new(bytes); }
inline void FreePinned(void* memory) { ::operator delete(memory); }
inline void Copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  Check(emulation::Queue(stream, [to = Reach(static_cast<char*>(to)),
                                  from = Reach(static_cast<const char*>(from)),
                                  bytes] { std::memcpy(to, from, bytes); }),
        "a copy");
}
inline void Synchronize(Stream stream) { Check(emulation::Await(stream), "waiting for a stream"); }
inline int DeviceCount(std::string*) { return 1; }
inline int CurrentDevice() { return 0; }
inline void SetCurrentDevice(int) {}
using Context = void*;
inline Context CurrentContext() { return nullptr; }
inline void SetCurrentContext(Context) {}

template <typename Kernel>
void Launch(Stream stream, int64_t blocks, const Kernel& kernel) {
  const auto run = [blocks, kernel] {
    emulation::Run(
        blocks, sizeof(typename Kernel::Shared),
        [](const void* arguments, void* shared) {
          static_cast<const Kernel*>(arguments)->Run(
              *static_cast<typename Kernel::Shared*>(shared));
        },
        &kernel);
  };
  Check(emulation::Queue(stream, run), "a kernel's launch");
}

template <typename Kernel>
void RequireKernel() {}

#endif

// Makes a device the calling thread's until the end of the scope. A thread that had none is left
// without one: cudaSetDevice(0) would take some hundred megabytes of a card that others may use.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(CurrentContext()) {
    changes_ = before_ == nullptr || CurrentDevice() != device;
    if (changes_) SetCurrentDevice(device);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (changes_) SetCurrentContext(before_);
  }

 private:
  const Context before_;
  bool changes_ = false;
};

// What a call queues works with memory of the codec and of its caller, who may do with it what they
// like once the call is over: where that throws, what it has queued until then is waited for.
class QueuedWork {
 public:
  explicit QueuedWork(Stream stream) : stream_(stream), exceptions_(std::uncaught_exceptions()) {}
  QueuedWork(const QueuedWork&) = delete;
  QueuedWork& operator=(const QueuedWork&) = delete;
  ~QueuedWork() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      Synchronize(stream_);
    } catch (const DeviceError&) {
      // On a device that is lost nothing works on.
    }
  }

 private:
  Stream stream_;
  int exceptions_;  // that were under way before
};

// Memory on the device: the CUDA runtime's, or of whoever lends it.
class DeviceMemory {
 public:
  // `lent` null: nobody does. What it says is kept.
  explicit DeviceMemory(const strom_cuda_memory* lent)
      : lent_(lent == nullptr ? strom_cuda_memory{} : *lent) {}

  void* Allocate(size_t bytes) const {
    if (lent_.allocate == nullptr) return AllocateDevice(bytes);
    void* const memory = lent_.allocate(lent_.context, static_cast<int64_t>(bytes));
    if (memory != nullptr) return memory;
    throw NoDeviceMemory("the device's memory has no " + std::to_string(bytes) + " bytes left");
  }
  void Free(void* memory) const {
    if (lent_.allocate == nullptr) return FreeDevice(memory);
    lent_.release(lent_.context, memory);
  }

 private:
  strom_cuda_memory lent_;
};

// Memory of the host that the device copies to and from directly.
struct PinnedMemory {
  void* Allocate(size_t bytes) const { return AllocatePinned(bytes); }
  void Free(void* memory) const { FreePinned(memory); }
};

// Memory that only grows, by an eighth at least so that small changes of size cost nothing; growing
// forgets what was in it.
template <typename T, typename Memory>
class Array {
 public:
  explicit Array(const Memory& memory = Memory()) : memory_(memory) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { Free(); }

  // Room for `count` elements, not initialised. What ran with the old memory must be done.
  T* Reserve(int64_t count) {
    if (count > capacity_ || array_ == nullptr) {
      const int64_t capacity = count + capacity_ / 8 + 1;
      Free();
      array_ = static_cast<T*>(memory_.Allocate(static_cast<size_t>(capacity) * sizeof(T)));
      capacity_ = capacity;
    }
    return data();
  }

  // The same for what is needed again and again, now more, now less: memory of which a quarter
  // would have done for so many calls in a row is given back.
  T* ReserveForNow(int64_t count) {
    idle_calls_ = count < capacity_ / 4 ? idle_calls_ + 1 : 0;
    if (idle_calls_ == kPatience) {
      Free();
      idle_calls_ = 0;
    }
    return Reserve(count);
  }

  T* data() const { return Reach(array_); }

 private:
  void Free() {
    if (array_ != nullptr) memory_.Free(array_);
    array_ = nullptr;
    capacity_ = 0;
  }

  static constexpr int kPatience = 16;

  Memory memory_;
  T* array_ = nullptr;
  int64_t capacity_ = 0;
  int idle_calls_ = 0;
};

template <typename T>
using DeviceArray = Array<T, DeviceMemory>;
template <typename T>
using PinnedArray = Array<T, PinnedMemory>;

template <typename T>
void CopyArray(T* to, const T* from, int64_t count, Stream stream) {
  Copy(to, from, static_cast<size_t>(count) * sizeof(T), stream);
}

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_MEMORY_H_
