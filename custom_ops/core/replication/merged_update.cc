#include "core/replication/merged_update.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>

#include "core/base/little_endian.h"

namespace strom {

namespace {

// A sum takes no more bytes than what it is made of, but for what stands around it.
constexpr int64_t kMostMergedBytes = kMaxMessageBytes / 4;

// More of one worker's are never under way.
constexpr uint64_t kMostUpdatesOfRange = uint64_t{1} << 20;

enum class PartKind : uint8_t { kSum = 0, kWhole = 1 };

// Numbers in groups of seven bits, the lowest first.
class Writer {
 public:
  explicit Writer(std::vector<uint8_t>* out) : out_(out) {}
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_->push_back(static_cast<uint8_t>(value | 0x80));
    out_->push_back(static_cast<uint8_t>(value));
  }
  void Add(Bytes bytes) {
    Number(bytes.size());
    out_->insert(out_->end(), bytes.begin(), bytes.end());
  }

 private:
  std::vector<uint8_t>* out_;
};

class Reader {
 public:
  explicit Reader(Bytes bytes) : left_(bytes) {}
  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      const uint8_t byte = left_.front();
      left_ = left_.subspan(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  Bytes Take() {
    const uint64_t size = Number();
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    const Bytes taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  bool ok() const { return ok_; }
  size_t left() const { return left_.size(); }

 private:
  Bytes left_;
  bool ok_ = true;
};

// A number of either sign, so that it is small where that is near 0.
uint64_t Fold(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
int64_t Unfold(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

// A table of ranges is written column by column, each as runs of equal numbers: of thousands of
// workers in step, and of those that are not, few numbers differ from those before.
using Column = std::vector<uint64_t>;
constexpr size_t kColumns = 4;

uint64_t Difference(uint64_t value, uint64_t before) {
  return Fold(static_cast<int64_t>(value - before));
}
uint64_t Sum(uint64_t before, uint64_t difference) {
  return before + static_cast<uint64_t>(Unfold(difference));
}

std::array<Column, kColumns> ColumnsOf(const UpdateRanges& contents) {
  std::array<Column, kColumns> columns;
  UpdateRange before;
  for (const UpdateRange& range : contents) {
    columns[0].push_back(range.origin - before.origin);
    columns[1].push_back(Difference(range.from, before.from));
    columns[2].push_back(range.to - range.from);
    columns[3].push_back(Difference(range.iteration - range.from, before.iteration - before.from));
    before = range;
  }
  return columns;
}

// How many equal numbers follow one another from `i` on.
size_t RunAt(const Column& column, size_t i) {
  size_t end = i + 1;
  while (end < column.size() && column[end] == column[i]) ++end;
  return end - i;
}

// Stretches: twice a length, and all numbers of the stretch; or that plus 1, and the one number of
// which it consists.
void WriteColumn(const Column& column, Writer* writer) {
  constexpr size_t kLeastRun = 3;
  for (size_t i = 0; i < column.size();) {
    size_t length = RunAt(column, i);
    const bool is_run = length >= kLeastRun;
    while (!is_run && i + length < column.size()) {
      const size_t next = RunAt(column, i + length);
      if (next >= kLeastRun) break;
      length += next;
    }
    writer->Number(2 * length + (is_run ? 1 : 0));
    for (size_t k = 0; k < (is_run ? 1 : length); ++k) writer->Number(column[i + k]);
    i += length;
  }
}

void WriteContents(const UpdateRanges& contents, Writer* writer) {
  writer->Number(contents.size());
  for (const Column& column : ColumnsOf(contents)) WriteColumn(column, writer);
}

bool ReadColumn(Reader* reader, size_t size, Column* column) {
  while (reader->ok() && column->size() < size) {
    const uint64_t stretch = reader->Number();
    const uint64_t length = stretch / 2;
    if (length == 0 || length > size - column->size()) return false;
    if (stretch % 2 == 1) {
      column->insert(column->end(), length, reader->Number());
    } else {
      for (uint64_t k = 0; reader->ok() && k < length; ++k) column->push_back(reader->Number());
    }
  }
  return reader->ok();
}

bool ReadContents(Reader* reader, UpdateRanges* contents) {
  const uint64_t count = reader->Number();
  if (!reader->ok() || count == 0 || count > kMaxOrigins) return false;
  std::array<Column, kColumns> columns;
  for (Column& column : columns) {
    if (!ReadColumn(reader, count, &column)) return false;
  }
  UpdateRange before;
  for (size_t i = 0; i < count; ++i) {
    UpdateRange range;
    range.origin = before.origin + columns[0][i];
    range.from = Sum(before.from, columns[1][i]);
    range.to = range.from + columns[2][i];
    range.iteration = range.from + Sum(before.iteration - before.from, columns[3][i]);
    const bool fits = range.origin > before.origin && !IsOfMaster(range.origin) &&
                      range.to > range.from && range.to - range.from <= kMostUpdatesOfRange;
    if (!fits) return false;
    contents->push_back(range);
    before = range;
  }
  return true;
}

Bytes BodyOf(const Buffer& update) { return Bytes(*update).subspan(kUpdateHeaderBytes); }

}  // namespace

Status ParseMerged(Bytes body, MergedUpdate* merged) {
  Reader reader(body);
  if (!ReadContents(&reader, &merged->contents)) {
    return {Code::kCorrupt, "a merged update does not say what is in it"};
  }
  while (reader.ok() && reader.left() > 0) {
    switch (static_cast<PartKind>(reader.Number())) {
      case PartKind::kSum:
        merged->sums.push_back(reader.Take());
        continue;
      case PartKind::kWhole: {
        UpdateId id;
        id.origin = reader.Number();
        id.counter = reader.Number();
        merged->whole.emplace_back(id, reader.Take());
        continue;
      }
    }
    return {Code::kCorrupt, "a merged update has a part of an unknown kind"};
  }
  if (!reader.ok()) return {Code::kCorrupt, "a merged update ends within a part"};
  return {};
}

Status CheckMerged(Bytes body, uint64_t size, const UpdateCodec& codec) {
  MergedUpdate merged;
  Status status = ParseMerged(body, &merged);
  for (size_t i = 0; status.ok() && i < merged.sums.size(); ++i) {
    status = codec.Check(merged.sums[i], size);
    // A worker takes its own away from it.
    if (status.ok() && !codec.CanSum(merged.sums[i])) {
      status = {Code::kCorrupt, "a merged update has a sum that nothing can be taken from"};
    }
  }
  for (size_t i = 0; status.ok() && i < merged.whole.size(); ++i) {
    status = codec.Check(merged.whole[i].second, size);
  }
  return status;
}

UpdateRanges ContentsOf(const Buffer& update) {
  UpdateHeader header;
  STROM_CHECK(ParseUpdateHeader(*update, &header).ok());  // validated before
  if (!header.merged()) {
    return {{header.id.origin, header.id.counter - 1, header.id.counter, header.iteration}};
  }
  MergedUpdate merged;
  STROM_CHECK(ParseMerged(BodyOf(update), &merged).ok());
  return std::move(merged.contents);
}

void ForEachMessage(const Buffer& update, const std::function<void(Bytes message)>& visit) {
  UpdateHeader header;
  STROM_CHECK(ParseUpdateHeader(*update, &header).ok());  // validated before
  if (!header.merged()) return visit(BodyOf(update));
  MergedUpdate merged;
  STROM_CHECK(ParseMerged(BodyOf(update), &merged).ok());
  for (const Bytes message : merged.sums) visit(message);
  for (const auto& [id, message] : merged.whole) visit(message);
}

bool Merger::Add(const Buffer& update) {
  const int64_t bytes = bytes_ + std::ssize(*update);
  if (!updates_.empty() && bytes > kMostMergedBytes) return false;
  const UpdateRanges contents = ContentsOf(update);
  for (const UpdateRange& range : contents) {
    const auto found = ranges_.find(range.origin);
    if (found == ranges_.end()) continue;
    const UpdateRange& whole = found->second;
    if (whole.to != range.from || range.to - whole.from > kMostUpdatesOfRange) return false;
  }
  for (const UpdateRange& range : contents) {
    UpdateRange& whole = ranges_.try_emplace(range.origin, range).first->second;
    whole.to = range.to;
    whole.iteration = range.iteration;
  }
  updates_.push_back(update);
  bytes_ = bytes;
  return true;
}

int64_t Merger::contained() const {
  uint64_t contained = 0;
  for (const auto& [origin, range] : ranges_) contained += range.to - range.from;
  return static_cast<int64_t>(contained);
}

Buffer Merger::Write(UpdateId id, const Layout& layout, const UpdateCodec& codec) const {
  STROM_CHECK(!updates_.empty());
  std::vector<Addend> addends;
  std::vector<std::pair<UpdateId, Bytes>> whole;
  for (const Buffer& update : updates_) {
    UpdateHeader header;
    STROM_CHECK(ParseUpdateHeader(*update, &header).ok());
    if (header.merged()) {
      MergedUpdate merged;
      STROM_CHECK(ParseMerged(BodyOf(update), &merged).ok());
      for (const Bytes sum : merged.sums) addends.push_back({sum});
      whole.insert(whole.end(), merged.whole.begin(), merged.whole.end());
    } else if (codec.CanSum(BodyOf(update))) {
      addends.push_back({BodyOf(update)});
    } else {
      whole.emplace_back(header.id, BodyOf(update));
    }
  }
  UpdateHeader header;
  header.layout = layout;
  header.flags = kMergedFlag | kLastPartFlag;
  UpdateRanges contents;
  for (const auto& [origin, range] : ranges_) {
    contents.push_back(range);
    header.iteration = std::max(header.iteration, range.iteration);
  }
  header.id = id.origin != 0 ? id : UpdateId{contents.front().origin, contents.front().to};
  std::vector<uint8_t> merged(static_cast<size_t>(kUpdateHeaderBytes));
  WriteUpdateHeader(header, merged);
  Writer writer(&merged);
  WriteContents(contents, &writer);
  const auto add_sum = [&writer](Bytes message) {
    writer.Number(static_cast<uint64_t>(PartKind::kSum));
    writer.Add(message);
  };
  std::vector<std::vector<uint8_t>> sums;
  if (addends.size() > 1) sums = codec.Sum(addends, 0);
  size_t apart = 0, together = 0;
  for (const Addend& addend : addends) apart += addend.message.size();
  bool is_better = !sums.empty();
  for (const std::vector<uint8_t>& sum : sums) {
    together += sum.size();
    // Of values as large as may be there are sums that could not be summed again.
    is_better = is_better && codec.CanSum(sum);
  }
  if (is_better && together < apart) {
    for (const std::vector<uint8_t>& sum : sums) add_sum(sum);
  } else {
    // One alone, or such as hardly meet: then a sum with its many values may be longer than they.
    for (const Addend& addend : addends) add_sum(addend.message);
  }
  for (const auto& [of, message] : whole) {
    writer.Number(static_cast<uint64_t>(PartKind::kWhole));
    writer.Number(of.origin);
    writer.Number(of.counter);
    writer.Add(message);
  }
  return MakeBuffer(std::move(merged));
}

std::vector<ReceivedUpdate> WithoutOwn(const Buffer& merged, uint64_t origin,
                                       const std::function<Buffer(uint64_t counter)>& own,
                                       const UpdateCodec& codec) {
  UpdateHeader header;
  MergedUpdate parts;
  STROM_CHECK(ParseUpdateHeader(*merged, &header).ok());
  STROM_CHECK(ParseMerged(BodyOf(merged), &parts).ok());  // validated before
  std::vector<Buffer> kept;                               // what is borrowed below
  std::vector<Addend> addends;
  for (const UpdateRange& range : parts.contents) {
    if (range.origin != origin) continue;
    for (uint64_t before = range.from; before < range.to; ++before) {
      kept.push_back(own(before + 1));
      if (kept.back() == nullptr) return {};
      if (codec.CanSum(BodyOf(kept.back()))) addends.push_back({BodyOf(kept.back()), true});
    }
  }
  std::vector<ReceivedUpdate> received;
  const auto add = [&](std::vector<uint8_t> update) {
    WriteUpdateHeader(header, update);
    received.push_back({header.id, MakeBuffer(std::move(update))});
  };
  const auto add_as_it_is = [&](Bytes message) {
    std::vector<uint8_t> update(static_cast<size_t>(kUpdateHeaderBytes));
    update.insert(update.end(), message.begin(), message.end());
    add(std::move(update));
  };
  if (addends.empty()) {
    for (const Bytes message : parts.sums) add_as_it_is(message);
  } else {
    for (const Bytes message : parts.sums) addends.push_back({message});
    for (auto& update : codec.Sum(addends, kUpdateHeaderBytes)) add(std::move(update));
  }
  for (const auto& [id, message] : parts.whole) {
    if (id.origin != origin) add_as_it_is(message);
  }
  std::erase_if(parts.contents, [&](const UpdateRange& range) { return range.origin == origin; });
  // Where nothing is left to be applied the contents still have to be told.
  if (received.empty()) {
    for (auto& update : codec.Sum({}, kUpdateHeaderBytes)) add(std::move(update));
  }
  received.back().contents = std::make_shared<const UpdateRanges>(std::move(parts.contents));
  return received;
}

VersionVector EndsOf(const UpdateRanges& ranges) {
  VersionVector ends;
  for (const UpdateRange& range : ranges) ends.try_emplace(range.origin, range.to);
  return ends;
}

}  // namespace strom
