// How large an update is as a whole, for the limit on its norm.
#ifndef KERAS_STROM_CORE_STEP_UPDATE_NORM_H_
#define KERAS_STROM_CORE_STEP_UPDATE_NORM_H_

#include <span>

#include "core/base/parallel.h"
#include "core/step/step_values.h"

namespace strom {

// Of after - before over all segments that changed; not finite where an element is not.
struct UpdateSize {
  double norm = 0;  // Euclidean
  double mass = 0;  // the sum of the magnitudes
};

// One pass over `before` and `after`. The number of threads shows in no bit of the result.
UpdateSize MeasureUpdate(std::span<const strom_segment> segments, const Parallel& parallel);

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_UPDATE_NORM_H_
