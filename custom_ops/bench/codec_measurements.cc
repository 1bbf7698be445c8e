#include "bench/codec_measurements.h"

#include <time.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "bench/deeplearning4j.h"
#include "bench/reference_passes.h"
#include "core/base/bits.h"
#include "core/codec/rice.h"

namespace strom::bench {
namespace {

// How many elements a kernel gets at once, as in core/step/step_encoder.cc.
constexpr int64_t kRunElements = 65536;
constexpr int kKept = 8;
// One message holds any update of these sizes.
constexpr int64_t kMaxBytes = int64_t{1} << 31;

const StepKernel& FindKernel(const std::string& name) {
  if (name.empty()) return BestStepKernel();
  if (const StepKernel* const kernel = FindStepKernel(name)) return *kernel;
  throw std::invalid_argument("no kernel is called " + name);
}

// With clipping and statistics, as in training.
StepRule Rule(const SteadyResiduals& residuals) {
  StepRule rule;
  rule.threshold = residuals.threshold();
  rule.clip_limit = 5 * rule.threshold;
  return rule;
}

MessageFields Fields(int64_t elements, float threshold, int64_t iteration = 1) {
  return {threshold, threshold, elements, iteration};
}

// In seconds. One thread is charged for its own time, whatever else the machine does meanwhile;
// several are judged by the clock on the wall.
double Now(int threads) {
  timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Keeps the compiler from leaving out what computes `value`.
template <typename T>
void Use(const T& value) {
  asm volatile("" : : "r"(value) : "memory");
}

}  // namespace

// One update as it was encoded, coded and read again.
struct CodecMeasurements::Update {
  EntryList entries;
  std::vector<uint8_t> bytes;  // the message, and kRiceSlack bytes more
  ParsedMessage message;

  Bytes message_bytes() const { return Bytes(bytes).first(bytes.size() - kRiceSlack); }
};

// A model's parameters before and after an optimizer's step.
struct CodecMeasurements::Parameters {
  explicit Parameters(int64_t elements) : before(elements), after(elements) {}

  std::span<float> span() const { return {before.data(), static_cast<size_t>(before.size())}; }

  HugeArray<float> before;
  HugeArray<float> after;
};

CodecMeasurements::CodecMeasurements(int64_t elements, int passes)
    : elements_(elements),
      chunks_((elements + kChunk - 1) / kChunk),
      passes_(passes),
      updates_(elements),
      reference_residuals_(elements),
      chunk_entries_(static_cast<size_t>(chunks_)) {}

CodecMeasurements::~CodecMeasurements() = default;

const std::map<std::string, CodecMeasurements::Method>& CodecMeasurements::Methods() {
  static const std::map<std::string, Method> methods = {
      {"add", &CodecMeasurements::AddReference},
      {"encode", &CodecMeasurements::Encode},
      {"encode_coded", &CodecMeasurements::EncodeAndCode},
      {"encode_bitmap", &CodecMeasurements::EncodeBitmap},
      {"encode_bitmap_coded", &CodecMeasurements::EncodeAndCodeBitmap},
      {"four_states", &CodecMeasurements::EncodeBitmap4},
      {"four_states_coded", &CodecMeasurements::EncodeAndCodeBitmap4},
      {"dl4j_list", &CodecMeasurements::ListOfDeeplearning4j},
      {"dl4j_bitmap", &CodecMeasurements::BitmapOfDeeplearning4j},
      {"update", &CodecMeasurements::UpdateReference},
      {"step_full", &CodecMeasurements::StepInFull},
      {"difference", &CodecMeasurements::DifferenceReference},
      {"step_into_after", &CodecMeasurements::StepIntoAfter},
      {"step_into_before", &CodecMeasurements::StepIntoBefore},
      {"code", &CodecMeasurements::Code},
      {"check", &CodecMeasurements::Check},
      {"decode", &CodecMeasurements::Decode},
      {"scale", &CodecMeasurements::ScaleReference},
      {"apply", &CodecMeasurements::Apply},
      {"apply_bitmap", &CodecMeasurements::ApplyBitmap},
      {"apply_four_states", &CodecMeasurements::ApplyBitmap4},
      {"apply_8_one_by_one", &CodecMeasurements::ApplyEightOneByOne},
      {"apply_8_together", &CodecMeasurements::ApplyEightTogether},
  };
  return methods;
}

std::vector<std::string> CodecMeasurements::Names() {
  std::vector<std::string> names;
  for (const auto& [name, method] : Methods()) names.push_back(name);
  return names;
}

std::vector<std::string> CodecMeasurements::Kernels() {
  std::vector<std::string> names;
  for (const StepKernel& kernel : StepKernels()) names.emplace_back(kernel.name);
  return names;
}

Sample CodecMeasurements::Measure(const Request& request) {
  const auto found = Methods().find(request.name);
  if (found == Methods().end()) {
    throw std::invalid_argument("no measurement is called " + request.name);
  }
  return (this->*found->second)(request);
}

// ---------------------------------------------------------------- encoding

Sample CodecMeasurements::AddReference(const Request& request) {
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample*) {
        ForEachChunk(request.threads, [&](int64_t start, int64_t size) {
          AddPass(update + start, reference_residuals_.data() + start, size);
        });
      });
}

Sample CodecMeasurements::Encode(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density);
  const StepKernel& kernel = FindKernel(request.kernel);
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        ForEachChunk(request.threads, [&](int64_t start, int64_t) {
          const int64_t chunk = start / kChunk;
          EntryList& entries = chunk_entries_[static_cast<size_t>(chunk)];
          entries.Clear();
          EncodeChunk(kernel, residuals, update, chunk, &entries);
        });
        sample->entries = 0;
        for (const EntryList& entries : chunk_entries_) sample->entries += entries.size();
      });
}

Sample CodecMeasurements::EncodeAndCode(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density);
  const StepKernel& kernel = FindKernel(request.kernel);
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        entries_.Clear();
        for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
          EncodeChunk(kernel, residuals, update, chunk, &entries_);
        }
        const auto messages =
            WriteEntries(Fields(elements_, residuals.threshold()), entries_, kMaxBytes);
        sample->entries = entries_.size();
        sample->bytes = static_cast<int64_t>(messages.front().size());
      });
}

void CodecMeasurements::EncodeChunk(const StepKernel& kernel, SteadyResiduals& residuals,
                                    const float* update, int64_t chunk, EntryList* entries) const {
  const StepRule rule = Rule(residuals);
  StepStatistics statistics;
  const int64_t end = std::min(elements_, (chunk + 1) * kChunk);
  for (int64_t start = chunk * kChunk; start < end; start += kRunElements) {
    const EncodeRun run{std::min(kRunElements, end - start), update + start,
                        residuals.data() + start, static_cast<uint32_t>(start % kChunk)};
    uint32_t* const codes = entries->Reserve(run.size);
    entries->Append(chunk, kernel.encode(run, rule, codes, &statistics));
  }
  Use(statistics.sum_residual);
}

Sample CodecMeasurements::EncodeBitmap(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density);
  const StepKernel& kernel = FindKernel(request.kernel);
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        const Bitmap bitmap = FindBitmap(kernel, residuals, update);
        sample->entries = bitmap.count;
        sample->bytes = BytesOfBits(elements_) + BytesOfBits(bitmap.count);
      });
}

Sample CodecMeasurements::EncodeAndCodeBitmap(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density);
  const StepKernel& kernel = FindKernel(request.kernel);
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        const Bitmap bitmap = FindBitmap(kernel, residuals, update);
        const auto messages =
            WriteBitmap(Fields(elements_, residuals.threshold()), bitmap, kMaxBytes);
        sample->entries = bitmap.count;
        sample->bytes = static_cast<int64_t>(messages.front().size());
      });
}

Bitmap CodecMeasurements::FindBitmap(const StepKernel& kernel, SteadyResiduals& residuals,
                                     const float* update) {
  if (bitmap_memory_ == nullptr) {
    bitmap_memory_ = std::make_unique<HugeArray<uint8_t>>(2 * (elements_ / 8 + kBitmapSlack));
  }
  Bitmap bitmap;
  bitmap.bits = bitmap_memory_->data();
  bitmap.signs = bitmap.bits + elements_ / 8 + kBitmapSlack;
  const StepRule rule = Rule(residuals);
  StepStatistics statistics;
  for (int64_t start = 0; start < elements_; start += kRunElements) {
    const EncodeRun run{std::min(kRunElements, elements_ - start), update + start,
                        residuals.data() + start, 0};
    kernel.encode_bitmap(run, rule, &bitmap, &statistics);
  }
  Use(statistics.sum_residual);
  return bitmap;
}

Sample CodecMeasurements::EncodeBitmap4(const Request& request) {
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        const Bitmap4 bitmap = FindBitmap4(request, update);
        sample->entries = bitmap.count;
        sample->bytes = Bitmap4Bytes(elements_);
      });
}

Sample CodecMeasurements::EncodeAndCodeBitmap4(const Request& request) {
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        const Bitmap4 bitmap = FindBitmap4(request, update);
        const MessageFields fields =
            Fields(elements_, ThresholdWithHalves(request.density), bitmap.iteration);
        const auto messages = WriteBitmap4(fields, bitmap, kMaxBytes);
        sample->entries = bitmap.count;
        sample->bytes = static_cast<int64_t>(messages.front().size());
      });
}

// Where halves leave, residuals are about as where half the threshold is all there is; entries are
// somewhat fewer, for a half waits for its step.
float CodecMeasurements::ThresholdWithHalves(double density) {
  return 2 * halved_residuals_.try_emplace(density, elements_, density).first->second.threshold();
}

Bitmap4 CodecMeasurements::FindBitmap4(const Request& request, const float* update) {
  if (bitmap4_memory_ == nullptr) {
    bitmap4_memory_ = std::make_unique<HugeArray<uint8_t>>(Bitmap4Bytes(elements_));
  }
  const StepKernel& kernel = FindKernel(request.kernel);
  StepRule rule;
  rule.threshold = ThresholdWithHalves(request.density);
  rule.clip_limit = 5 * rule.threshold;
  float* const residuals = halved_residuals_.at(request.density).data();
  Bitmap4 bitmap{bitmap4_memory_->data(), ++iteration_};
  StepStatistics statistics;
  for (int64_t start = 0; start < elements_; start += kRunElements) {
    const EncodeRun run{std::min(kRunElements, elements_ - start), update + start,
                        residuals + start, 0};
    kernel.encode_bitmap4(run, rule, &bitmap, &statistics);
  }
  Use(statistics.sum_residual);
  return bitmap;
}

Sample CodecMeasurements::ListOfDeeplearning4j(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density);
  int32_t* const out = foreign_output();
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        sample->entries =
            EncodeThresholdList(update, residuals.data(), elements_, residuals.threshold(), out);
      });
}

Sample CodecMeasurements::BitmapOfDeeplearning4j(const Request& request) {
  SteadyResiduals& residuals = Residuals(request.density, 0.5);
  int32_t* const out = foreign_output();
  return Time(
      request, [&] { return updates_.Next(); },
      [&](const float* update, Sample* sample) {
        sample->entries =
            EncodeTwoBits(update, residuals.data(), elements_, residuals.threshold(), out);
      });
}

// ---------------------------------------------------------------- a whole training step

Sample CodecMeasurements::UpdateReference(const Request& request) {
  const Parameters& here = parameters();
  return PassOverUpdates(request, [&](int64_t start, int64_t size) {
    UpdatePass(here.before.data() + start, here.after.data() + start,
               reference_residuals_.data() + start, size);
  });
}

Sample CodecMeasurements::DifferenceReference(const Request& request) {
  const Parameters& here = parameters();
  return PassOverUpdates(request, [&](int64_t start, int64_t size) {
    DifferencePass(here.before.data() + start, here.after.data() + start,
                   reference_residuals_.data() + start, size);
  });
}

Sample CodecMeasurements::StepInFull(const Request& request) {
  const Parameters& here = parameters();
  const StepKernel& kernel = FindKernel(request.kernel);
  return Step(request, [&](int64_t start, int64_t size, float* residual, const StepRule& rule,
                           uint32_t* codes, StepStatistics* statistics) {
    const FullRun run{size, here.before.data() + start, here.after.data() + start, residual,
                      static_cast<uint32_t>(start % kChunk)};
    return kernel.step_full(run, rule, codes, statistics);
  });
}

Sample CodecMeasurements::StepIntoAfter(const Request& request) {
  return StepInto(request, parameters().after.data());
}

Sample CodecMeasurements::StepIntoBefore(const Request& request) {
  return StepInto(request, parameters().before.data());
}

Sample CodecMeasurements::StepInto(const Request& request, float* value) {
  const Parameters& here = parameters();
  const StepKernel& kernel = FindKernel(request.kernel);
  return Step(request, [&](int64_t start, int64_t size, float* residual, const StepRule& rule,
                           uint32_t* codes, StepStatistics* statistics) {
    const StepRun run{
        size,     here.before.data() + start,           here.after.data() + start, value + start,
        residual, static_cast<uint32_t>(start % kChunk)};
    return kernel.step(run, rule, codes, statistics);
  });
}

// run_at(start, size, residual, rule, codes, statistics) steps over some elements.
template <typename RunAt>
Sample CodecMeasurements::Step(const Request& request, RunAt run_at) {
  SteadyResiduals& residuals = Residuals(request.density);
  const StepRule rule = Rule(residuals);
  Sample sample = PassOverUpdates(request, [&](int64_t start, int64_t size) {
    EntryList& entries = chunk_entries_[static_cast<size_t>(start / kChunk)];
    StepStatistics statistics;
    entries.Clear();
    for (const int64_t end = start + size; start < end; start += kRunElements) {
      const int64_t run = std::min(kRunElements, end - start);
      uint32_t* const codes = entries.Reserve(run);
      entries.Append(start / kChunk,
                     run_at(start, run, residuals.data() + start, rule, codes, &statistics));
    }
    Use(statistics.sum_residual);
  });
  for (const EntryList& entries : chunk_entries_) sample.entries += entries.size();
  return sample;
}

// work(start, size) for every chunk, on parameters that an optimizer has just changed.
template <typename Work>
Sample CodecMeasurements::PassOverUpdates(const Request& request, Work work) {
  const Parameters& here = parameters();
  return Time(
      request,
      [&] {
        const float* const update = updates_.Next();
        for (int64_t i = 0; i < elements_; ++i) here.after[i] = here.before[i] + update[i];
        return update;
      },
      [&](const float*, Sample*) { ForEachChunk(request.threads, work); });
}

// ---------------------------------------------------------------- the coder by itself

Sample CodecMeasurements::Code(const Request& request) {
  const Update& update = Updates(request.density).front();
  const MessageFields fields = update.message.fields();
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        const auto messages = WriteEntries(fields, update.entries, kMaxBytes);
        sample->entries = update.entries.size();
        sample->bytes = static_cast<int64_t>(messages.front().size());
      });
}

Sample CodecMeasurements::Check(const Request& request) {
  const Update& update = Updates(request.density).front();
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        ParsedMessage message;
        const Status status = ParseMessage(update.message_bytes(), &message);
        if (!status.ok()) throw std::logic_error(status.message);
        sample->entries = message.count();
        sample->bytes = static_cast<int64_t>(update.message_bytes().size());
      });
}

Sample CodecMeasurements::Decode(const Request& request) {
  const Update& update = Updates(request.density).front();
  const ParsedMessage& message = update.message;
  std::vector<uint32_t> codes((size_t{1} << message.log2_span()) + kCodeSlack);
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        for (int64_t i = 0; i < message.spans(); ++i) {
          const ParsedMessage::Span span = message.span(i);
          if (span.count == 0) continue;
          Rice().decode(span.payload, span.count, span.k, codes.data());
          Use(codes.data());
        }
        sample->entries = message.count();
        sample->bytes = static_cast<int64_t>(update.message_bytes().size());
      });
}

// ---------------------------------------------------------------- applying

Sample CodecMeasurements::ScaleReference(const Request& request) {
  const Parameters& here = parameters();
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample*) {
        ForEachChunk(request.threads, [&](int64_t start, int64_t size) {
          ScalePass(here.before.data() + start, size);
        });
      });
}

Sample CodecMeasurements::Apply(const Request& request) {
  return ApplyOne(request, Updates(request.density).front().message);
}

Sample CodecMeasurements::ApplyBitmap(const Request& request) {
  const Update& update = Updates(request.density).front();
  CodingOptions options;
  options.coding = Coding::kBitmap;
  const auto bytes =
      WriteEntries(update.message.fields(), update.entries, kMaxBytes, 0, options).front();
  return ApplyOne(request, OpenValidatedMessage(bytes));
}

Sample CodecMeasurements::ApplyBitmap4(const Request& request) {
  const Bitmap4 bitmap = FindBitmap4(request, updates_.Next());
  const MessageFields fields =
      Fields(elements_, ThresholdWithHalves(request.density), bitmap.iteration);
  const auto bytes = WriteBitmap4(fields, bitmap, kMaxBytes).front();
  return ApplyOne(request, OpenValidatedMessage(bytes));
}

Sample CodecMeasurements::ApplyEightOneByOne(const Request& request) {
  const ParameterRange range{0, parameters().span()};
  const std::vector<Update>& updates = Updates(request.density);
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        sample->entries = 0;
        for (const Update& update : updates) {
          ApplyMessage(update.message, {&range, 1});
          sample->entries += update.message.count();
        }
      });
}

Sample CodecMeasurements::ApplyEightTogether(const Request& request) {
  const ParameterRange range{0, parameters().span()};
  std::vector<ParsedMessage> messages;
  for (const Update& update : Updates(request.density)) messages.push_back(update.message);
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        ApplyMessages(messages, {&range, 1});
        sample->entries = 0;
        for (const ParsedMessage& message : messages) sample->entries += message.count();
      });
}

// ---------------------------------------------------------------- what they share

// pass(prepare(), &sample) as often as a measurement has passes; only `pass` is timed.
template <typename Prepare, typename Pass>
Sample CodecMeasurements::Time(const Request& request, Prepare prepare, Pass pass) const {
  Sample sample;
  sample.elements = elements_;
  for (int i = 0; i < passes_; ++i) {
    const float* const update = prepare();
    const double begin = Now(request.threads);
    pass(update, &sample);
    const double seconds = Now(request.threads) - begin;
    sample.seconds = i == 0 ? seconds : std::min(sample.seconds, seconds);
  }
  return sample;
}

// work(start, size) for every chunk, on `threads` threads.
template <typename Work>
void CodecMeasurements::ForEachChunk(int threads, Work work) {
  const Parallel parallel =
      threads > 1 ? pools_.try_emplace(threads, threads).first->second.parallel() : Parallel{};
  parallel.For(chunks_, [&](int64_t chunk) {
    work(chunk * kChunk, std::min(kChunk, elements_ - chunk * kChunk));
  });
}

// One message to all parameters.
Sample CodecMeasurements::ApplyOne(const Request& request, const ParsedMessage& message) {
  const ParameterRange range{0, parameters().span()};
  return Time(
      request, [] { return nullptr; },
      [&](const float*, Sample* sample) {
        ApplyMessage(message, {&range, 1});
        sample->entries = message.count();
      });
}

SteadyResiduals& CodecMeasurements::Residuals(double density, double negative_part) {
  return residuals_.try_emplace({density, negative_part}, elements_, density, negative_part)
      .first->second;
}

// Some updates in a row, with their messages.
const std::vector<CodecMeasurements::Update>& CodecMeasurements::Updates(double density) {
  std::vector<Update>& kept = kept_[density];
  if (!kept.empty()) return kept;
  SteadyResiduals& residuals = Residuals(density);
  for (int i = 0; i < kKept; ++i) {
    Update update;
    const float* const values = updates_.Next();
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      EncodeChunk(BestStepKernel(), residuals, values, chunk, &update.entries);
    }
    update.bytes =
        WriteEntries(Fields(elements_, residuals.threshold()), update.entries, kMaxBytes).front();
    update.bytes.resize(update.bytes.size() + kRiceSlack);
    update.message = OpenValidatedMessage(update.message_bytes());
    kept.push_back(std::move(update));
  }
  return kept;
}

CodecMeasurements::Parameters& CodecMeasurements::parameters() {
  if (parameters_ == nullptr) parameters_ = std::make_unique<Parameters>(elements_);
  return *parameters_;
}

int32_t* CodecMeasurements::foreign_output() {
  if (foreign_output_ == nullptr) {
    foreign_output_ = std::make_unique<HugeArray<int32_t>>(elements_);
  }
  return foreign_output_->data();
}

}  // namespace strom::bench
