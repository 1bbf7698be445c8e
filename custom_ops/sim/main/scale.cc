// What one link of a job costs, by the number of workers: real nodes and the real codec over links
// in memory, in virtual time. Workers make updates in steps of their own length; all of them
// together send equally many entries however many they are. benchmarks/scale.py runs it.
//
//   scale workers=N [KEY=VALUE...]
//       merging      1 = updates are merged on their way, 0 = each passes by itself (1)
//       rounds       how many steps long updates are made (30)
//       elements     of the flat space (1048576)
//       entries      of all updates of a round together (104857)
//       values       how many neighbouring thresholds of the grid workers have, 1 or 3 (1)
//       deaths       workers killed in the middle, every second one with children (0)
//       step_ms      a worker's step, in the mean (100)
//       timeout_ms   the failure timeout (1000)
//       max_children, max_depth, seed, replicas (workers whose parameters are compared, 4)
//
// Nothing but those replicas is applied: what every worker has been given is counted by what it
// contains, each update once and in order, and compared with the master at the end. Prints JSON;
// "violations" is empty where all of it holds. Exit status: 0, 1 with violations, 2 for wrong
// arguments.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "sim/scale_job.h"

namespace strom {
namespace {

// ----------------------------------------------------------------------------------- arguments

bool Parse(int count, char** words, ScaleOptions* options) {
  const std::pair<const char*, int64_t*> keys[] = {
      {"workers", &options->workers},       {"merging", &options->merging},
      {"rounds", &options->rounds},         {"elements", &options->elements},
      {"entries", &options->entries},       {"values", &options->values},
      {"deaths", &options->deaths},         {"step_ms", &options->step_ms},
      {"timeout_ms", &options->timeout_ms}, {"max_children", &options->max_children},
      {"max_depth", &options->max_depth},   {"seed", &options->seed},
      {"replicas", &options->replicas},
  };
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    const auto key = std::find_if(std::begin(keys), std::end(keys), [&](const auto& known) {
      return equals != std::string::npos && word.substr(0, equals) == known.first;
    });
    if (key == std::end(keys)) return false;
    char* end = nullptr;
    *key->second = std::strtoll(word.c_str() + equals + 1, &end, 10);
    if (*end != 0 || end == word.c_str() + equals + 1 || *key->second < 0) return false;
  }
  return options->workers > 0 && options->workers <= static_cast<int64_t>(kMaxOrigins) / 2 &&
         options->rounds > 0 && options->elements > 0 && options->entries >= options->workers &&
         (options->values == 1 || options->values == 3) && options->step_ms > 0 &&
         options->timeout_ms > 0 && options->max_children > 0 && options->replicas > 0 &&
         options->deaths < options->workers;
}

}  // namespace
}  // namespace strom

int main(int argc, char** argv) {
  strom::ScaleOptions options;
  if (!strom::Parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: scale workers=N [KEY=VALUE...]; see its source\n");
    return 2;
  }
  strom::ScaleJob job(options);
  std::printf("%s\n", job.Run().c_str());
  return job.holds() ? 0 : 1;
}
