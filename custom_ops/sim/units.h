// Units of time, in nanoseconds.
#ifndef KERAS_STROM_SIM_UNITS_H_
#define KERAS_STROM_SIM_UNITS_H_

#include <cstdint>

namespace strom {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMillisecond;

}  // namespace strom

#endif  // KERAS_STROM_SIM_UNITS_H_
