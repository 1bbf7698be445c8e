#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "core/codec/entries.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"
#include "cuda/codec.h"
#include "cuda/entry_kernels.h"
#include "cuda/memory.h"
#include "cuda/rice_kernels.h"
#include "cuda/scan.h"
#include "cuda/segments.h"
#include "cuda/step_kernels.h"

namespace strom::cuda {
namespace {

Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether the segments are of parameters; otherwise they are of updates alone.
bool OfParameters(Codec::Segments segments) {
  return std::any_of(segments.begin(), segments.end(), [](const strom_cuda_segment& segment) {
    return segment.size > 0 && segment.before != nullptr;
  });
}

Status CheckSegments(Codec::Segments segments, int64_t elements) {
  if (elements < 0 || elements > kMaxElements) {
    return Invalid("the flat space holds 0 to 2^39 elements");
  }
  int64_t end = 0;
  for (const strom_cuda_segment& segment : segments) {
    if (segment.size < 0 || segment.offset < end || segment.offset > elements - segment.size) {
      return Invalid("segments must ascend without overlap inside the flat space of " +
                     std::to_string(elements) + " elements; one at " +
                     std::to_string(segment.offset) + " with " + std::to_string(segment.size) +
                     " does not");
    }
    end = segment.offset + segment.size;
  }
  return {};
}

// Values that include the residual are the optimizer's own, in place.
Status CheckFull(Codec::Segments segments, const strom_step_options& options) {
  if (options.apply_own != 0) {
    return Invalid("`full` leaves the own update in the values: apply_own would add it twice");
  }
  for (const strom_cuda_segment& segment : segments) {
    if (segment.size > 0 && (segment.before == nullptr || segment.value != segment.after)) {
      return Invalid("`full` needs each segment's value where the optimizer wrote it, `after`");
    }
  }
  return {};
}

Status CheckStep(Codec::Segments segments, const strom_step_options& options) {
  const bool fused = OfParameters(segments);
  for (const strom_cuda_segment& segment : segments) {
    if (segment.size == 0) continue;
    if (segment.after == nullptr || segment.residual == nullptr) {
      return Invalid("a segment has no `after` or no `residual`");
    }
    if ((segment.before != nullptr) != fused || (segment.value != nullptr) != fused) {
      return Invalid("either all segments have `before` and `value`, or none has any of them");
    }
  }
  if (!std::isfinite(options.scale)) return Invalid("the scale must be finite");
  if (!std::isfinite(options.threshold) || options.threshold <= 0) {
    return Invalid("the threshold must be a finite number over 0");
  }
  if (!std::isfinite(options.clip_multiple) || options.clip_multiple < 0) {
    return Invalid("the clipping multiple must be a finite number, 0 to clip nothing");
  }
  if (options.norm_limit != 0 || options.momenta != nullptr || options.send_mean != 0 ||
      options.thresholds != nullptr) {
    return Invalid("norm_limit, momenta, send_mean and thresholds are the CPU's");
  }
  if (options.full != 0) {
    if (Status status = CheckFull(segments, options); !status.ok()) return status;
  }
  if (options.iteration < 0 || options.iteration > kMaxIteration) {
    return Invalid("the iteration " + std::to_string(options.iteration) + " is not in [0, 2^35)");
  }
  return {};
}

std::string DescribeNonfinite(Codec::Segments segments, const StepTotals& statistics) {
  const int64_t element = statistics.first_nonfinite;
  const auto segment = std::find_if(segments.begin(), segments.end(), [&](const auto& s) {
    return element >= s.offset && element < s.offset + s.size;
  });
  STROM_CHECK(segment != segments.end());
  return "the update of " + DescribeVariable(segment->name, segment->offset) +
         " is NaN or infinite, first in element " + std::to_string(element - segment->offset) +
         " (" + std::to_string(statistics.nonfinite_count) + " in all variables)";
}

}  // namespace

struct Codec::State {
  State(int64_t max_bytes, const strom_cuda_memory* lent)
      : max_message_bytes(max_bytes), device(CurrentDevice()), memory(lent) {}

  const int64_t max_message_bytes;
  const int device;
  const DeviceMemory memory;

  // What the last FindEntries left.
  MessageFields fields;
  StepRule rule;
  bool found = false;  // the rest is there
  StepForm form = StepForm::kUpdate;
  int64_t tiles = 0;
  int64_t count = 0;
  std::vector<std::vector<uint8_t>> messages;

  PinnedArray<Segment> host_segments;
  DeviceArray<Segment> segments{memory};
  int64_t segment_count = 0;
  DeviceArray<SlotCode> slots{memory};
  DeviceArray<uint32_t> tile_counts{memory};
  DeviceArray<int64_t> tile_starts{memory};
  DeviceArray<TileStatistics> tile_statistics{memory};
  DeviceArray<TileStatistics> folded_statistics{memory};
  PinnedArray<TileStatistics> host_statistics;
  PinnedArray<int64_t> host_total;
  DeviceArray<uint32_t> tiles_differ{memory};
  PinnedArray<uint32_t> host_differ;
  DeviceArray<uint32_t> codes{memory};

  // Of WriteMessages and Apply.
  DeviceArray<int64_t> span_starts{memory};
  DeviceArray<uint32_t> span_ks{memory};
  DeviceArray<uint32_t> span_bytes{memory};
  DeviceArray<int64_t> payload_starts{memory};
  DeviceArray<uint8_t> payloads{memory};
  DeviceArray<uint32_t> ones{memory};
  int64_t ones_needed = 0;  // by the spans that UploadSpans has brought
  PinnedArray<int64_t> host_span_starts;
  PinnedArray<uint32_t> host_ks;
  PinnedArray<int64_t> host_payload_starts;
  PinnedArray<uint8_t> host_payloads;
  PinnedArray<CodedSpan> host_coded;
  DeviceArray<CodedSpan> coded{memory};
  PinnedArray<ValueUntil> host_runs;
  DeviceArray<ValueUntil> runs{memory};
  DeviceArray<uint32_t> skipped{memory};
  PinnedArray<uint32_t> host_skipped;

  SegmentTable table() const { return {segments.data(), segment_count}; }

  void Forget() {
    found = false;
    count = tiles = 0;
  }
  int64_t MessageBytes() const {
    int64_t bytes = 0;
    for (const auto& message : messages) bytes += static_cast<int64_t>(message.size());
    return bytes;
  }
  void ReserveTiles(int64_t needed);
  void Upload(Segments from, Stream stream);
  void Step(Stream stream);
  Status Collect(Segments from, Stream stream, strom_step_result* result);
  StepTotals AwaitStatistics(Stream stream);
  void TakeBack(Stream stream);

  int64_t CodeSpans(int log2_span, const CodingOptions& options, Stream stream);
  void AddSpans(int log2_span, MessageWriter* writer) const;

  int64_t UploadSpans(const ParsedMessage& message, Stream stream);
  int64_t UploadRuns(const ParsedMessage& message, Stream stream);
};

Codec::Codec(int64_t max_message_bytes, const strom_cuda_memory* memory)
    : state_(std::make_unique<State>(max_message_bytes, memory)) {}

Codec::~Codec() {
  try {
    const OnDevice scope(state_->device);
    state_.reset();
  } catch (const DeviceError&) {
    // The device is lost. What is to be given back is given back without it.
  }
}

std::span<const uint32_t> Codec::codes() const {
  return {state_->codes.data(), static_cast<size_t>(state_->count)};
}

const std::vector<std::vector<uint8_t>>& Codec::messages() const { return state_->messages; }

Status Codec::Reserve(Segments segments) {
  const OnDevice scope(state_->device);
  RequireKernel<StepTiles<StepForm::kFull>>();
  state_->Forget();
  int64_t needed = 0;
  for (const strom_cuda_segment& segment : segments) needed += DivideUp(segment.size, kTile);
  state_->segments.Reserve(static_cast<int64_t>(segments.size()));
  state_->host_segments.Reserve(static_cast<int64_t>(segments.size()));
  state_->ReserveTiles(needed);
  return {};
}

Status Codec::FindEntries(int64_t elements, Segments segments, const strom_step_options& options,
                          void* stream, strom_step_result* result) {
  *result = {};
  result->threshold = options.threshold;
  State& state = *state_;
  state.messages.clear();
  state.Forget();
  if (Status status = CheckSegments(segments, elements); !status.ok()) return status;
  if (Status status = CheckStep(segments, options); !status.ok()) return status;
  const OnDevice scope(state.device);
  const QueuedWork queued(stream);
  state.fields = {options.threshold, options.threshold, elements, options.iteration};
  const auto changed = [](const strom_cuda_segment& s) { return s.after != s.before; };
  if (std::none_of(segments.begin(), segments.end(), changed)) {
    for (const strom_cuda_segment& segment : segments) {
      if (segment.value != segment.before) {
        CopyArray(segment.value, segment.before, segment.size, stream);
      }
    }
    Synchronize(stream);
    state.found = true;
    return {};
  }

  state.rule = {};
  state.rule.scale = options.scale;
  state.rule.threshold = options.threshold;
  if (options.clip_multiple > 0) state.rule.clip_limit = options.clip_multiple * options.threshold;
  state.rule.apply_own = options.apply_own != 0;
  state.form = options.full != 0        ? StepForm::kFull
               : OfParameters(segments) ? StepForm::kStep
                                        : StepForm::kUpdate;
  state.Upload(segments, stream);
  state.Step(stream);
  result->stepped = 1;
  try {
    return state.Collect(segments, stream, result);
  } catch (const std::exception&) {  // There is no memory, or the device fails.
    state.TakeBack(stream);
    Synchronize(stream);
    throw;
  }
}

Status Codec::Step(int64_t elements, Segments segments, const strom_step_options& options,
                   void* stream, strom_step_result* result) {
  try {
    Status status = FindEntries(elements, segments, options, stream, result);
    if (!status.ok() || result->stepped == 0) return status;
  } catch (const NoDeviceMemory&) {  // It has taken back what the step has found.
    if (result->stepped == 0) throw;
    SendNothing(result);
    return {};
  }
  try {
    return WriteMessages({}, stream, &result->message_bytes);
  } catch (const NoDeviceMemory&) {
    if (Status status = TakeBack(stream); !status.ok()) return status;
    SendNothing(result);
    return {};
  } catch (const std::exception&) {  // Nothing is lost.
    static_cast<void>(TakeBack(stream));
    throw;
  }
}

// The message of a step without entries: all that it has found is in the residual.
void Codec::SendNothing(strom_step_result* result) {
  State& state = *state_;
  // Each entry was that much less; where the largest residual is, nobody has looked again.
  result->sum_residual += static_cast<double>(result->count) * result->threshold;
  if (result->count > 0) result->max_residual += result->threshold;
  result->count = 0;
  const int log2_span = ChooseLog2Span(0, state.fields.elements, state.max_message_bytes, {});
  state.messages = MessageWriter(state.fields, log2_span, state.max_message_bytes).Finish();
  result->message_bytes = state.MessageBytes();
}

Status Codec::WriteMessages(const CodingOptions& options, void* stream, int64_t* message_bytes) {
  State& state = *state_;
  if (!state.found) return Invalid("there are no entries to write: find_entries comes first");
  const OnDevice scope(state.device);
  const QueuedWork queued(stream);
  const int log2_span =
      ChooseLog2Span(state.count, state.fields.elements, state.max_message_bytes, options);
  MessageWriter writer(state.fields, log2_span, state.max_message_bytes);
  if (state.count > 0) {
    const int64_t payload_bytes = state.CodeSpans(log2_span, options, stream);
    CopyArray(state.host_payloads.Reserve(payload_bytes), state.payloads.data(), payload_bytes,
              stream);
    Synchronize(stream);
    state.AddSpans(log2_span, &writer);
  }
  state.messages = writer.Finish();
  *message_bytes = state.MessageBytes();
  return {};
}

Status Codec::Compare(Segments from, void* stream, int32_t* differ) {
  for (const strom_cuda_segment& segment : from) {
    if (segment.size < 0 || segment.before == nullptr || segment.after == nullptr) {
      return Invalid("a segment to be compared has no `before`, no `after` or a negative size");
    }
  }
  State& state = *state_;
  const OnDevice scope(state.device);
  const QueuedWork queued(stream);
  state.Forget();
  state.Upload(from, stream);
  uint32_t* const found = state.host_differ.Reserve(state.tiles);
  Launch(stream, state.tiles, CompareTiles{state.table(), state.tiles_differ.Reserve(state.tiles)});
  CopyArray(found, state.tiles_differ.data(), state.tiles, stream);
  Synchronize(stream);
  for (const uint32_t* tile = found; const strom_cuda_segment& segment : from) {
    const uint32_t* const end = tile + DivideUp(segment.size, kTile);
    *differ++ = std::any_of(tile, end, [](uint32_t differs) { return differs != 0; });
    tile = end;
  }
  state.Forget();
  return {};
}

Status Codec::Copy(void* to, const void* from, int64_t bytes, void* stream) {
  if (bytes < 0) return Invalid("the number of bytes is negative");
  const OnDevice scope(state_->device);
  cuda::Copy(to, from, static_cast<size_t>(bytes), stream);
  Synchronize(stream);
  return {};
}

Status Codec::TakeBack(void* stream) {
  if (!state_->found) return Invalid("there is no step to take back");
  const OnDevice scope(state_->device);
  state_->TakeBack(stream);
  Synchronize(stream);
  return {};
}

Status Codec::Apply(Bytes bytes, int64_t elements, Segments segments, void* stream,
                    int64_t* skipped) {
  *skipped = 0;
  State& state = *state_;
  if (Status status = CheckSegments(segments, elements); !status.ok()) return status;
  for (const strom_cuda_segment& segment : segments) {
    if (segment.size > 0 && segment.value == nullptr) return Invalid("a segment has no `value`");
  }
  ParsedMessage message;
  if (Status status = ParseMessage(bytes, &message); !status.ok()) return status;
  if (message.elements() > elements) {
    return Invalid("a message of a flat space of " + std::to_string(message.elements()) +
                   " elements does not fit one of " + std::to_string(elements));
  }
  if (message.count() == 0) return {};
  const OnDevice scope(state.device);
  const QueuedWork queued(stream);
  state.Forget();
  state.Upload(segments, stream);
  if (state.segment_count == 0) {
    *skipped = message.count();
    return {};
  }
  const int64_t spans = state.UploadSpans(message, stream);
  const int64_t runs = message.has_table() ? state.UploadRuns(message, stream) : 0;
  // No memory may be missing once the values change: who is told of a failure applies it again.
  uint32_t* const in_no_segment = state.host_skipped.Reserve(spans);
  Launch(stream, spans,
         ApplySpans{state.table(), state.coded.data(), state.payloads.data(),
                    message.fields().value, state.runs.data(), runs, message.fields().iteration,
                    state.ones.Reserve(state.ones_needed), state.skipped.Reserve(spans)});
  CopyArray(in_no_segment, state.skipped.data(), spans, stream);
  Synchronize(stream);
  for (int64_t i = 0; i < spans; ++i) *skipped += in_no_segment[i];
  return {};
}

void Codec::State::Upload(Segments from, Stream stream) {
  Segment* const host = host_segments.Reserve(static_cast<int64_t>(from.size()));
  segment_count = tiles = 0;
  for (const strom_cuda_segment& segment : from) {
    if (segment.size == 0) continue;
    host[segment_count++] = {segment.offset,         segment.size,         tiles,
                             Reach(segment.before),  Reach(segment.after), Reach(segment.value),
                             Reach(segment.residual)};
    tiles += DivideUp(segment.size, kTile);
  }
  CopyArray(segments.Reserve(segment_count), host, segment_count, stream);
}

// The memory that a step over so many tiles needs up to the count of its entries, and comparing
// them before it.
void Codec::State::ReserveTiles(int64_t needed) {
  const int64_t folds = DivideUp(needed, FoldStatistics::kTilesPerFold);
  slots.Reserve(needed * kTile);
  tile_counts.Reserve(needed);
  tile_starts.Reserve(needed + 1);
  tile_statistics.Reserve(needed);
  folded_statistics.Reserve(folds);
  host_statistics.Reserve(folds);
  host_total.Reserve(1);
  tiles_differ.Reserve(needed);
  host_differ.Reserve(needed);
}

// Queues the kernel that changes residuals and values.
void Codec::State::Step(Stream stream) {
  ReserveTiles(tiles);
  const auto step = [&](auto kernel) {
    kernel.table = table();
    kernel.rule = rule;
    kernel.slots = slots.data();
    kernel.counts = tile_counts.data();
    kernel.statistics = tile_statistics.data();
    Launch(stream, tiles, kernel);
  };
  switch (form) {
    case StepForm::kUpdate:
      return step(StepTiles<StepForm::kUpdate>{});
    case StepForm::kStep:
      return step(StepTiles<StepForm::kStep>{});
    case StepForm::kFull:
      return step(StepTiles<StepForm::kFull>{});
  }
}

// What the step has found, as one list. Where it throws, that is to be taken back.
Status Codec::State::Collect(Segments from, Stream stream, strom_step_result* result) {
  const StepTotals statistics = AwaitStatistics(stream);
  found = true;
  for (const strom_cuda_segment& segment : from) {
    if (segment.after != segment.before) result->elements += segment.size;
  }
  result->count = count;
  result->max_residual = statistics.max_residual;
  result->sum_residual = statistics.sum_residual;
  result->clipped_mass = statistics.clipped_mass;
  result->clipped_count = statistics.clipped_count;
  result->values_written =
      form == StepForm::kFull && (rule.scale != 1 || statistics.clipped_count > 0);
  if (statistics.nonfinite_count > 0) {
    const int64_t stepped_tiles = tiles;
    TakeBack(stream);
    if (form == StepForm::kFull) Launch(stream, stepped_tiles, UndoTiles{table()});
    Synchronize(stream);
    return {Code::kNotFinite, DescribeNonfinite(from, statistics) + kNotFiniteRemedy};
  }
  if (count > 0) {
    Launch(
        stream, DivideUp(tiles, CompactTiles::kTilesPerBlock),
        CompactTiles{table(), slots.data(), tile_starts.data(), tiles, codes.ReserveForNow(count)});
  }
  Synchronize(stream);
  return {};
}

// Queues the sums over the tiles and awaits them, the first meeting of host and device: how much
// there is decides what follows.
StepTotals Codec::State::AwaitStatistics(Stream stream) {
  const int64_t folds = DivideUp(tiles, FoldStatistics::kTilesPerFold);
  Launch(stream, 1, ScanCounts{tile_counts.data(), tiles, tile_starts.data()});
  Launch(stream, folds, FoldStatistics{tile_statistics.data(), tiles, folded_statistics.data()});
  const TileStatistics* const folded = host_statistics.data();
  CopyArray(host_statistics.data(), folded_statistics.data(), folds, stream);
  CopyArray(host_total.data(), tile_starts.data() + tiles, 1, stream);
  Synchronize(stream);
  count = *host_total.data();
  StepTotals all;
  for (int64_t i = 0; i < folds; ++i) all.Add(folded[i]);
  return all;
}

void Codec::State::TakeBack(Stream stream) {
  Launch(stream, tiles,
         TakeBackTiles{table(), slots.data(), tile_counts.data(), rule.threshold,
                       form == StepForm::kStep && rule.apply_own});
  Forget();
}

// Queues the coding of all spans and brings their tables to the host; returns the payloads' length.
int64_t Codec::State::CodeSpans(int log2_span, const CodingOptions& options, Stream stream) {
  const int64_t spans = DivideUp(fields.elements, int64_t{1} << log2_span);
  Launch(stream, DivideUp(spans + 1, kBlockThreads),
         FindSpans{table(), slots.data(), tile_starts.data(), tiles, spans, log2_span,
                   span_starts.Reserve(spans + 1)});
  const SpannedCodes entries{codes.data(), span_starts.data(), log2_span};
  Launch(stream, spans,
         ChooseSpans{entries, options, span_ks.Reserve(spans), span_bytes.Reserve(spans)});
  Launch(stream, 1, ScanCounts{span_bytes.data(), spans, payload_starts.Reserve(spans + 1)});
  // No choice takes more than a bit for each element, two for each entry (k = 1) and two partial
  // bytes for each span.
  const int64_t most_bytes = (fields.elements + 2 * count) / 8 + 2 * spans;
  Launch(stream, spans,
         PackSpans{entries, span_ks.data(), payload_starts.data(),
                   payloads.ReserveForNow(most_bytes), ones.ReserveForNow(count)});
  CopyArray(host_span_starts.Reserve(spans + 1), span_starts.data(), spans + 1, stream);
  CopyArray(host_ks.Reserve(spans), span_ks.data(), spans, stream);
  CopyArray(host_payload_starts.Reserve(spans + 1), payload_starts.data(), spans + 1, stream);
  Synchronize(stream);
  return host_payload_starts.data()[spans];
}

void Codec::State::AddSpans(int log2_span, MessageWriter* writer) const {
  const int64_t spans = DivideUp(fields.elements, int64_t{1} << log2_span);
  const int64_t* const entry = host_span_starts.data();
  const int64_t* const payload = host_payload_starts.data();
  for (int64_t span = 0; span < spans; ++span) {
    const int64_t here = entry[span + 1] - entry[span];
    if (here == 0) continue;
    writer->AddCodedSpan(span, here, static_cast<int>(host_ks.data()[span]),
                         {host_payloads.data() + payload[span],
                          static_cast<size_t>(payload[span + 1] - payload[span])});
  }
}

// Brings a parsed message's spans and payloads to the device; returns how many spans have entries.
int64_t Codec::State::UploadSpans(const ParsedMessage& message, Stream stream) {
  CodedSpan* const host = host_coded.Reserve(message.spans());
  int64_t spans = 0;
  int64_t bytes = 0;
  int64_t entries = 0;
  ones_needed = 0;
  for (int64_t i = 0; i < message.spans(); ++i) {
    const ParsedMessage::Span span = message.span(i);
    if (span.count == 0) continue;
    host[spans++] = {span.offset,
                     span.elements,
                     bytes,
                     entries,
                     static_cast<uint32_t>(span.payload.size()),
                     static_cast<uint32_t>(span.count),
                     static_cast<uint32_t>(span.k)};
    bytes += static_cast<int64_t>(span.payload.size());
    entries += span.count;
    if (span.k != kRawCoding && span.k != kBitmap4Coding) ones_needed = entries;
  }
  CopyArray(coded.Reserve(spans), host, spans, stream);
  uint8_t* const staged = host_payloads.Reserve(bytes + kPayloadSlack);
  for (int64_t i = 0, done = 0; i < message.spans(); ++i) {
    const Bytes payload = message.span(i).payload;
    std::copy(payload.begin(), payload.end(), staged + done);
    done += static_cast<int64_t>(payload.size());
  }
  std::fill_n(staged + bytes, kPayloadSlack, uint8_t{0});
  CopyArray(payloads.Reserve(bytes + kPayloadSlack), static_cast<const uint8_t*>(staged),
            bytes + kPayloadSlack, stream);
  return spans;
}

// Brings a message's table of values to the device; returns how many runs it has.
int64_t Codec::State::UploadRuns(const ParsedMessage& message, Stream stream) {
  int64_t count = 0;
  message.ForEachValue(0, message.count(), [&](int64_t, int64_t, float) { ++count; });
  ValueUntil* next = host_runs.Reserve(count);
  message.ForEachValue(0, message.count(),
                       [&](int64_t, int64_t end, float value) { *next++ = {end, value}; });
  CopyArray(runs.Reserve(count), host_runs.data(), count, stream);
  return count;
}

int32_t CountDevices(std::string* why) { return DeviceCount(why); }

}  // namespace strom::cuda
