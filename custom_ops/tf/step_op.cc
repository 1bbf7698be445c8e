// StromStep: the end of a training step inside `strategy.run`.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/held_values.h"
#include "tf/row_segments.h"
#include "tf/threads.h"
#include "tf/variable_thresholds.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::core::RefCountPtr;

class StepOp : public OpKernel {
 public:
  explicit StepOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("shares", &shares_));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    std::vector<bool> by_rows;
    OP_REQUIRES_OK(context, context->GetAttr("by_rows", &by_rows));
    OP_REQUIRES_OK(context, context->GetAttr("R", &row_variables_));
    const size_t variables = attributes_.offsets.size();
    OP_REQUIRES(
        context,
        shares_.size() == variables && names_.size() == variables && by_rows.size() == variables,
        absl::InvalidArgumentError("shares, names and by_rows must have one entry a variable"));
    int rows = 0;
    for (const bool with_rows : by_rows) row_variable_.push_back(with_rows ? rows++ : kWhole);
    OP_REQUIRES(context, rows == row_variables_,
                absl::InvalidArgumentError("R must be the number of variables with by_rows"));
    OP_REQUIRES_OK(context, context->GetAttr("momentum_of", &momentum_of_));
    OP_REQUIRES(
        context,
        std::is_sorted(momentum_of_.begin(), momentum_of_.end()) &&
            (momentum_of_.empty() ||
             (momentum_of_.front() >= 0 && momentum_of_.back() < attributes_.variables)),
        absl::InvalidArgumentError("momentum_of must ascend and name variables by their index"));
    bool apply_own = false, take_received = false, send_mean = false;
    OP_REQUIRES_OK(context, context->GetAttr("apply_own", &apply_own));
    OP_REQUIRES_OK(context, context->GetAttr("take_received", &take_received));
    OP_REQUIRES_OK(context, context->GetAttr("compare_contents", &compare_contents_));
    OP_REQUIRES_OK(context, context->GetAttr("send_mean", &send_mean));
    OP_REQUIRES_OK(context, context->GetAttr("keep_shared", &keep_shared_));
    OP_REQUIRES(context, !keep_shared_ || (apply_own && rows == 0),
                absl::InvalidArgumentError("keep_shared is for apply_own, and not by rows"));
    apply_own_ = apply_own;
    send_mean_ = send_mean;
    take_received_ = take_received;
  }

  void Compute(OpKernelContext* context) override {
    VariableThresholds thresholds;
    OP_REQUIRES_OK(context, thresholds.Read(context, FirstScalarInput(), attributes_.variables));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, attributes_, FirstMomentumInput(),
                                           static_cast<int>(momentum_of_.size())));
    std::vector<bool> changed;
    OP_REQUIRES_OK(context, FindChanged(context, variables, &changed));
    RefCountPtr<HeldValues> progress;
    OP_REQUIRES_OK(context,
                   HeldValues::Find(context, attributes_.replica, kBeforeLocalSteps, &progress));
    bool stepped = false, to_share = false;
    for (size_t i = 0; i < changed.size(); ++i) {
      stepped |= changed[i] && shares_[i];
      to_share |= shares_[i] && (changed[i] || progress->Has(attributes_.offsets[i]));
    }
    const bool sends = context->input(SendsInput()).scalar<bool>()();
    strom_step_result result{};
    if (!(sends ? to_share : stepped)) {
      OP_REQUIRES_OK(context, OutputStatistics(context, result));
      OP_REQUIRES_OK(context, thresholds.Output(context, 1));
      return;
    }
    int64_t assigned_outside = 0;
    OP_REQUIRES_OK(context, CountAssigned(context, variables, &assigned_outside));
    if (sends) {
      OP_REQUIRES_OK(context, Share(context, variables, changed, *progress, thresholds, &result));
    } else {
      for (size_t i = 0; i < changed.size(); ++i) {
        if (!changed[i] || !shares_[i]) continue;
        progress->Hold(attributes_.offsets[i], context->input(BeforeInput(i)));
      }
    }
    OP_REQUIRES_OK(context, variables.RememberBuffers(context));
    OP_REQUIRES_OK(context, OutputStatistics(context, result, stepped, assigned_outside));
    OP_REQUIRES_OK(context, thresholds.Output(context, 1));
  }

 private:
  int BeforeInput(size_t i) const { return attributes_.variables + static_cast<int>(i); }

  bool HasRows(size_t i) const { return row_variable_[i] != kWhole; }
  bool StepsByRows(size_t i) const { return HasRows(i) && shares_[i]; }
  int FirstScalarInput() const { return 2 * attributes_.variables; }
  int SendsInput() const { return FirstScalarInput() + 5; }
  int FirstRowsInput() const { return 2 * attributes_.variables + kScalars; }
  int RowsInput(size_t i) const { return FirstRowsInput() + row_variable_[i]; }
  int RowsBeforeInput(size_t i) const { return RowsInput(i) + row_variables_; }
  int FirstMomentumInput() const { return FirstRowsInput() + 2 * row_variables_; }

  // What the core reads of one variable, held until it has done so.
  struct Buffers {
    Tensor start;   // the value before local steps; empty where there were none
    Tensor after;   // what the optimizer wrote
    Tensor shared;  // with keep_shared the sum of all updates, for those that share
  };

  // Shares what has changed since the last time, in this step and in local ones before it.
  absl::Status Share(OpKernelContext* context, LockedVariables& variables,
                     const std::vector<bool>& changed, HeldValues& progress,
                     VariableThresholds& thresholds, strom_step_result* result) const {
    std::vector<Buffers> held(variables.size());
    std::vector<strom_segment> segments;
    RefCountPtr<WaitingRows> waiting;
    if (row_variables_ > 0) {
      TF_RETURN_IF_ERROR(WaitingRows::Find(context, attributes_.replica, &waiting));
    }
    std::vector<RowSegments> row_segments(static_cast<size_t>(row_variables_));
    RefCountPtr<HeldValues> shared;
    TF_RETURN_IF_ERROR(HeldValues::Find(context, attributes_.replica, kShared, &shared));
    std::vector<float*> momenta, sums;
    for (size_t i = 0; i < variables.size(); thresholds.Cover(i++, segments.size())) {
      if (StepsByRows(i)) {
        TF_RETURN_IF_ERROR(PrepareRows(context, variables[i].tensor(), i, *waiting,
                                       &row_segments[static_cast<size_t>(row_variable_[i])],
                                       &segments));
        continue;
      }
      if (shares_[i]) held[i].start = progress.Take(attributes_.offsets[i]);
      const bool moved = changed[i] || held[i].start.NumElements() > 0;
      TF_RETURN_IF_ERROR(PrepareMomentum(context, variables, i, moved, segments.size(), &momenta));
      if (keep_shared_ && shares_[i]) {
        held[i].shared = shared->Take(attributes_.offsets[i]);
        TF_RETURN_IF_ERROR(PrepareOwnSegment(context, &variables[i], i, changed[i], &held[i],
                                             &segments.emplace_back()));
        sums.resize(segments.size(), nullptr);
        sums.back() = static_cast<float*>(held[i].shared.data());
        continue;
      }
      TF_RETURN_IF_ERROR(PrepareSegment(context, &variables[i], i, changed[i], &held[i],
                                        &segments.emplace_back()));
    }
    momenta.resize(momenta.empty() ? 0 : segments.size(), nullptr);
    sums.resize(sums.empty() ? 0 : segments.size(), nullptr);
    strom_step_options options = Options(context, momenta, sums);
    thresholds.Set(&options);
    const strom_thread_pool threads = LendThreads(context);
    const int code =
        strom_replica_step(attributes_.replica, segments.data(),
                           static_cast<int64_t>(segments.size()), &options, &threads, result);
    for (size_t i = 0; keep_shared_ && i < variables.size(); ++i) {
      if (shares_[i]) shared->Hold(attributes_.offsets[i], held[i].shared);
    }
    TF_RETURN_IF_ERROR(ToStatus(code, strom_last_error()));
    for (size_t i = 0; i < variables.size(); ++i) {
      if (!StepsByRows(i)) continue;
      std::vector<int64_t> rows;
      const RowSegments& visited = row_segments[static_cast<size_t>(row_variable_[i])];
      TF_RETURN_IF_ERROR(visited.FindWaiting(attributes_.replica, thresholds.used(i), &rows));
      waiting->Set(attributes_.offsets[i], std::move(rows));
    }
    return absl::OkStatus();
  }

  // TensorFlow writes a variable whose buffer somebody else holds (here: `before`) into a new
  // buffer, so a changed variable lies elsewhere. Not so variables in copy-on-read mode (they had
  // sparse updates), which are read by copy, and those that XLA might have assigned (under a
  // condition, as in gradient accumulation), which it always writes; there the contents decide.
  absl::Status FindChanged(OpKernelContext* context, LockedVariables& variables,
                           std::vector<bool>* changed) const {
    for (size_t i = 0; i < variables.size(); ++i) {
      if (HasRows(i)) {
        changed->push_back(context->input(RowsInput(i)).NumElements() > 0);
        continue;
      }
      const Tensor& before = context->input(BeforeInput(i));
      Tensor& now = *variables[i].tensor();
      if (before.NumElements() != now.NumElements()) {
        return absl::InvalidArgumentError("a variable changed its shape within strategy.run");
      }
      bool differs = before.data() != now.data();
      const bool copied = variables[i].copy_on_read_mode.load();
      if (differs && (copied || compare_contents_)) {
        differs = std::memcmp(before.data(), now.data(), now.TotalBytes()) != 0;
        // The variable gets its buffer back, by which CountAssigned knows it.
        if (!differs && !copied) now = before;
      }
      changed->push_back(differs);
    }
    return absl::OkStatus();
  }

  absl::Status CountAssigned(OpKernelContext* context, LockedVariables& variables,
                             int64_t* assigned) const {
    std::vector<const void*> found(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      // What is not shared (a target network) may be assigned at any time.
      const bool watched = shares_[i] && !HasRows(i) && !variables[i].copy_on_read_mode.load();
      found[i] = watched ? context->input(BeforeInput(i)).data() : nullptr;
    }
    std::vector<bool> found_assigned;
    TF_RETURN_IF_ERROR(variables.FindAssigned(context, found, &found_assigned));
    *assigned = std::count(found_assigned.begin(), found_assigned.end(), true);
    return absl::OkStatus();
  }

  absl::Status PrepareRows(OpKernelContext* context, Tensor* tensor, size_t i,
                           const WaitingRows& waiting, RowSegments* rows,
                           std::vector<strom_segment>* segments) const {
    TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
    const int64_t offset = attributes_.offsets[i];
    return rows->Append(context->input(RowsInput(i)), context->input(RowsBeforeInput(i)),
                        waiting.Get(offset), tensor, offset, names_[i].c_str(), segments);
  }

  // Gives the variable the buffer for its next value: the `before` buffer itself where this op is
  // its last reader (no copy), else the one that the optimizer wrote, else a new one.
  absl::Status PrepareSegment(OpKernelContext* context, tensorflow::Var* variable, size_t i,
                              bool changed, Buffers* held, strom_segment* segment) const {
    const int input = BeforeInput(i);
    Tensor* tensor = variable->tensor();
    segment->offset = attributes_.offsets[i];
    segment->size = tensor->NumElements();
    segment->name = names_[i].c_str();
    if ((changed && !shares_[i]) || HasRows(i)) {
      TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
      segment->value = static_cast<float*>(tensor->data());
      segment->before = segment->after = segment->value;
      return absl::OkStatus();
    }
    Tensor* const after = &held->after;
    *after = *tensor;
    if (held->start.NumElements() > 0) {
      segment->before = static_cast<const float*>(held->start.data());
      segment->after = static_cast<const float*>(after->data());
      if (held->start.RefCountIsOne()) {
        *tensor = held->start;
      } else {
        TF_RETURN_IF_ERROR(NewBuffer(context, input, tensor));
      }
      segment->value = static_cast<float*>(tensor->data());
      return absl::OkStatus();
    }
    segment->before = static_cast<const float*>(context->input(input).data());
    segment->after = changed ? static_cast<const float*>(after->data()) : segment->before;
    // An unchanged variable shares its buffer with `before`; let go of it, or it is never the last.
    if (!changed) *tensor = *after = Tensor();
    auto forwarded =
        context->forward_input(input, OpKernelContext::Params::kNoReservation, tensorflow::DT_FLOAT,
                               context->input(input).shape(), context->input_memory_type(input),
                               context->input_alloc_attr(input));
    if (forwarded != nullptr) {
      *tensor = *forwarded;
    } else if (changed) {
      *after = Tensor();
      if (!tensor->RefCountIsOne()) {
        *after = *tensor;
        TF_RETURN_IF_ERROR(NewBuffer(context, input, tensor));
      }
    } else {
      TF_RETURN_IF_ERROR(NewBuffer(context, input, tensor));
    }
    segment->value = static_cast<float*>(tensor->data());
    return absl::OkStatus();
  }

  // The same where the variable includes what has not been sent: its next value goes where the
  // optimizer wrote, and the sum of all updates begins with what the variable was.
  absl::Status PrepareOwnSegment(OpKernelContext* context, tensorflow::Var* variable, size_t i,
                                 bool changed, Buffers* held, strom_segment* segment) const {
    const int input = BeforeInput(i);
    const bool local = held->start.NumElements() > 0;
    const Tensor& before = local ? held->start : context->input(input);
    Tensor* tensor = variable->tensor();
    segment->offset = attributes_.offsets[i];
    segment->size = tensor->NumElements();
    segment->name = names_[i].c_str();
    if (held->shared.NumElements() != segment->size) {
      TF_RETURN_IF_ERROR(NewBuffer(context, input, &held->shared));
      std::memcpy(held->shared.data(), before.data(), before.TotalBytes());
    }
    if (!changed && !local) {
      TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
      segment->value = static_cast<float*>(tensor->data());
      segment->before = segment->after = segment->value;
      return absl::OkStatus();
    }
    if (!tensor->RefCountIsOne()) {
      held->after = *tensor;
      TF_RETURN_IF_ERROR(NewBuffer(context, input, tensor));
    }
    segment->value = static_cast<float*>(tensor->data());
    segment->before = static_cast<const float*>(before.data());
    const Tensor& after = held->after.NumElements() > 0 ? held->after : *tensor;
    segment->after = static_cast<const float*>(after.data());
    return absl::OkStatus();
  }

  static absl::Status NewBuffer(OpKernelContext* context, int input, Tensor* tensor) {
    Tensor fresh;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_FLOAT, context->input(input).shape(), &fresh));
    *tensor = fresh;
    return absl::OkStatus();
  }

  // Notes the momentum of variable i, if it has one and it is to be cleared, as that of the segment
  // with index `segment`. Optimizers with momentum move all rows, so it is the variable's only one.
  absl::Status PrepareMomentum(OpKernelContext* context, LockedVariables& variables, size_t i,
                               bool moved, size_t segment, std::vector<float*>* momenta) const {
    const auto found =
        std::lower_bound(momentum_of_.begin(), momentum_of_.end(), static_cast<int64_t>(i));
    if (found == momentum_of_.end() || *found != static_cast<int64_t>(i) || !moved || !shares_[i]) {
      return absl::OkStatus();
    }
    Tensor* tensor = variables.other(static_cast<size_t>(found - momentum_of_.begin())).tensor();
    if (tensor->NumElements() != variables[i].tensor()->NumElements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the momentum of '", names_[i], "' has another size than the variable"));
    }
    TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
    momenta->resize(segment + 1, nullptr);
    momenta->back() = static_cast<float*>(tensor->data());
    return absl::OkStatus();
  }

  strom_step_options Options(OpKernelContext* context, const std::vector<float*>& momenta,
                             const std::vector<float*>& shared) const {
    const int first = FirstScalarInput();
    strom_step_options options{};
    options.scale = context->input(first + 1).scalar<float>()();
    options.clip_multiple = context->input(first + 2).scalar<float>()();
    options.norm_limit = context->input(first + 3).scalar<float>()();
    options.iteration = context->input(first + 4).scalar<int64_t>()();
    options.send_mean = send_mean_;
    options.momenta = momenta.empty() ? nullptr : momenta.data();
    options.shared = shared.empty() ? nullptr : shared.data();
    options.apply_own = apply_own_;
    options.take_received = take_received_;
    return options;
  }

  ReplicaAttributes attributes_;
  std::vector<bool> shares_;
  std::vector<std::string> names_;
  std::vector<int64_t> momentum_of_;  // the variable whose momentum the m-th of `momenta` is
  static constexpr int kWhole = -1;
  static constexpr int kScalars = 6;  // inputs between `before` and `rows`
  int row_variables_ = 0;             // R
  std::vector<int> row_variable_;     // which of those variable i is, or kWhole
  int32_t apply_own_ = 0;
  int32_t take_received_ = 0;
  int32_t send_mean_ = 0;
  bool compare_contents_ = false;
  bool keep_shared_ = false;
};

REGISTER_KERNEL_BUILDER(Name("StromStep").Device(tensorflow::DEVICE_CPU), StepOp);

}  // namespace keras_strom
