// The declarations of keras-strom's TensorFlow ops for training. Each output `statistics` is the
// float64 vector that keras_strom/sharing/statistics.py names; StromPull's is that of
// keras_strom/sharing/pull_statistics.py.
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
    .Attr("draws_threshold: bool = false")
    .Attr("shares_rest: bool = false")
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
    })
    .Doc(R"doc(
Closes one training step: shares what the optimizer changed and puts the shared parameters back.

Where no shared variable has changed, nothing happens and statistics[0] is 0.

replica: The handle of the worker's compression state (capi/strom.h).
offsets: Where each variable begins in the flat space; ascending.
shares: Of each variable, whether its changes are shared. If not, it keeps them to itself and only
  takes what is received.
names: The variables' names, for errors.
apply_own: The variables get the own update as far as it has been sent (asynchronous modes).
take_received: The variables also get what was received (asynchronous modes).
compare_contents: A variable has changed where its contents have, not where its buffer is another.
by_rows: Of each variable, whether only its `rows` can have changed; R are so.
momentum_of: The variables whose momentum is in `momenta`, by their index; ascending.
send_mean: An entry stands for the mean of what is sent, for updates of several steps
  (core/step/step_values.h).
full: The variables hold what all replicas share plus this one's residual: the own update stays in
  them as the optimizer wrote it, and apply_own is false.
keep_shared: As in StromShowOwn; for `full` alone.
draws_threshold: Where updates are merged, the threshold is drawn to a grid (core/step/step_values.h).
shares_rest: There was no step: shares what local ones before it have changed.
variables: The variables, which the optimizer has changed.
before: Their values before the optimizer ran; empty of variables with `by_rows`.
threshold: A scalar, or a vector with one for each variable.
scale: What the optimizer's change is multiplied by.
clip_multiple: Residuals are clipped to so many thresholds after the step; 0 = they are not.
norm_limit: Where not 0 the norm of the update is measured, and a larger update scaled down to it.
iteration: The step's number, which travels with the update.
sends: False: a local step, which shares nothing and whose changes stay in the variables; the next
  step that sends shares what has changed since the last one did.
rows: Of each variable with `by_rows` the rows that the optimizer visited, in any order, also
  repeatedly; none where the step leaves it alone.
rows_before: The values of `rows` before the optimizer ran.
momenta: Variables in which the optimizer keeps momentum, which is cleared in each element that is
  sent.
statistics: What the step did (keras_strom/sharing/statistics.py).
by_variable: The same of each variable, a row each; no rows where `threshold` is a scalar.
)doc");

REGISTER_OP("StromPull")
    .Attr("N: int >= 1")
    .Attr("W: int >= 0")
    .Attr("model: int")
    .Attr("offsets: list(int)")
    .Attr("names: list(string)")
    .Attr("watched: list(int)")
    .Attr("joint: int")
    .Attr("compare_contents: bool = false")
    .Attr("timeout_ns: int")
    .Input("variables: N * resource")
    .Input("before: W * float")
    .Input("iteration: int64")
    .Input("joint_now: int64")
    .Output("statistics: double")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(kPullStatistics));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Closes one training step of a worker beside a joint model: gives the master the snapshot that it
asks for, installs what has come of it, and pulls the variables towards their targets.

Where no watched variable has changed, nothing happens and statistics[0] is 0.

model: The handle of the worker's local model (capi/strom.h).
offsets: Where each variable begins in the joint model, which they cover whole; ascending.
names: The variables' names, for errors.
watched: The variables whose value `before` the step is known, by their index; where none of them
  has changed the optimizer has made no step.
joint: Names the joint model that consists of these variables.
compare_contents: A variable has changed where its contents have, not where its buffer is another.
timeout_ns: How long to wait, in nanoseconds, where the method has training wait.
variables: The variables of the joint model, which the optimizer has changed.
before: The values of the watched ones before the optimizer ran.
iteration: The step's number, which travels with a snapshot.
joint_now: The joint model of the training that runs; a step with another is refused.
statistics: What the pull did (keras_strom/sharing/pull_statistics.py).
)doc");

REGISTER_OP("StromPenalty")
    .Attr("N: int >= 1")
    .Attr("model: int")
    .Attr("offsets: list(int)")
    .Input("variables: N * resource")
    .Input("gradients: N * float")
    .Output("penalized: N * float")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      const int variables = context->num_inputs() / 2;
      for (int i = 0; i < variables; ++i) context->set_output(i, context->input(variables + i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds to gradients the pull towards the joint model's targets: that of alpha/2 |x - x*|^2, equation 6
of MPCA SGD.

model: The handle of the worker's local model (capi/strom.h).
offsets: Where each variable begins in the joint model; ascending.
variables: Some or all variables of the joint model, as the step finds them.
gradients: Theirs.
penalized: What the optimizer is to get.
)doc");

REGISTER_OP("StromGiveEarly")
    .Attr("N: int >= 1")
    .Attr("model: int")
    .Attr("offsets: list(int)")
    .Attr("names: list(string)")
    .Attr("joint: int")
    .Input("gradients: N * float")
    .Input("rate: float")
    .Input("iteration: int64")
    .Input("joint_now: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Lets some of a step's gradients leave while others are still being computed.

StromMeanGradient gets them again, after this op.

model: The handle of the worker's local model (capi/strom.h).
offsets: Where the variable of each gradient begins in the joint model.
names: The variables' names, for errors.
joint: Names the joint model that these variables are of.
gradients: Of some of the variables that StromMeanGradient has.
rate: The learning rate with which this worker would step.
iteration: The step's number, which travels with them.
joint_now: The joint model of the training that runs; a step with another is refused.
)doc");

REGISTER_OP("StromMeanGradient")
    .Attr("N: int >= 1")
    .Attr("model: int")
    .Attr("offsets: list(int)")
    .Attr("names: list(string)")
    .Attr("joint: int")
    .Attr("may_overflow: bool = false")
    .Attr("timeout_ns: int")
    .Input("gradients: N * float")
    .Input("rate: float")
    .Input("iteration: int64")
    .Input("joint_now: int64")
    .Output("means: N * float")
    .Output("common_rate: float")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      const int gradients = context->num_inputs() - 3;
      for (int i = 0; i < gradients; ++i) context->set_output(i, context->input(i));
      context->set_output(gradients, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives a step's gradients to the others, and waits for the mean of all workers'.

model: The handle of the worker's local model (capi/strom.h).
offsets: Where the variable of each gradient begins in the joint model.
names: The variables' names, for errors.
joint: Names the joint model that these variables are of.
may_overflow: The optimizer leaves out a step whose mean gradient is not finite; else that is
  refused.
timeout_ns: How long to wait, in nanoseconds.
gradients: Those of some or all variables of the joint model; zero of the others.
rate: The learning rate with which this worker would step.
iteration: The step's number, which travels with them.
joint_now: The joint model of the training that runs; a step with another is refused.
means: What the optimizer is to get.
common_rate: The learning rate with which all step.
)doc");

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
    .SetShapeFn(StatisticsShape)
    .Doc(R"doc(
Sequenced modes: waits for the own contribution's STEP, then applies every released STEP.

replica: The handle of the worker's compression state (capi/strom.h).
offsets: Where each variable begins in the flat space; ascending.
timeout_ns: How long to wait, in nanoseconds.
variables: The variables.
stepped: False: nothing is done.
contribution: This worker's own contribution, by its number, that has to stand in a released STEP; a
  negative number waits for nothing.
statistics: What was applied (keras_strom/sharing/statistics.py).
)doc");

REGISTER_OP("StromShowShared")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("forget: bool = false")
    .Input("variables: N * resource")
    .Output("assigned: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Gives the variables the values that all replicas share, where `full` steps have left the worker's
own in them and nobody has assigned them since.

What local steps have changed since the last step that shared stays in them.

replica: The handle of the worker's compression state (capi/strom.h).
offsets: Where each variable begins in the flat space; ascending.
forget: Training does not go on from the worker's own values.
variables: The variables.
assigned: How many variables were assigned.
)doc");

REGISTER_OP("StromShowOwn")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Attr("keep_shared: bool = false")
    .Attr("begins: list(bool)")
    .Input("variables: N * resource")
    .Output("assigned: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Undoes StromShowShared before `full` steps go on, to the last bit.

Where a variable has been assigned since, and where `full` steps begin, it adds the residual to what
all replicas share.

replica: The handle of the worker's compression state (capi/strom.h).
offsets: Where each variable begins in the flat space; ascending.
keep_shared: What all replicas share is kept beside the variables, so that replicas agree on it in
  every bit.
begins: Of each variable, whether `full` steps begin.
variables: The variables.
assigned: How many variables were assigned.
)doc");

REGISTER_OP("StromApply")
    .Attr("N: int >= 1")
    .Attr("replica: int")
    .Attr("offsets: list(int)")
    .Input("variables: N * resource")
    .Output("statistics: double")
    .SetIsStateful()
    .SetShapeFn(StatisticsShape)
    .Doc(R"doc(
Applies everything received so far.

The variables' values then are the shared ones: local steps that no step has shared since are
forgotten.

replica: The handle of the worker's compression state (capi/strom.h).
offsets: Where each variable begins in the flat space; ascending.
variables: The variables.
statistics: What was applied (keras_strom/sharing/statistics.py).
)doc");

}  // namespace keras_strom
