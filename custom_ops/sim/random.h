// The randomness of every simulation: small, seeded, and the same on every machine.
#ifndef KERAS_STROM_SIM_RANDOM_H_
#define KERAS_STROM_SIM_RANDOM_H_

#include <cstdint>
#include <span>

#include "core/transport/endpoint.h"

namespace strom {

// SplitMix64.
class SimulatedRandom final : public RandomSource {
 public:
  explicit SimulatedRandom(uint64_t seed) : state_(seed) {}
  void Fill(std::span<uint8_t> out) override {
    for (uint8_t& byte : out) byte = static_cast<uint8_t>(Next() >> 56);
  }
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  // True with this probability. Draws nothing where it cannot be true.
  bool Chance(double probability) {
    return probability > 0 && static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }
  // Uniform in [0, bound); bound > 0.
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  // Uniform in [low, high].
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }

 private:
  uint64_t state_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_RANDOM_H_
