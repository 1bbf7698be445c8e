// A worker's own model where it includes what it has not sent: x = G + r, G being the sum of all
// updates that every replica holds, r the worker's residual (strom_step_options, `shared`).
#ifndef KERAS_STROM_CORE_UNSENT_H_
#define KERAS_STROM_CORE_UNSENT_H_

#include <span>
#include <vector>

#include "capi/strom.h"
#include "core/parallel.h"
#include "core/residual_store.h"

namespace strom {

// The segments with G in place of `value` where there is one. `shared` as in strom_step_options.
std::vector<strom_segment> SharedSegments(std::span<const strom_segment> segments,
                                          float* const* shared);

// value = G + r in every segment that has a G. The number of threads shows in no bit.
void AddUnsent(std::span<const strom_segment> segments, float* const* shared,
               const ResidualStore& residuals, const Parallel& parallel);

}  // namespace strom

#endif  // KERAS_STROM_CORE_UNSENT_H_
