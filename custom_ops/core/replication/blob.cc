#include "core/replication/blob.h"

#include <algorithm>
#include <utility>

#include "core/base/archive.h"

namespace strom {

Status ParseChunk(Bytes chunk, BlobChunk* parsed) {
  FieldReader reader(chunk);
  BlobName& name = parsed->name;
  uint8_t kind = 0;
  reader(kind, name.generation, name.key, name.mark, name.count, parsed->total, parsed->offset);
  name.kind = static_cast<BlobKind>(kind);
  if (!reader.ok() || kind < static_cast<uint8_t>(BlobKind::kReplica) ||
      kind > static_cast<uint8_t>(BlobKind::kHashes)) {
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
  FieldWriter writer;
  writer(static_cast<uint8_t>(name.kind), name.generation, name.key, name.mark, name.count, total,
         offset);
  std::vector<uint8_t> chunk = writer.Take();
  chunk.reserve(chunk.size() + piece.size());
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
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  return EncodePiece(name, Bytes(bytes, values.size_bytes()), offset, total);
}

std::vector<Buffer> EncodeBlob(const BlobName& name, Bytes values, int64_t chunk_bytes) {
  std::vector<Buffer> chunks;
  uint64_t offset = 0;
  do {
    chunks.push_back(EncodeChunk(name, values, offset, chunk_bytes));
    offset += static_cast<uint64_t>(chunk_bytes);
  } while (offset < values.size());
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

Status BlobAssembler::Add(Bytes chunk, std::optional<int64_t> limit_bytes,
                          std::optional<Blob>* blob) {
  BlobChunk next;
  const Status parsed = ParseChunk(chunk, &next);
  return parsed.ok() ? Add(next, limit_bytes, blob) : parsed;
}

Status BlobAssembler::Add(const BlobChunk& next, std::optional<int64_t> limit_bytes,
                          std::optional<Blob>* blob) {
  if (next.offset == 0) {
    open_ = {next.name, {}};
    total_ = next.total;
    position_ = 0;
    in_run_ = is_kept_ = true;
  }
  if (!in_run_ || !(open_.name == next.name) || next.total != total_ || next.offset != position_) {
    return {Code::kCorrupt, "a chunk that does not follow the one before"};
  }
  position_ += next.bytes.size();
  in_run_ = position_ < total_;
  if (!limit_bytes) is_kept_ = false;
  if (!is_kept_) {
    open_.bytes = {};
    return {};
  }
  if (open_.bytes.size() + next.bytes.size() > static_cast<uint64_t>(*limit_bytes)) {
    open_.bytes = {};
    return {Code::kCorrupt, std::to_string(total_) + " bytes of values where at most " +
                                std::to_string(*limit_bytes) + " are taken"};
  }
  open_.bytes.insert(open_.bytes.end(), next.bytes.begin(), next.bytes.end());
  if (in_run_) return {};
  *blob = std::move(open_);
  open_ = {};
  return {};
}

}  // namespace strom
