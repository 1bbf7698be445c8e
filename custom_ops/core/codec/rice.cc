// The scalar coder, and which coders there are. The fast ones are in rice_bmi2.cc,
// rice_avx512.cc and rice_neon.cc.
#include "core/codec/rice.h"

#include <bit>
#include <cstddef>
#include <vector>

#include "core/codec/rice_processors.h"
#include "core/codec/rice_search.h"

namespace strom {
namespace {

// Calls visit(gap, sign) for every entry.
template <typename Visit>
void ForEachGap(Codes codes, uint32_t origin, Visit visit) {
  uint32_t next = origin;  // the element behind the last entry
  for (const uint32_t code : codes) {
    visit((code >> 1) - next, code & 1);
    next = (code >> 1) + 1;
  }
}

RiceChoice Choose(Codes codes, uint32_t origin, int least_k) {
  return SearchK(codes, origin, least_k, [&](int k) {
    HighParts sums = {0, 0, 0};
    ForEachGap(codes, origin, [&](uint32_t gap, uint32_t) {
      sums.lower += gap >> (k > 0 ? k - 1 : 0);
      sums.here += gap >> k;
      sums.higher += gap >> (k + 1);
    });
    return sums;
  });
}

void Encode(Codes codes, uint32_t origin, RiceChoice choice, uint8_t* out) {
  const int k = choice.k;
  const uint64_t low_mask = (uint64_t{1} << k) - 1;
  BitWriter fields(out);
  ForEachGap(codes, origin,
             [&](uint32_t gap, uint32_t sign) { fields.Put((gap & low_mask) << 1 | sign, k + 1); });

  uint8_t* unary = out + FieldBytes(static_cast<int64_t>(codes.size()), k);
  uint64_t word = 0;      // the 64 bits of the unary stream in which the last one lies
  uint64_t position = 0;  // in the word
  ForEachGap(codes, origin, [&](uint32_t gap, uint32_t) {
    for (position += gap >> k; position >= 64; position -= 64, unary += 8) {
      StoreLittleEndian<uint64_t>(unary, word);
      word = 0;
    }
    word |= uint64_t{1} << position++;
  });
  StoreLittleEndian<uint64_t>(unary, word);
}

const char* Check(Bytes payload, int64_t count, int k, int64_t elements) {
  return CheckPayload(payload, count, k, elements, [](Bytes bytes, int64_t entries, int low_bits) {
    RiceSums sums = {0, 0};
    const Bytes unary = bytes.subspan(static_cast<size_t>(FieldBytes(entries, low_bits)));
    for (const uint8_t byte : unary) sums.ones += std::popcount(byte);
    for (int64_t i = 0; i < entries; ++i) {
      const int64_t position = i * (low_bits + 1);
      sums.low_parts += static_cast<int64_t>(ReadBits(bytes.data(), position + 1, low_bits));
    }
    return sums;
  });
}

void Decode(Bytes payload, int64_t count, int k, uint32_t* codes) {
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

std::vector<RiceCoder> FindCoders() {
  std::vector<RiceCoder> coders = {{"scalar", Choose, Encode, Check, Decode, nullptr}};
#if defined(STROM_X86)
  // pext and pdep take a step for each bit on the first two Zen.
  const bool slow_pext = __builtin_cpu_is("znver1") || __builtin_cpu_is("znver2");
  if (HasAvx2() && !slow_pext) coders.push_back(RiceBmi2());
  if (HasAvx512()) coders.push_back(RiceAvx512());
#elif defined(STROM_NEON)
  coders.push_back(RiceNeon());
#endif
  return coders;
}

}  // namespace

RiceChoice BitmapChoice(Codes codes, uint32_t origin) {
  const auto entries = static_cast<int64_t>(codes.size());
  return {0, FieldBytes(entries, 0) + BytesOfBits(entries + SumOfGaps(codes, origin))};
}

std::span<const RiceCoder> RiceCoders() {
  static const std::vector<RiceCoder> coders = FindCoders();
  return coders;
}

}  // namespace strom
