// What members lack of the master's values, at a generation's start and end.
#ifndef KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_
#define KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/master/shard_exchange.h"
#include "core/replication/blob.h"

namespace strom {

class PiecesForMembers {
 public:
  // `hashes` are those of the values' pieces. `values` and `host` outlive this, and the values
  // stay.
  PiecesForMembers(uint64_t generation, const std::vector<float>* values,
                   std::vector<uint64_t> hashes, ShardExchangeHost* host)
      : generation_(generation), values_(values), hashes_(std::move(hashes)), host_(host) {}

  // Sends the pieces that are others than those of which the rank `had` the hashes: as kPieces, or
  // as kNearPieces if it had nearly these values.
  void Send(BlobKind kind, int32_t rank, const std::vector<uint64_t>& had);
  // Frees what is kept for others who lack the same.
  void ForgetCopies() { copies_.clear(); }

 private:
  std::vector<Buffer> Copy(BlobKind kind, const std::vector<uint32_t>& pieces) const;

  const uint64_t generation_;
  const std::vector<float>* const values_;
  const std::vector<uint64_t> hashes_;
  ShardExchangeHost* const host_;
  // By kind and pieces: mostly all lack the same, which is copied once.
  std::map<std::pair<BlobKind, std::vector<uint32_t>>, std::vector<Buffer>> copies_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PIECES_FOR_MEMBERS_H_
