// Fixed-width little-endian loads and stores at any alignment.
#ifndef KERAS_STROM_CORE_BASE_LITTLE_ENDIAN_H_
#define KERAS_STROM_CORE_BASE_LITTLE_ENDIAN_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace strom {

static_assert(std::endian::native == std::endian::little, "big-endian machines need byte swaps");

// T is an integer or a float.
template <typename T>
T LoadLittleEndian(const uint8_t* from) {
  static_assert(std::is_arithmetic_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void StoreLittleEndian(uint8_t* to, std::type_identity_t<T> value) {
  static_assert(std::is_arithmetic_v<T>);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_LITTLE_ENDIAN_H_
