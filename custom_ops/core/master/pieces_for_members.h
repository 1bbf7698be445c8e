// What members lack of the master's values, at a generation's start and end.
#ifndef KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_
#define KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "core/master/master_generation.h"

namespace strom {

using HashesByRank = std::map<int32_t, std::vector<uint64_t>>;

// These pieces of `values`, behind the hashes of all.
std::vector<Buffer> EncodePieces(uint64_t generation, const std::vector<float>& values,
                                 const std::vector<uint64_t>& hashes,
                                 const std::vector<uint32_t>& pieces);

// Sends each rank the pieces of `values`, whose hashes are `hashes`, that are others than those of
// which it `had` the hashes.
void SendPieces(uint64_t generation, const std::vector<float>& values,
                const std::vector<uint64_t>& hashes, const HashesByRank& had, GenerationHost* host);

// The same for ranks that had nearly these values.
void SendNearPieces(uint64_t generation, const std::vector<float>& values,
                    const std::vector<uint64_t>& hashes, const HashesByRank& had,
                    GenerationHost* host);

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_
