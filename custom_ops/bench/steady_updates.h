// Updates whose density stays what it is asked to be, pass after pass.
//
// Every element gets an independent bell-shaped update in every pass, so its residual is a random
// walk that starts anew at about 0 whenever it reaches the threshold. Such a walk has a stationary
// distribution, and the residuals start there: the entries lie at other places in each pass, and
// their number stays.
#ifndef KERAS_STROM_BENCH_STEADY_UPDATES_H_
#define KERAS_STROM_BENCH_STEADY_UPDATES_H_

#include <cmath>
#include <cstdint>
#include <random>

#include "bench/huge_array.h"

namespace strom::bench {

// The updates of all passes, standard deviation 1.
class SteadyUpdates {
 public:
  explicit SteadyUpdates(int64_t elements) : noise_(elements + kSlack) {
    for (int64_t i = 0; i < noise_.size(); ++i) noise_[i] = Bell();
  }

  // The next pass's updates: the same noise from another place on, so that no element meets a
  // value again.
  const float* Next() {
    constexpr int64_t kFloatsALine = 16;
    const auto lines = static_cast<uint64_t>(kSlack / kFloatsALine);
    return noise_.data() + static_cast<int64_t>(random_() % lines) * kFloatsALine;
  }

 private:
  static constexpr int64_t kSlack = int64_t{1} << 20;

  // The sum of four uniform numbers in (-1, 1), divided by its standard deviation.
  float Bell() {
    const uint64_t bits = random_();
    double sum = 0;
    for (int shift = 0; shift < 64; shift += 16) {
      sum += static_cast<double>((bits >> shift) & 0xffff) + 0.5;
    }
    return static_cast<float>((sum / 32768 - 4) * std::sqrt(3.0 / 4));
  }

  std::mt19937_64 random_{1};
  HugeArray<float> noise_;
};

// Residuals in the steady state of `density`, 0 to about 0.1, and the threshold that keeps it.
// Negative residuals are sent from `negative_part` of the threshold on.
class SteadyResiduals {
 public:
  SteadyResiduals(int64_t elements, double density, double negative_part = 1)
      : threshold_(Threshold(density, negative_part)), values_(elements) {
    std::mt19937_64 random(2);
    const double high = threshold_;
    const double low = negative_part * threshold_;
    // A triangle that would fall to nothing where the walks overshoot to.
    const double width = high + low + 2 * kOvershoot;
    for (int64_t i = 0; i < elements; ++i) {
      double value;
      do {
        const bool is_positive = Uniform(random()) * width < high + kOvershoot;
        const double magnitude = 1 - std::sqrt(Uniform(random()));
        value = magnitude * (is_positive ? high + kOvershoot : -low - kOvershoot);
      } while (value >= high || value <= -low);
      values_[i] = static_cast<float>(value);
    }
  }

  float threshold() const { return threshold_; }
  float* data() const { return values_.data(); }

 private:
  // How far a walk with bell-shaped steps is beyond a border when it has crossed it, on average
  // (Siegmund 1985, chapter 10).
  static constexpr double kOvershoot = 0.5826;

  // From 0, a walk leaves (-a, b) after a b steps on average, each border being further away by
  // the overshoot.
  static float Threshold(double density, double negative_part) {
    if (density <= 0) return 1e9f;  // never reached
    const double linear = kOvershoot * (1 + negative_part);
    const double constant = kOvershoot * kOvershoot - 1 / density;
    const double root = std::sqrt(linear * linear - 4 * negative_part * constant);
    return static_cast<float>((root - linear) / (2 * negative_part));
  }

  static double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

  float threshold_;
  HugeArray<float> values_;
};

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_STEADY_UPDATES_H_
