// The codec functions of capi/strom.h: one update to one message and back, without a replica.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "capi/handles.h"
#include "core/message.h"
#include "core/message_writer.h"
#include "core/residual.h"

namespace strom {
namespace {

// One message holds it all: this many bytes are never needed.
constexpr int64_t kOneMessage = (int64_t{1} << 32) - 1;
constexpr int64_t kMostElements = int64_t{1} << 33;

Status Invalid(const char* words) { return {Code::kInvalidArgument, words}; }

// residual += update, and what reaches the threshold leaves into `entries`. False: not finite.
bool FindEntries(std::span<const float> update, float* residual, float threshold,
                 EntryList* entries) {
  constexpr int64_t kRunElements = 4096;  // divides kChunk
  const std::vector<float> zeros(kRunElements);
  std::vector<float> values(kRunElements);
  StepRule rule;
  rule.threshold = threshold;
  StepStatistics statistics;
  const auto size = static_cast<int64_t>(update.size());
  for (int64_t start = 0; start < size; start += kRunElements) {
    const StepRun run{std::min(kRunElements, size - start),
                      zeros.data(),
                      update.data() + start,
                      values.data(),
                      residual + start,
                      static_cast<uint32_t>(start % kChunk)};
    uint32_t* const codes = entries->Reserve(run.size);
    entries->Append(start / kChunk, StepKernels().back().step(run, rule, codes, &statistics));
  }
  return statistics.nonfinite_count == 0;
}

void TakeBack(const EntryList& entries, float threshold, float* residual) {
  for (size_t i = 0; i < entries.chunks(); ++i) {
    const EntryList::Chunk chunk = entries.chunk(i);
    for (const uint32_t code : chunk.codes) {
      residual[chunk.index * kChunk + (code >> 1)] += code & 1 ? -threshold : threshold;
    }
  }
}

Status Encode(std::span<const float> update, float* residual, float threshold,
              std::span<uint8_t> out, int64_t* bytes, int64_t* count) {
  EntryList entries;
  if (!FindEntries(update, residual, threshold, &entries)) {
    TakeBack(entries, threshold, residual);
    return Invalid(
        "the update or the residual is not finite; what is finite was added to the "
        "residual");
  }
  const MessageFields fields{threshold, threshold, static_cast<int64_t>(update.size()), 0};
  const std::vector<uint8_t> message = WriteEntries(fields, entries, kOneMessage).front();
  *bytes = static_cast<int64_t>(message.size());
  *count = entries.size();
  if (message.size() > out.size()) {
    TakeBack(entries, threshold, residual);
    return Invalid("the message needs more room; strom_codec_bound says how much is always enough");
  }
  std::memcpy(out.data(), message.data(), message.size());
  return {};
}

}  // namespace
}  // namespace strom

using strom::Invalid;
using strom::Status;

int strom_codec_encode(const float* update, float* residual, int64_t size, float threshold,
                       uint8_t* out, int64_t capacity, int64_t* bytes, int64_t* count) {
  return strom::Guard([&]() -> Status {
    if (size < 0 || size > strom::kMostElements) return Invalid("size must lie in [0, 2^33]");
    if (capacity < 0) return Invalid("capacity is negative");
    if (size > 0 && (update == nullptr || residual == nullptr)) {
      return Invalid("update or residual is null");
    }
    if (out == nullptr || bytes == nullptr || count == nullptr) {
      return Invalid("out, bytes or count is null");
    }
    if (!std::isfinite(threshold) || threshold <= 0) {
      return Invalid("the threshold must be a finite number over 0");
    }
    return strom::Encode({update, static_cast<size_t>(size)}, residual, threshold,
                         {out, static_cast<size_t>(capacity)}, bytes, count);
  });
}

int64_t strom_codec_bound(int64_t size) {
  if (size < 0) return 0;
  // Two bits an element, a directory row of at most 59 bits and two partial bytes a span.
  const int64_t spans = (size >> strom::kMinLog2Span) + 1;
  return strom::kMaxMessageHeaderBytes + size / 4 + 10 * spans + 1;
}

int strom_codec_apply(const uint8_t* message, int64_t bytes, float* parameters, int64_t size) {
  return strom::Guard([&]() -> Status {
    if (bytes < 0 || size < 0) return Invalid("bytes or size is negative");
    if ((message == nullptr && bytes > 0) || (parameters == nullptr && size > 0)) {
      return Invalid("message or parameters is null");
    }
    strom::ParsedMessage parsed;
    Status status = strom::ParseMessage({message, static_cast<size_t>(bytes)}, &parsed);
    if (!status.ok()) return status;
    if (parsed.elements() != size) {
      return Invalid("the message belongs to another number of parameters");
    }
    strom::ApplyMessage(parsed, 0, {parameters, static_cast<size_t>(size)});
    return {};
  });
}
