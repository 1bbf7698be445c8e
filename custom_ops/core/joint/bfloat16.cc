#include "core/joint/bfloat16.h"

#include <algorithm>
#include <bit>

namespace strom {

namespace {

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kLargest = 0x7f7f0000;

uint16_t Rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t nearest = (magnitude + 0x7fff + (magnitude >> 16 & 1)) & 0xffff0000;
  return static_cast<uint16_t>(((bits & kSign) | std::min(nearest, kLargest)) >> 16);
}

}  // namespace

void EncodeChange(std::span<const float> before, std::span<const float> after,
                  std::span<uint8_t> change) {
  uint8_t* to = change.data();
  for (size_t i = 0; i < before.size(); ++i) {
    const uint16_t half = Rounded(after[i] - before[i]);
    to[2 * i] = static_cast<uint8_t>(half);
    to[2 * i + 1] = static_cast<uint8_t>(half >> 8);
  }
}

void AddChange(std::span<const float> before, Bytes change, std::span<float> after) {
  const uint8_t* const from = change.data();
  for (size_t i = 0; i < before.size(); ++i) {
    const auto half = static_cast<uint32_t>(from[2 * i] | from[2 * i + 1] << 8);
    after[i] = before[i] + std::bit_cast<float>(half << 16);
  }
}

}  // namespace strom
