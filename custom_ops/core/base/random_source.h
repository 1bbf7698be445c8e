// Where unpredictable bytes come from: the kernel, or in the simulator a seed.
#ifndef KERAS_STROM_CORE_BASE_RANDOM_SOURCE_H_
#define KERAS_STROM_CORE_BASE_RANDOM_SOURCE_H_

#include <cstdint>
#include <span>

namespace strom {

class RandomSource {
 public:
  virtual ~RandomSource() = default;
  // Fills the span with unpredictable bytes.
  virtual void Fill(std::span<uint8_t> out) = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_RANDOM_SOURCE_H_
