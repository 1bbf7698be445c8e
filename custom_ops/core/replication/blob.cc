#include "core/replication/blob.h"

#include <algorithm>
#include <utility>

#include "core/base/archive.h"

namespace strom {

namespace {

// More than that is not set aside for values before they are there.
constexpr uint64_t kMostSetAside = uint64_t{1} << 30;

bool HoldsFloats(BlobKind kind) {
  return kind == BlobKind::kReplica || kind == BlobKind::kParameters || kind == BlobKind::kPieces;
}

// A chunk without its `size` bytes of values, for which there is room.
std::vector<uint8_t> Head(const BlobName& name, uint64_t size, uint64_t offset, uint64_t total) {
  FieldWriter writer;
  writer(static_cast<uint8_t>(name.kind), name.generation, name.key, name.mark, name.count, total,
         offset);
  std::vector<uint8_t> chunk = writer.Take();
  chunk.reserve(chunk.size() + size);
  return chunk;
}

}  // namespace

Status ParseChunk(Bytes chunk, BlobChunk* parsed) {
  FieldReader reader(chunk);
  BlobName& name = parsed->name;
  uint8_t kind = 0;
  reader(kind, name.generation, name.key, name.mark, name.count, parsed->total, parsed->offset);
  name.kind = static_cast<BlobKind>(kind);
  if (!reader.ok() || kind < static_cast<uint8_t>(BlobKind::kReplica) ||
      kind > static_cast<uint8_t>(BlobKind::kNearPieces)) {
    return {Code::kCorrupt, "a chunk that is none"};
  }
  parsed->bytes = reader.left();
  const bool fits =
      parsed->offset <= parsed->total && parsed->bytes.size() <= parsed->total - parsed->offset;
  if (!fits || (parsed->bytes.empty() && parsed->total > 0)) {
    return {Code::kCorrupt, "a chunk that reaches beyond its run, or nowhere"};
  }
  return {};
}

Buffer EncodePiece(const BlobName& name, Bytes piece, uint64_t offset, uint64_t total) {
  std::vector<uint8_t> chunk = Head(name, piece.size(), offset, total);
  chunk.insert(chunk.end(), piece.begin(), piece.end());
  return MakeBuffer(std::move(chunk));
}

Buffer EncodeChunk(const BlobName& name, Bytes values, uint64_t offset, int64_t chunk_bytes) {
  const uint64_t total = values.size();
  const uint64_t size = std::min(static_cast<uint64_t>(chunk_bytes), total - offset);
  return EncodePiece(name, values.subspan(offset, size), offset, total);
}

Buffer EncodePiece(const BlobName& name, std::span<const float> values, uint64_t offset,
                   uint64_t total) {
  return EncodePiece(name, AsBytes(values), offset, total);
}

std::vector<Buffer> EncodeBlob(const BlobName& name, Bytes values, int64_t chunk_bytes) {
  return EncodeParts(name, {values}, chunk_bytes);
}

std::vector<Buffer> EncodeParts(const BlobName& name, std::vector<Bytes> parts,
                                int64_t chunk_bytes) {
  uint64_t total = 0;
  for (const Bytes part : parts) total += part.size();
  std::vector<Buffer> chunks;
  auto part = parts.begin();
  uint64_t offset = 0;
  do {
    const uint64_t size = std::min(static_cast<uint64_t>(chunk_bytes), total - offset);
    std::vector<uint8_t> chunk = Head(name, size, offset, total);
    for (uint64_t left = size; left > 0;) {
      const Bytes next = part->first(std::min<uint64_t>(left, part->size()));
      chunk.insert(chunk.end(), next.begin(), next.end());
      *part = part->subspan(next.size());
      left -= next.size();
      if (part->empty()) ++part;
    }
    chunks.push_back(MakeBuffer(std::move(chunk)));
    offset += size;
  } while (offset < total);
  return chunks;
}

void AppendUpdate(Bytes update, std::vector<uint8_t>* list) {
  FieldWriter writer;
  writer(static_cast<uint32_t>(update.size()));
  const std::vector<uint8_t> size = writer.Take();
  list->insert(list->end(), size.begin(), size.end());
  list->insert(list->end(), update.begin(), update.end());
}

Status ParseUpdates(Bytes list, std::vector<Buffer>* updates) {
  while (!list.empty()) {
    FieldReader reader(list);
    uint32_t size = 0;
    reader(size);
    if (!reader.ok() || size > reader.left().size()) {
      return {Code::kCorrupt, "a list of updates that ends in the middle of one"};
    }
    const Bytes update = reader.left().first(size);
    updates->push_back(MakeBuffer({update.begin(), update.end()}));
    list = reader.left().subspan(size);
  }
  return {};
}

bool ChunkOrder::Take(const BlobChunk& next) {
  if (next.offset == 0) {
    name_ = next.name;
    total_ = next.total;
    position_ = 0;
  } else if (IsWhole() || !(next.name == name_) || next.total != total_ ||
             next.offset != position_) {
    return false;
  }
  position_ += next.bytes.size();
  return true;
}

Status BlobAssembler::Add(Bytes chunk, std::optional<int64_t> limit_bytes,
                          std::optional<Blob>* blob) {
  BlobChunk next;
  const Status parsed = ParseChunk(chunk, &next);
  return parsed.ok() ? Add(next, limit_bytes, blob) : parsed;
}

Status BlobAssembler::Add(const BlobChunk& next, std::optional<int64_t> limit_bytes,
                          std::optional<Blob>* blob) {
  if (next.offset == 0) {
    open_ = {next.name, {}, {}};
    size_ = 0;
    is_kept_ = true;
  }
  if (!order_.Take(next)) return {Code::kCorrupt, "a chunk that does not follow the one before"};
  is_kept_ = is_kept_ && limit_bytes.has_value();
  const bool fits = is_kept_ && size_ + next.bytes.size() <= static_cast<uint64_t>(*limit_bytes);
  if (!fits) {
    open_ = {};
    size_ = 0;
    if (!is_kept_) return {};
    return {Code::kCorrupt, std::to_string(next.total) + " bytes of values where at most " +
                                std::to_string(*limit_bytes) + " are taken"};
  }
  Append(next, static_cast<uint64_t>(*limit_bytes));
  if (!order_.IsWhole()) return {};
  if (HoldsFloats(next.name.kind) && size_ % sizeof(float) != 0) {
    return {Code::kCorrupt, "a run of chunks ends in the middle of a value"};
  }
  *blob = std::exchange(open_, {});
  size_ = 0;
  return {};
}

void BlobAssembler::Append(const BlobChunk& next, uint64_t limit_bytes) {
  if (!HoldsFloats(next.name.kind)) {
    open_.bytes.insert(open_.bytes.end(), next.bytes.begin(), next.bytes.end());
    size_ += next.bytes.size();
    return;
  }
  std::vector<float>& floats = open_.floats;
  // Grown by and by, many values would be copied, and lie in memory twice.
  if (size_ == 0) {
    floats.reserve(std::min({next.total, limit_bytes, kMostSetAside}) / sizeof(float));
  }
  floats.resize((size_ + next.bytes.size() + sizeof(float) - 1) / sizeof(float));
  std::copy(next.bytes.begin(), next.bytes.end(),
            reinterpret_cast<uint8_t*>(floats.data()) + size_);
  size_ += next.bytes.size();
}

}  // namespace strom
