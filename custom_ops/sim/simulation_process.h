// One process of a worker in a Simulation, for the files that this is written in.
#ifndef KERAS_STROM_SIM_SIMULATION_PROCESS_H_
#define KERAS_STROM_SIM_SIMULATION_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "sim/simulation.h"

namespace strom {

// Its node on its host, and the application above.
struct Simulation::Process {
  int32_t rank = 0;
  int32_t attempt = 0;
  Host host = 0;
  std::unique_ptr<WatchedLinks> links;
  std::unique_ptr<WorkerNode> node;
  std::unique_ptr<Application> application;
  VersionVector received;   // when it was last checked
  uint64_t generation = 0;  // that had started then; 0 = none
  uint64_t masters = 1;     // those of whom it is known to have heard
  int64_t served = 0;
  int32_t wakes = 0;  // see SleepsUntilLater

  const ApplicationRecord& record() const { return application->record(); }
  std::string name() const {
    return "worker " + std::to_string(rank) +
           (attempt == 0 ? "" : " (attempt " + std::to_string(attempt) + ")");
  }
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_SIMULATION_PROCESS_H_
