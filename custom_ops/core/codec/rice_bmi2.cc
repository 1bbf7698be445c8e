// Split Rice for AVX2 and BMI2: pext and pdep pack and unpack eight fields at a time, which is
// where whole bytes end; the compiler vectorises the rest for AVX2.
#include "core/base/processor.h"

#if defined(STROM_X86)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/codec/rice_processors.h"
#include "core/codec/rice_search.h"

#define STROM_INLINE STROM_TARGET_AVX2 __attribute__((always_inline)) inline

namespace strom {
namespace {

constexpr size_t kGroup = 8;
constexpr int kWidest = 16;  // wider fields do not fit four into a word

// `width` ones in each 16 bits.
constexpr uint64_t FieldMasks(int width) {
  return 0x0001000100010001u * ((uint64_t{1} << width) - 1);
}

STROM_TARGET_AVX2 HighParts SumHighParts(Codes codes, uint32_t origin, int k) {
  const int below = k > 0 ? k - 1 : 0;
  const uint32_t first = (codes[0] >> 1) - origin;
  uint32_t lower = first >> below;
  uint32_t here = first >> k;
  uint32_t higher = first >> (k + 1);
  for (size_t i = 1; i < codes.size(); ++i) {
    const uint32_t gap = (codes[i] >> 1) - (codes[i - 1] >> 1) - 1;
    lower += gap >> below;
    here += gap >> k;
    higher += gap >> (k + 1);
  }
  return {lower, here, higher};
}

RiceChoice Choose(Codes codes, uint32_t origin, int least_k) {
  return SearchK(codes, origin, least_k, [&](int k) { return SumHighParts(codes, origin, k); });
}

STROM_INLINE void PutFields(const uint32_t* fields, int width, uint8_t* out) {
  const auto four = [&](size_t i) STROM_TARGET_AVX2 {
    std::array<uint16_t, 4> narrow;
    for (size_t j = 0; j < 4; ++j) narrow[j] = static_cast<uint16_t>(fields[i + j]);
    return _pext_u64(std::bit_cast<uint64_t>(narrow), FieldMasks(width));
  };
  const unsigned __int128 eight = static_cast<unsigned __int128>(four(4)) << (4 * width) | four(0);
  std::memcpy(out, &eight, sizeof(eight));
}

STROM_TARGET_AVX2 void Encode(Codes codes, uint32_t origin, RiceChoice choice, uint8_t* out) {
  const int width = choice.k + 1;
  const auto mask = static_cast<uint32_t>((uint64_t{1} << width) - 1);
  // Packing a group overwrites what lies behind it, so the unary stream comes second.
  std::array<uint32_t, kGroup> fields;
  uint8_t* packed = out;
  BitWriter wide(out);
  uint32_t next = origin;
  for (size_t i = 0; i < codes.size(); i += kGroup) {
    const size_t here = std::min(kGroup, codes.size() - i);
    if (here < kGroup) fields.fill(0);
    for (size_t j = 0; j < here; ++j) {
      const uint32_t code = codes[i + j];
      fields[j] = (((code >> 1) - next) << 1 | (code & 1)) & mask;
      next = (code >> 1) + 1;
    }
    if (width <= kWidest) {
      PutFields(fields.data(), width, packed);
      packed += width;
    } else {
      for (size_t j = 0; j < here; ++j) wide.Put(fields[j], width);
    }
  }

  uint8_t* unary = out + FieldBytes(static_cast<int64_t>(codes.size()), choice.k);
  uint64_t word = 0;
  uint64_t position = 0;
  next = origin;
  for (const uint32_t code : codes) {
    position += ((code >> 1) - next) >> choice.k;
    next = (code >> 1) + 1;
    for (; position >= 64; position -= 64, unary += 8) {
      StoreLittleEndian<uint64_t>(unary, word);
      word = 0;
    }
    word |= uint64_t{1} << position++;
  }
  StoreLittleEndian<uint64_t>(unary, word);
}

// Two times four fields of 16 bits; reads up to 16 bytes.
STROM_INLINE std::array<uint64_t, 2> GetFields(const uint8_t* packed, int width) {
  const int bits = 4 * width;
  const auto first = LoadLittleEndian<uint64_t>(packed);
  const auto second = LoadLittleEndian<uint64_t>(packed + (bits >> 3)) >> (bits & 7);
  return {_pdep_u64(first, FieldMasks(width)), _pdep_u64(second, FieldMasks(width))};
}

STROM_TARGET_AVX2 int64_t SumLowParts(const uint8_t* payload, int64_t count, int k) {
  const int width = k + 1;
  int64_t sum = 0;
  int64_t i = 0;
  if (width <= kWidest) {
    constexpr uint64_t kLowOfPairs = 0x0000ffff0000ffff;
    while (count - i >= static_cast<int64_t>(kGroup)) {
      // Four parts below 2^16 a turn in each half of the word: 2^14 turns do not overflow it.
      const int64_t end = std::min(count, i + (int64_t{kGroup} << 14));
      uint64_t pairs = 0;
      for (; end - i >= static_cast<int64_t>(kGroup); i += kGroup) {
        for (const uint64_t four : GetFields(payload + (i >> 3) * width, width)) {
          const uint64_t low = four >> 1 & FieldMasks(k);
          pairs += (low & kLowOfPairs) + (low >> 16 & kLowOfPairs);
        }
      }
      sum += static_cast<int64_t>((pairs & 0xffffffff) + (pairs >> 32));
    }
  }
  for (; i < count; ++i) {
    sum += static_cast<int64_t>(ReadBits(payload, i * width + 1, k));
  }
  return sum;
}

STROM_TARGET_AVX2 RiceSums Sum(Bytes payload, int64_t count, int k) {
  const Bytes unary = payload.subspan(static_cast<size_t>(FieldBytes(count, k)));
  int64_t ones = 0;
  size_t byte = 0;
  for (; byte + 8 <= unary.size(); byte += 8) {
    ones += std::popcount(LoadLittleEndian<uint64_t>(unary.data() + byte));
  }
  for (; byte < unary.size(); ++byte) ones += std::popcount(unary[byte]);
  return {ones, k == 0 ? 0 : SumLowParts(payload.data(), count, k)};
}

const char* Check(Bytes payload, int64_t count, int k, int64_t elements) {
  return CheckPayload(payload, count, k, elements, Sum);
}

// Goes through the ones of a stream of bits.
class Ones {
 public:
  explicit Ones(const uint8_t* stream) : next_(stream), word_(LoadLittleEndian<uint64_t>(stream)) {}

  STROM_INLINE uint32_t Next() {
    while (word_ == 0) {
      next_ += 8;
      start_ += 64;
      word_ = LoadLittleEndian<uint64_t>(next_);
    }
    const uint32_t position = start_ + static_cast<uint32_t>(std::countr_zero(word_));
    word_ &= word_ - 1;
    return position;
  }

 private:
  const uint8_t* next_;
  uint64_t word_;
  uint32_t start_ = 0;
};

STROM_TARGET_AVX2 void Decode(Bytes payload, int64_t count, int k, uint32_t* codes) {
  const int width = k + 1;
  Ones ones(payload.data() + FieldBytes(count, k));
  // As in the scalar coder: index = low parts so far + (high parts so far << k) + entries before.
  uint32_t low_parts = 0;
  const auto put = [&](int64_t i, uint32_t low_and_sign) STROM_TARGET_AVX2 {
    low_parts += low_and_sign >> 1;
    const auto before = static_cast<uint32_t>(i);
    const uint32_t index = low_parts + ((ones.Next() - before) << k) + before;
    codes[i] = index << 1 | (low_and_sign & 1);
  };
  int64_t i = 0;
  if (width <= kWidest) {
    for (; i + static_cast<int64_t>(kGroup) <= count; i += kGroup) {
      const auto [first, second] = GetFields(payload.data() + (i >> 3) * width, width);
      for (int j = 0; j < 4; ++j) put(i + j, first >> (16 * j) & 0xffff);
      for (int j = 0; j < 4; ++j) put(i + 4 + j, second >> (16 * j) & 0xffff);
    }
  }
  for (; i < count; ++i) {
    put(i, static_cast<uint32_t>(ReadBits(payload.data(), i * width, width)));
  }
}

}  // namespace

RiceCoder RiceBmi2() { return {"BMI2", Choose, Encode, Check, Decode, nullptr}; }

}  // namespace strom

#endif  // STROM_X86
