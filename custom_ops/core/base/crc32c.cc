#include "core/base/crc32c.h"

#include <array>
#include <cstddef>

#include "core/base/little_endian.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strom {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

// tables[t][b]: what byte b contributes when t more bytes follow it.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t table = 1; table < 8; ++table) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[table - 1][byte];
      tables[table][byte] = (shorter >> 8) ^ tables[0][shorter & 0xff];
    }
  }
  return tables;
}

constexpr auto kTables = MakeTables();

#if defined(__x86_64__)
// The factor that multiplies a checksum's remainder by x^(8 * bytes): the instruction's own 33 bits
// of shift less, with the bits reversed as they all are here.
constexpr uint64_t ShiftFactor(int64_t bytes) {
  uint32_t power = 0x80000000;  // x^0
  for (int64_t bit = 0; bit < 8 * bytes - 33; ++bit) {
    power = (power >> 1) ^ ((power & 1) ? kPolynomial : 0);
  }
  return power;
}

// The remainder of bytes that end in a checksum's state, when `factor`'s bytes of zeros follow.
__attribute__((target("sse4.2,pclmul"))) uint64_t Shift(uint64_t crc, uint64_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                                               _mm_cvtsi64_si128(static_cast<int64_t>(factor)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

// The instruction takes three cycles and one can start in each: three stretches at once keep it
// busy. Advances *next over as many groups of three as there are.
template <int64_t kStretch>
__attribute__((target("sse4.2,pclmul"))) uint64_t ThreeStretches(uint64_t crc, const uint8_t** next,
                                                                 size_t* left) {
  constexpr uint64_t kOver = ShiftFactor(kStretch);
  for (; *left >= 3 * kStretch; *left -= 3 * kStretch, *next += 3 * kStretch) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (int64_t i = 0; i < kStretch; i += 8) {
      crc = _mm_crc32_u64(crc, LoadLittleEndian<uint64_t>(*next + i));
      second = _mm_crc32_u64(second, LoadLittleEndian<uint64_t>(*next + kStretch + i));
      third = _mm_crc32_u64(third, LoadLittleEndian<uint64_t>(*next + 2 * kStretch + i));
    }
    crc = Shift(Shift(crc, kOver) ^ second, kOver) ^ third;
  }
  return crc;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t Crc32cSse42(Bytes bytes, uint32_t previous) {
  uint64_t crc = static_cast<uint32_t>(~previous);
  const uint8_t* next = bytes.data();
  size_t left = bytes.size();
  crc = ThreeStretches<1024>(crc, &next, &left);
  crc = ThreeStretches<128>(crc, &next, &left);
  for (; left >= 8; left -= 8, next += 8)
    crc = _mm_crc32_u64(crc, LoadLittleEndian<uint64_t>(next));
  for (; left > 0; --left, ++next) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *next);
  return ~static_cast<uint32_t>(crc);
}
#endif

}  // namespace

uint32_t Crc32c(Bytes bytes, uint32_t previous) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
    return Crc32cSse42(bytes, previous);
  }
#endif
  return Crc32cPortable(bytes, previous);
}

uint32_t Crc32cPortable(Bytes bytes, uint32_t previous) {
  uint32_t crc = ~previous;
  const uint8_t* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) {
    const uint64_t word = LoadLittleEndian<uint64_t>(next) ^ crc;
    crc = 0;
    for (size_t byte = 0; byte < 8; ++byte) crc ^= kTables[7 - byte][(word >> (8 * byte)) & 0xff];
  }
  for (; left > 0; --left, ++next) crc = (crc >> 8) ^ kTables[0][(crc ^ *next) & 0xff];
  return ~crc;
}

}  // namespace strom
