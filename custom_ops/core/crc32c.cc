#include "core/crc32c.h"

#include <array>
#include <cstddef>

#include "core/little_endian.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
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
__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(Bytes bytes, uint32_t previous) {
  uint64_t crc = ~previous;
  const uint8_t* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8)
    crc = _mm_crc32_u64(crc, LoadLittleEndian<uint64_t>(next));
  for (; left > 0; --left, ++next) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *next);
  return ~static_cast<uint32_t>(crc);
}
#endif

}  // namespace

uint32_t Crc32c(Bytes bytes, uint32_t previous) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return Crc32cSse42(bytes, previous);
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
