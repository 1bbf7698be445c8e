// Split Rice in groups of eight entries, which is where whole bytes end, for processors that pack
// and unpack so many fields at once (BMI2, NEON); the compiler makes vectors of the rest.
//
// The file of one kind includes it and says before how its functions are compiled, as
// STROM_CODER_TARGET (core/base/processor.h). It gives a type `Packing`, eight fields of one width:
//
//   Packing(width)     at most kWidest
//   Put(fields, out)   of eight uint32_t without a bit beyond the width; writes 16 bytes, of which
//                      `width` count
//   Get(packed)        two words with four fields of 16 bits each; reads 16 bytes
#ifndef KERAS_STROM_CORE_CODEC_RICE_EIGHTS_H_
#define KERAS_STROM_CORE_CODEC_RICE_EIGHTS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/codec/rice.h"
#include "core/codec/rice_search.h"

#define STROM_INLINE STROM_CODER_TARGET __attribute__((always_inline)) inline

namespace strom {
// One for each file: what is compiled for one kind of processor must not be linked for another.
namespace {

constexpr size_t kGroup = 8;
constexpr int kWidest = 16;  // wider fields do not fit four into a word

// `width` ones in each 16 bits.
constexpr uint64_t FieldMasks(int width) {
  return 0x0001000100010001u * ((uint64_t{1} << width) - 1);
}

STROM_CODER_TARGET HighParts SumHighParts(Codes codes, uint32_t origin, int k) {
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

template <typename Packing>
struct CoderOfEights {
  using DecodeFunction = decltype(RiceCoder::decode);

  // With a faster way to decode where there is one.
  static constexpr RiceCoder Coder(const char* name, DecodeFunction decode = Decode) {
    return {name, Choose, Encode, Check, decode, nullptr};
  }

  static RiceChoice Choose(Codes codes, uint32_t origin, int least_k) {
    return SearchK(codes, origin, least_k, [&](int k) { return SumHighParts(codes, origin, k); });
  }

  STROM_CODER_TARGET static void Encode(Codes codes, uint32_t origin, RiceChoice choice,
                                        uint8_t* out) {
    const int width = choice.k + 1;
    const auto mask = static_cast<uint32_t>((uint64_t{1} << width) - 1);
    // Packing a group overwrites what lies behind it, so the unary stream comes second.
    std::array<uint32_t, kGroup> fields;
    const Packing packing(width);
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
        packing.Put(fields.data(), packed);
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

  static const char* Check(Bytes payload, int64_t count, int k, int64_t elements) {
    return CheckPayload(payload, count, k, elements, Sum);
  }

  STROM_CODER_TARGET static void Decode(Bytes payload, int64_t count, int k, uint32_t* codes) {
    const int width = k + 1;
    Ones ones(payload.data() + FieldBytes(count, k));
    // As in the scalar coder: index = low parts so far + (high parts so far << k) + entries before.
    uint32_t low_parts = 0;
    const auto put = [&](int64_t i, uint32_t low_and_sign) STROM_CODER_TARGET {
      low_parts += low_and_sign >> 1;
      const auto before = static_cast<uint32_t>(i);
      const uint32_t index = low_parts + ((ones.Next() - before) << k) + before;
      codes[i] = index << 1 | (low_and_sign & 1);
    };
    int64_t i = 0;
    if (width <= kWidest) {
      const Packing packing(width);
      for (; i + static_cast<int64_t>(kGroup) <= count; i += kGroup) {
        const auto [first, second] = packing.Get(payload.data() + (i >> 3) * width);
        for (int j = 0; j < 4; ++j) put(i + j, first >> (16 * j) & 0xffff);
        for (int j = 0; j < 4; ++j) put(i + 4 + j, second >> (16 * j) & 0xffff);
      }
    }
    for (; i < count; ++i) {
      put(i, static_cast<uint32_t>(ReadBits(payload.data(), i * width, width)));
    }
  }

 private:
  STROM_CODER_TARGET static RiceSums Sum(Bytes payload, int64_t count, int k) {
    const Bytes unary = payload.subspan(static_cast<size_t>(FieldBytes(count, k)));
    int64_t ones = 0;
    size_t byte = 0;
    for (; byte + 8 <= unary.size(); byte += 8) {
      ones += std::popcount(LoadLittleEndian<uint64_t>(unary.data() + byte));
    }
    for (; byte < unary.size(); ++byte) ones += std::popcount(unary[byte]);
    return {ones, k == 0 ? 0 : SumLowParts(payload.data(), count, k)};
  }

  STROM_CODER_TARGET static int64_t SumLowParts(const uint8_t* payload, int64_t count, int k) {
    const int width = k + 1;
    int64_t sum = 0;
    int64_t i = 0;
    if (width <= kWidest) {
      constexpr uint64_t kLowOfPairs = 0x0000ffff0000ffff;
      const Packing packing(width);
      while (count - i >= static_cast<int64_t>(kGroup)) {
        // Four parts below 2^16 a turn in each half of the word: 2^14 turns do not overflow it.
        const int64_t end = std::min(count, i + (int64_t{kGroup} << 14));
        uint64_t pairs = 0;
        for (; end - i >= static_cast<int64_t>(kGroup); i += kGroup) {
          for (const uint64_t four : packing.Get(payload + (i >> 3) * width)) {
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
};

}  // namespace
}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_RICE_EIGHTS_H_
