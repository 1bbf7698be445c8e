// Entries as a bitmap: one bit an element and one sign bit an entry, for updates so dense that a
// list of codes would be longer and slower.
// The step kernels write it in the same pass that finds the entries (core/step/residual.h).
//
// The two streams are those of split Rice with k = 0 (docs/internals/message_format.md): a span's
// payload is its share of the signs, then its share of the bits up to its last entry.
#ifndef KERAS_STROM_CORE_CODEC_BITMAP_H_
#define KERAS_STROM_CORE_CODEC_BITMAP_H_

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/bits.h"
#include "core/base/parallel.h"
#include "core/base/types.h"

namespace strom {

// What may be touched behind the last byte of either stream.
inline constexpr int64_t kBitmapSlack = 16;

// Two bit streams (core/base/bits.h) that grow in memory of the caller's.
struct Bitmap {
  uint8_t* bits = nullptr;   // bit i is set where element i is an entry
  uint8_t* signs = nullptr;  // bit j is set where entry j is negative
  int64_t elements = 0;      // so far
  int64_t count = 0;         // entries so far

  // `size` <= 64 more elements with `entries` entries; neither word has a bit beyond those.
  void Append(uint64_t element_bits, uint64_t sign_bits, int size, int entries) {
    // Kernels come with whole bytes of elements nearly always; entries are any number.
    if ((elements & 7) == 0) [[likely]] {
      StoreLittleEndian<uint64_t>(bits + (elements >> 3), element_bits);
    } else {
      AppendBits(bits, elements, element_bits);
    }
    AppendBits(signs, count, sign_bits);
    elements += size;
    count += entries;
  }

  // Writes the 64 bits of `word` behind the first `position` bits of a stream.
  static void AppendBits(uint8_t* stream, int64_t position, uint64_t word) {
    uint8_t* const out = stream + (position >> 3);
    const int used = static_cast<int>(position & 7);
    const uint64_t before = *out & ((1u << used) - 1);
    StoreLittleEndian<uint64_t>(out, before | word << used);
    out[8] = static_cast<uint8_t>(word >> 1 >> (63 - used));
  }
};

// Memory for a bitmap of up to `elements` elements, whatever their number of entries.
class BitmapMemory {
 public:
  explicit BitmapMemory(int64_t elements)
      : stream_bytes_(BytesOfBits(elements) + kBitmapSlack),
        bytes_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(2 * stream_bytes_))) {}

  // Without elements so far.
  Bitmap bitmap() const { return {bytes_.get(), bytes_.get() + stream_bytes_}; }

 private:
  int64_t stream_bytes_;
  std::unique_ptr<uint8_t[]> bytes_;
};

// Puts pieces behind one another into `whole`, which is empty and has room for all of them. Every
// piece but the last has a multiple of 8 elements.
void JoinBitmaps(std::span<const Bitmap> pieces, const Parallel& parallel, Bitmap* whole);

// A stretch of such streams, at any bit of them.
struct BitmapRun {
  const uint8_t* bits = nullptr;
  int64_t first_bit = 0;  // of the first element
  const uint8_t* signs = nullptr;
  int64_t first_sign = 0;  // of its first entry
  int64_t size = 0;        // elements
};

// Where one span's share of a bitmap lies, and what it takes as a payload with k = 0.
struct BitmapSpan {
  BitmapRun run;      // up to the span's last entry
  int64_t count = 0;  // entries
  int64_t bytes() const { return BytesOfBits(count) + BytesOfBits(run.size); }
};

// The share of elements [first, first + size); `first_sign` entries come before them.
BitmapSpan MeasureBitmapSpan(const Bitmap& bitmap, int64_t first, int64_t size, int64_t first_sign);

// Writes the span's payload (span.bytes(), and up to kBitmapSlack bytes behind it).
void WriteBitmapSpan(const BitmapSpan& span, uint8_t* out);

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_BITMAP_H_
