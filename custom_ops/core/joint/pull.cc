#include "core/joint/pull.h"

#include <algorithm>
#include <array>
#include <bit>

namespace strom {

void Pull(std::span<float> x, std::span<const float> target, float alpha) {
  float* const own = x.data();
  const float* const to = target.data();
  const size_t size = x.size();
  if (alpha == 1) {
    std::copy(to, to + size, own);
    return;
  }
  for (size_t i = 0; i < size; ++i) {
    const float way = to[i] - own[i];
    own[i] += alpha * way;
  }
}

void AddPenalty(std::span<float> gradient, std::span<const float> x, std::span<const float> target,
                float alpha) {
  float* const sum = gradient.data();
  const float* const own = x.data();
  const float* const to = target.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float way = own[i] - to[i];
    sum[i] += alpha * way;
  }
}

void TakeDifference(std::span<float> x, std::span<const float> joint, float alpha,
                    float* difference) {
  float* const own = x.data();
  const float* const shared = joint.data();
  for (size_t i = 0; i < x.size(); ++i) {
    difference[i] = alpha * (own[i] - shared[i]);
    own[i] -= difference[i];
  }
}

Divergence Measure(std::span<const float> x, std::span<const float> target) {
  // Lanes, so that no addition waits for the one before.
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> distance{}, length{};
  const auto add = [&](size_t i, size_t lane) {
    const double to = target[i];
    const double way = to - x[i];
    distance[lane] += way * way;
    length[lane] += to * to;
  };
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (size_t lane = 0; i < x.size(); ++i, ++lane) add(i, lane);
  Divergence sums;
  for (size_t lane = 0; lane < kLanes; ++lane) sums += {distance[lane], length[lane]};
  return sums;
}

bool IsFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (const float value : values) {
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & kExponent) == kExponent);
  }
  return found == 0;
}

}  // namespace strom
