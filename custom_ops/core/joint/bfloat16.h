// Changes of a model, and gradients, as bfloat16, the upper half of a float32, for a line that is
// to carry half the bytes. Before and after are float32; only what lies between them is rounded.
#ifndef KERAS_STROM_CORE_JOINT_BFLOAT16_H_
#define KERAS_STROM_CORE_JOINT_BFLOAT16_H_

#include <cstdint>
#include <span>

#include "core/base/types.h"

namespace strom {

inline constexpr int64_t kBfloat16Bytes = 2;

// after - before, rounded to the nearest, ties to even, little-endian; what would become infinite
// is the largest number. Both are finite and of one size; `change` has twice as many bytes.
void EncodeChange(std::span<const float> before, std::span<const float> after,
                  std::span<uint8_t> change);

// before + change, one rounding to float32: the same bits wherever it is computed. `before` and
// `after` may be one.
void AddChange(std::span<const float> before, Bytes change, std::span<float> after);

// The values themselves, rounded likewise, but that an infinity and a NaN stay what they are. One
// that would become infinite is the largest number.
void EncodeRounded(std::span<const float> values, std::span<uint8_t> rounded);
void DecodeRounded(Bytes rounded, std::span<float> values);

}  // namespace strom

#endif  // KERAS_STROM_CORE_JOINT_BFLOAT16_H_
