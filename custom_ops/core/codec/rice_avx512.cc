// Split Rice sixteen entries at a time. Compressing goes to registers only: to memory it is
// microcoded on Zen 4.
#include "core/base/processor.h"

#if defined(STROM_X86)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns falsely about its own header (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>

#include "core/base/fetch_ahead.h"
#include "core/codec/rice_processors.h"
#include "core/codec/rice_search.h"

#define STROM_INLINE STROM_TARGET_AVX512 __attribute__((always_inline)) inline

namespace strom {
namespace {

constexpr int64_t kLanes = 16;

STROM_INLINE __mmask16 FirstLanes(int64_t lanes) {
  return lanes >= kLanes ? 0xffff : static_cast<__mmask16>((1u << lanes) - 1);
}

STROM_INLINE __m512i Lanes() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Lane i gets the sum of lanes 0 to i.
STROM_INLINE __m512i PrefixSum(__m512i lanes) {
  const __m512i zero = _mm512_setzero_si512();
  lanes = _mm512_add_epi32(lanes, _mm512_alignr_epi32(lanes, zero, 15));
  lanes = _mm512_add_epi32(lanes, _mm512_alignr_epi32(lanes, zero, 14));
  lanes = _mm512_add_epi32(lanes, _mm512_alignr_epi32(lanes, zero, 12));
  return _mm512_add_epi32(lanes, _mm512_alignr_epi32(lanes, zero, 8));
}

STROM_INLINE __m512i BroadcastLast(__m512i lanes) {
  return _mm512_permutexvar_epi32(_mm512_set1_epi32(15), lanes);
}

// The gaps of sixteen codes; *before holds the indices of the sixteen before.
STROM_INLINE __m512i Gaps(__m512i codes, __m512i* before) {
  const __m512i indices = _mm512_srli_epi32(codes, 1);
  const __m512i gaps = _mm512_sub_epi32(
      _mm512_sub_epi32(indices, _mm512_alignr_epi32(indices, *before, 15)), _mm512_set1_epi32(1));
  *before = indices;
  return gaps;
}

STROM_TARGET_AVX512 HighParts SumHighParts(Codes codes, uint32_t origin, int k) {
  const __m128i by_lower = _mm_cvtsi32_si128(k > 0 ? k - 1 : 0);
  const __m128i by_here = _mm_cvtsi32_si128(k);
  const __m128i by_higher = _mm_cvtsi32_si128(k + 1);
  __m512i lower = _mm512_setzero_si512();
  __m512i here = lower;
  __m512i higher = lower;
  __m512i before = _mm512_set1_epi32(static_cast<int>(origin - 1));
  const auto count = static_cast<int64_t>(codes.size());
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 valid = FirstLanes(count - i);
    const __m512i gaps = _mm512_maskz_mov_epi32(
        valid, Gaps(_mm512_maskz_loadu_epi32(valid, codes.data() + i), &before));
    lower = _mm512_add_epi32(lower, _mm512_srl_epi32(gaps, by_lower));
    here = _mm512_add_epi32(here, _mm512_srl_epi32(gaps, by_here));
    higher = _mm512_add_epi32(higher, _mm512_srl_epi32(gaps, by_higher));
  }
  return {_mm512_reduce_add_epi32(lower), _mm512_reduce_add_epi32(here),
          _mm512_reduce_add_epi32(higher)};
}

RiceChoice Choose(Codes codes, uint32_t origin, int least_k) {
  return SearchK(codes, origin, least_k, [&](int k) { return SumHighParts(codes, origin, k); });
}

// Appends fields of a fixed width, sixteen at a time. Eight fields fill whole bytes, so a group
// never has to be joined to the one before.
class FieldPacker {
 public:
  STROM_INLINE FieldPacker(int width, uint8_t* out)
      : width_(width), mask16_(0x0001000100010001u * ((uint64_t{1} << width) - 1)), out_(out) {}

  // Lanes hold fields without a bit beyond the width; writes up to 16 bytes more than they fill.
  STROM_INLINE void Put(__m512i fields) {
    if (width_ > 16) return PutWide(fields);
    std::array<uint64_t, 4> fours;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(fours.data()), _mm512_cvtepi32_epi16(fields));
    for (size_t i = 0; i < 4; i += 2) {
      const unsigned __int128 eight =
          static_cast<unsigned __int128>(_pext_u64(fours[i + 1], mask16_)) << (4 * width_) |
          _pext_u64(fours[i], mask16_);
      std::memcpy(out_, &eight, sizeof(eight));
      out_ += width_;
    }
  }

 private:
  STROM_TARGET_AVX512 void PutWide(__m512i fields) {
    std::array<uint32_t, kLanes> lanes;
    _mm512_storeu_si512(lanes.data(), fields);
    BitWriter writer(out_);
    for (const uint32_t field : lanes) writer.Put(field, width_);
    out_ += 2 * width_;
  }

  int width_;
  uint64_t mask16_;  // the field in each 16 bits, where it fits
  uint8_t* out_;
};

// Appends ones with zeros between them to a stream of bits.
class UnaryWriter {
 public:
  explicit UnaryWriter(uint8_t* out) : out_(out) {}

  // The zeros before each of sixteen ones, of which the lanes from `count` on do not count.
  STROM_INLINE void Put(__m512i zeros, int64_t count) {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i ends = PrefixSum(_mm512_add_epi32(zeros, _mm512_set1_epi32(1)));
    // Bits from the start of the word; the last of `ends` is behind all sixteen ones.
    const __m512i bits = _mm512_add_epi32(ends, _mm512_set1_epi32(static_cast<int>(used_) - 1));
    const int64_t used = used_ + LaneAt(ends, count - 1);
    if (used > 128) return PutFar(bits, count);
    const __mmask16 valid = FirstLanes(count);
    // A shift by 64 or more gives zero, so lanes outside of a word drop out by themselves.
    const auto words = [&](__m512i from) STROM_TARGET_AVX512 {
      const __m512i low = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(from));
      const __m512i high = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(from, 1));
      return static_cast<uint64_t>(_mm512_reduce_or_epi64(
          _mm512_or_si512(_mm512_maskz_sllv_epi64(static_cast<__mmask8>(valid), one, low),
                          _mm512_maskz_sllv_epi64(static_cast<__mmask8>(valid >> 8), one, high))));
    };
    const uint64_t first = word_ | words(bits);
    const uint64_t second = words(_mm512_sub_epi32(bits, _mm512_set1_epi32(64)));
    StoreLittleEndian<uint64_t>(out_, first);
    StoreLittleEndian<uint64_t>(out_ + 8, second);
    out_ += used >> 6 << 3;
    word_ = used < 64 ? first : used < 128 ? second : 0;
    used_ = used & 63;
  }

 private:
  STROM_INLINE static int64_t LaneAt(__m512i lanes, int64_t i) {
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(
        _mm512_permutexvar_epi32(_mm512_set1_epi32(static_cast<int>(i)), lanes)));
  }

  STROM_TARGET_AVX512 void PutFar(__m512i bits, int64_t count) {
    std::array<uint32_t, kLanes> positions;
    _mm512_storeu_si512(positions.data(), bits);
    uint32_t start = 0;  // of the word
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      for (; positions[i] - start >= 64; start += 64, out_ += 8) {
        StoreLittleEndian<uint64_t>(out_, word_);
        word_ = 0;
      }
      word_ |= uint64_t{1} << (positions[i] - start);
    }
    used_ = positions[static_cast<size_t>(count - 1)] + 1 - start;
    if (used_ == 64) {
      StoreLittleEndian<uint64_t>(out_, word_);
      out_ += 8;
      word_ = 0;
      used_ = 0;
    }
    StoreLittleEndian<uint64_t>(out_, word_);
  }

  uint8_t* out_;
  uint64_t word_ = 0;  // the stream from *out_ on, `used_` bits of it (fewer than 64)
  int64_t used_ = 0;
};

STROM_TARGET_AVX512 void Encode(Codes codes, uint32_t origin, RiceChoice choice, uint8_t* out) {
  const auto count = static_cast<int64_t>(codes.size());
  const __m128i k = _mm_cvtsi32_si128(choice.k);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((uint32_t{2} << choice.k) - 1));
  const __m512i sign = _mm512_set1_epi32(1);
  // Packing a group overwrites what lies behind it, so the unary stream comes second.
  FieldPacker fields(choice.k + 1, out);
  __m512i before = _mm512_set1_epi32(static_cast<int>(origin - 1));
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 valid = FirstLanes(count - i);
    const __m512i group = _mm512_maskz_loadu_epi32(valid, codes.data() + i);
    const __m512i gaps = _mm512_slli_epi32(Gaps(group, &before), 1);
    fields.Put(
        _mm512_maskz_and_epi32(valid, mask, _mm512_or_si512(gaps, _mm512_and_si512(group, sign))));
  }
  UnaryWriter unary(out + FieldBytes(count, choice.k));
  before = _mm512_set1_epi32(static_cast<int>(origin - 1));
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 valid = FirstLanes(count - i);
    const __m512i group = _mm512_maskz_loadu_epi32(valid, codes.data() + i);
    unary.Put(_mm512_srl_epi32(_mm512_maskz_mov_epi32(valid, Gaps(group, &before)), k),
              std::min(kLanes, count - i));
  }
}

// Reads fields of a fixed width, sixteen at a time: each lane gets the four bytes around its field
// and shifts them down.
class FieldReader {
 public:
  STROM_INLINE FieldReader(const uint8_t* fields, int width) : fields_(fields), width_(width) {
    const __m512i bits = _mm512_mullo_epi32(Lanes(), _mm512_set1_epi32(width));
    bytes_ = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_srli_epi32(bits, 3), _mm512_set1_epi32(0x01010101)),
        _mm512_set1_epi32(0x03020100));
    shifts_ = _mm512_and_si512(bits, _mm512_set1_epi32(7));
    mask_ = _mm512_set1_epi32(static_cast<int>((uint32_t{1} << width) - 1));
  }

  // Fields i to i + 15, i a multiple of 16; reads 64 bytes from the first of them on.
  STROM_INLINE __m512i Read(int64_t i) const {
    const __m512i window = _mm512_loadu_si512(fields_ + (i >> 3) * width_);
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_permutexvar_epi8(bytes_, window), shifts_),
                            mask_);
  }

 private:
  const uint8_t* fields_;
  int64_t width_;
  __m512i bytes_;
  __m512i shifts_;
  __m512i mask_;
};

STROM_TARGET_AVX512 RiceSums Sum(Bytes payload, int64_t count, int k) {
  const Bytes unary = payload.subspan(static_cast<size_t>(FieldBytes(count, k)));
  __m512i ones = _mm512_setzero_si512();
  for (size_t i = 0; i < unary.size(); i += 64) {
    const size_t left = unary.size() - i;
    const __mmask64 valid = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    ones = _mm512_add_epi64(ones,
                            _mm512_popcnt_epi64(_mm512_maskz_loadu_epi8(valid, unary.data() + i)));
  }
  __m512i low_parts = _mm512_setzero_si512();
  if (k > 0) {
    const FieldReader fields(payload.data(), k + 1);
    // Low parts are below 2^21: 1024 of them add up to less than 2^32.
    for (int64_t block = 0; block < count; block += 1024 * kLanes) {
      const int64_t end = std::min(count, block + 1024 * kLanes);
      __m512i sum = _mm512_setzero_si512();
      for (int64_t i = block; i < end; i += kLanes) {
        sum =
            _mm512_add_epi32(sum, _mm512_maskz_srli_epi32(FirstLanes(end - i), fields.Read(i), 1));
      }
      low_parts = _mm512_add_epi64(low_parts, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(sum)));
      low_parts =
          _mm512_add_epi64(low_parts, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(sum, 1)));
    }
  }
  return {_mm512_reduce_add_epi64(ones), _mm512_reduce_add_epi64(low_parts)};
}

const char* Check(Bytes payload, int64_t count, int k, int64_t elements) {
  return CheckPayload(payload, count, k, elements, Sum);
}

// The positions of the first `count` ones, and perhaps some more, up to kCodeSlack.
STROM_TARGET_AVX512 void FindOnes(const uint8_t* unary, int64_t count, uint32_t* positions) {
  std::array<uint8_t, 64> iota;
  for (size_t i = 0; i < 64; ++i) iota[i] = static_cast<uint8_t>(i);
  const __m512i bits = _mm512_loadu_si512(iota.data());
  uint32_t start = 0;
  for (int64_t i = 0; i < count; start += 64) {
    const auto word = LoadLittleEndian<uint64_t>(unary + (start >> 3));
    if (word == 0) continue;
    const __m512i found = _mm512_maskz_compress_epi8(word, bits);
    const __m512i offset = _mm512_set1_epi32(static_cast<int>(start));
    const auto put = [&](int64_t at, __m128i bytes) STROM_TARGET_AVX512 {
      _mm512_storeu_si512(positions + i + at,
                          _mm512_add_epi32(_mm512_cvtepu8_epi32(bytes), offset));
    };
    const auto ones = static_cast<int64_t>(std::popcount(word));
    put(0, _mm512_castsi512_si128(found));
    put(16, _mm512_extracti32x4_epi32(found, 1));
    if (ones > 32) {
      put(32, _mm512_extracti32x4_epi32(found, 2));
      put(48, _mm512_extracti32x4_epi32(found, 3));
    }
    i += ones;
  }
}

STROM_TARGET_AVX512 void Decode(Bytes payload, int64_t count, int k, uint32_t* codes) {
  FindOnes(payload.data() + FieldBytes(count, k), count, codes);
  const FieldReader fields(payload.data(), k + 1);
  const __m128i by_k = _mm_cvtsi32_si128(k);
  const __m512i sign = _mm512_set1_epi32(1);
  // index = sum of the low parts so far + (sum of the high parts so far << k) + number of entries
  // before; the high parts' sum is the one's position less the ones before it.
  __m512i low_parts = _mm512_setzero_si512();
  __m512i before = Lanes();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512i position = _mm512_loadu_si512(codes + i);
    const __m512i low_and_sign = fields.Read(i);
    low_parts = _mm512_add_epi32(PrefixSum(_mm512_srli_epi32(low_and_sign, 1)), low_parts);
    const __m512i high_parts = _mm512_sll_epi32(_mm512_sub_epi32(position, before), by_k);
    const __m512i index = _mm512_add_epi32(_mm512_add_epi32(low_parts, high_parts), before);
    _mm512_storeu_si512(codes + i, _mm512_or_si512(_mm512_slli_epi32(index, 1),
                                                   _mm512_and_si512(low_and_sign, sign)));
    low_parts = BroadcastLast(low_parts);
    before = _mm512_add_epi32(before, _mm512_set1_epi32(kLanes));
  }
}

STROM_TARGET_AVX512 void AddBitmap(Bytes payload, int64_t count, float value, int64_t elements,
                                   float* values) {
  const int64_t field_bytes = FieldBytes(count, 0);
  const uint8_t* const unary = payload.data() + field_bytes;
  const int64_t bits = 8 * (static_cast<int64_t>(payload.size()) - field_bytes);
  const __m512 plus = _mm512_set1_ps(value);
  const __m512 minus = _mm512_set1_ps(-value);
  const FetchAhead ahead(elements);
  int64_t sign = 0;
  for (int64_t start = 0; start < bits; start += 64) {
    auto ones = LoadLittleEndian<uint64_t>(unary + (start >> 3));
    if (bits - start < 64) ones &= (uint64_t{1} << (bits - start)) - 1;
    const uint64_t negative = _pdep_u64(Read64Bits(payload.data(), sign), ones);
    sign += std::popcount(ones);
    const auto changed = [&](int64_t i, __m512 old) STROM_TARGET_AVX512 {
      const __m512 change = _mm512_mask_mov_ps(plus, static_cast<__mmask16>(negative >> i), minus);
      return _mm512_mask_add_ps(old, static_cast<__mmask16>(ones >> i), old, change);
    };
    float* const place = values + start;
    if (ahead.At(start)) FetchAhead::Lines<64>(place);
    if (elements - start >= 64) {
      for (int64_t i = 0; i < 64; i += kLanes) {
        _mm512_storeu_ps(place + i, changed(i, _mm512_loadu_ps(place + i)));
      }
    } else {
      for (int64_t i = 0; i < elements - start; i += kLanes) {
        const __mmask16 in_span = FirstLanes(elements - start - i);
        _mm512_mask_storeu_ps(place + i, in_span,
                              changed(i, _mm512_maskz_loadu_ps(in_span, place + i)));
      }
    }
  }
}

}  // namespace

RiceCoder RiceAvx512() { return {"AVX-512", Choose, Encode, Check, Decode, AddBitmap}; }

}  // namespace strom

#endif  // STROM_X86
