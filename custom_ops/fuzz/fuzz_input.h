// The bytes that a fuzzer makes, as the numbers that a session needs; beyond their end all are 0.
#ifndef KERAS_STROM_FUZZ_FUZZ_INPUT_H_
#define KERAS_STROM_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/little_endian.h"
#include "core/base/types.h"

namespace strom {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* bytes, size_t size) : left_(bytes, size) {}
  bool empty() const { return left_.empty(); }
  template <typename T = uint8_t>
  T Take() {
    std::array<uint8_t, sizeof(T)> bytes{};
    const size_t size = std::min(left_.size(), bytes.size());
    std::copy_n(left_.begin(), size, bytes.begin());
    left_ = left_.subspan(size);
    return LoadLittleEndian<T>(bytes.data());
  }

 private:
  Bytes left_;
};

}  // namespace strom

#endif  // KERAS_STROM_FUZZ_FUZZ_INPUT_H_
