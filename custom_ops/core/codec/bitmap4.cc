#include "core/codec/bitmap4.h"

#include <algorithm>

#include "core/codec/bitmap4_readers.h"

namespace strom {
namespace {

// A few microseconds of counting.
constexpr int64_t kCountedElementsInTask = int64_t{1} << 17;

int64_t Count(const uint8_t* payload, int64_t pairs) {
  int64_t count = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    count += std::popcount(static_cast<uint8_t>(payload[2 * i] | payload[2 * i + 1]));
  }
  return count;
}

const Bitmap4Reader& Fastest() {
  static const Bitmap4Reader& fastest = Bitmap4Readers().back();
  return fastest;
}

}  // namespace

void JoinBitmaps4(std::span<const Bitmap4> pieces, const Parallel& parallel, Bitmap4* whole) {
  std::vector<int64_t> starts;
  for (const Bitmap4& piece : pieces) {
    STROM_CHECK(whole->elements % 8 == 0);
    starts.push_back(whole->elements);
    whole->elements += piece.elements;
    whole->count += piece.count;
  }
  parallel.For(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const auto piece = static_cast<size_t>(i);
    std::copy_n(pieces[piece].bytes, Bitmap4Bytes(pieces[piece].elements),
                whole->bytes + Bitmap4Bytes(starts[piece]));
  });
}

std::vector<int64_t> CountBitmap4Spans(const Bitmap4& bitmap, int log2_span,
                                       const Parallel& parallel) {
  const int64_t spans = (bitmap.elements + (int64_t{1} << log2_span) - 1) >> log2_span;
  const int64_t in_task = std::max<int64_t>(kCountedElementsInTask >> log2_span, 1);
  std::vector<int64_t> counts(static_cast<size_t>(spans));
  parallel.For((spans + in_task - 1) / in_task, [&](int64_t task) {
    for (int64_t i = task * in_task; i < std::min(spans, (task + 1) * in_task); ++i) {
      const int64_t first = i << log2_span;
      const int64_t last = std::min((i + 1) << log2_span, bitmap.elements);
      counts[static_cast<size_t>(i)] =
          Fastest().count(bitmap.bytes + Bitmap4Bytes(first), BytesOfBits(last - first));
    }
  });
  return counts;
}

void AddBitmap4(const uint8_t* payload, int64_t first, int64_t last, const Bitmap4Values& adds,
                float* values) {
  Fastest().add(payload, first, last, adds, values);
}

void AddBitmap4Scalar(const uint8_t* payload, int64_t first, int64_t last,
                      const Bitmap4Values& adds, float* values) {
  for (int64_t i = first; i < last; ++i) {
    const uint8_t* const pair = payload + 2 * (i >> 3);
    const bool plus = (pair[0] >> (i & 7) & 1) != 0;
    const bool minus = (pair[1] >> (i & 7) & 1) != 0;
    if (plus && minus) {
      const float half = adds.value / 2;
      values[i - first] += HalfIsNegative(i, adds.iteration) ? -half : half;
    } else if (plus || minus) {
      values[i - first] += minus ? -adds.value : adds.value;
    }
  }
}

// Needs no memory: what an encoding has taken is given back with these where there is none.
std::span<const Bitmap4Reader> Bitmap4Readers() {
#if defined(STROM_X86)
  static const Bitmap4Reader readers[] = {{"scalar", Count, AddBitmap4Scalar}, Bitmap4ReaderAvx2()};
  return std::span(readers).first(HasAvx2() ? 2 : 1);
#elif defined(STROM_NEON)
  static const Bitmap4Reader readers[] = {{"scalar", Count, AddBitmap4Scalar}, Bitmap4ReaderNeon()};
  return readers;
#else
  static const Bitmap4Reader readers[] = {{"scalar", Count, AddBitmap4Scalar}};
  return readers;
#endif
}

const char* CheckBitmap4(Bytes payload, int64_t count, int64_t elements) {
  const int64_t pairs = BytesOfBits(elements);
  if (Fastest().count(payload.data(), pairs) != count) {
    return "the bits of a bitmap of four states are not as many as its entries";
  }
  const int used = static_cast<int>(elements - 8 * (pairs - 1));  // bits of the last pair
  const uint8_t* const last = payload.data() + 2 * (pairs - 1);
  if ((last[0] | last[1]) >> used != 0) return "padding bits are not zero";
  return nullptr;
}

int64_t CountBitmap4(Bytes payload, int64_t first, int64_t last) {
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    const uint8_t* const pair = payload.data() + 2 * (i >> 3);
    count += (pair[0] | pair[1]) >> (i & 7) & 1;
  }
  return count;
}

}  // namespace strom
