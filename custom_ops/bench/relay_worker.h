// A worker of the relay's soak: it joins a master through the real agent, submits updates of a
// given size at a given rate, polls, applies what comes, and ends as training does. Everything it
// says at the end can be checked: values are powers of two, so sums are exact in any order, and
// replicas that hold the same updates are equal bit by bit.
#ifndef KERAS_STROM_BENCH_RELAY_WORKER_H_
#define KERAS_STROM_BENCH_RELAY_WORKER_H_

#include <cstdint>
#include <string>

#include "core/base/types.h"

namespace strom::bench {

struct RelayWorkerOptions {
  std::string address;  // the master's, a literal
  uint16_t port = 0;
  PublicKeyBytes key{};  // the master's
  int32_t rank = 0;
  int32_t size = 1;
  int64_t elements = int64_t{1} << 20;
  int64_t message_bytes = 64 << 10;  // about
  double updates_per_second = 20;
  double seconds = 10;
  // All workers submit at the same moment; otherwise evenly spread over the period.
  bool together = false;
  double failure_timeout_seconds = 5;
};

// Runs to the end and returns what happened as JSON:
//   failure          words, "" = it got to the end
//   origin, submitted
//   received         {origin: highest counter polled}, own included
//   out_of_order     updates whose counter was not the next of their origin
//   folded           updates that came in sums, after a pause
//   difference       largest, of the own replica to the master's; hash of the latter
//   latency_us       [p50, p99, max] from a Submit to the poll that gave the update to this worker,
//                    of updates submitted once training had settled
//   first_tenth, received_by_tenth   updates polled in each tenth of a second of the system's
//                    monotonic clock, from the first tenth on
//   bytes_received, cpu_seconds, peak_memory_bytes, blocked_seconds (in Submit), status
std::string RunRelayWorker(const RelayWorkerOptions& options);

// Resident memory now and at its highest, in bytes.
int64_t MemoryBytes();
int64_t PeakMemoryBytes();

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_WORKER_H_
