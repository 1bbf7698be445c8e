// The declarations of keras-strom's TensorFlow ops. Each output `statistics` is the float64 vector
// that keras_strom/sharing/statistics.py names.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/variable_thresholds.h"
#include "tf/variables.h"

namespace keras_strom {

namespace {

absl::Status StatisticsShape(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Vector(kStatistics));
  return absl::OkStatus();
}

}  // namespace

// Closes one training step: shares what the optimizer changed and puts the shared parameters back.
// `before` are the variables' values before the optimizer ran. Where no shared variable has
// changed, nothing happens and statistics[0] is 0. A variable with shares = false keeps its own
// changes to itself and only takes what is received. With compare_contents = true a variable has
// changed where its contents have, not where its buffer is another one. `names` are the variables'
// in errors. Of the R variables with by_rows = true only `rows` can have changed (any order, also
// repeatedly), whose values before were `rows_before`; their `before` is empty. `momenta` are the
// variables in which the optimizer keeps the momentum of the variables `momentum_of`, ascending; it
// is cleared in each element that is sent. A `norm_limit` that is not 0 has the norm of the update
// measured, and a larger update scaled down to it. Where `sends` is false the step is a local one:
// it shares nothing and its changes stay in the variables; the next step that sends shares what has
// changed since the last one did. `send_mean` is for updates of several steps (capi/strom.h). With
// full = true the variables hold what all replicas share plus this one's residual, so the own
// update stays in them as the optimizer wrote it, and apply_own is false; keep_shared is
// StromShowOwn's. `threshold` is a scalar, or a vector with one for each variable; only then
// `by_variable` has rows, one a variable: what keras_strom/sharing/statistics.py names of it.
REGISTER_OP("StromStep")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("shares: list(bool)")
    .Attr("names: list(string)")
    .Attr("apply_own: bool")
    .Attr("take_received: bool")
    .Attr("compare_contents: bool = false")
    .Attr("R: int >= 0")
    .Attr("by_rows: list(bool)")
    .Attr("M: int >= 0")
    .Attr("momentum_of: list(int)")
    .Attr("send_mean: bool = false")
    .Attr("full: bool = false")
    .Attr("keep_shared: bool = false")
    .Input("variables: N * resource")
    .Input("before: N * float")
    .Input("threshold: float")
    .Input("scale: float")
    .Input("clip_multiple: float")
    .Input("norm_limit: float")
    .Input("iteration: int64")
    .Input("sends: bool")
    .Input("rows: R * int64")
    .Input("rows_before: R * float")
    .Input("momenta: M * resource")
    .Output("statistics: double")
    .Output("by_variable: double")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(1, context->Matrix(context->UnknownDim(), kVariableStatistics));
      return StatisticsShape(context);
    });

// Sequenced modes: where `stepped`, waits until this worker's own contribution number
// `contribution` stands in a released STEP (a negative number waits for nothing), then applies
// every released STEP.
REGISTER_OP("StromApplyStep")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("timeout_ns: int")
    .Input("variables: N * resource")
    .Input("stepped: bool")
    .Input("contribution: int64")
    .Output("statistics: double")
    .SetIsStateful()
    .SetShapeFn(StatisticsShape);

// Gives the variables the values that all replicas share, where `full` steps have left the worker's
// own in them and nobody has assigned them since. What local steps have changed since the last step
// that shared stays in them. With forget = true training does not go on from the worker's own
// values. `assigned` is how many variables were assigned.
REGISTER_OP("StromShowShared")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("forget: bool = false")
    .Input("variables: N * resource")
    .Output("assigned: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// Undoes StromShowShared before `full` steps go on, to the last bit; where a variable has been
// assigned since, and where `full` steps begin (`begins`), adds the residual to what all replicas
// share. With keep_shared = true the latter is kept beside the variables, so that replicas agree on
// it in every bit.
REGISTER_OP("StromShowOwn")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("keep_shared: bool = false")
    .Attr("begins: list(bool)")
    .Input("variables: N * resource")
    .Output("assigned: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// Applies everything received so far. The variables' values then are the shared ones: local steps
// that no step has shared since are forgotten.
REGISTER_OP("StromApply")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Input("variables: N * resource")
    .Output("statistics: double")
    .SetIsStateful()
    .SetShapeFn(StatisticsShape);

}  // namespace keras_strom
