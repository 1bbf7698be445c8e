// What a device's failure is, for the code that nvcc compiles and for that which it does not.
#ifndef KERAS_STROM_CUDA_DEVICE_ERROR_H_
#define KERAS_STROM_CUDA_DEVICE_ERROR_H_

#include <stdexcept>
#include <string>

#include "core/base/types.h"

namespace strom::cuda {

// A call of the CUDA runtime failed; the text names it and says why.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(Code code, const std::string& words) : std::runtime_error(words), code_(code) {}

  // kDeviceLost where nothing that follows can succeed either, else kInternal.
  Code code() const { return code_; }

 private:
  Code code_;
};

// Whoever lends the codec its memory has none left; nothing is wrong with the device.
class NoDeviceMemory : public DeviceError {
 public:
  explicit NoDeviceMemory(const std::string& words) : DeviceError(Code::kInternal, words) {}
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_DEVICE_ERROR_H_
