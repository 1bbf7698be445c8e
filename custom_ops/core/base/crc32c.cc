#include "core/base/crc32c.h"

#include <array>
#include <cstddef>

#include "core/base/little_endian.h"
#include "core/base/processor.h"

#if defined(STROM_X86)
#include <immintrin.h>
#elif defined(STROM_NEON)
#include <arm_acle.h>
#include <arm_neon.h>
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

#if defined(STROM_TARGET_CRC)

#if defined(STROM_X86)
STROM_TARGET_CRC inline uint64_t NextWord(uint64_t crc, uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
STROM_TARGET_CRC inline uint64_t NextByte(uint64_t crc, uint8_t byte) {
  return _mm_crc32_u8(static_cast<uint32_t>(crc), byte);
}
// The low half of the product of two polynomials over GF(2).
STROM_TARGET_CRC inline uint64_t Product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(
      _mm_cvtsi64_si128(static_cast<int64_t>(a)), _mm_cvtsi64_si128(static_cast<int64_t>(b)), 0)));
}
#else
STROM_TARGET_CRC inline uint64_t NextWord(uint64_t crc, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(crc), word);
}
STROM_TARGET_CRC inline uint64_t NextByte(uint64_t crc, uint8_t byte) {
  return __crc32cb(static_cast<uint32_t>(crc), byte);
}
STROM_TARGET_CRC inline uint64_t Product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(vmull_p64(a, b));
}
#endif

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
STROM_TARGET_CRC uint64_t Shift(uint64_t crc, uint64_t factor) {
  return NextWord(0, Product(crc, factor));
}

// The instruction takes three cycles and one can start in each: three stretches at once keep it
// busy. Advances *next over as many groups of three as there are.
template <int64_t kStretch>
STROM_TARGET_CRC uint64_t ThreeStretches(uint64_t crc, const uint8_t** next, size_t* left) {
  constexpr uint64_t kOver = ShiftFactor(kStretch);
  for (; *left >= 3 * kStretch; *left -= 3 * kStretch, *next += 3 * kStretch) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (int64_t i = 0; i < kStretch; i += 8) {
      crc = NextWord(crc, LoadLittleEndian<uint64_t>(*next + i));
      second = NextWord(second, LoadLittleEndian<uint64_t>(*next + kStretch + i));
      third = NextWord(third, LoadLittleEndian<uint64_t>(*next + 2 * kStretch + i));
    }
    crc = Shift(Shift(crc, kOver) ^ second, kOver) ^ third;
  }
  return crc;
}

STROM_TARGET_CRC uint32_t Crc32cInstruction(Bytes bytes, uint32_t previous) {
  uint64_t crc = static_cast<uint32_t>(~previous);
  const uint8_t* next = bytes.data();
  size_t left = bytes.size();
  crc = ThreeStretches<1024>(crc, &next, &left);
  crc = ThreeStretches<128>(crc, &next, &left);
  for (; left >= 8; left -= 8, next += 8) crc = NextWord(crc, LoadLittleEndian<uint64_t>(next));
  for (; left > 0; --left, ++next) crc = NextByte(crc, *next);
  return ~static_cast<uint32_t>(crc);
}
#endif

}  // namespace

uint32_t Crc32c(Bytes bytes, uint32_t previous) {
#if defined(STROM_TARGET_CRC)
  static const bool has_instruction = HasCrc();
  if (has_instruction) return Crc32cInstruction(bytes, previous);
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
