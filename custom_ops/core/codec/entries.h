// The entries of one update between the step kernel, which finds them, and the message writer,
// which codes them: for each element that reached the threshold its place and its sign.
#ifndef KERAS_STROM_CORE_CODEC_ENTRIES_H_
#define KERAS_STROM_CORE_CODEC_ENTRIES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/types.h"

namespace strom {

// The flat space is walked in chunks of 2^21 elements, the largest span of a message. An entry
// needs 4 bytes then, however large the model is: its index in the chunk times 2, plus 1 if it is
// negative.
inline constexpr int kLog2Chunk = 21;
inline constexpr int64_t kChunk = int64_t{1} << kLog2Chunk;

class EntryList {
 public:
  struct Chunk {
    int64_t index;  // flat element = index * kChunk + (code >> 1)
    std::span<const uint32_t> codes;
  };

  void Clear() {
    size_ = 0;
    starts_.clear();
  }

  // Room for `count` more codes; valid until the next call. Throws std::bad_alloc and leaves the
  // list as it was.
  uint32_t* Reserve(int64_t count) {
    if (size_ + count > capacity_) Grow(size_ + count);
    if (starts_.size() == starts_.capacity()) starts_.reserve(2 * starts_.size() + 1);
    return codes_.get() + size_;
  }

  // The first `count` codes in the room belong to chunk `index`; chunks come in ascending order.
  // The first call after Reserve needs no memory: what a kernel has taken out is never lost.
  void Append(int64_t index, int64_t count) {
    if (count == 0) return;
    STROM_CHECK(starts_.empty() || starts_.back().index <= index);
    if (starts_.empty() || starts_.back().index != index) starts_.push_back({index, size_});
    size_ += count;
  }

  int64_t size() const { return size_; }
  size_t chunks() const { return starts_.size(); }
  Chunk chunk(size_t i) const {
    const int64_t end = i + 1 < starts_.size() ? starts_[i + 1].first : size_;
    const int64_t first = starts_[i].first;
    return {starts_[i].index, {codes_.get() + first, static_cast<size_t>(end - first)}};
  }

 private:
  struct Start {
    int64_t index;
    int64_t first;
  };

  void Grow(int64_t needed) {
    const int64_t capacity = std::max(needed, 2 * capacity_);
    auto larger = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(capacity));
    std::copy_n(codes_.get(), size_, larger.get());
    codes_ = std::move(larger);
    capacity_ = capacity;
  }

  std::unique_ptr<uint32_t[]> codes_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
  std::vector<Start> starts_;
};

// The threads for coding or applying so many entries, at some 2 ns each: none where waking them
// takes as long.
inline Parallel ForEntries(int64_t entries, const Parallel& parallel) {
  constexpr int64_t kMinParallelEntries = 32768;
  return entries < kMinParallelEntries ? Parallel{} : parallel;
}

// Lists of elements that follow one another, as one; `joined` is empty before.
inline void JoinEntries(std::span<const EntryList* const> pieces, const Parallel& parallel,
                        EntryList* joined) {
  std::vector<int64_t> starts(1, 0);
  for (const EntryList* piece : pieces) starts.push_back(starts.back() + piece->size());
  uint32_t* const room = joined->Reserve(starts.back());
  parallel.For(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const EntryList& piece = *pieces[static_cast<size_t>(i)];
    uint32_t* out = room + starts[static_cast<size_t>(i)];
    for (size_t c = 0; c < piece.chunks(); ++c) {
      const std::span<const uint32_t> codes = piece.chunk(c).codes;
      out = std::copy(codes.begin(), codes.end(), out);
    }
  });
  for (const EntryList* piece : pieces) {
    for (size_t c = 0; c < piece->chunks(); ++c) {
      const EntryList::Chunk chunk = piece->chunk(c);
      joined->Append(chunk.index, static_cast<int64_t>(chunk.codes.size()));
    }
  }
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_ENTRIES_H_
