#include "core/blob.h"

#include <algorithm>
#include <utility>

#include "core/archive.h"

namespace strom {

std::vector<Buffer> EncodeBlob(const BlobName& name, Bytes values) {
  std::vector<Buffer> chunks;
  const uint64_t total = values.size();
  uint64_t offset = 0;
  do {
    Bytes part = values.subspan(offset, std::min<uint64_t>(kChunkBytes, total - offset));
    FieldWriter writer;
    writer(static_cast<uint8_t>(name.kind), name.generation, name.key, name.mark, name.count, total,
           offset);
    std::vector<uint8_t> chunk = writer.Take();
    chunk.insert(chunk.end(), part.begin(), part.end());
    chunks.push_back(MakeBuffer(std::move(chunk)));
    offset += part.size();
  } while (offset < total);
  return chunks;
}

Status BlobAssembler::Add(Bytes chunk, int64_t limit_bytes, std::optional<Blob>* blob) {
  FieldReader reader(chunk);
  BlobName name;
  uint8_t kind = 0;
  uint64_t total = 0, offset = 0;
  reader(kind, name.generation, name.key, name.mark, name.count, total, offset);
  name.kind = static_cast<BlobKind>(kind);
  if (!reader.ok() || kind < static_cast<uint8_t>(BlobKind::kSeed) ||
      kind > static_cast<uint8_t>(BlobKind::kResult)) {
    return {Code::kCorrupt, "a chunk that is none"};
  }
  if (offset == 0) {
    open_ = {name, {}};
    total_ = total;
    in_run_ = true;
  }
  if (!in_run_ || !(open_.name == name) || total != total_ || offset != open_.bytes.size() ||
      reader.left().size() > total - offset || (reader.left().empty() && total > 0)) {
    return {Code::kCorrupt, "a chunk that does not follow the one before"};
  }
  if (total > static_cast<uint64_t>(limit_bytes)) {
    return {Code::kCorrupt, std::to_string(total) + " bytes of values where at most " +
                                std::to_string(limit_bytes) + " are taken"};
  }
  open_.bytes.insert(open_.bytes.end(), reader.left().begin(), reader.left().end());
  if (open_.bytes.size() == total_) {
    *blob = std::move(open_);
    open_ = {};
    in_run_ = false;
  }
  return {};
}

}  // namespace strom
