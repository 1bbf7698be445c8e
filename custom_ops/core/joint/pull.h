// Arithmetic on a worker's own model beside a joint one: equations 6 and 7 of MPCA SGD, and EASGD's
// exchange. Each operation is rounded to float32.
#ifndef KERAS_STROM_CORE_JOINT_PULL_H_
#define KERAS_STROM_CORE_JOINT_PULL_H_

#include <cstdint>
#include <span>

namespace strom {

// (7): x += alpha (target - x). Alpha 1 assigns.
void Pull(std::span<float> x, std::span<const float> target, float alpha);

// (6): gradient += alpha (x - target), the gradient of alpha/2 |x - target|^2.
void AddPenalty(std::span<float> gradient, std::span<const float> x, std::span<const float> target,
                float alpha);

// EASGD: difference = alpha (x - joint), x -= difference.
void TakeDifference(std::span<float> x, std::span<const float> joint, float alpha,
                    float* difference);

// How far apart they are: sums of squares.
struct Divergence {
  double distance = 0;  // of target - x
  double target = 0;
  Divergence& operator+=(const Divergence& other) {
    distance += other.distance;
    target += other.target;
    return *this;
  }
};
Divergence Measure(std::span<const float> x, std::span<const float> target);

bool IsFinite(std::span<const float> values);

}  // namespace strom

#endif  // KERAS_STROM_CORE_JOINT_PULL_H_
