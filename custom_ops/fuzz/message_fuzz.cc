// Any bytes as an update message: parsing accepts or refuses them, and what it accepts can be
// decoded and applied without leaving its bounds, by every coder, with the same result.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/little_endian.h"
#include "core/codec/bitmap4.h"
#include "core/codec/message.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_payload.h"
#include "core/codec/rice.h"

namespace strom {
namespace {

// More parameters than this are not made; the rest of the message lies outside of them then.
constexpr int64_t kMostElements = int64_t{1} << 20;

// The readers of a span of four states agree in every bit, wherever they begin.
void CheckReaders(const ParsedMessage& message, const ParsedMessage::Span& span) {
  const Bitmap4Values adds{message.fields().value, message.fields().iteration};
  const int64_t first = span.elements / 3;
  std::vector<float> expected;
  for (const Bitmap4Reader& reader : Bitmap4Readers()) {
    const int64_t pairs = static_cast<int64_t>(span.payload.size()) / 2;
    STROM_CHECK(reader.count(span.payload.data(), pairs) == span.count);
    std::vector<float> values(static_cast<size_t>(span.elements - first), -0.0f);
    reader.add(span.payload.data(), first, span.elements, adds, values.data());
    if (expected.empty()) expected = values;
    STROM_CHECK(std::memcmp(values.data(), expected.data(), 4 * values.size()) == 0);
  }
}

void CheckCoders(const ParsedMessage& message) {
  PayloadReader payloads;
  for (int64_t i = 0; i < message.spans(); ++i) {
    const ParsedMessage::Span span = message.span(i);
    if (span.count == 0 || span.k == kRawCoding) continue;
    if (span.k == kBitmap4Coding) {
      CheckReaders(message, span);
      continue;
    }
    const Bytes payload = payloads.Read(span);
    std::vector<uint32_t> expected;
    for (const RiceCoder& coder : RiceCoders()) {
      STROM_CHECK(coder.check(payload, span.count, span.k, span.elements) == nullptr);
      std::vector<uint32_t> codes(static_cast<size_t>(span.count) + kCodeSlack);
      coder.decode(payload, span.count, span.k, codes.data());
      codes.resize(static_cast<size_t>(span.count));
      STROM_CHECK(std::is_sorted(codes.begin(), codes.end()));
      STROM_CHECK(int64_t{codes.back() >> 1} < span.elements);
      if (expected.empty()) expected = codes;
      STROM_CHECK(codes == expected);
    }
  }
}

void CheckApplying(const ParsedMessage& message) {
  const int64_t start = message.first_span() << message.log2_span();
  const int64_t size = std::clamp<int64_t>(message.elements() - start, 0, kMostElements);
  std::vector<float> once(static_cast<size_t>(size));
  STROM_CHECK(ApplyMessage(message, start, once) <= message.count());
  // Twice, one after the other and together, with a hole.
  std::vector<float> one_by_one = once;
  std::vector<float> together(once.size());
  const auto apply = [&](std::vector<float>& values, std::span<const ParsedMessage> messages) {
    const size_t hole = values.size() / 3;
    const ParameterRange ranges[] = {
        {start, std::span(values).first(hole)},
        {start + static_cast<int64_t>(hole) + 1,
         std::span(values).subspan(std::min(hole + 1, values.size()))}};
    return ApplyMessages(messages, ranges);
  };
  std::fill(one_by_one.begin(), one_by_one.end(), 0.0f);
  const int64_t skipped = apply(one_by_one, {&message, 1}) + apply(one_by_one, {&message, 1});
  const ParsedMessage both[] = {message, message};
  STROM_CHECK(apply(together, both) == skipped);
  STROM_CHECK(size == 0 || std::memcmp(together.data(), one_by_one.data(), 4 * once.size()) == 0);
}

void Check(const std::vector<uint8_t>& bytes) {
  ParsedMessage message;
  if (!ParseMessage(bytes, &message).ok()) return;
  CheckCoders(message);
  CheckApplying(message);
}

}  // namespace
}  // namespace strom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  // Copies of exactly this size, so that a read beyond it is seen.
  std::vector<uint8_t> bytes(input, input + size);
  strom::Check(bytes);
  if (size < strom::kFixedHeaderBytes) return 0;
  // The checksum would keep nearly everything out.
  strom::StoreLittleEndian<uint32_t>(bytes.data() + strom::kChecksumOffset,
                                     strom::MessageChecksum(bytes));
  strom::Check(bytes);
  return 0;
}
