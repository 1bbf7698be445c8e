// The codec functions of capi/strom.h: one update to one message and back, without a replica.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "capi/codec_pieces.h"
#include "capi/handles.h"
#include "capi/lent_threads.h"
#include "core/base/parallel.h"
#include "core/base/subnormals.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"

namespace strom {
namespace {

// One message holds it all: this many bytes are never needed.
constexpr int64_t kOneMessage = (int64_t{1} << 32) - 1;
constexpr int64_t kMostElements = int64_t{1} << 33;
constexpr int64_t kRunElements = 4096;      // stays in the L1 cache and divides kChunk
constexpr int64_t kTaskElements = 1 << 16;  // fewer are not worth another thread

Status Invalid(std::string words) { return {Code::kInvalidArgument, std::move(words)}; }

Status NotFiniteIn(std::string words) { return {Code::kNotFinite, std::move(words)}; }

// Where the elements that a predicate picks are: how many, and the first.
struct Found {
  int64_t count = 0;
  int64_t first = 0;
};

template <typename Predicate>
Found Find(int64_t size, Predicate picks) {
  Found found;
  for (int64_t i = 0; i < size; ++i) {
    if (!picks(i)) continue;
    if (found.count++ == 0) found.first = i;
  }
  return found;
}

std::string Describe(const Found& found, int64_t size) {
  return std::to_string(found.count) + " of " + std::to_string(size) +
         " elements, the first at index " + std::to_string(found.first);
}

// One update on its way into a message. The work is cut into tasks of consecutive elements; how
// many they are changes nothing in the result. A Piece (capi/codec_pieces.h) is what a task finds.
template <typename Piece>
class Encoding {
 public:
  Encoding(std::span<const float> update, const float* residual, float* after,
           const strom_codec_options& options, const Parallel& parallel)
      : update_(update),
        residual_(residual),
        after_(after),
        options_(options),
        parallel_(parallel),
        tasks_(static_cast<size_t>(CountTasks(size(), parallel))),
        pieces_(tasks_.size()) {}

  Status Encode(strom_allocate allocate, void* context, int64_t* count) {
    // Elsewhere a refusal leaves `residual` as it was anyway, and the kernel notices by itself.
    if (residual_ == after_ && !IsFinite()) return NotFinite();
    try {
      if (!FindEntries()) return NotFinite();
      if (pieces_.size() > 1) joined_ = Piece::Join(pieces_, parallel_);
      const Piece& found = pieces_.size() > 1 ? joined_ : pieces_.front();
      const Status status = WriteMessage(found, allocate, context);
      if (!status.ok()) TakeBack();
      *count = found.count();
      return status;
    } catch (const std::exception&) {
      TakeBack();
      throw;
    }
  }

 private:
  struct Task {
    int64_t start = 0;
    int64_t done = 0;  // elements [start, done) have been through the kernel
    StepStatistics statistics;
  };

  int64_t size() const { return static_cast<int64_t>(update_.size()); }

  static int64_t CountTasks(int64_t size, const Parallel& parallel) {
    const int64_t most = size / kTaskElements;
    return parallel.threads <= 1 ? 1 : std::clamp<int64_t>(most, 1, 4 * parallel.threads);
  }

  // The first element of task `task`; a multiple of kRunElements, so that runs stay in a chunk.
  int64_t Start(int64_t task) const {
    const auto tasks = static_cast<int64_t>(tasks_.size());
    if (task == tasks) return size();
    return size() / kRunElements * task / tasks * kRunElements;
  }

  // work(task's number, its first element, the one behind its last).
  template <typename Work>
  void ForTasks(Work work) const {
    parallel_.For(static_cast<int64_t>(tasks_.size()), [&](int64_t task) {
      work(static_cast<size_t>(task), Start(task), Start(task + 1));
    });
  }

  // Whether every sum is; without a branch for each, so that the compiler vectorises it.
  bool IsFinite() const {
    std::atomic<bool> finite = true;
    ForTasks([&](size_t, int64_t start, int64_t end) {
      while (start < end && finite.load(std::memory_order_relaxed)) {
        const int64_t stop = std::min(start + kRunElements, end);
        bool here = true;
        for (; start < stop; ++start) {
          here &= std::fabs(residual_[start] + update_[static_cast<size_t>(start)]) <=
                  std::numeric_limits<float>::max();
        }
        if (!here) finite = false;
      }
    });
    return finite;
  }

  // Names the argument that is to blame.
  Status NotFinite() const {
    const Found bad_update = Find(size(), [&](int64_t i) { return !std::isfinite(update_[i]); });
    if (bad_update.count > 0) {
      return NotFiniteIn("the update is NaN or infinite in " + Describe(bad_update, size()) +
                         ": look for a learning rate that is too high or a division by 0, or skip "
                         "this step");
    }
    const Found bad_residual =
        Find(size(), [&](int64_t i) { return !std::isfinite(residual_[i]); });
    if (bad_residual.count > 0) {
      return NotFiniteIn("the residual is NaN or infinite in " + Describe(bad_residual, size()) +
                         ": start again from zeros");
    }
    const Found overflows =
        Find(size(), [&](int64_t i) { return !std::isfinite(residual_[i] + update_[i]); });
    return NotFiniteIn("residual + update is over the largest float32 in " +
                       Describe(overflows, size()) + ": the update is far too large");
  }

  // False when some sum is not finite.
  bool FindEntries() {
    ForTasks([&](size_t i, int64_t start, int64_t end) {
      FindEntries(&tasks_[i], &pieces_[i], start, end);
    });
    return std::all_of(tasks_.begin(), tasks_.end(),
                       [](const Task& task) { return task.statistics.nonfinite_count == 0; });
  }

  void FindEntries(Task* task, Piece* piece, int64_t start, int64_t end) const {
    const std::span<const StepKernel> kernels = StepKernels();
    const StepKernel& kernel =
        options_.kernel < 0 ? BestStepKernel() : kernels[static_cast<size_t>(options_.kernel)];
    StepRule rule;
    rule.threshold = options_.threshold;
    StepStatistics statistics;  // Not in the task, whose neighbour may be another thread's.
    task->start = task->done = start;
    piece->Start(start, end, options_.iteration);
    for (; start < end; start = task->done) {
      const EncodeRun run{std::min(kRunElements, end - start), update_.data() + start,
                          after_ + start, static_cast<uint32_t>(start % kChunk)};
      if (residual_ != after_) std::copy_n(residual_ + start, run.size, after_ + start);
      piece->Find(kernel, run, rule, start, &statistics);
      task->done = start + run.size;
    }
    task->statistics = statistics;
  }

  Status WriteMessage(const Piece& found, strom_allocate allocate, void* context) const {
    const MessageFields fields{options_.threshold, options_.threshold, size(), options_.iteration};
    const CodingOptions coding{static_cast<Coding>(options_.coding),
                               static_cast<Prefer>(options_.prefer)};
    const std::vector<uint8_t> message =
        found.Write(fields, kOneMessage, coding, parallel_).front();
    uint8_t* const out = allocate(context, static_cast<int64_t>(message.size()));
    if (out == nullptr) {
      return {Code::kInternal,
              "no memory for a message of " + std::to_string(message.size()) + " bytes"};
    }
    std::memcpy(out, message.data(), message.size());
    return {};
  }

  // Undoes FindEntries within rounding, as far as it came.
  void TakeBack() {
    if (residual_ != after_) return;
    for (const Piece& piece : pieces_) {
      piece.ForEach(options_.threshold,
                    [&](int64_t element, float sent) { after_[element] += sent; });
    }
    for (const Task& task : tasks_) {
      for (int64_t i = task.start; i < task.done; ++i) after_[i] -= update_[static_cast<size_t>(i)];
    }
  }

  const std::span<const float> update_;
  const float* const residual_;
  float* const after_;
  const strom_codec_options& options_;
  const Parallel& parallel_;
  std::vector<Task> tasks_;
  std::vector<Piece> pieces_;  // of the tasks
  Piece joined_;               // of several
};

std::string Scientific(float value) {
  char words[32];
  std::snprintf(words, sizeof(words), "%g", static_cast<double>(value));
  return words;
}

Status CheckOptions(const strom_codec_options& options) {
  if (!std::isfinite(options.threshold) || options.threshold <= 0) {
    return Invalid("the threshold is " + std::to_string(options.threshold) +
                   "; it must be a finite float32 over 0");
  }
  if (options.coding < STROM_CODING_AUTO || options.coding > STROM_CODING_BITMAP4) {
    return Invalid("coding is no STROM_CODING_*");
  }
  if (options.coding == STROM_CODING_BITMAP4 && options.threshold < kMinBitmap4Value) {
    return Invalid("the threshold is " + Scientific(options.threshold) +
                   "; with coding bitmap4 it must be at least 2^-125 (" +
                   Scientific(kMinBitmap4Value) + "), so that a half of it is exact");
  }
  if (options.iteration < 0 || options.iteration > kMaxIteration) {
    return Invalid("the iteration is " + std::to_string(options.iteration) +
                   "; it must lie in [0, 2^35)");
  }
  if (options.prefer < STROM_PREFER_SIZE || options.prefer > STROM_PREFER_SPEED) {
    return Invalid("prefer is no STROM_PREFER_*");
  }
  if (options.coding != STROM_CODING_AUTO && options.prefer != STROM_PREFER_SIZE) {
    return Invalid("prefer is what coding AUTO goes by; another coding leaves nothing to prefer");
  }
  if (options.kernel < -1 || options.kernel >= static_cast<int64_t>(StepKernels().size())) {
    return Invalid("this processor has " + std::to_string(StepKernels().size()) +
                   " kernels, so there is no kernel " + std::to_string(options.kernel));
  }
  return {};
}

Status Parse(const uint8_t* message, int64_t bytes, const Parallel& parallel,
             ParsedMessage* parsed) {
  if (bytes < 0) return Invalid("bytes is negative");
  if (message == nullptr && bytes > 0) return Invalid("message is null");
  Status status = ParseMessage({message, static_cast<size_t>(bytes)}, parsed, parallel);
  if (!status.ok()) {
    status.message +=
        " (" + std::to_string(bytes) + " bytes, cut short, altered or of another kind)";
  }
  return status;
}

}  // namespace
}  // namespace strom

using strom::Invalid;
using strom::Status;

int strom_codec_encode(const float* update, const float* residual, float* residual_after,
                       int64_t size, const strom_codec_options* options,
                       const strom_thread_pool* threads, strom_allocate allocate, void* context,
                       int64_t* count) {
  return strom::Guard([&]() -> Status {
    const strom::KeepSubnormals keep;
    if (size < 0 || size > strom::kMostElements) return Invalid("size must lie in [0, 2^33]");
    if (size > 0 && (update == nullptr || residual == nullptr || residual_after == nullptr)) {
      return Invalid("update, residual or residual_after is null");
    }
    if (options == nullptr || allocate == nullptr || count == nullptr) {
      return Invalid("options, allocate or count is null");
    }
    Status status = strom::CheckOptions(*options);
    if (!status.ok()) return status;
    const std::span<const float> elements(update, static_cast<size_t>(size));
    strom::LentThreads lent(threads);
    const strom::Parallel parallel = lent.parallel();
    const auto encode = [&]<typename Piece>(std::type_identity<Piece>) {
      return strom::Encoding<Piece>(elements, residual, residual_after, *options, parallel)
          .Encode(allocate, context, count);
    };
    switch (options->coding) {
      case STROM_CODING_BITMAP:
        return encode(std::type_identity<strom::BitmapPiece>());
      case STROM_CODING_BITMAP4:
        return encode(std::type_identity<strom::Bitmap4Piece>());
      default:
        return encode(std::type_identity<strom::CodesPiece>());
    }
  });
}

const char* strom_codec_kernel(int32_t index) {
  const auto kernels = strom::StepKernels();
  if (index < 0 || index >= static_cast<int64_t>(kernels.size())) return nullptr;
  return kernels[static_cast<size_t>(index)].name;
}

int strom_codec_describe(const uint8_t* message, int64_t bytes,
                         strom_message_description* description) {
  return strom::Guard([&]() -> Status {
    if (description == nullptr) return Invalid("description is null");
    strom::ParsedMessage parsed;
    Status status = strom::Parse(message, bytes, {}, &parsed);
    if (!status.ok()) return status;
    *description = {};
    description->size = parsed.elements();
    description->count = parsed.count();
    description->iteration = parsed.fields().iteration;
    description->threshold = parsed.fields().threshold;
    description->value = parsed.fields().value;
    for (int64_t i = 0; i < parsed.spans(); ++i) {
      const auto span = parsed.span(i);
      if (span.count == 0) continue;
      ++(span.k == strom::kRawCoding       ? description->raw_spans
         : span.k == strom::kBitmap4Coding ? description->bitmap4_spans
         : span.k == 0                     ? description->bitmap_spans
                                           : description->sparse_spans);
    }
    return {};
  });
}

int strom_codec_apply(const uint8_t* message, int64_t bytes, float* parameters, int64_t size,
                      const strom_thread_pool* threads) {
  return strom::Guard([&]() -> Status {
    const strom::KeepSubnormals keep;
    if (size < 0) return Invalid("size is negative");
    if (parameters == nullptr && size > 0) return Invalid("parameters is null");
    strom::LentThreads lent(threads);
    strom::ParsedMessage parsed;
    Status status = strom::Parse(message, bytes, lent.parallel(), &parsed);
    if (!status.ok()) return status;
    if (parsed.elements() != size) {
      return Invalid("the message is of " + std::to_string(parsed.elements()) +
                     " parameters and does not fit " + std::to_string(size));
    }
    const strom::ParameterRange range{0, {parameters, static_cast<size_t>(size)}};
    strom::ApplyMessage(parsed, {&range, 1}, lent.parallel());
    return {};
  });
}
