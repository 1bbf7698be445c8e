// What one task of an encoding (capi/codec.cc) finds in its consecutive elements, in the form that
// the message is made of: a list of codes, or a bitmap, of one bit or of four states an element,
// where every span will be one anyway.
//
// All forms have the same functions; Encoding is written once for them.
#ifndef KERAS_STROM_CAPI_CODEC_PIECES_H_
#define KERAS_STROM_CAPI_CODEC_PIECES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/parallel.h"
#include "core/codec/bitmap.h"
#include "core/codec/bitmap4.h"
#include "core/codec/entries.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"

namespace strom {

class CodesPiece {
 public:
  // Elements [start, end) of the sender's step `iteration` are to come; throws std::bad_alloc, as
  // Find does.
  void Start(int64_t, int64_t, int64_t) {}

  // The next elements, which begin at element `start` of the update. When it throws, they are as
  // they were.
  void Find(const StepKernel& kernel, const EncodeRun& run, const StepRule& rule, int64_t start,
            StepStatistics* statistics) {
    uint32_t* const codes = entries_.Reserve(run.size);
    entries_.Append(start / kChunk, kernel.encode(run, rule, codes, statistics));
  }

  int64_t count() const { return entries_.size(); }

  // visit(element, what it sends) for every entry.
  template <typename Visit>
  void ForEach(float threshold, Visit visit) const {
    for (size_t i = 0; i < entries_.chunks(); ++i) {
      const EntryList::Chunk chunk = entries_.chunk(i);
      for (const uint32_t code : chunk.codes) {
        visit(chunk.index * kChunk + (code >> 1), (code & 1) != 0 ? -threshold : threshold);
      }
    }
  }

  // Pieces that follow one another, which stay as they are.
  static CodesPiece Join(std::span<const CodesPiece> pieces, const Parallel& parallel) {
    std::vector<const EntryList*> lists;
    for (const CodesPiece& piece : pieces) lists.push_back(&piece.entries_);
    CodesPiece joined;
    JoinEntries(lists, parallel, &joined.entries_);
    return joined;
  }

  // The messages of a piece with all of the update's elements.
  std::vector<std::vector<uint8_t>> Write(const MessageFields& fields, int64_t max_bytes,
                                          const CodingOptions& coding,
                                          const Parallel& parallel) const {
    return WriteEntries(fields, entries_, max_bytes, 0, coding, parallel);
  }

 private:
  EntryList entries_;
};

// Only for Coding::kBitmap.
class BitmapPiece {
 public:
  void Start(int64_t start, int64_t end, int64_t) {
    start_ = start;
    memory_.emplace(end - start);
    bitmap_ = memory_->bitmap();
  }

  void Find(const StepKernel& kernel, const EncodeRun& run, const StepRule& rule, int64_t,
            StepStatistics* statistics) {
    kernel.encode_bitmap(run, rule, &bitmap_, statistics);
  }

  int64_t count() const { return bitmap_.count; }

  template <typename Visit>
  void ForEach(float threshold, Visit visit) const {
    int64_t sign = 0;
    for (int64_t i = 0; i < bitmap_.elements; ++i) {
      if (ReadBits(bitmap_.bits, i, 1) == 0) continue;
      visit(start_ + i, ReadBits(bitmap_.signs, sign++, 1) != 0 ? -threshold : threshold);
    }
  }

  static BitmapPiece Join(std::span<const BitmapPiece> pieces, const Parallel& parallel) {
    std::vector<Bitmap> bitmaps;
    int64_t elements = 0;
    for (const BitmapPiece& piece : pieces) {
      bitmaps.push_back(piece.bitmap_);
      elements += piece.bitmap_.elements;
    }
    BitmapPiece joined;
    joined.Start(pieces.front().start_, pieces.front().start_ + elements, 0);
    JoinBitmaps(bitmaps, parallel, &joined.bitmap_);
    return joined;
  }

  std::vector<std::vector<uint8_t>> Write(const MessageFields& fields, int64_t max_bytes,
                                          const CodingOptions&, const Parallel& parallel) const {
    return WriteBitmap(fields, bitmap_, max_bytes, 0, parallel);
  }

 private:
  int64_t start_ = 0;
  std::optional<BitmapMemory> memory_;
  Bitmap bitmap_;
};

// Only for Coding::kBitmap4.
class Bitmap4Piece {
 public:
  void Start(int64_t start, int64_t end, int64_t iteration) {
    start_ = start;
    memory_.emplace(end - start);
    bitmap_ = memory_->bitmap(iteration);
  }

  void Find(const StepKernel& kernel, const EncodeRun& run, const StepRule& rule, int64_t,
            StepStatistics* statistics) {
    kernel.encode_bitmap4(run, rule, &bitmap_, statistics);
  }

  int64_t count() const { return bitmap_.count; }

  template <typename Visit>
  void ForEach(float threshold, Visit visit) const {
    for (int64_t i = 0; i < bitmap_.elements; ++i) {
      float sent = 0;
      AddBitmap4(bitmap_.bytes, i, i + 1, {threshold, bitmap_.iteration}, &sent);
      if (sent != 0) visit(start_ + i, sent);
    }
  }

  static Bitmap4Piece Join(std::span<const Bitmap4Piece> pieces, const Parallel& parallel) {
    std::vector<Bitmap4> bitmaps;
    int64_t elements = 0;
    for (const Bitmap4Piece& piece : pieces) {
      bitmaps.push_back(piece.bitmap_);
      elements += piece.bitmap_.elements;
    }
    const Bitmap4Piece& front = pieces.front();
    Bitmap4Piece joined;
    joined.Start(front.start_, front.start_ + elements, front.bitmap_.iteration);
    JoinBitmaps4(bitmaps, parallel, &joined.bitmap_);
    return joined;
  }

  std::vector<std::vector<uint8_t>> Write(const MessageFields& fields, int64_t max_bytes,
                                          const CodingOptions&, const Parallel& parallel) const {
    return WriteBitmap4(fields, bitmap_, max_bytes, 0, parallel);
  }

 private:
  int64_t start_ = 0;
  std::optional<Bitmap4Memory> memory_;
  Bitmap4 bitmap_;
};

}  // namespace strom

#endif  // KERAS_STROM_CAPI_CODEC_PIECES_H_
