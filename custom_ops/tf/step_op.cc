// StromStep: the end of a training step inside `strategy.run`.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/held_values.h"
#include "tf/own_models.h"
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
    OP_REQUIRES_OK(context, inputs_.Find(*this));
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
    OP_REQUIRES_OK(context, context->GetAttr("full", &full_));
    OP_REQUIRES_OK(context, context->GetAttr("keep_shared", &keep_shared_));
    OP_REQUIRES(context, full_ ? !apply_own : !keep_shared_,
                absl::InvalidArgumentError("keep_shared is for full, and apply_own is not"));
    apply_own_ = apply_own;
    send_mean_ = send_mean;
    take_received_ = take_received;
  }

  void Compute(OpKernelContext* context) override {
    VariableThresholds thresholds;
    OP_REQUIRES_OK(context, thresholds.Read(context, inputs_.threshold, attributes_.variables));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, attributes_, inputs_.momenta,
                                           static_cast<int>(momentum_of_.size())));
    std::vector<bool> changed;
    OP_REQUIRES_OK(context, FindChanged(context, variables, &changed));
    RefCountPtr<HeldValues> progress;
    OP_REQUIRES_OK(context, HeldValues::Find(context, attributes_.replica, &progress));
    bool stepped = false, to_share = false;
    for (size_t i = 0; i < changed.size(); ++i) {
      stepped |= changed[i] && shares_[i];
      to_share |= shares_[i] && (changed[i] || progress->Has(attributes_.offsets[i]));
    }
    const bool sends = context->input(inputs_.sends).scalar<bool>()();
    strom_step_result result{};
    if (!(sends ? to_share : stepped)) {
      OP_REQUIRES_OK(context, OutputStatistics(context, result));
      OP_REQUIRES_OK(context, thresholds.Output(context, 1));
      return;
    }
    int64_t assigned_outside = 0;
    OP_REQUIRES_OK(context, CountAssigned(context, variables, &assigned_outside));
    absl::Status shared;
    if (sends) {
      shared = Share(context, variables, changed, *progress, thresholds, &result);
    } else {
      for (size_t i = 0; i < changed.size(); ++i) {
        if (!changed[i] || !shares_[i]) continue;
        progress->Hold(attributes_.offsets[i], context->input(BeforeInput(i)));
      }
    }
    // Also where sharing was refused: what that leaves in the variables nobody has assigned.
    OP_REQUIRES_OK(context, variables.RememberBuffers(context));
    OP_REQUIRES_OK(context, shared);
    OP_REQUIRES_OK(context, OutputStatistics(context, result, stepped, assigned_outside));
    OP_REQUIRES_OK(context, thresholds.Output(context, 1));
  }

 private:
  // Where each input begins; tf/operations.cc says what they are.
  struct Inputs {
    int before = 0, threshold = 0, scale = 0, clip_multiple = 0, norm_limit = 0, iteration = 0;
    int sends = 0, rows = 0, rows_before = 0, momenta = 0;

    absl::Status Find(const OpKernel& op) {
      const std::pair<const char*, int*> names[] = {{"before", &before},
                                                    {"threshold", &threshold},
                                                    {"scale", &scale},
                                                    {"clip_multiple", &clip_multiple},
                                                    {"norm_limit", &norm_limit},
                                                    {"iteration", &iteration},
                                                    {"sends", &sends},
                                                    {"rows", &rows},
                                                    {"rows_before", &rows_before},
                                                    {"momenta", &momenta}};
      for (const auto& [name, first] : names) TF_RETURN_IF_ERROR(FirstInput(op, name, first));
      return absl::OkStatus();
    }
  };

  int BeforeInput(size_t i) const { return inputs_.before + static_cast<int>(i); }
  int RowsInput(size_t i) const { return inputs_.rows + row_variable_[i]; }
  int RowsBeforeInput(size_t i) const { return inputs_.rows_before + row_variable_[i]; }

  bool HasRows(size_t i) const { return row_variable_[i] != kWhole; }
  bool StepsByRows(size_t i) const { return HasRows(i) && shares_[i]; }

  // What the core reads of one variable, held until it has done so.
  struct Buffers {
    Tensor start;     // the value before local steps; empty where there were none
    Tensor after;     // what the optimizer wrote
    Tensor residual;  // before this step, of a variable that does not include it so far
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
    RefCountPtr<OwnModels> models;
    TF_RETURN_IF_ERROR(OwnModels::Find(context, attributes_.replica, &models));
    std::vector<float*> momenta;
    std::vector<int32_t> includes_residual;  // one a segment
    bool includes_last = false;              // those of the variable before
    for (size_t i = 0; i < variables.size(); thresholds.Cover(i++, segments.size())) {
      if (shares_[i]) held[i].start = progress.Take(attributes_.offsets[i]);
      const bool moved = shares_[i] && (changed[i] || held[i].start.NumElements() > 0);
      const bool was_own = models->Get(attributes_.offsets[i]).state == OwnModel::State::kOwn;
      if (full_ && moved && !was_own) {
        TF_RETURN_IF_ERROR(BeginOwnModel(context, variables, i, models.get(), &held[i]));
      }
      includes_residual.resize(segments.size(), includes_last);
      includes_last = was_own;
      if (StepsByRows(i)) {
        TF_RETURN_IF_ERROR(PrepareRows(context, variables[i].tensor(), i, *waiting,
                                       &row_segments[static_cast<size_t>(row_variable_[i])],
                                       &segments));
        continue;
      }
      TF_RETURN_IF_ERROR(PrepareMomentum(context, variables, i, moved, segments.size(), &momenta));
      strom_segment* const segment = &segments.emplace_back();
      if (full_) {
        TF_RETURN_IF_ERROR(
            PrepareFullSegment(context, &variables[i], i, changed[i], moved, held[i], segment));
      } else {
        TF_RETURN_IF_ERROR(
            PrepareSegment(context, &variables[i], i, changed[i], &held[i], segment));
      }
    }
    momenta.resize(momenta.empty() ? 0 : segments.size(), nullptr);
    includes_residual.resize(segments.size(), includes_last);
    strom_step_options options = Options(context, momenta);
    if (full_) options.includes_residual = includes_residual.data();
    thresholds.Set(&options);
    const strom_thread_pool threads = LendThreads(context);
    const int code =
        strom_replica_step(attributes_.replica, segments.data(),
                           static_cast<int64_t>(segments.size()), &options, &threads, result);
    for (size_t i = 0; i < variables.size(); ++i) {
      if (held[i].residual.NumElements() > 0) Add(held[i].residual, variables[i].tensor());
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

  absl::Status FindChanged(OpKernelContext* context, LockedVariables& variables,
                           std::vector<bool>* changed) const {
    for (size_t i = 0; i < variables.size(); ++i) {
      if (HasRows(i)) {
        changed->push_back(context->input(RowsInput(i)).NumElements() > 0);
        continue;
      }
      const Tensor& before = context->input(BeforeInput(i));
      bool differs = false;
      TF_RETURN_IF_ERROR(HasChanged(before, variables[i], compare_contents_, &differs));
      // The variable gets its buffer back, by which CountAssigned knows it.
      if (!differs && !variables[i].copy_on_read_mode.load()) *variables[i].tensor() = before;
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

  // The same where the variable includes the residual: its next value is what the optimizer wrote.
  absl::Status PrepareFullSegment(OpKernelContext* context, tensorflow::Var* variable, size_t i,
                                  bool changed, bool moved, const Buffers& held,
                                  strom_segment* segment) const {
    const int input = BeforeInput(i);
    Tensor* tensor = variable->tensor();
    if (!changed && !HasRows(i)) {
      // It shares its buffer with `before`: let go of it, or this op is never its last holder.
      *tensor = Tensor();
      auto forwarded = context->forward_input(input, OpKernelContext::Params::kNoReservation,
                                              tensorflow::DT_FLOAT, context->input(input).shape(),
                                              context->input_memory_type(input),
                                              context->input_alloc_attr(input));
      *tensor = forwarded != nullptr ? *forwarded : context->input(input);
    }
    TF_RETURN_IF_ERROR(MakeWritable(context, tensor));
    segment->offset = attributes_.offsets[i];
    segment->size = tensor->NumElements();
    segment->name = names_[i].c_str();
    segment->value = static_cast<float*>(tensor->data());
    segment->after = segment->before = segment->value;
    if (moved) {
      const Tensor& before = held.start.NumElements() > 0 ? held.start : context->input(input);
      segment->before = static_cast<const float*>(before.data());
    }
    return absl::OkStatus();
  }

  // From this step on the variable includes its residual. Where it did not so far, because nothing
  // said that training would begin, or it has gone on while what all share was shown, the residual
  // of before this step has to be added.
  absl::Status BeginOwnModel(OpKernelContext* context, LockedVariables& variables, size_t i,
                             OwnModels* models, Buffers* held) const {
    const int64_t offset = attributes_.offsets[i];
    const Tensor& now = *variables[i].tensor();
    TF_RETURN_IF_ERROR(context->allocate_temp(now.dtype(), now.shape(), &held->residual));
    const int code = strom_replica_read_residual(attributes_.replica, offset, now.NumElements(),
                                                 static_cast<float*>(held->residual.data()));
    TF_RETURN_IF_ERROR(ToStatus(code, strom_last_error()));
    OwnModel model;
    model.state = OwnModel::State::kOwn;
    if (keep_shared_) {
      TF_RETURN_IF_ERROR(context->allocate_temp(now.dtype(), now.shape(), &model.other));
      const Tensor& before = HasRows(i)                      ? now
                             : held->start.NumElements() > 0 ? held->start
                                                             : context->input(BeforeInput(i));
      std::memcpy(model.other.data(), before.data(), before.TotalBytes());
      if (HasRows(i)) {
        PutRows(context->input(RowsInput(i)), context->input(RowsBeforeInput(i)), &model.other);
      }
    }
    models->Put(offset, std::move(model));
    return absl::OkStatus();
  }

  // Writes `values` into the `rows` of a table. Of a row that comes several times, the first
  // counts.
  static void PutRows(const Tensor& rows, const Tensor& values, Tensor* table) {
    const auto row = rows.flat<int64_t>();
    if (row.size() == 0) return;
    const int64_t elements = values.NumElements() / row.size();
    for (int64_t place = row.size(); place-- > 0;) {
      std::memcpy(static_cast<float*>(table->data()) + row(place) * elements,
                  static_cast<const float*>(values.data()) + place * elements,
                  static_cast<size_t>(elements) * sizeof(float));
    }
  }

  static void Add(const Tensor& residual, Tensor* values) {
    const auto* const more = static_cast<const float*>(residual.data());
    auto* const value = static_cast<float*>(values->data());
    for (int64_t i = 0; i < residual.NumElements(); ++i) {
      if (more[i] != 0) value[i] += more[i];  // Not value + 0, which would turn -0 into 0.
    }
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

  strom_step_options Options(OpKernelContext* context, const std::vector<float*>& momenta) const {
    strom_step_options options{};
    options.scale = context->input(inputs_.scale).scalar<float>()();
    options.clip_multiple = context->input(inputs_.clip_multiple).scalar<float>()();
    options.norm_limit = context->input(inputs_.norm_limit).scalar<float>()();
    options.iteration = context->input(inputs_.iteration).scalar<int64_t>()();
    options.send_mean = send_mean_;
    options.momenta = momenta.empty() ? nullptr : momenta.data();
    options.full = full_;
    options.apply_own = apply_own_;
    options.take_received = take_received_;
    return options;
  }

  ReplicaAttributes attributes_;
  Inputs inputs_;
  std::vector<bool> shares_;
  std::vector<std::string> names_;
  std::vector<int64_t> momentum_of_;  // the variable whose momentum the m-th of `momenta` is
  static constexpr int kWhole = -1;
  int row_variables_ = 0;          // R
  std::vector<int> row_variable_;  // which of those variable i is, or kWhole
  int32_t apply_own_ = 0;
  int32_t take_received_ = 0;
  int32_t send_mean_ = 0;
  bool compare_contents_ = false;
  bool full_ = false;
  bool keep_shared_ = false;
};

REGISTER_KERNEL_BUILDER(Name("StromStep").Device(tensorflow::DEVICE_CPU), StepOp);

}  // namespace keras_strom
