#include "core/codec/threshold_grid.h"

#include <bit>
#include <cstdint>
#include <iterator>

namespace strom {

namespace {

constexpr float kSignificands[] = {1.0f, 1.1875f, 1.4140625f, 1.6796875f, 2.0f};
constexpr uint32_t kFractionBits = 23;
constexpr uint32_t kOne = 127u << kFractionBits;  // the exponent of 1

}  // namespace

float OnGrid(float threshold) {
  const uint32_t bits = std::bit_cast<uint32_t>(threshold);
  const uint32_t exponent = bits >> kFractionBits << kFractionBits;
  const float significand = std::bit_cast<float>(bits - exponent + kOne);
  // Which of two is nearer by ratio is where their product is passed.
  size_t i = 0;
  while (i + 1 < std::size(kSignificands) &&
         significand * significand > kSignificands[i] * kSignificands[i + 1]) {
    ++i;
  }
  return kSignificands[i] * std::bit_cast<float>(exponent);
}

}  // namespace strom
