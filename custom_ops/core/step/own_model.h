// A worker's own model where it includes what it has not sent: x = G + r, G being the sum of all
// updates that every replica holds, r the worker's residual.
//
// A step keeps the two apart without a copy of G: the optimizer's change stays in x and enters r,
// and what leaves goes from r to G. G is computed where somebody asks for it.
#ifndef KERAS_STROM_CORE_STEP_OWN_MODEL_H_
#define KERAS_STROM_CORE_STEP_OWN_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/parallel.h"
#include "core/step/residual_store.h"
#include "core/step/step_values.h"

namespace strom {

// value = before + sign * r in every segment, `sign` being 1 or -1; before itself, to the bit,
// where r is zero. The number of threads shows in no bit.
void AddResiduals(std::span<const strom_segment> segments, float sign,
                  const ResidualStore& residuals, const Parallel& parallel);

// Undoes a step whose progress is in the values and, as all of it was taken back, in the residuals:
// the values are `before` again, and the residuals what they were, within rounding.
void UndoProgress(std::span<const strom_segment> segments, ResidualStore* residuals);

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_OWN_MODEL_H_
