// How long this process has waited for its input pipelines: what TensorFlow itself has measured of
// its iterators. Nothing is added to a step for it.

#include <cstdint>
#include <string>

#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"

namespace {

// The time in IteratorBase::GetNext, which a step's op waits for; a histogram in microseconds.
constexpr char kGetNext[] = "/tensorflow/data/getnext_duration";

}  // namespace

// Seconds since the process started; negative where this TensorFlow measures no such thing. Any
// thread may call it. It goes through all of TensorFlow's metrics, which takes about a millisecond.
extern "C" double strom_input_seconds() {
  using tsl::monitoring::CollectionRegistry;
  const CollectionRegistry::CollectMetricsOptions options;
  const auto metrics = CollectionRegistry::Default()->CollectMetrics(options);
  const auto found = metrics->point_set_map.find(kGetNext);
  if (found == metrics->point_set_map.end()) return -1.0;
  double microseconds = 0.0;
  for (const auto& point : found->second->points) microseconds += point->histogram_value.sum();
  return microseconds * 1e-6;
}
