// Jobs of the simulator in which one fault takes some of the workers while the others train.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_ONE_FAULT_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_ONE_FAULT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/simulation.h"

namespace strom {

inline constexpr int64_t kMillisecond = 1'000'000;

// The fault comes after 200 ms; where it takes processes away, others come in their place 600 ms
// later.
inline SimulationOptions WithOneFault(Fault::Kind kind, uint64_t seed, int32_t max_staleness,
                                      Topology topology, std::vector<int32_t> ranks) {
  SimulationOptions options;
  options.seed = seed;
  options.max_staleness = max_staleness;
  options.topology = topology;
  options.failure_timeout_ns = 400 * kMillisecond;
  options.plan.faults = {{kind, 200 * kMillisecond, 600 * kMillisecond, std::move(ranks)}};
  return options;
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_ONE_FAULT_H_
