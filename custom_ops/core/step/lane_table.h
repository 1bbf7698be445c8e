// Which lanes of eight are set: the table by which vector kernels that have no compress bring the
// lanes of a mask together.
#ifndef KERAS_STROM_CORE_STEP_LANE_TABLE_H_
#define KERAS_STROM_CORE_STEP_LANE_TABLE_H_

#include <array>
#include <cstdint>

namespace strom {

// For each mask of eight lanes the numbers of those that are set, one a byte, from the lowest on.
constexpr std::array<uint64_t, 256> MakeLaneTable() {
  std::array<uint64_t, 256> table{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    int place = 0;
    for (uint64_t lane = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) table[mask] |= lane << (8 * place++);
    }
  }
  return table;
}

alignas(64) inline constexpr std::array<uint64_t, 256> kLaneTable = MakeLaneTable();

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_LANE_TABLE_H_
