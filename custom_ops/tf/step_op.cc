// StromStep: the end of a training step inside `strategy.run`.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/device_step.h"
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
    bool apply_own = false, take_received = false, send_mean = false, draws = false;
    OP_REQUIRES_OK(context, context->GetAttr("apply_own", &apply_own));
    OP_REQUIRES_OK(context, context->GetAttr("take_received", &take_received));
    OP_REQUIRES_OK(context, context->GetAttr("compare_contents", &compare_contents_));
    OP_REQUIRES_OK(context, context->GetAttr("send_mean", &send_mean));
    OP_REQUIRES_OK(context, context->GetAttr("full", &full_));
    OP_REQUIRES_OK(context, context->GetAttr("keep_shared", &keep_shared_));
    OP_REQUIRES_OK(context, context->GetAttr("draws_threshold", &draws));
    OP_REQUIRES_OK(context, context->GetAttr("shares_rest", &shares_rest_));
    OP_REQUIRES(context, full_ ? !apply_own : !keep_shared_,
                absl::InvalidArgumentError("keep_shared is for full, and apply_own is not"));
    apply_own_ = apply_own;
    send_mean_ = send_mean;
    draws_threshold_ = draws;
    take_received_ = take_received;
  }

  // On a GPU, too, it works on the host, where others should not have to queue behind it.
  bool IsExpensive() override { return true; }

  void Compute(OpKernelContext* context) override {
    VariableThresholds thresholds;
    OP_REQUIRES_OK(context, thresholds.Read(context, inputs_.threshold, attributes_.variables));
    Run run(context);
    OP_REQUIRES_OK(context, run.variables.Lock(attributes_, inputs_.momenta,
                                               static_cast<int>(momentum_of_.size())));
    OP_REQUIRES_OK(context, FindChanged(&run, thresholds));
    RefCountPtr<HeldValues> progress;
    OP_REQUIRES_OK(context, HeldValues::Find(context, attributes_.replica, &progress));
    bool stepped = false, to_share = false;
    for (size_t i = 0; i < run.changed.size(); ++i) {
      stepped |= run.changed[i] && shares_[i];
      to_share |= shares_[i] && (run.changed[i] || progress->Has(attributes_.offsets[i]));
    }
    const bool sends = context->input(inputs_.sends).scalar<bool>()();
    strom_step_result result{};
    if (!(shares_rest_ ? to_share : stepped)) {
      OP_REQUIRES_OK(context, run.variables.StoreNone());
      OP_REQUIRES_OK(context, OutputStatistics(context, result));
      OP_REQUIRES_OK(context, thresholds.Output(context, 1));
      return;
    }
    int64_t assigned_outside = 0;
    OP_REQUIRES_OK(context, CountAssigned(&run, &assigned_outside));
    absl::Status shared;
    if (sends) {
      shared = Share(&run, *progress, thresholds, &result);
    } else {
      for (size_t i = 0; i < run.changed.size(); ++i) {
        if (!run.changed[i] || !shares_[i]) continue;
        progress->Hold(attributes_.offsets[i], context->input(BeforeInput(i)));
      }
      shared = run.variables.StoreNone();
    }
    // Also where sharing was refused: what that leaves in the variables nobody has assigned.
    OP_REQUIRES_OK(context, run.variables.RememberBuffers());
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

  // What the core reads of one variable, held until it has done so.
  struct Buffers {
    Tensor start;     // the value before local steps; empty where there were none
    Tensor after;     // what the optimizer wrote
    Tensor residual;  // before this step, of a variable that does not include it so far
  };

  // One run of the op.
  struct Run {
    explicit Run(OpKernelContext* op) : context(op), variables(op) {}

    OpKernelContext* context;
    LockedVariables variables;
    std::vector<bool> changed;    // of each variable: whether the optimizer has written it
    std::vector<Tensor> fetched;  // of each: `before` in the host's memory, on a device alone
    std::vector<Buffers> held;
  };

  // Of rows that wait, too, none is visited where no row has changed: the variable is left alone.
  bool StepsByRows(const Run& run, size_t i) const {
    return HasRows(i) && shares_[i] && run.changed[i];
  }

  // Variable i's value before the optimizer's step, in the host's memory.
  const Tensor& Before(const Run& run, size_t i) const {
    return run.variables.copies().on_device() ? run.fetched[i] : run.context->input(BeforeInput(i));
  }

  // Its buffer, for the variable's next value, if this op is its last reader; else an empty tensor.
  Tensor TakeBefore(Run* run, size_t i) const {
    if (run->variables.copies().on_device()) {
      return run->fetched[i].RefCountIsOne() ? std::exchange(run->fetched[i], Tensor()) : Tensor();
    }
    return ForwardBefore(run->context, i);
  }

  // The input itself, if this op is its last reader; else an empty tensor.
  Tensor ForwardBefore(OpKernelContext* context, size_t i) const {
    const int input = BeforeInput(i);
    const auto forwarded =
        context->forward_input(input, OpKernelContext::Params::kNoReservation, tensorflow::DT_FLOAT,
                               context->input(input).shape(), context->input_memory_type(input),
                               context->input_alloc_attr(input));
    return forwarded != nullptr ? *forwarded : Tensor();
  }

  // Shares what has changed in this step, and in local ones before it since the last time.
  absl::Status Share(Run* run, HeldValues& progress, VariableThresholds& thresholds,
                     strom_step_result* result) const {
    OpKernelContext* const context = run->context;
    LockedVariables& variables = run->variables;
    bool shared = false;
    TF_RETURN_IF_ERROR(ShareOnDevice(run, progress, thresholds, result, &shared));
    if (shared) return absl::OkStatus();
    TF_RETURN_IF_ERROR(Fetch(run, progress));
    std::vector<Buffers>& held = run->held;
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
      const bool moved = Moved(*run, i);
      const bool was_own = models->Get(attributes_.offsets[i]).state == OwnModel::State::kOwn;
      if (full_ && moved && !was_own) {
        TF_RETURN_IF_ERROR(BeginOwnModel(run, i, models.get()));
      }
      includes_residual.resize(segments.size(), includes_last);
      includes_last = was_own;
      if (StepsByRows(*run, i)) {
        TF_RETURN_IF_ERROR(PrepareRows(
            run, i, *waiting, &row_segments[static_cast<size_t>(row_variable_[i])], &segments));
        continue;
      }
      if (moved) TF_RETURN_IF_ERROR(PrepareMomentum(run, i, segments.size(), &momenta));
      strom_segment* const segment = &segments.emplace_back();
      TF_RETURN_IF_ERROR(full_ ? PrepareFullSegment(run, i, moved, segment)
                               : PrepareSegment(run, i, segment));
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
    const absl::Status stepped = ToStatus(code, strom_last_error());
    thresholds.Note(*result);
    for (size_t i = 0; i < variables.size(); ++i) {
      if (held[i].residual.NumElements() > 0) Add(held[i].residual, variables.tensor(i));
    }
    const absl::Status stored = Store(run, code == STROM_OK ? result : nullptr);
    TF_RETURN_IF_ERROR(stepped);
    TF_RETURN_IF_ERROR(stored);
    for (size_t i = 0; i < variables.size(); ++i) {
      if (!StepsByRows(*run, i)) continue;
      std::vector<int64_t> rows;
      const RowSegments& visited = row_segments[static_cast<size_t>(row_variable_[i])];
      TF_RETURN_IF_ERROR(visited.FindWaiting(attributes_.replica, thresholds.used(i), &rows));
      waiting->Set(attributes_.offsets[i], std::move(rows));
    }
    return absl::OkStatus();
  }

  // The same without a copy to the host where variables lie on a device and its kernels can do it
  // (tf/device_step.h); otherwise nothing has been done, and *shared is false.
  absl::Status ShareOnDevice(Run* run, HeldValues& progress, VariableThresholds& thresholds,
                             strom_step_result* result, bool* shared) const {
    OpKernelContext* const context = run->context;
    LockedVariables& variables = run->variables;
    if (!variables.copies().on_device()) return absl::OkStatus();
    const std::vector<const char*> lacking = KernelsLack(run, thresholds);
    for (const char* const name : lacking) {
      DeviceStep::WarnOfHost(context, absl::StrCat("the GPU's kernels do not have ", name));
    }
    if (!lacking.empty()) return absl::OkStatus();
    RefCountPtr<OwnModels> models;
    TF_RETURN_IF_ERROR(OwnModels::Find(context, attributes_.replica, &models));
    std::vector<strom_cuda_segment> segments;
    std::vector<size_t> variable_of;         // of each segment
    std::vector<int32_t> includes_residual;  // of each segment
    for (size_t i = 0; i < variables.size(); ++i) {
      const bool is_own = models->Get(attributes_.offsets[i]).state == OwnModel::State::kOwn;
      // The host begins with a variable's own model.
      const bool moved = shares_[i] && (run->changed[i] || progress.Has(attributes_.offsets[i]));
      if (moved && !is_own) return absl::OkStatus();
      const int64_t size = variables.placed(i).NumElements();
      if (size == 0) continue;
      segments.push_back(
          {attributes_.offsets[i], size, nullptr, nullptr, nullptr, nullptr, names_[i].c_str()});
      variable_of.push_back(i);
      includes_residual.push_back(is_own);
    }
    RefCountPtr<DeviceStep> step;
    TF_RETURN_IF_ERROR(DeviceStep::Find(context, attributes_.replica, &step));
    TF_RETURN_IF_ERROR(step->Prepare(context, attributes_.replica, segments, shared));
    if (!*shared) return absl::OkStatus();
    variables.ForgetMirrors();
    run->held.resize(variables.size());
    for (size_t k = 0; k < segments.size(); ++k) {
      const size_t i = variable_of[k];
      Buffers* const held = &run->held[i];
      if (shares_[i]) held->start = progress.Take(attributes_.offsets[i]);
      TF_RETURN_IF_ERROR(OwnPlaced(run, i));
      strom_cuda_segment* const segment = &segments[k];
      segment->value = static_cast<float*>(variables.placed(i).data());
      segment->after = segment->before = segment->value;
      if (!Moved(*run, i)) continue;
      const bool has_start = held->start.NumElements() > 0;
      const Tensor& before = has_start ? held->start : context->input(BeforeInput(i));
      segment->before = static_cast<const float*>(before.data());
    }
    strom_step_options options = Options(context, {});
    options.includes_residual = includes_residual.data();
    thresholds.Set(&options);
    const absl::Status stepped =
        step->Step(context, attributes_.replica, std::move(segments), options, result);
    thresholds.Note(*result);
    return stepped;
  }

  // What this step asks for that the device's kernels do not have, in words for the user.
  std::vector<const char*> KernelsLack(Run* run, const VariableThresholds& thresholds) const {
    bool any_copies_on_read = false;
    for (size_t i = 0; i < run->variables.size(); ++i) {
      any_copies_on_read |= run->variables.copies_on_read(i);
    }
    const float norm_limit = run->context->input(inputs_.norm_limit).scalar<float>()();
    const std::pair<bool, const char*> all[] = {
        {!full_, "local_apply=\"encoded\""},
        {send_mean_ != 0, "local_steps"},
        {row_variables_ > 0, "embeddings whose rows are shared"},
        {!momentum_of_.empty(), "momentum masking (momentum_masking=False turns it off)"},
        {thresholds.differ(), "a threshold for each variable"},
        {norm_limit != 0, "update_clipping"},
        {any_copies_on_read, "variables in TensorFlow's copy-on-read mode"},
    };
    std::vector<const char*> lacking;
    for (const auto& [asked, name] : all) {
      if (asked) lacking.push_back(name);
    }
    return lacking;
  }

  // Nobody else holds the variable's tensor then, but for `before` of one that has not changed.
  absl::Status OwnPlaced(Run* run, size_t i) const {
    if (!run->changed[i]) {
      run->variables.PutBack(i, Tensor());
      // Where this op is its last reader nobody looks at the input any more.
      const bool is_ours = ForwardBefore(run->context, i).NumElements() > 0;
      run->variables.PutBack(i, run->context->input(BeforeInput(i)));
      if (is_ours) return absl::OkStatus();
    }
    return run->variables.MakePlacedWritable(i);
  }

  // Whether there is something to share of a variable.
  bool Moved(const Run& run, size_t i) const {
    return shares_[i] && (run.changed[i] || run.held[i].start.NumElements() > 0);
  }

  // Brings what the core reads to the host: the variables, and what they were before this step, or
  // before the local ones.
  absl::Status Fetch(Run* run, HeldValues& progress) const {
    LockedVariables& variables = run->variables;
    run->held.resize(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      Tensor* const start = &run->held[i].start;
      if (shares_[i]) *start = progress.Take(attributes_.offsets[i]);
      if (!variables.copies().on_device()) continue;
      TF_RETURN_IF_ERROR(variables.Fetch(i));
      if (const int momentum = MomentumOf(i); momentum != kNone && Moved(*run, i)) {
        TF_RETURN_IF_ERROR(variables.FetchOther(static_cast<size_t>(momentum)));
      }
      const bool has_start = start->NumElements() > 0;
      if (has_start) TF_RETURN_IF_ERROR(variables.FetchEarlier(i, Tensor(*start), start));
      const bool reads_before = !HasRows(i) && (!run->changed[i] || (shares_[i] && !has_start));
      if (reads_before && run->fetched[i].NumElements() == 0) {
        const Tensor& before = run->context->input(BeforeInput(i));
        TF_RETURN_IF_ERROR(variables.FetchEarlier(i, before, &run->fetched[i]));
      }
    }
    if (full_) variables.KeepMirrors();
    return variables.AwaitFetched();
  }

  // Gives the variables their next values where they lie on a device. `result` null: the step has
  // failed.
  absl::Status Store(Run* run, const strom_step_result* result) const {
    std::vector<bool> written(run->variables.size(), true);
    if (result == nullptr) return run->variables.Store(written, true);
    for (size_t i = 0; i < written.size(); ++i) {
      // Values that include the residual are as the optimizer wrote them; others are put back.
      written[i] = result->values_written != 0 || (!full_ && run->changed[i]) ||
                   run->held[i].residual.NumElements() > 0;
    }
    return run->variables.Store(written, result->count > 0);
  }

  absl::Status FindChanged(Run* run, const VariableThresholds& thresholds) const {
    LockedVariables& variables = run->variables;
    std::vector<LockedVariables::Earlier> whole;
    for (size_t i = 0; i < variables.size(); ++i) {
      if (!HasRows(i)) whole.push_back({i, &run->context->input(BeforeInput(i))});
    }
    std::vector<bool> changed;
    std::vector<Tensor> fetched;
    bool compared = false;
    if (compare_contents_) {
      TF_RETURN_IF_ERROR(CompareOnDevice(run, thresholds, whole, &changed, &compared));
      fetched.resize(whole.size());
    }
    if (!compared) {
      TF_RETURN_IF_ERROR(variables.FindChanged(whole, compare_contents_, &changed, &fetched));
    }
    run->changed.resize(variables.size());
    run->fetched.resize(variables.size());
    for (size_t i = 0, k = 0; i < variables.size(); ++i) {
      if (HasRows(i)) {
        run->changed[i] = run->context->input(RowsInput(i)).NumElements() > 0;
        continue;
      }
      run->changed[i] = changed[k];
      run->fetched[i] = std::move(fetched[k]);
      // The variable gets its buffer back, by which CountAssigned knows it.
      if (!changed[k] && !variables.copies_on_read(i)) {
        variables.PutBack(i, *whole[k].before);
        run->fetched[i] = Tensor();  // It is what was fetched of the variable.
      }
      ++k;
    }
    return absl::OkStatus();
  }

  // Which variables have other contents than before, without a copy to the host; nothing is
  // compared where the device's kernels cannot do this step.
  absl::Status CompareOnDevice(Run* run, const VariableThresholds& thresholds,
                               const std::vector<LockedVariables::Earlier>& earlier,
                               std::vector<bool>* changed, bool* compared) const {
    OpKernelContext* const context = run->context;
    if (!run->variables.copies().on_device() || !KernelsLack(run, thresholds).empty()) {
      return absl::OkStatus();
    }
    std::vector<strom_cuda_segment> all, moved;
    std::vector<size_t> place;  // of each that has moved, among `earlier`
    for (size_t k = 0; k < earlier.size(); ++k) {
      const auto [i, before] = earlier[k];
      const Tensor& now = run->variables.placed(i);
      if (before->NumElements() != now.NumElements()) return absl::OkStatus();
      if (now.NumElements() == 0) continue;
      strom_cuda_segment segment{};
      segment.offset = attributes_.offsets[i];
      segment.size = now.NumElements();
      segment.name = names_[i].c_str();
      all.push_back(segment);
      if (before->data() == now.data()) continue;
      segment.before = static_cast<const float*>(before->data());
      segment.after = static_cast<const float*>(now.data());
      moved.push_back(segment);
      place.push_back(k);
    }
    RefCountPtr<DeviceStep> step;
    TF_RETURN_IF_ERROR(DeviceStep::Find(context, attributes_.replica, &step));
    TF_RETURN_IF_ERROR(step->Prepare(context, attributes_.replica, all, compared));
    if (!*compared) return absl::OkStatus();
    std::vector<int32_t> differ;
    TF_RETURN_IF_ERROR(step->Compare(moved, &differ));
    changed->assign(earlier.size(), false);
    for (size_t j = 0; j < place.size(); ++j) (*changed)[place[j]] = differ[j] != 0;
    return absl::OkStatus();
  }

  absl::Status CountAssigned(Run* run, int64_t* assigned) const {
    std::vector<const void*> found(run->variables.size());
    for (size_t i = 0; i < found.size(); ++i) {
      // What is not shared (a target network) may be assigned at any time.
      const bool watched = shares_[i] && !HasRows(i) && !run->variables.copies_on_read(i);
      found[i] = watched ? run->context->input(BeforeInput(i)).data() : nullptr;
    }
    std::vector<bool> found_assigned;
    TF_RETURN_IF_ERROR(run->variables.FindAssigned(found, &found_assigned));
    *assigned = std::count(found_assigned.begin(), found_assigned.end(), true);
    return absl::OkStatus();
  }

  absl::Status PrepareRows(Run* run, size_t i, const WaitingRows& waiting, RowSegments* rows,
                           std::vector<strom_segment>* segments) const {
    Tensor* const tensor = run->variables.tensor(i);
    TF_RETURN_IF_ERROR(MakeWritable(run->variables.copies(), tensor));
    const int64_t offset = attributes_.offsets[i];
    return rows->Append(run->context->input(RowsInput(i)), run->context->input(RowsBeforeInput(i)),
                        waiting.Get(offset), tensor, offset, names_[i].c_str(), segments);
  }

  // Gives the variable the buffer for its next value: the `before` buffer itself where this op is
  // its last reader (no copy), else the one that the optimizer wrote, else a new one.
  absl::Status PrepareSegment(Run* run, size_t i, strom_segment* segment) const {
    const HostCopies& copies = run->variables.copies();
    const bool changed = run->changed[i];
    Buffers* const held = &run->held[i];
    Tensor* tensor = run->variables.tensor(i);
    segment->offset = attributes_.offsets[i];
    segment->size = tensor->NumElements();
    segment->name = names_[i].c_str();
    if ((changed && !shares_[i]) || HasRows(i)) {
      TF_RETURN_IF_ERROR(MakeWritable(copies, tensor));
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
        TF_RETURN_IF_ERROR(NewBuffer(copies, held->start, tensor));
      }
      segment->value = static_cast<float*>(tensor->data());
      return absl::OkStatus();
    }
    const Tensor& before = Before(*run, i);
    segment->before = static_cast<const float*>(before.data());
    segment->after = changed ? static_cast<const float*>(after->data()) : segment->before;
    // An unchanged variable shares its buffer with `before`; let go of it, or it is never the last.
    if (!changed) *tensor = *after = Tensor();
    Tensor forwarded = TakeBefore(run, i);
    if (forwarded.NumElements() > 0) {
      *tensor = std::move(forwarded);
    } else if (changed) {
      *after = Tensor();
      if (!tensor->RefCountIsOne()) {
        *after = *tensor;
        TF_RETURN_IF_ERROR(NewBuffer(copies, before, tensor));
      }
    } else {
      TF_RETURN_IF_ERROR(NewBuffer(copies, before, tensor));
    }
    segment->value = static_cast<float*>(tensor->data());
    return absl::OkStatus();
  }

  // The same where the variable includes the residual: its next value is what the optimizer wrote.
  absl::Status PrepareFullSegment(Run* run, size_t i, bool moved, strom_segment* segment) const {
    const Buffers& held = run->held[i];
    Tensor* tensor = run->variables.tensor(i);
    bool is_ours = false;
    if (!run->changed[i] && !HasRows(i)) {
      // It shares its buffer with `before`: let go of it, or this op is never its last holder.
      *tensor = Tensor();
      Tensor forwarded = TakeBefore(run, i);
      is_ours = forwarded.NumElements() > 0;
      *tensor = is_ours ? std::move(forwarded) : Before(*run, i);
    }
    // A forwarded buffer has the input as its other holder, which nobody looks at any more.
    if (!is_ours) TF_RETURN_IF_ERROR(MakeWritable(run->variables.copies(), tensor));
    segment->offset = attributes_.offsets[i];
    segment->size = tensor->NumElements();
    segment->name = names_[i].c_str();
    segment->value = static_cast<float*>(tensor->data());
    segment->after = segment->before = segment->value;
    if (moved) {
      const Tensor& before = held.start.NumElements() > 0 ? held.start : Before(*run, i);
      segment->before = static_cast<const float*>(before.data());
    }
    return absl::OkStatus();
  }

  // From this step on the variable includes its residual. Where it did not so far, because nothing
  // said that training would begin, or it has gone on while what all share was shown, the residual
  // of before this step has to be added.
  absl::Status BeginOwnModel(Run* run, size_t i, OwnModels* models) const {
    const HostCopies& copies = run->variables.copies();
    const int64_t offset = attributes_.offsets[i];
    const Tensor& now = *run->variables.tensor(i);
    Buffers* const held = &run->held[i];
    TF_RETURN_IF_ERROR(NewBuffer(copies, now, &held->residual));
    const int code = strom_replica_read_residual(attributes_.replica, offset, now.NumElements(),
                                                 static_cast<float*>(held->residual.data()));
    TF_RETURN_IF_ERROR(ToStatus(code, strom_last_error()));
    OwnModel model;
    model.state = OwnModel::State::kOwn;
    if (keep_shared_) {
      TF_RETURN_IF_ERROR(NewBuffer(copies, now, &model.other));
      const Tensor& before = HasRows(i)                      ? now
                             : held->start.NumElements() > 0 ? held->start
                                                             : Before(*run, i);
      std::memcpy(model.other.data(), before.data(), before.TotalBytes());
      if (HasRows(i)) {
        const Tensor& rows = run->context->input(RowsInput(i));
        const Tensor& values = run->context->input(RowsBeforeInput(i));
        TF_RETURN_IF_ERROR(CheckRows(rows, values, now));
        PutRows(rows, values, &model.other);
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

  static absl::Status NewBuffer(const HostCopies& copies, const Tensor& like, Tensor* tensor) {
    return copies.NewTensor(tensorflow::DT_FLOAT, like.shape(), tensor);
  }

  // Which of the momenta is that of variable i; kNone if it has none, or that is not to be cleared.
  int MomentumOf(size_t i) const {
    const auto found =
        std::lower_bound(momentum_of_.begin(), momentum_of_.end(), static_cast<int64_t>(i));
    const bool has = found != momentum_of_.end() && *found == static_cast<int64_t>(i);
    return has ? static_cast<int>(found - momentum_of_.begin()) : kNone;
  }

  // Notes the momentum of variable i, if it has one and it is to be cleared, as that of the segment
  // with index `segment`. Optimizers with momentum move all rows, so it is the variable's only one.
  absl::Status PrepareMomentum(Run* run, size_t i, size_t segment,
                               std::vector<float*>* momenta) const {
    const int momentum = MomentumOf(i);
    if (momentum == kNone) return absl::OkStatus();
    Tensor* tensor = run->variables.other(static_cast<size_t>(momentum));
    if (tensor->NumElements() != run->variables.tensor(i)->NumElements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the momentum of '", names_[i], "' has another size than the variable"));
    }
    TF_RETURN_IF_ERROR(MakeWritable(run->variables.copies(), tensor));
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
    options.draws_threshold = draws_threshold_;
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
  static constexpr int kNone = -1;
  int row_variables_ = 0;          // R
  std::vector<int> row_variable_;  // which of those variable i is, or kWhole
  int32_t apply_own_ = 0;
  int32_t take_received_ = 0;
  int32_t send_mean_ = 0;
  int32_t draws_threshold_ = 0;
  bool compare_contents_ = false;
  bool full_ = false;
  bool keep_shared_ = false;
  bool shares_rest_ = false;
};

REGISTER_KERNEL_BUILDER(Name("StromStep").Device(tensorflow::DEVICE_CPU), StepOp);
// What an optimizer changes in rows is looked at by the host alone.
REGISTER_KERNEL_BUILDER(Name("StromStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("threshold")
                            .HostMemory("scale")
                            .HostMemory("clip_multiple")
                            .HostMemory("norm_limit")
                            .HostMemory("iteration")
                            .HostMemory("sends")
                            .HostMemory("rows")
                            .HostMemory("rows_before")
                            .HostMemory("momenta")
                            .HostMemory("statistics")
                            .HostMemory("by_variable"),
                        StepOp);

}  // namespace keras_strom
