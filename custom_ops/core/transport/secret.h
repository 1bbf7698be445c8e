// Bytes that nobody else may read.
#ifndef KERAS_STROM_CORE_TRANSPORT_SECRET_H_
#define KERAS_STROM_CORE_TRANSPORT_SECRET_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "core/transport/undumped.h"

namespace strom {

inline constexpr size_t kKeyBytes = 32;  // X25519 keys, pre-shared keys, Noise's chaining keys

// Overwrites `bytes` with zeros in a way the compiler keeps.
void Wipe(std::span<uint8_t> bytes);

// N secret bytes that are wiped when they go, and are in no core dump.
template <size_t N>
class Secret {
 public:
  Secret() : Secret(std::array<uint8_t, N>{}) {}
  explicit Secret(const std::array<uint8_t, N>& bytes)
      : bytes_(static_cast<uint8_t*>(AllocateUndumped(N))) {
    if (bytes_ == nullptr) throw std::bad_alloc();
    std::copy_n(bytes.data(), N, bytes_);
  }
  Secret(const Secret& other) : Secret() { *this = other; }
  Secret& operator=(const Secret& other) {
    std::copy_n(other.bytes_, N, bytes_);
    return *this;
  }
  ~Secret() {
    Wipe(bytes());
    FreeUndumped(bytes_);
  }

  void fill(uint8_t value) { std::fill_n(bytes_, N, value); }
  const uint8_t* data() const { return bytes_; }
  std::span<uint8_t, N> bytes() { return std::span<uint8_t, N>(bytes_, N); }
  std::span<const uint8_t, N> bytes() const { return std::span<const uint8_t, N>(bytes_, N); }

 private:
  uint8_t* bytes_;
};

using SecretKey = Secret<kKeyBytes>;

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_SECRET_H_
