#include "core/codec/message_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/base/bits.h"
#include "core/base/varint.h"
#include "core/codec/message_layout.h"

namespace strom {
namespace {

RiceChoice ChooseSpanCoding(Codes codes, uint32_t origin, const CodingOptions& options) {
  const RiceChoice bitmap = BitmapChoice(codes, origin);
  if (options.coding == Coding::kBitmap) return bitmap;
  const RiceChoice best = Rice().choose(codes, origin, options.coding == Coding::kSparse ? 1 : 0);
  if (options.coding == Coding::kSparse || options.prefer == Prefer::kSize) return best;
  const auto entries = static_cast<int64_t>(codes.size());
  return 8 * (bitmap.bytes - best.bytes) <= entries * kBitsForSpeed ? bitmap : best;
}

// How many spans make a task: some thousand entries, so that a call costs nothing beside them.
constexpr int64_t kSpansInTask = 16;

int64_t Tasks(size_t spans) {
  return (static_cast<int64_t>(spans) + kSpansInTask - 1) / kSpansInTask;
}

template <typename Element>
std::span<Element> OfTask(std::span<Element> all, int64_t task) {
  const auto first = static_cast<size_t>(task * kSpansInTask);
  return all.subspan(first, std::min(static_cast<size_t>(kSpansInTask), all.size() - first));
}

// A few microseconds of measuring.
constexpr int64_t kMeasuredElementsInTask = int64_t{1} << 17;

// All spans of a bitmap.
std::vector<BitmapSpan> CutBitmap(const Bitmap& bitmap, int log2_span, const Parallel& parallel) {
  const auto start = [&](int64_t span) { return std::min(span << log2_span, bitmap.elements); };
  const int64_t count = (bitmap.elements + (int64_t{1} << log2_span) - 1) >> log2_span;
  const int64_t in_task = std::max<int64_t>(kMeasuredElementsInTask >> log2_span, 1);
  std::vector<BitmapSpan> spans(static_cast<size_t>(count));
  parallel.For((count + in_task - 1) / in_task, [&](int64_t task) {
    const int64_t end = std::min(count, (task + 1) * in_task);
    for (int64_t i = task * in_task; i < end; ++i) {
      spans[static_cast<size_t>(i)] =
          MeasureBitmapSpan(bitmap, start(i), start(i + 1) - start(i), 0);
    }
  });
  int64_t signs = 0;
  for (BitmapSpan& span : spans) {  // Only now it is known how many come before.
    span.run.first_sign = signs;
    signs += span.count;
  }
  return spans;
}

}  // namespace

int ChooseLog2Span(int64_t count, int64_t elements) {
  const double density =
      static_cast<double>(count) / static_cast<double>(std::max<int64_t>(elements, 1));
  int log2_span = kMaxLog2Span;
  while (log2_span > kMinLog2Span && density * static_cast<double>(1 << log2_span) > 1024) {
    --log2_span;
  }
  return log2_span;
}

int ChooseLog2Span(int64_t count, int64_t elements, int64_t max_bytes, const CodingOptions& options,
                   int64_t runs) {
  int log2_span = ChooseLog2Span(count, elements);
  // Entries may gather in one span: even full it has to fit in a message.
  const int element_bits = options.coding == Coding::kSparse ? 3 : 2;
  const auto bytes = [&] {
    const int64_t table = TableBytesBound(std::min(runs, int64_t{1} << log2_span));
    return 2 * kMaxMessageHeaderBytes + table + (element_bits << log2_span) / 8;
  };
  while (bytes() > max_bytes) --log2_span;
  return log2_span;
}

MessageWriter::MessageWriter(const MessageFields& fields, int log2_span, int64_t max_bytes,
                             int64_t room, const CodingOptions& options)
    : fields_(fields),
      log2_span_(log2_span),
      max_bytes_(max_bytes),
      room_(room),
      options_(options) {
  STROM_CHECK(max_bytes >= kMinMessageBytes && max_bytes <= kMaxPayloadBytes);
  STROM_CHECK(log2_span >= kMinLog2Span && log2_span <= kMaxLog2Span);
  STROM_CHECK(fields.elements >= 0 && fields.elements <= kMaxElements);
  STROM_CHECK(fields.iteration >= 0 && fields.iteration <= kMaxIteration);
  for (const ValueRun& run : fields.runs) {
    run_ends_.push_back((run_ends_.empty() ? 0 : run_ends_.back()) + run.count);
  }
}

void MessageWriter::AddSpan(int64_t span, Codes codes) {
  if (codes.empty()) return;
  STROM_CHECK(sources_.empty() || sources_.back().span < span);
  sources_.push_back({span, codes, {}, 0, 0, 0});
}

void MessageWriter::AddCodedSpan(int64_t span, int64_t count, int k, Bytes payload) {
  STROM_CHECK(sources_.empty() || sources_.back().span < span);
  STROM_CHECK(count > 0 && k >= 0 && (k <= log2_span_ || k == kBitmap4Coding));
  sources_.push_back({span, {}, {}, k, 0, 0, payload, count});
}

void MessageWriter::AddBitmapSpan(int64_t span, const BitmapSpan& bitmap) {
  if (bitmap.count == 0) return;
  STROM_CHECK(sources_.empty() || sources_.back().span < span);
  sources_.push_back({span, {}, {}, 0, 0, 0, {}, bitmap.count, &bitmap});
}

void MessageWriter::AddRawSpan(int64_t span, std::span<const float> values) {
  STROM_CHECK(sources_.empty() || sources_.back().span < span);
  sources_.push_back({span, {}, values, kRawCoding, 0, 0});
}

std::vector<std::vector<uint8_t>> MessageWriter::Finish(const Parallel& parallel) {
  parallel.For(Tasks(sources_.size()), [&](int64_t task) {
    for (Source& source : OfTask(Sources(sources_), task)) Size(source);
  });
  std::erase_if(sources_, [](const Source& source) { return source.bytes == 0; });

  const std::vector<Sources> parts = Part();
  std::vector<std::vector<uint8_t>> messages;
  for (const Sources part : parts) {
    uint8_t* payloads = nullptr;
    messages.push_back(StartMessage(part, &payloads));
    parallel.For(Tasks(part.size()), [&](int64_t task) {
      const Sources here = OfTask(part, task);
      const int64_t end = here.back().start + here.back().bytes;
      std::vector<uint8_t> apart;
      for (const Source& source : here) {
        uint8_t* const place = payloads + source.start;
        // A coder overwrites what lies behind: the task's next spans, which are still to come, but
        // never those of another task.
        if (end - source.start - source.bytes >= static_cast<int64_t>(kRiceSlack)) {
          Write(source, place);
          continue;
        }
        apart.resize(static_cast<size_t>(source.bytes) + kRiceSlack);
        Write(source, apart.data());
        std::memcpy(place, apart.data(), static_cast<size_t>(source.bytes));
      }
    });
  }
  parallel.For(static_cast<int64_t>(messages.size()), [&](int64_t i) {
    std::vector<uint8_t>& message = messages[static_cast<size_t>(i)];
    const Bytes bytes = Bytes(message).subspan(static_cast<size_t>(room_));
    StoreLittleEndian<uint32_t>(message.data() + room_ + kChecksumOffset, MessageChecksum(bytes));
  });
  return messages;
}

void MessageWriter::Size(Source& source) const {
  if (!source.coded.empty()) {
    source.bytes = static_cast<int64_t>(source.coded.size());
    return;
  }
  if (source.bitmap != nullptr) {
    source.bytes = source.bitmap->bytes();
    return;
  }
  if (source.k == kRawCoding) {
    const bool zero = std::all_of(source.values.begin(), source.values.end(),
                                  [](float value) { return value == 0; });
    source.bytes = zero ? 0 : static_cast<int64_t>(source.values.size_bytes());
    return;
  }
  const RiceChoice choice = ChooseSpanCoding(source.codes, Origin(source), options_);
  source.k = choice.k;
  source.bytes = choice.bytes;
}

void MessageWriter::Write(const Source& source, uint8_t* out) const {
  if (!source.coded.empty()) {
    std::memcpy(out, source.coded.data(), source.coded.size());
  } else if (source.bitmap != nullptr) {
    static_assert(kBitmapSlack <= int64_t{kRiceSlack});
    WriteBitmapSpan(*source.bitmap, out);
  } else if (source.k == kRawCoding) {
    std::memcpy(out, source.values.data(), source.values.size_bytes());
  } else {
    Rice().encode(source.codes, Origin(source), {source.k, source.bytes}, out);
  }
}

// Where the span begins in the count of its codes.
uint32_t MessageWriter::Origin(const Source& source) const {
  return source.codes.front() >> 1 >> log2_span_ << log2_span_;
}

// Shares the spans out among messages, each as long as it may be, and gives them their starts.
std::vector<MessageWriter::Sources> MessageWriter::Part() {
  std::vector<Sources> parts;
  size_t first = 0;
  int64_t payload = 0;
  int64_t entries = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.first_entry = entries;
    entries += source.count();
    const auto bound = [&] {
      return MessageBytesBound(source.span - sources_[first].span + 1, payload + source.bytes) +
             TableBytesBound(RunsAmong(sources_[first].first_entry, entries));
    };
    if (i > first && bound() > max_bytes_) {
      parts.push_back(Sources(sources_).subspan(first, i - first));
      first = i;
      payload = 0;
    }
    STROM_CHECK(bound() <= max_bytes_);
    source.start = payload;
    payload += source.bytes;
  }
  parts.push_back(Sources(sources_).subspan(first));  // without spans if there are none
  STROM_CHECK(run_ends_.empty() || run_ends_.back() == entries);
  return parts;
}

// The run that holds an entry.
size_t MessageWriter::RunOf(int64_t entry) const {
  const auto found = std::upper_bound(run_ends_.begin(), run_ends_.end(), entry);
  return static_cast<size_t>(found - run_ends_.begin());
}

// How many runs entries [first, last) belong to.
int64_t MessageWriter::RunsAmong(int64_t first, int64_t last) const {
  if (run_ends_.empty() || first == last) return 0;
  return static_cast<int64_t>(RunOf(last - 1) - RunOf(first)) + 1;
}

// What a message of these spans says of its entries, and its runs, of which those that are alike
// have become one.
MessageFields MessageWriter::FieldsOf(Sources part, std::vector<ValueRun>* runs) const {
  MessageFields fields = fields_;
  if (part.empty() || run_ends_.empty()) return fields;
  const int64_t last = part.back().first_entry + part.back().count();
  for (int64_t entry = part.front().first_entry; entry < last;) {
    const size_t run = RunOf(entry);
    const int64_t end = std::min(last, run_ends_[run]);
    const auto [all, threshold, value] = fields_.runs[run];
    if (runs->empty() || runs->back().value != value) runs->push_back({0, threshold, value});
    runs->back().count += end - entry;
    runs->back().threshold = std::min(runs->back().threshold, threshold);
    entry = end;
  }
  fields.threshold = std::min_element(runs->begin(), runs->end(), [](auto& a, auto& b) {
                       return a.threshold < b.threshold;
                     })->threshold;
  fields.value = runs->front().value;
  return fields;
}

int64_t MessageWriter::MessageBytesBound(int64_t spans, int64_t payload_bytes) const {
  const int row_bits =
      log2_span_ + 1 + kCodingBits + BitWidth(static_cast<uint64_t>(payload_bytes));
  return kMaxMessageHeaderBytes + BytesOfBits(spans * row_bits) + payload_bytes;
}

// A message but for its payloads, which belong at *payloads, and its checksum.
std::vector<uint8_t> MessageWriter::StartMessage(Sources part, uint8_t** payloads) const {
  int64_t largest = 0;
  for (const Source& source : part) largest = std::max(largest, source.count());
  const int64_t payload_bytes = part.empty() ? 0 : part.back().start + part.back().bytes;
  const int64_t spans = part.empty() ? 0 : part.back().span - part.front().span + 1;
  const int count_bits = BitWidth(static_cast<uint64_t>(largest));
  const int end_bits = BitWidth(static_cast<uint64_t>(payload_bytes));
  const auto directory_bytes =
      static_cast<size_t>(BytesOfBits(spans * (count_bits + kCodingBits + end_bits)));

  std::vector<ValueRun> runs;
  const MessageFields fields = FieldsOf(part, &runs);
  const bool has_table = runs.size() > 1;
  std::vector<uint8_t> header(static_cast<size_t>(kMaxMessageHeaderBytes));
  header.resize(WriteHeader(header.data(), fields, has_table, part, spans, count_bits));
  if (has_table) WriteValueTable(runs, &header);
  const size_t start = static_cast<size_t>(room_) + header.size();
  // The directory's writer may go beyond it; where no payload follows, that is cut off again.
  const size_t bytes = start + directory_bytes + static_cast<size_t>(payload_bytes);
  std::vector<uint8_t> message;
  message.reserve(bytes + kBitSlack);
  message.resize(bytes + kBitSlack);
  std::memcpy(message.data() + room_, header.data(), header.size());
  BitWriter directory(message.data() + start);
  int64_t next = part.empty() ? 0 : part.front().span;
  int64_t end = 0;
  const auto row = [&](int64_t count, int k) {
    directory.Put(static_cast<uint64_t>(count), count_bits);
    directory.Put(static_cast<uint64_t>(k), kCodingBits);
    directory.Put(static_cast<uint64_t>(end), end_bits);
    ++next;
  };
  for (const Source& source : part) {
    while (next < source.span) row(0, 0);
    end = source.start + source.bytes;
    row(source.count(), source.k);
  }
  message.resize(bytes);
  *payloads = message.data() + start + directory_bytes;
  return message;
}

size_t MessageWriter::WriteHeader(uint8_t* out, const MessageFields& fields, bool has_table,
                                  Sources part, int64_t spans, int count_bits) const {
  const bool has_value = !has_table && fields.value != fields.threshold;
  int64_t count = 0;
  for (const Source& source : part) count += source.count();
  StoreLittleEndian<uint16_t>(out, kMessageMagic);
  out[kVersionOffset] = kMessageVersion;
  out[kFlagsOffset] = has_table ? kFlagTable : has_value ? kFlagValue : 0;
  StoreLittleEndian<float>(out + kThresholdOffset, fields.threshold);
  out[kLog2SpanOffset] = static_cast<uint8_t>(log2_span_);
  out[kCountBitsOffset] = static_cast<uint8_t>(count_bits);
  size_t position = kFixedHeaderBytes;
  position += WriteVarint(out + position, fields_.elements);
  position += WriteVarint(out + position, fields_.iteration);
  position += WriteVarint(out + position, part.empty() ? 0 : part.front().span);
  position += WriteVarint(out + position, spans);
  position += WriteVarint(out + position, count);
  position += WriteVarint(out + position, part.empty() ? 0 : part.back().start + part.back().bytes);
  if (has_value) {
    StoreLittleEndian<float>(out + position, fields.value);
    position += sizeof(float);
  }
  return position;
}

std::vector<std::vector<uint8_t>> WriteEntries(const MessageFields& fields,
                                               const EntryList& entries, int64_t max_bytes,
                                               int64_t room, const CodingOptions& options,
                                               const Parallel& parallel) {
  const int log2_span = ChooseLog2Span(entries.size(), fields.elements, max_bytes, options,
                                       static_cast<int64_t>(fields.runs.size()));
  const int64_t spans_per_chunk = kChunk >> log2_span;
  MessageWriter writer(fields, log2_span, max_bytes, room, options);
  for (size_t i = 0; i < entries.chunks(); ++i) {
    const EntryList::Chunk chunk = entries.chunk(i);
    for (Codes left = chunk.codes; !left.empty();) {
      const uint32_t span = left.front() >> (log2_span + 1);
      const auto end = std::partition_point(
          left.begin(), left.end(), [&](uint32_t code) { return code >> (log2_span + 1) == span; });
      const auto here = static_cast<size_t>(end - left.begin());
      writer.AddSpan(chunk.index * spans_per_chunk + span, left.first(here));
      left = left.subspan(here);
    }
  }
  return writer.Finish(parallel);
}

std::vector<std::vector<uint8_t>> WriteBitmap(const MessageFields& fields, const Bitmap& bitmap,
                                              int64_t max_bytes, int64_t room,
                                              const Parallel& parallel) {
  STROM_CHECK(bitmap.elements == fields.elements);
  const CodingOptions options{Coding::kBitmap, Prefer::kSize};
  const int log2_span = ChooseLog2Span(bitmap.count, bitmap.elements, max_bytes, options);
  const std::vector<BitmapSpan> spans = CutBitmap(bitmap, log2_span, parallel);
  MessageWriter writer(fields, log2_span, max_bytes, room, options);
  for (size_t i = 0; i < spans.size(); ++i) {
    writer.AddBitmapSpan(static_cast<int64_t>(i), spans[i]);
  }
  return writer.Finish(parallel);
}

std::vector<std::vector<uint8_t>> WriteBitmap4(const MessageFields& fields, const Bitmap4& bitmap,
                                               int64_t max_bytes, int64_t room,
                                               const Parallel& parallel) {
  STROM_CHECK(bitmap.elements == fields.elements && bitmap.iteration == fields.iteration);
  const CodingOptions options{Coding::kBitmap4, Prefer::kSize};
  const int log2_span = ChooseLog2Span(bitmap.count, bitmap.elements, max_bytes, options);
  const std::vector<int64_t> counts = CountBitmap4Spans(bitmap, log2_span, parallel);
  MessageWriter writer(fields, log2_span, max_bytes, room, options);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const auto span = static_cast<int64_t>(i);
    const int64_t first = span << log2_span;
    const int64_t size = std::min(int64_t{1} << log2_span, bitmap.elements - first);
    writer.AddCodedSpan(
        span, counts[i], kBitmap4Coding,
        {bitmap.bytes + Bitmap4Bytes(first), static_cast<size_t>(Bitmap4Bytes(size))});
  }
  return writer.Finish(parallel);
}

}  // namespace strom
