// Jobs that last for days of virtual time, or in which thousands of processes are replaced, and the
// law that what nodes hold does not grow meanwhile.
//
//   const LongRun run = RunLong(RejoinsJob(10'000, /*max_staleness=*/0));
//   EXPECT_EQ(run.broken, "");
#ifndef KERAS_STROM_SIM_LONG_RUN_H_
#define KERAS_STROM_SIM_LONG_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace strom {

// Three workers, of which two are killed by turns and replaced at once, `rejoins` times in all,
// while generations follow each other.
Job RejoinsJob(int64_t rejoins, int32_t max_staleness);
// Three asynchronous workers with an update every few seconds, a generation an hour, some loss, and
// a worker that is replaced every three hours.
Job HoursJob(int64_t hours);

struct LongRun {
  std::string broken;  // the first promise that was; "" = none
  int64_t replaced = 0;
  int64_t rejoined = 0;  // of them in a generation that ran
  int64_t generations = 0;
  int64_t ticks = 0;
  double hours = 0;                  // of virtual time
  Holdings first_tenth, last_tenth;  // the most of each
};
LongRun RunLong(const Job& job);

// What this process holds in memory; 0 under sanitizers, which keep what is freed.
int64_t ResidentBytes();
// The most of each figure in [from, to).
Holdings MostOf(const std::vector<Holdings>& holdings, size_t from, size_t to);
// "" or what has grown.
std::string StaysFlat(const Holdings& first, const Holdings& last);

}  // namespace strom

#endif  // KERAS_STROM_SIM_LONG_RUN_H_
