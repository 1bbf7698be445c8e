#include "core/worker/donor.h"

#include <algorithm>

#include "core/replication/blob.h"

namespace strom {

void Donor::HandleAsk(const AskState& ask) {
  if (ask.until == 0) {
    asking_.erase(ask.rank);
  } else {
    asking_[ask.rank].until = ask.until;
  }
}

bool Donor::IsWanted() const {
  return std::any_of(asking_.begin(), asking_.end(),
                     [](const auto& entry) { return entry.second.donation == nullptr; });
}

void Donor::Donate(const Buffer& donation, uint64_t round) {
  for (auto& [rank, asking] : asking_) {
    if (asking.donation != nullptr) continue;
    asking.donation = donation;
    asking.round = round;
  }
}

std::vector<Buffer> Donor::TakeChunks(uint64_t generation) {
  std::vector<Buffer> chunks;
  for (auto next = asking_.begin(); next != asking_.end();) {
    const auto at = next++;
    auto& [rank, asking] = *at;
    if (asking.donation == nullptr) continue;
    const Bytes values(*asking.donation);
    const BlobName name{BlobKind::kDonation, generation, static_cast<uint64_t>(rank), asking.round,
                        0};
    if (values.empty()) chunks.push_back(EncodeChunk(name, values, 0));
    while (asking.sent < std::min<uint64_t>(asking.until, values.size())) {
      chunks.push_back(EncodeChunk(name, values, asking.sent));
      asking.sent = std::min<uint64_t>(asking.sent + kChunkBytes, values.size());
    }
    if (asking.sent == values.size()) asking_.erase(at);
  }
  return chunks;
}

}  // namespace strom
