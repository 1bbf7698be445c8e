// Values too long for one message: parameters, averages and state travel on Channel::kState as a
// run of chunks of at most kChunkBytes, in order. docs/internals/control_messages.md has the
// field table.
#ifndef KERAS_STROM_CORE_REPLICATION_BLOB_H_
#define KERAS_STROM_CORE_REPLICATION_BLOB_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"

namespace strom {

inline constexpr int64_t kChunkBytes = int64_t{1} << 20;

// Of so many float32 values, as a bound of what may come: not beyond what an int64_t holds.
inline int64_t BytesOfFloats(uint64_t elements) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  return static_cast<int64_t>(std::min(elements, kMost) * sizeof(float));
}

enum class BlobKind : uint8_t {
  kReplica = 1,      // worker: its float32 parameters, in answer to AskReplica
  kParameters = 2,   // master: its float32 parameters, to who joins late or has missed the end
  kAverage = 3,      // worker: float64 values to average under `key`
  kMean = 4,         // master: the answer
  kState = 5,        // worker: the ending's float64 state
  kResult = 6,       // master: its average
  kPending = 7,      // master, to a late joiner: accepted updates that its PARAMETERS lack
  kDonation = 8,     // a worker's state for the rank `key`, forwarded; no bytes = there is none
  kShard = 9,        // worker: float32 values for the joint model, or bfloat16 changes of it; no
                     // bytes = they are not finite
  kTarget = 10,      // master: a shard's float32 target, or that of a round, or bfloat16 changes
  kJoint = 11,       // master: the joint model, float32
  kPieces = 12,      // of the float32 values with which a generation starts (the chief's, and then
                     // the master's, behind the hashes of all pieces) or ends (the master's) those
                     // that the receiver lacks (replication/pieces.h)
  kHashes = 13,      // worker, before kState: u64 hashes of the pieces of its values; and again
                     // where a piece of kNearPieces was not near
  kNearPieces = 14,  // master: kPieces of an end for who has nearly the same
                     // (replication/near_values.h)
};

struct BlobName {
  BlobKind kind = BlobKind::kReplica;
  uint64_t generation = 0;
  uint64_t key = 0;    // averages; kDonation: whom it is for; kShard: the last step's iteration
  uint64_t mark = 0;   // kAverage: the sender's last counter, or the round that it gives for next;
                       // kMean: STEPs sent before it;
                       // kParameters, kPending: the snapshot that START or ENDED has named;
                       // kReplica, kPieces of the chief, kJoint: of the question;
                       // kShard: core/joint/joint_plan.h; kTarget: of the tick or round;
                       // kDonation: the round of gradients that comes next
  uint32_t count = 0;  // kMean and kResult: contributors; kShard: own steps behind it, or, as in
                       // kTarget, what core/joint/joint_plan.h says of rounds of gradients
  friend bool operator==(const BlobName&, const BlobName&) = default;
};

// One piece of a run.
struct BlobChunk {
  BlobName name;
  uint64_t total = 0;   // bytes of the whole run
  uint64_t offset = 0;  // of this piece in it
  Bytes bytes;
};
Status ParseChunk(Bytes chunk, BlobChunk* parsed);

// The chunk of `values` that begins at `offset`.
Buffer EncodeChunk(const BlobName& name, Bytes values, uint64_t offset,
                   int64_t chunk_bytes = kChunkBytes);

// A piece of a run of `total` bytes of which no more is at hand.
Buffer EncodePiece(const BlobName& name, Bytes piece, uint64_t offset, uint64_t total);
Buffer EncodePiece(const BlobName& name, std::span<const float> values, uint64_t offset,
                   uint64_t total);

// At least one chunk, an empty one for no values; none carries more than `chunk_bytes`.
std::vector<Buffer> EncodeBlob(const BlobName& name, Bytes values,
                               int64_t chunk_bytes = kChunkBytes);
template <typename Number>
std::vector<Buffer> EncodeBlob(const BlobName& name, const std::vector<Number>& values,
                               int64_t chunk_bytes = kChunkBytes) {
  return EncodeBlob(name, AsBytes(values), chunk_bytes);
}
// Of values that lie in several places, one behind the other.
std::vector<Buffer> EncodeParts(const BlobName& name, std::vector<Bytes> parts,
                                int64_t chunk_bytes = kChunkBytes);

// The values of kPending: updates one after another, each behind its length.
void AppendUpdate(Bytes update, std::vector<uint8_t>* list);
// kCorrupt where the bytes are no such list.
Status ParseUpdates(Bytes list, std::vector<Buffer>* updates);

struct Blob {
  BlobName name;
  std::vector<uint8_t> bytes;
  std::vector<float> floats;  // instead, of the kinds that are float32 values
  size_t size_bytes() const { return bytes.size() + floats.size() * sizeof(float); }
  // kCorrupt where the bytes are no whole number of values.
  template <typename Number>
  Status Values(std::vector<Number>* values) const {
    if (bytes.size() % sizeof(Number) != 0) {
      return {Code::kCorrupt, "a run of chunks ends in the middle of a value"};
    }
    values->resize(bytes.size() / sizeof(Number));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(values->data()));
    return {};
  }
};

// Whether the chunks of a link make runs.
class ChunkOrder {
 public:
  // False: it does not follow the one before. One without an offset begins a run.
  bool Take(const BlobChunk& next);
  // The last one taken was the last of its run.
  bool IsWhole() const { return position_ == total_; }

 private:
  BlobName name_ = {};
  uint64_t total_ = 0;
  uint64_t position_ = 0;
};

// Puts the chunks of one link together again.
class BlobAssembler {
 public:
  // Takes the next chunk; *blob gets a value when it was the last of its run. kCorrupt where a
  // chunk does not follow its predecessor or what is here would be longer than `limit_bytes`.
  // nullopt: nobody waits for such values, and nothing of the run is kept.
  Status Add(const BlobChunk& chunk, std::optional<int64_t> limit_bytes, std::optional<Blob>* blob);
  Status Add(Bytes chunk, std::optional<int64_t> limit_bytes, std::optional<Blob>* blob);

  // What it holds.
  int64_t bytes() const { return static_cast<int64_t>(size_); }

 private:
  void Append(const BlobChunk& next, uint64_t limit_bytes);

  ChunkOrder order_;
  Blob open_ = {};
  uint64_t size_ = 0;  // its bytes
  bool is_kept_ = false;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_BLOB_H_
