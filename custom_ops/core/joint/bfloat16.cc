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

constexpr uint32_t kExponent = 0x7f800000;

void Put(uint16_t half, uint8_t* to) {
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}

float Get(const uint8_t* from) {
  return std::bit_cast<float>(static_cast<uint32_t>(from[0] | from[1] << 8) << 16);
}

}  // namespace

void EncodeChange(std::span<const float> before, std::span<const float> after,
                  std::span<uint8_t> change) {
  uint8_t* to = change.data();
  for (size_t i = 0; i < before.size(); ++i) {
    Put(Rounded(after[i] - before[i]), to + 2 * i);
  }
}

void AddChange(std::span<const float> before, Bytes change, std::span<float> after) {
  const uint8_t* const from = change.data();
  for (size_t i = 0; i < before.size(); ++i) {
    after[i] = before[i] + Get(from + 2 * i);
  }
}

void EncodeRounded(std::span<const float> values, std::span<uint8_t> rounded) {
  constexpr uint16_t kQuiet = 0x40;  // a NaN whose set bits are all in the lower half stays one
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const bool is_finite = (bits & kExponent) != kExponent;
    const bool is_nan = !is_finite && (bits & ~kExponent & ~kSign) != 0;
    const auto upper = static_cast<uint16_t>(bits >> 16 | (is_nan ? kQuiet : 0));
    Put(is_finite ? Rounded(values[i]) : upper, rounded.data() + 2 * i);
  }
}

void DecodeRounded(Bytes rounded, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = Get(rounded.data() + 2 * i);
}

}  // namespace strom
