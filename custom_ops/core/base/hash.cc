#include "core/base/hash.h"

#include <bit>
#include <cstddef>

#include "core/base/little_endian.h"

namespace strom {
namespace {

// Odd numbers with half of their bits set: the digits of pi, e, sqrt 2 and the golden ratio.
constexpr uint64_t kPi = 0x243f6a8885a308d3;
constexpr uint64_t kE = 0xadf85458a2bb4a9b;
constexpr uint64_t kRoot = 0x6a09e667f3bcc909;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// Bijective in `state` for every word, so that no input can erase what came before it.
uint64_t Absorb(uint64_t state, uint64_t word) {
  return std::rotl((state ^ (word * kPi)) * kE, 29) + kRoot;
}

uint64_t Avalanche(uint64_t x) {
  x = (x ^ (x >> 32)) * kE;
  x = (x ^ (x >> 29)) * kPi;
  return x ^ (x >> 32);
}

}  // namespace

uint64_t Hash(Bytes bytes, uint64_t previous) {
  // Four independent chains keep the multiplier busy; one chain would wait for each product.
  uint64_t lanes[4] = {previous ^ kPi, previous + kE, previous ^ kRoot, previous + kGolden};
  const uint8_t* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 32; left -= 32, next += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      lanes[lane] = Absorb(lanes[lane], LoadLittleEndian<uint64_t>(next + 8 * lane));
    }
  }
  uint64_t hash = Avalanche(previous) ^ bytes.size();
  for (const uint64_t lane : lanes) hash = Absorb(hash, Avalanche(lane));
  for (; left >= 8; left -= 8, next += 8) hash = Absorb(hash, LoadLittleEndian<uint64_t>(next));
  uint64_t tail = 0;
  for (size_t i = 0; i < left; ++i) tail |= uint64_t{next[i]} << (8 * i);
  return Avalanche(Absorb(hash, tail));
}

}  // namespace strom
