#include "core/codec/bitmap.h"

#include <bit>
#include <cstring>

namespace strom {
namespace {

// The next bits of a run, at most 64 of them, from element i on.
uint64_t ElementBits(const BitmapRun& run, int64_t i) {
  const uint64_t bits = Read64Bits(run.bits, run.first_bit + i);
  const int64_t left = run.size - i;
  return left >= 64 ? bits : bits & ((uint64_t{1} << left) - 1);
}

// `size` bits from bit `position` of a stream on, padded to a byte.
void CopyBits(const uint8_t* stream, int64_t position, int64_t size, uint8_t* out) {
  for (int64_t done = 0; done < size; done += 64) {
    const int64_t left = size - done;
    const uint64_t mask = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
    StoreLittleEndian<uint64_t>(out + done / 8, Read64Bits(stream, position + done) & mask);
  }
}

}  // namespace

void JoinBitmaps(std::span<const Bitmap> pieces, const Parallel& parallel, Bitmap* whole) {
  for (const Bitmap& piece : pieces) {
    STROM_CHECK(whole->elements % 8 == 0);
    whole->elements += piece.elements;
    for (int64_t done = 0; done < piece.count; done += 64) {
      Bitmap::AppendBits(whole->signs, whole->count + done, Read64Bits(piece.signs, done));
    }
    whole->count += piece.count;
  }
  parallel.For(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    int64_t first = 0;
    for (const Bitmap& before : pieces.first(static_cast<size_t>(i))) first += before.elements;
    const Bitmap& piece = pieces[static_cast<size_t>(i)];
    std::memcpy(whole->bits + first / 8, piece.bits,
                static_cast<size_t>(BytesOfBits(piece.elements)));
  });
}

BitmapSpan MeasureBitmapSpan(const Bitmap& bitmap, int64_t first, int64_t size,
                             int64_t first_sign) {
  BitmapSpan span;
  span.run = {bitmap.bits, first, bitmap.signs, first_sign, size};
  int64_t end = 0;
  for (int64_t i = 0; i < size; i += 64) {
    const uint64_t bits = ElementBits(span.run, i);
    if (bits == 0) continue;
    span.count += std::popcount(bits);
    end = i + std::bit_width(bits);
  }
  span.run.size = end;
  return span;
}

void WriteBitmapSpan(const BitmapSpan& span, uint8_t* out) {
  CopyBits(span.run.signs, span.run.first_sign, span.count, out);
  CopyBits(span.run.bits, span.run.first_bit, span.run.size, out + BytesOfBits(span.count));
}

}  // namespace strom
