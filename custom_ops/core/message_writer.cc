#include "core/message_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/bits.h"
#include "core/message_layout.h"

namespace strom {
namespace {

size_t WriteVarint(uint8_t* out, int64_t value) {
  auto left = static_cast<uint64_t>(value);
  size_t bytes = 0;
  for (; left >= 0x80; left >>= 7) out[bytes++] = static_cast<uint8_t>(left | 0x80);
  out[bytes++] = static_cast<uint8_t>(left);
  return bytes;
}

RiceChoice Choose(Gaps gaps, const CodingOptions& options) {
  if (options.coding == Coding::kBitmap) return BitmapChoice(gaps);
  const RiceChoice best = ChooseRice(gaps, options.coding == Coding::kSparse ? 1 : 0);
  if (options.coding == Coding::kSparse || options.prefer == Prefer::kSize) return best;
  const RiceChoice bitmap = BitmapChoice(gaps);
  const auto entries = static_cast<int64_t>(gaps.size());
  return 8 * (bitmap.bytes - best.bytes) <= entries * kBitsForSpeed ? bitmap : best;
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
}

void MessageWriter::AddSpan(int64_t span, Codes codes) {
  if (codes.empty()) return;
  gaps_.resize(std::max(gaps_.size(), codes.size()));
  gaps_[0] = (codes[0] >> 1) & ((uint32_t{1} << log2_span_) - 1);
  for (size_t i = 1; i < codes.size(); ++i) gaps_[i] = (codes[i] >> 1) - (codes[i - 1] >> 1) - 1;
  const Gaps gaps = Gaps(gaps_).first(codes.size());
  const RiceChoice choice = Choose(gaps, options_);
  Append(span, static_cast<int64_t>(codes.size()), choice.k, choice.bytes);
  uint8_t* const end = payload_.data() + payload_.size();
  EncodeRice(codes, gaps, choice, end - kBitSlack - choice.bytes);
}

void MessageWriter::AddRawSpan(int64_t span, std::span<const float> values) {
  if (std::all_of(values.begin(), values.end(), [](float value) { return value == 0; })) return;
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  Append(span, static_cast<int64_t>(values.size()), kRawCoding, bytes);
  uint8_t* const end = payload_.data() + payload_.size();
  std::memcpy(end - kBitSlack - bytes, values.data(), values.size_bytes());
}

std::vector<std::vector<uint8_t>> MessageWriter::Finish() {
  if (messages_.empty() || !rows_.empty()) FinishMessage();
  return std::move(messages_);
}

// Makes the directory rows up to `span` and room for its payload, in a new message where the
// present one would become too long.
void MessageWriter::Append(int64_t span, int64_t count, int k, int64_t payload_bytes) {
  if (!rows_.empty() && BytesWith(span, payload_bytes) > max_bytes_) FinishMessage();
  if (rows_.empty()) first_span_ = span;
  const int64_t start = rows_.empty() ? 0 : rows_.back().end;
  const int64_t row = span - first_span_;
  STROM_CHECK(row >= static_cast<int64_t>(rows_.size()));
  rows_.resize(static_cast<size_t>(row), Row{0, 0, start});
  rows_.push_back({count, k, start + payload_bytes});
  STROM_CHECK(BytesWith(span, 0) <= max_bytes_);
  payload_.resize(static_cast<size_t>(start + payload_bytes) + kBitSlack);
}

// A bound of the message's length if `span` joins it.
int64_t MessageWriter::BytesWith(int64_t span, int64_t payload_bytes) const {
  const int64_t payload = (rows_.empty() ? 0 : rows_.back().end) + payload_bytes;
  const int row_bits = log2_span_ + 1 + kCodingBits + BitWidth(static_cast<uint64_t>(payload));
  return kMaxMessageHeaderBytes + BytesOfBits((span - first_span_ + 1) * row_bits) + payload;
}

void MessageWriter::FinishMessage() {
  int64_t count = 0;
  int64_t largest = 0;
  for (const Row& row : rows_) {
    count += row.count;
    largest = std::max(largest, row.count);
  }
  const auto payload_bytes = static_cast<size_t>(rows_.empty() ? 0 : rows_.back().end);
  const int count_bits = BitWidth(static_cast<uint64_t>(largest));
  const int end_bits = BitWidth(payload_bytes);
  const auto directory_bytes = static_cast<size_t>(
      BytesOfBits(static_cast<int64_t>(rows_.size()) * (count_bits + kCodingBits + end_bits)));

  std::vector<uint8_t> message(static_cast<size_t>(room_) + kMaxMessageHeaderBytes +
                               directory_bytes + payload_bytes + kBitSlack);
  uint8_t* const header = message.data() + room_;
  const size_t header_bytes = WriteHeader(header, count_bits, count);
  BitWriter directory(header + header_bytes);
  for (const Row& row : rows_) {
    directory.Put(static_cast<uint64_t>(row.count), count_bits);
    directory.Put(static_cast<uint64_t>(row.k), kCodingBits);
    directory.Put(static_cast<uint64_t>(row.end), end_bits);
  }
  if (payload_bytes > 0) {
    std::memcpy(header + header_bytes + directory_bytes, payload_.data(), payload_bytes);
  }
  const size_t bytes = header_bytes + directory_bytes + payload_bytes;
  StoreLittleEndian<uint32_t>(header + kChecksumOffset, MessageChecksum({header, bytes}));
  message.resize(static_cast<size_t>(room_) + bytes);
  messages_.push_back(std::move(message));
  rows_.clear();
  payload_.clear();
  first_span_ = 0;
}

size_t MessageWriter::WriteHeader(uint8_t* out, int count_bits, int64_t count) const {
  const bool has_value = fields_.value != fields_.threshold;
  StoreLittleEndian<uint16_t>(out, kMessageMagic);
  out[kVersionOffset] = kMessageVersion;
  out[kFlagsOffset] = has_value ? kFlagValue : 0;
  StoreLittleEndian<uint32_t>(out + kChecksumOffset, 0);
  StoreLittleEndian<float>(out + kThresholdOffset, fields_.threshold);
  out[kLog2SpanOffset] = static_cast<uint8_t>(log2_span_);
  out[kCountBitsOffset] = static_cast<uint8_t>(count_bits);
  size_t position = kFixedHeaderBytes;
  position += WriteVarint(out + position, fields_.elements);
  position += WriteVarint(out + position, fields_.iteration);
  position += WriteVarint(out + position, first_span_);
  position += WriteVarint(out + position, static_cast<int64_t>(rows_.size()));
  position += WriteVarint(out + position, count);
  position += WriteVarint(out + position, rows_.empty() ? 0 : rows_.back().end);
  if (has_value) {
    StoreLittleEndian<float>(out + position, fields_.value);
    position += sizeof(float);
  }
  return position;
}

std::vector<std::vector<uint8_t>> WriteEntries(const MessageFields& fields,
                                               const EntryList& entries, int64_t max_bytes,
                                               int64_t room, const CodingOptions& options,
                                               const Parallel&) {
  int log2_span = ChooseLog2Span(entries.size(), fields.elements);
  // Entries may gather in one span: even full it has to fit in a message.
  const int element_bits = options.coding == Coding::kSparse ? 3 : 2;
  while (2 * kMaxMessageHeaderBytes + (element_bits << log2_span) / 8 > max_bytes) --log2_span;
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
  return writer.Finish();
}

}  // namespace strom
