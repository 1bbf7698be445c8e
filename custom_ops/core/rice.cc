#include "core/rice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/bits.h"

namespace strom {
namespace {

// Sum of the gaps' high parts: the zeros of the unary stream. It stays below the span's length.
int64_t HighParts(Gaps gaps, int k) {
  uint32_t sum = 0;
  for (const uint32_t gap : gaps) sum += gap >> k;
  return sum;
}

// The best k for geometrically distributed gaps of mean `mean` (the closed form of CODEC.md).
int GeometricK(double mean) {
  if (mean <= 0) return 0;
  return std::max(0, static_cast<int>(std::ceil(std::log2(0.4812 / std::log1p(1 / mean)))));
}

int64_t FieldBytes(int64_t count, int k) { return BytesOfBits(count * (k + 1)); }

}  // namespace

RiceChoice ChooseRice(Gaps gaps, int least_k) {
  const auto entries = static_cast<int64_t>(gaps.size());
  // One more low bit costs a bit an entry and saves the difference of the high parts. That saving
  // never grows with k, so the first k that does not pay is the best one, wherever the search
  // starts.
  const auto skipped = static_cast<double>(HighParts(gaps, 0));
  int k = std::max(least_k, GeometricK(skipped / static_cast<double>(entries)));
  int64_t high = HighParts(gaps, k);
  while (k > least_k) {
    const int64_t lower = HighParts(gaps, k - 1);
    if (lower - high > entries) break;
    --k;
    high = lower;
  }
  for (;;) {
    const int64_t higher = HighParts(gaps, k + 1);
    if (high - higher <= entries) break;
    ++k;
    high = higher;
  }
  return {k, FieldBytes(entries, k) + BytesOfBits(entries + high)};
}

RiceChoice BitmapChoice(Gaps gaps) {
  const auto entries = static_cast<int64_t>(gaps.size());
  return {0, FieldBytes(entries, 0) + BytesOfBits(entries + HighParts(gaps, 0))};
}

void EncodeRice(Codes codes, Gaps gaps, RiceChoice choice, uint8_t* out) {
  const int width = choice.k + 1;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const auto field = [&](size_t i) { return (uint64_t{gaps[i]} << 1 | (codes[i] & 1)) & mask; };
  BitWriter fields(out);
  size_t i = 0;
  for (; i + 2 <= codes.size(); i += 2) fields.Put(field(i) | field(i + 1) << width, 2 * width);
  if (i < codes.size()) fields.Put(field(i), width);

  uint8_t* unary = out + FieldBytes(static_cast<int64_t>(codes.size()), choice.k);
  uint64_t word = 0;  // the 64 bits of the unary stream in which the last one lies
  uint64_t start = 0;
  uint64_t position = 0;
  for (const uint32_t gap : gaps) {
    position += gap >> choice.k;
    while (position - start >= 64) {
      StoreLittleEndian<uint64_t>(unary + (start >> 3), word);
      word = 0;
      start += 64;
    }
    word |= uint64_t{1} << (position & 63);
    ++position;
  }
  StoreLittleEndian<uint64_t>(unary + (start >> 3), word);
}

const char* CheckRice(Bytes payload, int64_t count, int k, int64_t elements) {
  const int64_t fields = FieldBytes(count, k);
  const int64_t unary_bytes = static_cast<int64_t>(payload.size()) - fields;
  if (unary_bytes < BytesOfBits(count)) return "the payload is too short for its entries";
  const Bytes unary = payload.subspan(static_cast<size_t>(fields));
  if (unary.back() == 0) return "the unary stream ends in an empty byte";

  int64_t ones = 0;
  int64_t byte = 0;
  for (; byte + 8 <= unary_bytes; byte += 8) {
    ones += std::popcount(LoadLittleEndian<uint64_t>(unary.data() + byte));
  }
  for (; byte < unary_bytes; ++byte) ones += std::popcount(unary[static_cast<size_t>(byte)]);
  if (ones != count) return "the unary stream does not hold one bit for each entry";

  int64_t low_parts = 0;
  for (int64_t i = 0, position = 0; i < count; ++i, position += k + 1) {
    low_parts += static_cast<int64_t>(ReadBits(payload.data(), position, k + 1) >> 1);
  }
  const int padding = static_cast<int>(8 * fields - count * (k + 1));
  if (ReadBits(payload.data(), count * (k + 1), padding) != 0) return "padding bits are not zero";

  const int64_t last_one = 8 * unary_bytes - 1 - std::countl_zero(unary.back());
  const int64_t high_parts = last_one - (count - 1);
  // high_parts < 2^35 (a payload is shorter than 4 GiB) and k <= 21, so nothing here overflows.
  const int64_t last_index = (high_parts << k) + low_parts + count - 1;
  if (last_index >= elements) return "the last entry lies outside its span";
  return nullptr;
}

void DecodeRice(Bytes payload, int64_t count, int k, uint32_t* codes) {
  const uint8_t* unary = payload.data() + FieldBytes(count, k);
  // index = sum of the low parts so far + (sum of the high parts so far << k) + number of entries
  // before; the high parts' sum is the one's position less the ones before it.
  int64_t low_parts = 0;
  int64_t field = 0;
  int64_t start = 0;
  int64_t i = 0;
  while (i < count) {
    uint64_t word = LoadLittleEndian<uint64_t>(unary + (start >> 3));
    for (; word != 0 && i < count; word &= word - 1, ++i, field += k + 1) {
      const int64_t high_parts = start + std::countr_zero(word) - i;
      const uint64_t low_and_sign = ReadBits(payload.data(), field, k + 1);
      low_parts += static_cast<int64_t>(low_and_sign >> 1);
      const auto index = static_cast<uint32_t>(low_parts + (high_parts << k) + i);
      codes[i] = (index << 1) | static_cast<uint32_t>(low_and_sign & 1);
    }
    start += 64;
  }
}

}  // namespace strom
