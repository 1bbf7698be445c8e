#include "core/message.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/bits.h"
#include "core/crc32c.h"
#include "core/message_layout.h"
#include "core/rice.h"

namespace strom {
namespace {

// Reads a varint of at most `max_bytes` bytes; -1 for one that is longer, cut off, or padded.
int64_t ReadVarint(Bytes bytes, size_t* position, int max_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < max_bytes; ++i) {
    if (*position >= bytes.size()) return -1;
    const uint8_t byte = bytes[(*position)++];
    value |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) return i > 0 && byte == 0 ? -1 : static_cast<int64_t>(value);
  }
  return -1;
}

// A copy of a payload with the slack that the bit readers need.
class Padded {
 public:
  Bytes Copy(Bytes bytes) {
    buffer_.resize(bytes.size() + kBitSlack);
    std::memcpy(buffer_.data(), bytes.data(), bytes.size());
    std::memset(buffer_.data() + bytes.size(), 0, kBitSlack);
    return Bytes(buffer_).first(bytes.size());
  }

 private:
  std::vector<uint8_t> buffer_;
};

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

// Into how many parts a message of `spans` spans is cut: a few for each thread, so that a dense
// part of the model does not hold up the rest, and none too small to be worth a call.
int64_t SpanTasks(const Parallel& parallel, int64_t spans) {
  return parallel.threads <= 1 ? 1 : std::clamp<int64_t>(spans / 16, 1, 4 * parallel.threads);
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
  if (const char* failed = parsed.CheckPayloads(parallel)) return Corrupt(failed);
  *message = parsed;
  return {};
}

ParsedMessage OpenValidatedMessage(Bytes bytes) {
  ParsedMessage message;
  STROM_CHECK(message.ReadHeader(bytes) == nullptr);
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
  return {(first_span_ + i) << log2_span_, SpanElements(i), here.count, here.k,
          payload_.subspan(static_cast<size_t>(start), static_cast<size_t>(here.end - start))};
}

const char* ParsedMessage::ReadHeader(Bytes bytes) {
  if (bytes.size() < kFixedHeaderBytes) return "it is shorter than a header";
  const uint8_t* const header = bytes.data();
  if (LoadLittleEndian<uint16_t>(header) != kMessageMagic) return "it starts with the wrong magic";
  if (header[kVersionOffset] != kMessageVersion) return "its version is unknown";
  const uint8_t flags = header[kFlagsOffset];
  if ((flags & ~kFlagValue) != 0) return "it has unknown flags";
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
    if (k > log2_span_ && k != kRawCoding) return "a span's k is out of range";
    if (end < start || end > static_cast<int64_t>(payload_.size())) {
      return "the payloads' ends do not ascend";
    }
    if (count == 0 && (k != 0 || end != start)) return "a span without entries has a payload";
    if (k == kRawCoding && (count != elements || end - start != 4 * elements)) {
      return "a raw span is not complete";
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

// The check that failed first, in the order of the spans, whoever finished first.
const char* ParsedMessage::CheckPayloads(const Parallel& parallel) const {
  const int64_t tasks = SpanTasks(parallel, spans_);
  std::vector<const char*> failed(static_cast<size_t>(tasks));
  parallel.For(tasks, [&](int64_t task) {
    failed[static_cast<size_t>(task)] =
        CheckPayloads(spans_ * task / tasks, spans_ * (task + 1) / tasks);
  });
  const auto first = std::find_if(failed.begin(), failed.end(), [](auto* f) { return f; });
  return first == failed.end() ? nullptr : *first;
}

const char* ParsedMessage::CheckPayloads(int64_t first, int64_t last) const {
  Padded padded;
  for (int64_t i = first; i < last; ++i) {
    const Span here = span(i);
    if (here.count == 0) continue;
    if (here.k == kRawCoding) {
      if (!AllFinite(here.payload)) return "a raw element is not finite";
      continue;
    }
    if (const char* failed =
            CheckRice(padded.Copy(here.payload), here.count, here.k, here.elements)) {
      return failed;
    }
  }
  return nullptr;
}

namespace {

// Adds one span after the other to ranges of parameters; both only go forward.
class Applier {
 public:
  Applier(const ParsedMessage& message, std::span<const ParameterRange> ranges)
      : value_bits_(std::bit_cast<uint32_t>(message.fields().value)), ranges_(ranges) {}

  // Returns how many of the span's entries lie in no range.
  int64_t Apply(const ParsedMessage::Span& span) {
    const int64_t span_end = span.offset + span.elements;
    while (!ranges_.empty() && End(ranges_.front()) <= span.offset) ranges_ = ranges_.subspan(1);
    const bool raw = span.k == kRawCoding;
    const Codes codes = raw ? Codes() : Decode(span);
    int64_t done = 0;  // entries met so far
    int64_t skipped = 0;
    int64_t covered = 0;  // the index in the span up to which the ranges have been dealt with
    for (size_t r = 0; r < ranges_.size() && ranges_[r].offset < span_end; ++r) {
      const int64_t first = std::max(ranges_[r].offset, span.offset) - span.offset;
      const int64_t last = std::min(End(ranges_[r]), span_end) - span.offset;
      if (first >= last) continue;
      float* const values = ranges_[r].values.data() + (span.offset + first - ranges_[r].offset);
      if (raw) {
        skipped += NonZeros(span, covered, first);
        AddRaw(span, first, last, values);
      } else {
        const int64_t start = Below(codes, done, first);
        skipped += start - done;
        done = Below(codes, start, last);
        AddEntries(codes.subspan(static_cast<size_t>(start), static_cast<size_t>(done - start)),
                   first, values);
      }
      covered = last;
    }
    return skipped + (raw ? NonZeros(span, covered, span.elements) : span.count - done);
  }

 private:
  static int64_t End(const ParameterRange& range) {
    return range.offset + static_cast<int64_t>(range.values.size());
  }

  Codes Decode(const ParsedMessage::Span& span) {
    codes_.resize(std::max(codes_.size(), static_cast<size_t>(span.count)));
    DecodeRice(padded_.Copy(span.payload), span.count, span.k, codes_.data());
    return Codes(codes_).first(static_cast<size_t>(span.count));
  }

  // The position of the first code from `start` on whose index is not below `index`.
  static int64_t Below(Codes codes, int64_t start, int64_t index) {
    const auto found = std::partition_point(codes.begin() + start, codes.end(), [&](uint32_t code) {
      return int64_t{code >> 1} < index;
    });
    return found - codes.begin();
  }

  // `values` is where the element with index `first` goes.
  void AddEntries(Codes codes, int64_t first, float* values) const {
    for (const uint32_t code : codes) {
      values[int64_t{code >> 1} - first] += std::bit_cast<float>(value_bits_ ^ (code << 31));
    }
  }

  // The span's elements [first, last); `values` is where the first of them goes.
  static void AddRaw(const ParsedMessage::Span& span, int64_t first, int64_t last, float* values) {
    const uint8_t* const raw = span.payload.data() + 4 * first;
    for (int64_t i = 0; i < last - first; ++i) values[i] += LoadLittleEndian<float>(raw + 4 * i);
  }

  static int64_t NonZeros(const ParsedMessage::Span& span, int64_t first, int64_t last) {
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
      count += LoadLittleEndian<float>(span.payload.data() + 4 * i) != 0;
    }
    return count;
  }

  uint32_t value_bits_;
  std::span<const ParameterRange> ranges_;
  Padded padded_;
  std::vector<uint32_t> codes_;
};

}  // namespace

int64_t ApplyMessage(const ParsedMessage& message, int64_t offset, std::span<float> parameters) {
  const ParameterRange range{offset, parameters};
  return ApplyMessage(message, {&range, 1});
}

int64_t ApplyMessage(const ParsedMessage& message, std::span<const ParameterRange> ranges,
                     const Parallel& parallel) {
  const int64_t tasks = SpanTasks(parallel, message.spans());
  std::vector<int64_t> skipped(static_cast<size_t>(tasks));
  parallel.For(tasks, [&](int64_t task) {
    Applier applier(message, ranges);
    int64_t here = 0;
    for (int64_t i = message.spans() * task / tasks; i < message.spans() * (task + 1) / tasks;
         ++i) {
      const ParsedMessage::Span span = message.span(i);
      if (span.count > 0) here += applier.Apply(span);
    }
    skipped[static_cast<size_t>(task)] = here;
  });
  return std::accumulate(skipped.begin(), skipped.end(), int64_t{0});
}

int64_t ApplyMessages(std::span<const ParsedMessage> messages,
                      std::span<const ParameterRange> ranges, const Parallel& parallel) {
  int64_t skipped = 0;
  for (const ParsedMessage& message : messages) skipped += ApplyMessage(message, ranges, parallel);
  return skipped;
}

}  // namespace strom
