#include "core/step/compression_state.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/device_residual.h"
#include "core/step/own_model.h"
#include "core/step/received_values.h"
#include "core/step/residual.h"
#include "core/step/residual_store.h"
#include "core/step/sent_entries.h"
#include "core/step/step_encoder.h"
#include "core/step/step_thresholds.h"
#include "core/step/update_norm.h"

namespace strom {
namespace {

using Messages = std::vector<std::vector<uint8_t>>;

Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// Values are what they were before, where there is no step, it has failed or leaves them alone.
void CopyValues(std::span<const strom_segment> segments) {
  for (const strom_segment& segment : segments) {
    if (segment.before == nullptr || segment.value == segment.before) continue;
    std::copy_n(segment.before, segment.size, segment.value);
  }
}

Status CheckOptions(const strom_step_options& options) {
  if (!std::isfinite(options.scale)) return Invalid("the scale must be finite");
  if (!std::isfinite(options.clip_multiple) || options.clip_multiple < 0) {
    return Invalid("the clipping multiple must be a finite number, 0 to clip nothing");
  }
  if (!(options.norm_limit >= 0)) {
    return Invalid("the limit on the update's norm must be a number, 0 for none");
  }
  if (options.full != 0 && options.apply_own != 0) {
    return Invalid("`full` leaves the own update in the values: apply_own would add it twice");
  }
  return {};
}

// Values that include the residual are the optimizer's own, in place.
Status CheckInPlace(std::span<const strom_segment> segments) {
  for (const strom_segment& segment : segments) {
    if (segment.before != nullptr && segment.value != segment.after) {
      return Invalid("`full` needs each segment's value where the optimizer wrote it, `after`");
    }
  }
  return {};
}

// Measures the update, and returns what it has to be multiplied by to keep to the limit.
float LimitNorm(std::span<const strom_segment> segments, const strom_step_options& options,
                const Parallel& parallel, strom_step_result* result) {
  if (options.norm_limit == 0) return 1;
  const UpdateSize update = MeasureUpdate(segments, parallel);
  // The step kernel finds and names what is not finite.
  if (!std::isfinite(update.norm)) return 1;
  result->update_norm = update.norm;
  const auto limit = static_cast<double>(options.norm_limit);
  if (update.norm <= limit) return 1;
  const auto factor = static_cast<float>(limit / update.norm);
  result->limited_mass = (1 - static_cast<double>(factor)) *
                         std::fabs(static_cast<double>(options.scale)) * update.mass;
  return factor;
}

// What others say of their steps, and of how many updates are in one, is no more than their word: a
// sum that no int64_t holds stays at the most that a double has exactly.
void AddStaleness(double steps, strom_step_result* result) {
  const double sum = static_cast<double>(result->staleness) + std::max(0.0, steps);
  result->staleness = static_cast<int64_t>(std::min(sum, 0x1p53));
}

Status CheckIteration(int64_t iteration) {
  if (iteration >= 0 && iteration <= kMaxIteration) return {};
  return Invalid("the iteration " + std::to_string(iteration) + " is not in [0, 2^35)");
}

// The length of raw spans: 2^14 elements, fewer where one would not fit into a message.
int RawLog2Span(int64_t max_bytes) {
  int log2_span = 14;
  while (2 * kMaxMessageHeaderBytes + (int64_t{sizeof(float)} << log2_span) > max_bytes) {
    --log2_span;
  }
  return log2_span;
}

}  // namespace

struct CompressionState::State {
  int64_t max_message_bytes = 0;  // of the codec, without the update's header
  int64_t size = 0;
  std::shared_ptr<Exchange> exchange;
  ResidualStore residuals;
  DeviceResidual elsewhere;  // what of them lies on a device
  StepEncoder encoder;
  StepThresholds thresholds;
  bool own_applied = false;  // whether the values hold its entries, apart from the residual
  uint64_t own_origin = 0;   // this worker's, once it has sent something
  VersionVector applied;
  int64_t iteration = 0;  // of the latest step
  Received waiting;       // taken from the exchange, not yet applied
  bool keep = false;
  Messages kept;

  Status CheckSegments(std::span<const strom_segment> segments) const;
  Status CheckApplyOwn(bool apply_own) const;
  Status CheckStep(std::span<const strom_segment> segments,
                   const strom_step_options& options) const;
  Status CheckStepOnDevice(std::span<const strom_segment> segments,
                           const strom_step_options& options) const;

  ValuesOnHost OnHost(std::span<const strom_segment> segments, const Parallel& parallel) const;

  // Step's parts.
  Status Send(std::span<const strom_segment> segments, const strom_step_options& options,
              const Parallel& parallel, strom_step_result* result);
  Status Encode(std::span<const strom_segment> segments, const StepRules& rules, bool send_mean,
                const Parallel& parallel, strom_step_result* result);
  void TakeBack(std::span<const strom_segment> segments, bool full);
  Status SendFromDevice(const strom_step_device& device, strom_step_result* result);

  Status HandOver(int64_t iteration, int64_t count, Messages parts, strom_step_result* result);
  Status HandOverChunks(int64_t iteration, int64_t first, int64_t last,
                        strom_residual_result* result);
  void TellApplied(int64_t count);
  Status ApplyReceived(ReceivedValues& values, strom_step_result* result);
  Status ApplyWaiting(ReceivedValues& values, strom_step_result* result);
  void NoteAdded(const ReceivedUpdate& update, int64_t stepped, strom_step_result* result);
  void Note(uint64_t origin, uint64_t first, uint64_t last);
};

CompressionState::CompressionState(int64_t max_message_bytes) : state_(std::make_unique<State>()) {
  const int64_t longest = std::min(max_message_bytes, kMaxMessageBytes - kMergedRoomBytes);
  state_->max_message_bytes = longest - kUpdateHeaderBytes;
  STROM_CHECK(state_->max_message_bytes >= kMinMessageBytes);
}

CompressionState::~CompressionState() = default;

Status CompressionState::Extend(int64_t size) {
  if (size < state_->size) {
    return Invalid("the flat space of " + std::to_string(state_->size) +
                   " elements cannot shrink to " + std::to_string(size));
  }
  if (size > kMaxElements) return Invalid("the flat space holds at most 2^39 elements");
  state_->size = size;
  return {};
}

int64_t CompressionState::size() const { return state_->size; }

int64_t CompressionState::max_message_bytes() const { return state_->max_message_bytes; }

void CompressionState::Bind(std::shared_ptr<Exchange> exchange) {
  if (exchange == state_->exchange) return;
  state_->exchange = std::move(exchange);
  state_->applied.clear();
  state_->waiting = {};
}

const std::shared_ptr<Exchange>& CompressionState::exchange() const { return state_->exchange; }

Status CompressionState::Step(std::span<const strom_segment> segments,
                              const strom_step_options& options, strom_step_result* result,
                              const Parallel& parallel) {
  *result = {};
  result->threshold = options.threshold;
  if (Status status = state_->CheckStep(segments, options); !status.ok()) {
    CopyValues(segments);
    return status;
  }
  const auto changed = [](const strom_segment& segment) { return segment.after != segment.before; };
  if (std::none_of(segments.begin(), segments.end(), changed)) {
    CopyValues(segments);
    return {};
  }
  if (Status status = state_->elsewhere.BringBack(&state_->residuals); !status.ok()) {
    CopyValues(segments);
    return status;
  }

  result->stepped = 1;
  state_->iteration = options.iteration;
  state_->encoder.Clear();
  const bool full = options.full != 0;
  Status status;
  try {
    status = state_->Send(segments, options, parallel, result);
  } catch (const std::exception&) {  // Nothing is lost when memory runs out.
    state_->TakeBack(segments, full);
    throw;
  }
  if (!status.ok()) {
    state_->TakeBack(segments, full);
    if (full && status.code == Code::kNotFinite) UndoProgress(segments, &state_->residuals);
    return status;
  }
  MaskMomenta(state_->encoder.entries(), segments, options.momenta,
              ForEntries(result->count, parallel));
  state_->TellApplied(result->count);
  if (!options.take_received) return {};
  ValuesOnHost values = state_->OnHost(segments, parallel);
  values.full = full;
  values.includes_residual = options.includes_residual;
  return state_->ApplyReceived(values, result);
}

Status CompressionState::StepOnDevice(const strom_step_device& device,
                                      std::span<const strom_segment> segments,
                                      const strom_step_options& options,
                                      strom_step_result* result) {
  State& state = *state_;
  *result = {};
  result->threshold = options.threshold;
  if (Status status = state.CheckStepOnDevice(segments, options); !status.ok()) return status;
  Status status = state.elsewhere.MoveTo(device, segments, state.size, &state.residuals);
  if (!status.ok()) return status;
  state.iteration = options.iteration;
  state.thresholds.Begin(segments, options, state.exchange != nullptr && state.exchange->merges());
  strom_step_options chosen = options;
  chosen.threshold = state.thresholds.thresholds()[0];
  status = StatusOf(device, device.step(device.context, state.size, &chosen, result));
  state.thresholds.Finish(result);
  if (!status.ok()) return status;
  try {
    status = state.SendFromDevice(device, result);
  } catch (const std::exception&) {  // Nothing is lost when memory runs out.
    device.take_back(device.context);
    throw;
  }
  if (!status.ok()) {
    device.take_back(device.context);
    return status;
  }
  state.TellApplied(result->count);
  if (!options.take_received) return {};
  ValuesOnDevice values;
  values.device = &device;
  values.residual = &state.elsewhere;
  values.segments = segments;
  values.includes_residual = options.includes_residual;
  values.flat_size = state.size;
  return state.ApplyReceived(values, result);
}

Status CompressionState::Apply(std::span<const strom_segment> segments, strom_step_result* result,
                               const Parallel& parallel, float* const* own_models) {
  *result = {};
  if (Status status = state_->CheckSegments(segments); !status.ok()) return status;
  ValuesOnHost values = state_->OnHost(segments, parallel);
  values.own_models = own_models;
  return state_->ApplyReceived(values, result);
}

Status CompressionState::ApplyOnDevice(const strom_step_device& device,
                                       std::span<const strom_segment> segments,
                                       strom_step_result* result, const Parallel& parallel) {
  *result = {};
  if (Status status = state_->CheckSegments(segments); !status.ok()) return status;
  if (state_->exchange != nullptr && !state_->exchange->sequenced()) {
    return Invalid("in asynchronous mode a step applies what was received to values on a device");
  }
  std::vector<strom_segment> shared;
  std::ranges::copy_if(segments, std::back_inserter(shared),
                       [](const strom_segment& segment) { return segment.value != nullptr; });
  OwnModelsOnDevice values;
  values.device = &device;
  values.flat_size = state_->size;
  values.shared = state_->OnHost(shared, parallel);
  return state_->ApplyReceived(values, result);
}

Status CompressionState::AddResidual(std::span<const strom_segment> segments, int32_t sign,
                                     const Parallel& parallel) {
  if (sign != 1 && sign != -1) return Invalid("the sign must be 1 or -1");
  if (Status status = state_->CheckSegments(segments); !status.ok()) return status;
  Status status = state_->elsewhere.BringBack(&state_->residuals);
  if (!status.ok()) return status;
  AddResiduals(segments, static_cast<float>(sign), state_->residuals, parallel);
  return {};
}

Status CompressionState::ReadResidual(int64_t offset, std::span<float> out) const {
  const auto size = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > state_->size - size) {
    return Invalid("the residuals asked for lie outside the flat space");
  }
  ForEachChunk(offset, size, [&](int64_t chunk, int64_t index, int64_t start, int64_t elements) {
    const float* const residuals = state_->residuals.Find(chunk);
    if (residuals == nullptr) {
      std::fill_n(out.data() + start, elements, 0.0f);
    } else {
      std::copy_n(residuals + index, elements, out.data() + start);
    }
  });
  return state_->elsewhere.Read(offset, out);
}

Status CompressionState::WriteResidual(int64_t offset, std::span<const float> in) {
  const auto size = static_cast<int64_t>(in.size());
  if (offset < 0 || offset > state_->size - size) {
    return Invalid("the residuals given lie outside the flat space");
  }
  const auto bad = std::find_if(in.begin(), in.end(), [](float r) { return !std::isfinite(r); });
  if (bad != in.end()) {
    return Invalid("the residual of flat element " +
                   std::to_string(offset + std::distance(in.begin(), bad)) + " is not finite");
  }
  Status status = state_->elsewhere.BringBack(&state_->residuals);
  if (!status.ok()) return status;
  ForEachChunk(offset, size, [&](int64_t chunk, int64_t index, int64_t start, int64_t elements) {
    std::copy_n(in.data() + start, elements, state_->residuals.Touch(chunk) + index);
  });
  return {};
}

void CompressionState::KeepMessages(bool keep) {
  state_->keep = keep;
  state_->kept.clear();
}

const std::vector<std::vector<uint8_t>>& CompressionState::kept_messages() const {
  return state_->kept;
}

Status CompressionState::State::CheckSegments(std::span<const strom_segment> segments) const {
  int64_t end = 0;
  for (const strom_segment& segment : segments) {
    if (segment.size < 0 || segment.offset < end || segment.offset > size - segment.size) {
      return Invalid("segments must ascend without overlap inside the flat space of " +
                     std::to_string(size) + " elements; one at " + std::to_string(segment.offset) +
                     " with " + std::to_string(segment.size) + " does not");
    }
    end = segment.offset + segment.size;
  }
  return {};
}

ValuesOnHost CompressionState::State::OnHost(std::span<const strom_segment> segments,
                                             const Parallel& parallel) const {
  ValuesOnHost values;
  values.segments = segments;
  values.residuals = &residuals;
  values.parallel = parallel;
  return values;
}

Status CompressionState::State::CheckApplyOwn(bool apply_own) const {
  if (!apply_own || exchange == nullptr || !exchange->sequenced()) return {};
  return Invalid(
      "apply_own must be 0 in synchronous and bounded modes: own updates come back in a "
      "STEP and would be applied twice");
}

Status CompressionState::State::CheckStep(std::span<const strom_segment> segments,
                                          const strom_step_options& options) const {
  if (Status status = StepThresholds::Check(segments, options); !status.ok()) return status;
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckIteration(options.iteration); !status.ok()) return status;
  if (Status status = CheckSegments(segments); !status.ok()) return status;
  if (options.full != 0) return CheckInPlace(segments);
  return CheckApplyOwn(options.apply_own != 0);
}

Status CompressionState::State::CheckStepOnDevice(std::span<const strom_segment> segments,
                                                  const strom_step_options& options) const {
  if (options.full == 0 || options.thresholds != nullptr || options.norm_limit != 0 ||
      options.momenta != nullptr || options.send_mean != 0) {
    return Invalid(
        "a step on a device is `full`, with one threshold and none of norm_limit, momenta and "
        "send_mean");
  }
  if (Status status = StepThresholds::Check(segments, options); !status.ok()) return status;
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckIteration(options.iteration); !status.ok()) return status;
  return CheckSegments(segments);
}

// Takes what leaves out of the residuals and hands it over. Where it fails or throws, that has not
// been sent and is to be taken back.
Status CompressionState::State::Send(std::span<const strom_segment> segments,
                                     const strom_step_options& options, const Parallel& parallel,
                                     strom_step_result* result) {
  const bool merges = exchange != nullptr && exchange->merges();
  thresholds.Begin(segments, options, merges);
  StepRules rules{{}, thresholds.thresholds(), options.clip_multiple, options.full != 0};
  rules.rule.apply_own = options.apply_own != 0;
  rules.rule.scale = options.scale * LimitNorm(segments, options, parallel, result);
  const bool send_mean = options.send_mean != 0;
  if (Status status = Encode(segments, rules, send_mean, parallel, result); !status.ok()) {
    return status;
  }
  if (rules.full && (rules.rule.scale != 1 || result->clipped_count > 0)) {
    result->values_written = 1;
  }
  const std::vector<ValueRun> runs = thresholds.Finish(result);
  if (options.segment_results != nullptr) {
    std::ranges::copy(thresholds.results(), options.segment_results);
  }
  const MessageFields fields{result->threshold, result->value, size, iteration, runs};
  return HandOver(iteration, result->count,
                  WriteEntries(fields, encoder.entries(), max_message_bytes, kUpdateHeaderBytes, {},
                               ForEntries(result->count, parallel)),
                  result);
}

// Runs the step kernel over the segments: residuals and values change.
Status CompressionState::State::Encode(std::span<const strom_segment> segments,
                                       const StepRules& rules, bool send_mean,
                                       const Parallel& parallel, strom_step_result* result) {
  StepRules found = rules;
  found.rule.apply_own = rules.rule.apply_own && !send_mean;  // SendMean does it.
  StepStatistics statistics = encoder.Encode(segments, found, &residuals, parallel);
  own_applied = found.rule.apply_own;
  for (const strom_segment& segment : segments) {
    if (segment.after != segment.before) {
      result->elements += segment.size;
    } else {
      CopyValues({&segment, 1});
    }
  }
  result->count = encoder.entries().size();
  encoder.DescribeSegments(segments, rules.thresholds, thresholds.results());
  if (send_mean && statistics.nonfinite_count == 0) {
    SendMean(encoder.entries(), segments, rules.thresholds, rules.rule.apply_own, &residuals,
             thresholds.means(), {&statistics, thresholds.results()},
             ForEntries(result->count, parallel));
    own_applied = rules.rule.apply_own;
  }
  result->max_residual = statistics.max_residual;
  result->sum_residual = statistics.sum_residual;
  result->clipped_mass = statistics.clipped_mass;
  result->clipped_count = statistics.clipped_count;
  if (statistics.nonfinite_count == 0) return {};
  return {Code::kNotFinite, encoder.DescribeNonfinite(segments) + kNotFiniteRemedy};
}

// Undoes the sending of a step that failed. Needs no memory.
void CompressionState::State::TakeBack(std::span<const strom_segment> segments, bool full) {
  TakeBackEntries(encoder.entries(), segments, thresholds.values(), own_applied, &residuals);
  // Where they are not in place, to the last bit. Full progress stays, once it is in the residual.
  if (!full || !encoder.has_begun()) CopyValues(segments);
  encoder.Clear();
}

// Hands over the messages of the step that the device has just done.
Status CompressionState::State::SendFromDevice(const strom_step_device& device,
                                               strom_step_result* result) {
  Messages parts;
  int64_t bytes = 0;
  const auto ask = [&](uint8_t* out, int64_t capacity) {
    return device.message(device.context, static_cast<int64_t>(parts.size()), out, capacity,
                          &bytes);
  };
  for (;;) {
    int code = ask(nullptr, 0);
    if (code == static_cast<int>(Code::kInvalidArgument)) break;  // There are no more.
    if (Status status = StatusOf(device, code); !status.ok()) return status;
    std::vector<uint8_t> part(static_cast<size_t>(kUpdateHeaderBytes + bytes));
    code = ask(part.data() + kUpdateHeaderBytes, bytes);
    if (Status status = StatusOf(device, code); !status.ok()) return status;
    parts.push_back(std::move(part));
  }
  if (parts.empty() && result->count > 0) {
    return {Code::kInternal, "the device has no message of the step that it has done"};
  }
  result->message_bytes = 0;  // HandOver counts them.
  return HandOver(iteration, result->count, std::move(parts), result);
}

Status CompressionState::HandOverResidual(int64_t iteration, strom_residual_result* result) {
  *result = {};
  if (state_->exchange == nullptr) return Invalid("there is nobody to hand the residual over to");
  if (Status status = CheckIteration(iteration); !status.ok()) return status;
  Status status = state_->elsewhere.BringBack(&state_->residuals);
  if (!status.ok()) return status;
  const int64_t chunks = (state_->size + kChunk - 1) / kChunk;
  // A step's contribution is one update, but elsewhere each chunk leaves as there is room for it.
  if (state_->exchange->sequenced()) {
    return state_->HandOverChunks(iteration, 0, chunks, result);
  }
  bool any = false;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (state_->residuals.Find(chunk) == nullptr) continue;
    status = state_->HandOverChunks(iteration, chunk, chunk + 1, result);
    if (!status.ok()) return status;
    any = true;
  }
  return any ? Status{} : state_->HandOverChunks(iteration, 0, 0, result);
}

// Chunks [first, last) of the residual, as one update.
Status CompressionState::State::HandOverChunks(int64_t iteration, int64_t first, int64_t last,
                                               strom_residual_result* result) {
  const int log2_span = RawLog2Span(max_message_bytes);
  const int64_t span_elements = int64_t{1} << log2_span;
  MessageWriter writer({.elements = size, .iteration = iteration}, log2_span, max_message_bytes,
                       kUpdateHeaderBytes);
  strom_residual_result now{};
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const float* const found = residuals.Find(chunk);
    if (found == nullptr) continue;
    const std::span<const float> values(
        found, static_cast<size_t>(std::min(kChunk, size - chunk * kChunk)));
    for (const float r : values) {
      now.elements += r != 0 ? 1 : 0;
      now.mass += std::fabs(static_cast<double>(r));
    }
    const auto length = static_cast<int64_t>(values.size());
    for (int64_t start = 0; start < length; start += span_elements) {
      writer.AddRawSpan(
          (chunk * kChunk + start) / span_elements,
          values.subspan(static_cast<size_t>(start),
                         static_cast<size_t>(std::min(span_elements, length - start))));
    }
  }
  Messages parts = writer.Finish();
  for (const std::vector<uint8_t>& part : parts) {
    now.message_bytes += static_cast<int64_t>(part.size()) - kUpdateHeaderBytes;
  }
  UpdateId id;
  if (Status status = exchange->Submit(iteration, std::move(parts), &id); !status.ok()) {
    return status;
  }
  for (int64_t chunk = first; chunk < last; ++chunk) {
    if (residuals.Find(chunk) != nullptr) std::fill_n(residuals.Touch(chunk), kChunk, 0.0f);
  }
  result->elements += now.elements;
  result->message_bytes += now.message_bytes;
  result->mass += now.mass;
  return {};
}

// Keeps copies if asked to, and submits. An update without entries tells asynchronous workers
// nothing, so it goes out only where the others wait for it. Where it fails or throws, nothing has
// been submitted.
Status CompressionState::State::HandOver(int64_t iteration, int64_t count, Messages parts,
                                         strom_step_result* result) {
  kept.clear();
  for (const std::vector<uint8_t>& part : parts) {
    result->message_bytes += static_cast<int64_t>(part.size()) - kUpdateHeaderBytes;
    if (keep) kept.emplace_back(part.begin() + kUpdateHeaderBytes, part.end());
  }
  if (exchange == nullptr || (count == 0 && !exchange->sequenced())) return {};
  applied.reserve(applied.size() + 1);  // Memory must not be missing afterwards.
  UpdateId last;
  if (Status status = exchange->Submit(iteration, std::move(parts), &last); !status.ok()) {
    return status;
  }
  own_origin = last.origin;
  if (!exchange->sequenced()) applied[last.origin] = last.counter;
  return {};
}

// The values contain the own update of so many entries.
void CompressionState::State::TellApplied(int64_t count) {
  if (exchange != nullptr && count > 0 && !exchange->sequenced()) exchange->SetApplied(applied);
}

Status CompressionState::State::ApplyReceived(ReceivedValues& values, strom_step_result* result) {
  if (exchange == nullptr) return {};
  // What an earlier call could not apply comes first.
  if (Status status = ApplyWaiting(values, result); !status.ok()) return status;
  if (Status status = exchange->TakeReceived(&waiting); !status.ok()) return status;
  return ApplyWaiting(values, result);
}

Status CompressionState::State::ApplyWaiting(ReceivedValues& values, strom_step_result* result) {
  if (waiting.snapshot) {
    if (Status status = values.Install(*waiting.snapshot->parameters); !status.ok()) return status;
    applied = std::move(waiting.snapshot->cut);
    waiting.snapshot.reset();
    exchange->SetApplied(applied);
    result->values_written = 1;
  }
  if (waiting.folded.empty() && waiting.updates.empty()) return {};
  result->values_written = 1;
  bool any = false;  // has been applied
  int64_t skipped = 0;
  auto larger = static_cast<int64_t>(waiting.folded.sum.size());
  if (larger <= size) {
    any = !waiting.folded.empty();
    size_t summed = 0;
    if (Status status = values.AddSum(waiting.folded.sum, &summed, &skipped); !status.ok()) {
      std::fill_n(waiting.folded.sum.begin(), summed, 0.0f);  // The rest waits.
      return status;
    }
    result->received += waiting.folded.updates;
    AddStaleness(static_cast<double>(waiting.folded.updates) * static_cast<double>(iteration) -
                     waiting.folded.iterations,
                 result);
    for (const auto& [origin, last] : waiting.folded.last) {
      Note(origin, waiting.folded.first.at(origin), last);
    }
    waiting.folded = {};
    larger = 0;
    // All that the flat space has room for at once: the parameters are then read and written once.
    std::vector<int64_t> iterations;  // of those that fit
    size_t origins = 0;
    for (const ReceivedUpdate& update : waiting.updates) {
      const ParsedMessage message = OpenValidatedMessage(update.message());
      if (message.elements() > size) {
        larger = message.elements();
        break;
      }
      ForEachApplied(update, [&](uint64_t, uint64_t, uint64_t) { ++origins; });
      iterations.push_back(message.fields().iteration);
    }
    applied.reserve(applied.size() + origins);  // Memory must not be missing afterwards.
    size_t added = 0;
    const Status status = values.Add(std::span(waiting.updates).first(iterations.size()),
                                     own_origin, &added, &skipped);
    for (size_t i = 0; i < added; ++i) NoteAdded(waiting.updates[i], iterations[i], result);
    any |= added > 0;
    waiting.updates.erase(waiting.updates.begin(),
                          waiting.updates.begin() + static_cast<ptrdiff_t>(added));
    if (!status.ok() && skipped == 0) {
      if (any) exchange->SetApplied(applied);
      return status;
    }
  }
  if (any) exchange->SetApplied(applied);
  if (skipped > 0) {
    return Invalid(std::to_string(skipped) +
                   " received entries belong to parameters that no segment holds; this replica no "
                   "longer agrees with the others");
  }
  if (larger == 0) return {};
  return Invalid("an update of a flat space of " + std::to_string(larger) +
                 " elements waits, this replica has " + std::to_string(size) + ": extend it first");
}

// `stepped`: the iteration that the update's message names.
void CompressionState::State::NoteAdded(const ReceivedUpdate& update, int64_t stepped,
                                        strom_step_result* result) {
  ForEachApplied(update, [this](uint64_t origin, uint64_t first, uint64_t last) {
    Note(origin, first, last);
  });
  ForEachIteration(update, static_cast<uint64_t>(stepped), [&](int64_t updates, uint64_t theirs) {
    result->received += updates;
    const double behind = static_cast<double>(iteration) - CountedIteration(theirs);
    AddStaleness(static_cast<double>(updates) * behind, result);
  });
}

// Updates [first, last] of `origin` are applied now. The first that this replica sees of an origin
// says where that origin stands; from there on one that is missing or doubled would be the
// exchange's bug.
void CompressionState::State::Note(uint64_t origin, uint64_t first, uint64_t last) {
  const auto [held, is_new] = applied.try_emplace(origin, last);
  STROM_CHECK(is_new || first == held->second + 1);
  held->second = last;
}

}  // namespace strom
