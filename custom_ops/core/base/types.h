// The words every part of the native side shares: buffers, link and update names, results.
#ifndef KERAS_STROM_CORE_BASE_TYPES_H_
#define KERAS_STROM_CORE_BASE_TYPES_H_

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/flat_map.h"

namespace strom {

using Bytes = std::span<const uint8_t>;

// The bytes of values as they lie in memory, which the wire has, too: little-endian.
template <typename Values>
Bytes AsBytes(const Values& values) {
  const std::span span(values);
  return {reinterpret_cast<const uint8_t*>(span.data()), span.size_bytes()};
}

// The public half of an X25519 key.
using PublicKeyBytes = std::array<uint8_t, 32>;

// One reference-counted message; every neighbour it goes to shares it.
using Buffer = std::shared_ptr<const std::vector<uint8_t>>;

inline Buffer MakeBuffer(std::vector<uint8_t> bytes) {
  return std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
}

// Times are nanoseconds of a monotonic clock that the caller reads; the core has no clock.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A message on a link is at most this long (docs/internals/base.md, "Bounds").
inline constexpr int64_t kMaxMessageBytes = int64_t{4} << 20;

// Names one update for ever: `origin` is given by the master and never reused, `counter` starts
// at 1.
struct UpdateId {
  uint64_t origin = 0;
  uint64_t counter = 0;
  friend auto operator<=>(const UpdateId&, const UpdateId&) = default;
};

// {origin -> highest counter held without a gap}: the whole state of a replica.
using VersionVector = FlatMap<uint64_t, uint64_t>;

// A vector on the wire names at most so many origins, so that every message with one is short
// enough; a master takes no further process before it has that many.
inline constexpr size_t kMaxOrigins = size_t{1} << 16;

// Codes of the C ABI (capi/strom.h), so that a result needs no translation at the border.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,
  kTimeout = -2,
  kRefused = -3,
  kUnreachable = -4,
  kRejectedSecret = -5,
  kMasterLost = -6,
  kAddress = -7,
  kClosed = -8,
  kCorrupt = -9,
  kBackPressure = -10,
  kInternal = -11,
  kNotFinite = -12,
  kDeviceLost = -13,
  kStateLost = -14,
};

// A fault of the world, which the caller must read. Bugs stop with STROM_CHECK instead.
struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

}  // namespace strom

// Stops the process: a bug in this code, never something from outside.
#define STROM_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) ::strom::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)

namespace strom {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_TYPES_H_
