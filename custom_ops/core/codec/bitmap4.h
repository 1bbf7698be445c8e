// A bitmap of four states: an element adds nothing, +value, -value or a half of the value, in two
// bits, whatever the density. For updates so dense that halves, which let mass leave before it has
// grown to a whole threshold, are worth those bits.
//
// There is one state for halves of both signs. Which one it stands for alternates from element to
// element and, for one element, from step to step: an element may send a half of either sign every
// other step, so that neither sign is favoured. (Deeplearning4j has the same four states, but its
// halves are negative only.)
//
// A span's payload (coding 30 in docs/internals/message_format.md) is a row of pairs of bytes, one
// pair for eight elements: in the first byte a bit for each that adds +value or a half, in the
// second one for each that adds -value or a half.
#ifndef KERAS_STROM_CORE_CODEC_BITMAP4_H_
#define KERAS_STROM_CORE_CODEC_BITMAP4_H_

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/bits.h"
#include "core/base/parallel.h"
#include "core/base/types.h"

namespace strom {

// The smallest magnitude whose half is exact, and no subnormal number.
inline constexpr float kMinBitmap4Value = 0x1p-125f;

// Whether a half of the element with this index is negative in this step of the sender.
constexpr bool HalfIsNegative(int64_t index, int64_t iteration) {
  return ((index ^ iteration) & 1) != 0;
}

// The same for 64 elements from `first` on, a bit each.
constexpr uint64_t NegativeHalves(int64_t first, int64_t iteration) {
  return HalfIsNegative(first, iteration) ? 0x5555555555555555 : 0xaaaaaaaaaaaaaaaa;
}

constexpr int64_t Bitmap4Bytes(int64_t elements) { return 2 * BytesOfBits(elements); }

// Pairs of bytes that grow in memory of the caller's.
struct Bitmap4 {
  uint8_t* bytes = nullptr;
  int64_t iteration = 0;  // decides the signs of halves
  int64_t elements = 0;   // so far
  int64_t count = 0;      // entries so far, halves among them

  // One more element; a half has both bits.
  void Append(bool plus, bool minus) {
    uint8_t* const pair = bytes + 2 * (elements >> 3);
    const int bit = static_cast<int>(elements & 7);
    if (bit == 0) pair[0] = pair[1] = 0;
    pair[0] = static_cast<uint8_t>(pair[0] | (plus ? 1 : 0) << bit);
    pair[1] = static_cast<uint8_t>(pair[1] | (minus ? 1 : 0) << bit);
    ++elements;
    count += plus || minus ? 1 : 0;
  }

  // 64 more elements behind a multiple of 8.
  void Append64(uint64_t plus, uint64_t minus) {
    uint8_t* const out = bytes + (elements >> 2);
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = static_cast<uint8_t>(plus >> (8 * i));
      out[2 * i + 1] = static_cast<uint8_t>(minus >> (8 * i));
    }
    elements += 64;
    count += std::popcount(plus | minus);
  }
};

// Memory for a bitmap of up to `elements` elements.
class Bitmap4Memory {
 public:
  explicit Bitmap4Memory(int64_t elements)
      : bytes_(std::make_unique_for_overwrite<uint8_t[]>(
            static_cast<size_t>(Bitmap4Bytes(elements)))) {}

  // Without elements so far.
  Bitmap4 bitmap(int64_t iteration) const { return {bytes_.get(), iteration}; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
};

// Puts pieces behind one another into `whole`, which is empty and has room for all of them. Every
// piece but the last has a multiple of 8 elements.
void JoinBitmaps4(std::span<const Bitmap4> pieces, const Parallel& parallel, Bitmap4* whole);

// How many entries each span of 2^log2_span elements has.
std::vector<int64_t> CountBitmap4Spans(const Bitmap4& bitmap, int log2_span,
                                       const Parallel& parallel);

// What the states mean: the message's value, and the step that gives its halves their signs.
struct Bitmap4Values {
  float value = 0;
  int64_t iteration = 0;
};

// One way to read payloads; `pairs` is a payload's first byte. All give the same results.
struct Bitmap4Reader {
  const char* name;

  // The entries among the first `pairs` pairs.
  int64_t (*count)(const uint8_t* payload, int64_t pairs);

  // Adds what elements [first, last) of the span say to `values`, which begins at element `first`.
  // What adds nothing keeps its bits.
  void (*add)(const uint8_t* payload, int64_t first, int64_t last, const Bitmap4Values& adds,
              float* values);
};

// Those that this processor can run: the scalar oracle first, the fastest last.
std::span<const Bitmap4Reader> Bitmap4Readers();

// Bitmap4Reader::add of the fastest one.
void AddBitmap4(const uint8_t* payload, int64_t first, int64_t last, const Bitmap4Values& adds,
                float* values);

// Whether a payload of Bitmap4Bytes(elements) bytes has `count` entries and no bit behind its last
// element. Null, or the check that failed.
const char* CheckBitmap4(Bytes payload, int64_t count, int64_t elements);

// The entries among elements [first, last) of a payload.
int64_t CountBitmap4(Bytes payload, int64_t first, int64_t last);

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_BITMAP4_H_
