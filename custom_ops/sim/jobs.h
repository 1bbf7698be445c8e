// The simulated jobs of the seeds: workers, mode, tree and faults, all drawn from one number.
#ifndef KERAS_STROM_SIM_JOBS_H_
#define KERAS_STROM_SIM_JOBS_H_

#include <cstdint>
#include <string>

#include "sim/simulation.h"

namespace strom {

// The job of a seed: 5 to 7 workers, at least 200 updates an origin where it lives so long, a plan
// of at least 3 faults, any mode.
Job DrawJob(uint64_t seed, SimulatedLinks links);
// The same with faults of which most are deaths, several at once now and then, each followed by a
// replacement.
Job DrawJobWithReplacements(uint64_t seed, SimulatedLinks links);
// Likewise, but most of them are told beforehand: they hand over what they have not sent and leave,
// or die where they have too little time for that.
Job DrawJobWithDrains(uint64_t seed, SimulatedLinks links);
// Asynchronous, with faults of any kind and a master that is killed once or twice, after which
// another one comes at its address with a higher epoch.
Job DrawJobWithMasters(uint64_t seed, SimulatedLinks links);
// Asynchronous, with workers that are silent for longer than updates are kept: most get a snapshot.
Job DrawJobWithSilences(uint64_t seed, SimulatedLinks links);
// With many short generations and faults as in DrawJobWithReplacements, so that origins are
// retired.
Job DrawJobWithFits(uint64_t seed, SimulatedLinks links);
// Likewise, with models of several chunks on slow lines, so that faults strike in the middle of
// what comes at a start or an end; in some another master comes, in some all workers are lost at
// once.
Job DrawJobWithSlowStarts(uint64_t seed, SimulatedLinks links);
// With paths of which one direction is cut, and keys that change often.
Job DrawJobWithOneWayCuts(uint64_t seed, SimulatedLinks links);
// Between sites: paths of up to 300 ms, bufferbloat, policers; for links of datagrams.
Job DrawJobOnLongLines(uint64_t seed, SimulatedLinks links);
// Asynchronous, training on a joint model by any method, with deaths, replacements, drains,
// silences and bad paths, in some of two to four workers; with `masters` a master that is replaced,
// too.
Job DrawJobWithJointModel(uint64_t seed, SimulatedLinks links);
Job DrawJobWithJointModelAndMasters(uint64_t seed, SimulatedLinks links);
// The same in rounds of gradients.
Job DrawJobWithGradients(uint64_t seed, SimulatedLinks links);
// Mode, workers and plan, for people.
std::string DescribeJob(const Job& job);

}  // namespace strom

#endif  // KERAS_STROM_SIM_JOBS_H_
