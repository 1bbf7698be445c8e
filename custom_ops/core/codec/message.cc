#include "core/codec/message.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/bits.h"
#include "core/base/crc32c.h"
#include "core/base/varint.h"
#include "core/codec/bitmap4.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_payload.h"
#include "core/codec/rice.h"

namespace strom {
namespace {

// ReadBits for a stream without slack.
uint64_t ReadBitsExactly(Bytes stream, int64_t position, int width) {
  uint8_t window[2 * kBitSlack] = {};
  const auto first = static_cast<size_t>(position >> 3);
  std::memcpy(window, stream.data() + first, std::min(kBitSlack, stream.size() - first));
  return ReadBits(window, position & 7, width);
}

bool AllFinite(Bytes floats) {
  uint32_t largest = 0;
  for (size_t i = 0; i < floats.size(); i += 4) {
    largest = std::max(largest, LoadLittleEndian<uint32_t>(floats.data() + i) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

Status Corrupt(const char* check) {
  return {Code::kCorrupt, std::string("not a valid update message: ") + check};
}

}  // namespace

Status ParseMessage(Bytes bytes, ParsedMessage* message, const Parallel& parallel) {
  ParsedMessage parsed;
  if (const char* failed = parsed.ReadHeader(bytes)) return Corrupt(failed);
  if (MessageChecksum(bytes) != LoadLittleEndian<uint32_t>(bytes.data() + kChecksumOffset)) {
    return Corrupt("the checksum does not match");
  }
  if (const char* failed = parsed.CheckDirectory()) return Corrupt(failed);
  parsed.CountEntries();
  if (const char* failed = parsed.CheckPayloads(parallel)) return Corrupt(failed);
  *message = std::move(parsed);
  return {};
}

ParsedMessage OpenValidatedMessage(Bytes bytes) {
  ParsedMessage message;
  STROM_CHECK(message.ReadHeader(bytes) == nullptr);
  message.CountEntries();
  return message;
}

ParsedMessage::Entry ParsedMessage::entry(int64_t i) const {
  const int end_bits = BitWidth(payload_.size());
  const int64_t position = i * (count_bits_ + kCodingBits + end_bits);
  const uint64_t row = ReadBitsExactly(directory_, position, count_bits_ + kCodingBits);
  const uint64_t end = ReadBitsExactly(directory_, position + count_bits_ + kCodingBits, end_bits);
  return {static_cast<int64_t>(row & ((uint64_t{1} << count_bits_) - 1)),
          static_cast<int>(row >> count_bits_), static_cast<int64_t>(end)};
}

int64_t ParsedMessage::SpanElements(int64_t i) const {
  const int64_t span = int64_t{1} << log2_span_;
  return std::min(span, fields_.elements - (first_span_ + i) * span);
}

ParsedMessage::Span ParsedMessage::span(int64_t i) const {
  const Entry here = entry(i);
  const int64_t start = i == 0 ? 0 : entry(i - 1).end;
  return {(first_span_ + i) << log2_span_,
          SpanElements(i),
          here.count,
          here.k,
          payload_.subspan(static_cast<size_t>(start), static_cast<size_t>(here.end - start)),
          payload_.size() - static_cast<size_t>(here.end),
          table_.empty() ? 0 : first_entries_[static_cast<size_t>(i)]};
}

const char* ParsedMessage::ReadHeader(Bytes bytes) {
  if (bytes.size() < kFixedHeaderBytes) return "it is shorter than a header";
  const uint8_t* const header = bytes.data();
  if (LoadLittleEndian<uint16_t>(header) != kMessageMagic) return "it starts with the wrong magic";
  if (header[kVersionOffset] != kMessageVersion) return "its version is unknown";
  const uint8_t flags = header[kFlagsOffset];
  if ((flags & ~(kFlagValue | kFlagTable)) != 0) return "it has unknown flags";
  if (flags == (kFlagValue | kFlagTable)) return "it has one value and a table of values";
  fields_.threshold = LoadLittleEndian<float>(header + kThresholdOffset);
  log2_span_ = header[kLog2SpanOffset];
  count_bits_ = header[kCountBitsOffset];

  size_t position = kFixedHeaderBytes;
  fields_.elements = ReadVarint(bytes, &position, kElementsBytes);
  fields_.iteration = ReadVarint(bytes, &position, kIterationBytes);
  first_span_ = ReadVarint(bytes, &position, kSpansBytes);
  spans_ = ReadVarint(bytes, &position, kSpansBytes);
  count_ = ReadVarint(bytes, &position, kCountBytes);
  const int64_t payload_bytes = ReadVarint(bytes, &position, kPayloadBytes);
  // A failed varint is negative, and so are their bits then.
  if ((fields_.elements | fields_.iteration | first_span_ | spans_ | count_ | payload_bytes) < 0) {
    return "a number in its header is malformed";
  }
  fields_.value = fields_.threshold;
  if (flags & kFlagValue) {
    if (bytes.size() - position < sizeof(float)) return "it is shorter than its header";
    fields_.value = LoadLittleEndian<float>(header + position);
    position += sizeof(float);
  }
  if (flags & kFlagTable) {
    if (const char* failed = table_.Read(bytes, &position, count_)) return failed;
    fields_.value = 0;
  }
  if (!std::isfinite(fields_.threshold) || fields_.threshold < 0) return "its threshold is invalid";
  if (!std::isfinite(fields_.value)) return "its value is not finite";
  if (fields_.elements > kMaxElements) return "it has too many elements";
  if (log2_span_ < kMinLog2Span || log2_span_ > kMaxLog2Span) return "its span is out of range";
  if (count_bits_ > log2_span_ + 1) return "its counts are too wide";
  if (payload_bytes > kMaxPayloadBytes) return "its payload is too long";

  const int64_t span = int64_t{1} << log2_span_;
  if (first_span_ + spans_ > (fields_.elements + span - 1) / span) {
    return "its spans lie outside the flat space";
  }
  const int row_bits = count_bits_ + kCodingBits + BitWidth(static_cast<uint64_t>(payload_bytes));
  const int64_t directory_bytes = BytesOfBits(spans_ * row_bits);
  const Bytes rest = bytes.subspan(position);
  if (static_cast<int64_t>(rest.size()) != directory_bytes + payload_bytes) {
    return "its length is not what its header says";
  }
  directory_ = rest.first(static_cast<size_t>(directory_bytes));
  payload_ = rest.last(static_cast<size_t>(payload_bytes));
  return nullptr;
}

const char* ParsedMessage::CheckDirectory() const {
  int64_t total = 0;
  int64_t start = 0;
  for (int64_t i = 0; i < spans_; ++i) {
    const auto [count, k, end] = entry(i);
    const int64_t elements = SpanElements(i);
    if (count > elements) return "a span has more entries than elements";
    if (k > log2_span_ && k != kBitmap4Coding && k != kRawCoding) {
      return "a span's k is out of range";
    }
    if (end < start || end > static_cast<int64_t>(payload_.size())) {
      return "the payloads' ends do not ascend";
    }
    if (count == 0 && (k != 0 || end != start)) return "a span without entries has a payload";
    if (k == kRawCoding && (count != elements || end - start != 4 * elements)) {
      return "a raw span is not complete";
    }
    if ((k == kRawCoding || k == kBitmap4Coding) && !table_.empty()) {
      return "a raw span or one of four states stands beside a table";
    }
    if (k == kBitmap4Coding) {
      if (end - start != Bitmap4Bytes(elements)) {
        return "a span of four states does not have two bits for each element";
      }
      if (std::fabs(fields_.value) < kMinBitmap4Value) return "a half of its value is not exact";
    }
    total += count;
    start = end;
  }
  if (total != count_) return "the spans' counts do not add up";
  if (start != static_cast<int64_t>(payload_.size())) return "the payload goes on after its spans";
  const int row_bits = count_bits_ + kCodingBits + BitWidth(payload_.size());
  const int padding =
      static_cast<int>(8 * static_cast<int64_t>(directory_.size()) - spans_ * row_bits);
  if (padding > 0 && directory_.back() >> (8 - padding) != 0) return "padding bits are not zero";
  return nullptr;
}

void ParsedMessage::CountEntries() {
  if (table_.empty()) return;
  int64_t total = 0;
  first_entries_.reserve(static_cast<size_t>(spans_));
  for (int64_t i = 0; i < spans_; ++i) {
    first_entries_.push_back(total);
    total += entry(i).count;
  }
}

// The check that failed first, in the order of the spans, whoever finished first.
const char* ParsedMessage::CheckPayloads(const Parallel& parallel) const {
  const int64_t tasks = PartsFor(parallel, spans_, 16);
  std::vector<const char*> failed(static_cast<size_t>(tasks));
  parallel.For(tasks, [&](int64_t task) {
    failed[static_cast<size_t>(task)] =
        CheckPayloads(spans_ * task / tasks, spans_ * (task + 1) / tasks);
  });
  const auto first = std::find_if(failed.begin(), failed.end(), [](auto* f) { return f; });
  return first == failed.end() ? nullptr : *first;
}

const char* ParsedMessage::CheckPayloads(int64_t first, int64_t last) const {
  PayloadReader payloads;
  for (int64_t i = first; i < last; ++i) {
    const Span here = span(i);
    if (here.count == 0) continue;
    if (here.k == kRawCoding) {
      if (!AllFinite(here.payload)) return "a raw element is not finite";
      continue;
    }
    if (here.k == kBitmap4Coding) {
      if (const char* failed = CheckBitmap4(here.payload, here.count, here.elements)) return failed;
      continue;
    }
    if (const char* failed = Rice().check(payloads.Read(here), here.count, here.k, here.elements)) {
      return failed;
    }
  }
  return nullptr;
}

}  // namespace strom
