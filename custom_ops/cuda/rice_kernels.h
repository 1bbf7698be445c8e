// Split Rice (core/codec/rice.h) by many threads: a block codes a span. Fields have a fixed width
// and the ones of the unary stream come from a running sum, so each word of the payload is put
// together by one thread from the entries that lie in it, without atomics; the bytes are the host
// coder's.
#ifndef KERAS_STROM_CUDA_RICE_KERNELS_H_
#define KERAS_STROM_CUDA_RICE_KERNELS_H_

#include <cstdint>

#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "cuda/device.h"
#include "cuda/scan.h"
#include "cuda/segments.h"

namespace strom::cuda {

// What the payload's reader may touch behind its end.
inline constexpr int64_t kPayloadSlack = 8;

STROM_DEVICE uint32_t BytesOfBits32(uint32_t bits) { return bits / 8 + (bits % 8 != 0); }

// The codes of one span.
struct SpanCodes {
  const uint32_t* codes;
  uint32_t count;
  uint32_t index_mask;  // 2^log2_span - 1

  STROM_DEVICE uint32_t Gap(uint32_t i) const {
    if (i == 0) return codes[0] >> 1 & index_mask;
    return (codes[i] >> 1) - (codes[i - 1] >> 1) - 1;
  }
};

// The entries of an update in spans: what FindSpans and CompactTiles have made.
struct SpannedCodes {
  const uint32_t* codes;
  const int64_t* span_starts;
  int log2_span;

  STROM_DEVICE SpanCodes OfSpan(int64_t span) const {
    const int64_t start = span_starts[span];
    return {codes + start, static_cast<uint32_t>(span_starts[span + 1] - start),
            (uint32_t{1} << log2_span) - 1};
  }
};

// The k that core's writer takes, and the bytes that the span then has; 0 and 0 for a span without
// entries.
struct ChooseSpans {
  SpannedCodes entries;
  CodingOptions options;
  uint32_t* ks;
  uint32_t* bytes;

  static constexpr int kChoices = kMaxLog2Span + 1;  // from this k on no gap has a high part

  struct Shared {
    uint32_t high_parts[kBlockWarps][kChoices];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const SpanCodes span = entries.OfSpan(BlockIndex());
    uint32_t high_parts[kChoices] = {};
    for (uint32_t i = static_cast<uint32_t>(ThreadIndex()); i < span.count; i += kBlockThreads) {
      const uint32_t gap = span.Gap(i);
      STROM_UNROLL
      for (int k = 0; k < kChoices; ++k) high_parts[k] += gap >> k;
    }
    STROM_UNROLL
    for (int k = 0; k < kChoices; ++k) {
      uint32_t sum = high_parts[k];
      STROM_UNROLL
      for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) sum += FromLaneXor(sum, mask);
      if (LaneIndex() == 0) shared.high_parts[WarpIndex()][k] = sum;
    }
    SyncBlock();
    if (ThreadIndex() == 0) Choose(shared, span.count);
  }

  struct Choice {
    uint32_t k;
    uint32_t bits;
    uint32_t bytes;
  };

  STROM_DEVICE static Choice WithK(const Shared& shared, uint32_t count, uint32_t k) {
    uint32_t unary = count;
    for (int warp = 0; warp < kBlockWarps; ++warp) unary += shared.high_parts[warp][k];
    const uint32_t fields = count * (k + 1);
    return {k, fields + unary, BytesOfBits32(fields) + BytesOfBits32(unary)};
  }

  // The fewest bits win; of equals, the smallest k.
  STROM_DEVICE void Choose(const Shared& shared, uint32_t count) const {
    const Choice bitmap = WithK(shared, count, 0);
    Choice best = options.coding == Coding::kSparse ? WithK(shared, count, 1) : bitmap;
    if (options.coding != Coding::kBitmap) {
      for (uint32_t k = best.k + 1; k < kChoices; ++k) {
        const Choice choice = WithK(shared, count, k);
        if (choice.bits < best.bits) best = choice;
      }
    }
    const bool may_be_bitmap = options.coding == Coding::kAuto && options.prefer == Prefer::kSpeed;
    const int64_t more_bits = 8 * (static_cast<int64_t>(bitmap.bytes) - best.bytes);
    if (may_be_bitmap && more_bits <= static_cast<int64_t>(count) * kBitsForSpeed) best = bitmap;
    ks[BlockIndex()] = best.k;
    bytes[BlockIndex()] = best.bytes;
  }
};

// Writes the payload of each span to payloads[starts[span]...].
struct PackSpans {
  SpannedCodes entries;
  const uint32_t* ks;
  const int64_t* starts;
  uint8_t* payloads;
  uint32_t* ones;  // scratch, one for each entry: where in its unary stream the entry's one stands

  static constexpr int kItems = 4;  // of one thread in one round

  struct Shared {
    uint32_t warp_sums[kBlockWarps];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const SpanCodes span = entries.OfSpan(BlockIndex());
    if (span.count == 0) return;
    const uint32_t k = ks[BlockIndex()];
    uint8_t* const fields = payloads + starts[BlockIndex()];
    WriteFields(span, k, fields);
    uint32_t* const span_ones = ones + entries.span_starts[BlockIndex()];
    const uint32_t unary_bits = PlaceOnes(shared, span, k, span_ones);
    SyncBlock();
    WriteUnary(span_ones, span.count, unary_bits, fields + BytesOfBits32(span.count * (k + 1)));
  }

  STROM_DEVICE static void WriteFields(const SpanCodes& span, uint32_t k, uint8_t* out) {
    const uint32_t width = k + 1;
    const uint32_t mask = (uint32_t{1} << width) - 1;
    const uint32_t bits = span.count * width;
    for (uint32_t start = 32 * static_cast<uint32_t>(ThreadIndex()); start < bits;
         start += 32 * kBlockThreads) {
      uint32_t word = 0;
      uint32_t i = start / width;
      for (uint32_t place = i * width; i < span.count && place < start + 32; ++i, place += width) {
        const uint32_t field = (span.Gap(i) << 1 | (span.codes[i] & 1)) & mask;
        word |= place < start ? field >> (start - place) : field << (place - start);
      }
      StoreWord(word, start / 8, BytesOfBits32(bits), out);
    }
  }

  // Returns the length of the unary stream.
  STROM_DEVICE static uint32_t PlaceOnes(Shared& shared, const SpanCodes& span, uint32_t k,
                                         uint32_t* span_ones) {
    uint32_t high_parts = 0;  // of all entries before this round
    for (uint32_t round = 0; round < span.count; round += kBlockThreads * kItems) {
      const uint32_t first = round + static_cast<uint32_t>(ThreadIndex() * kItems);
      uint32_t high[kItems];
      uint32_t sum = 0;
      STROM_UNROLL
      for (uint32_t i = 0; i < kItems; ++i) {
        high[i] = first + i < span.count ? span.Gap(first + i) >> k : 0;
        sum += high[i];
      }
      uint32_t total = 0;
      uint32_t place = high_parts + SumBefore(sum, shared.warp_sums, &total);
      STROM_UNROLL
      for (uint32_t i = 0; i < kItems; ++i) {
        place += high[i];
        if (first + i < span.count) span_ones[first + i] = place + first + i;
      }
      high_parts += total;
    }
    return high_parts + span.count;
  }

  STROM_DEVICE static void WriteUnary(const uint32_t* span_ones, uint32_t count, uint32_t bits,
                                      uint8_t* out) {
    for (uint32_t start = 32 * static_cast<uint32_t>(ThreadIndex()); start < bits;
         start += 32 * kBlockThreads) {
      uint32_t low = 0;  // the first one in this word or behind it
      uint32_t high = count;
      while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (span_ones[middle] < start) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      uint32_t word = 0;
      for (; low < count && span_ones[low] < start + 32; ++low) {
        word |= uint32_t{1} << (span_ones[low] - start);
      }
      StoreWord(word, start / 8, BytesOfBits32(bits), out);
    }
  }

  // The bytes of `word` from `out + first` on, as far as the stream of `size` bytes goes; payloads
  // start anywhere, so there is no wider access.
  STROM_DEVICE static void StoreWord(uint32_t word, uint32_t first, uint32_t size, uint8_t* out) {
    STROM_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      if (first + i < size) out[first + i] = static_cast<uint8_t>(word >> (8 * i));
    }
  }
};

// A span of a message that has passed every check (core/codec/message.h).
struct CodedSpan {
  int64_t offset;  // its first flat element
  int64_t elements;
  int64_t payload;      // where its payload starts
  int64_t first_entry;  // entries of the spans before it
  uint32_t payload_bytes;
  uint32_t count;
  uint32_t k;  // or kBitmap4Coding or kRawCoding
};

// Entries of a message that add the same: those from the end of the run before on.
struct ValueUntil {
  int64_t end;  // the entry behind its last one
  float value;
};

// Adds the spans to segment.value; in skipped[block] how many entries lie in no segment (of raw
// spans, elements that are not zero).
struct ApplySpans {
  SegmentTable table;
  const CodedSpan* spans;
  const uint8_t* payloads;  // kPayloadSlack readable bytes behind them
  float value;              // of all entries, where there are no runs
  const ValueUntil* runs;   // ascending, to the message's last entry
  int64_t run_count;
  int64_t iteration;
  uint32_t* ones;  // as in PackSpans
  uint32_t* skipped;

  struct Shared {
    uint32_t warp_sums[kBlockWarps];
  };

  // The segments that a span touches, so that its entries search no others.
  struct Target {
    SegmentTable table;

    // Null where no segment has the element.
    STROM_DEVICE float* Find(int64_t element) const {
      const Segment& segment = table.segments[table.AtOrBefore(element)];
      const int64_t index = element - segment.offset;
      return index >= 0 && index < segment.size ? segment.value + index : nullptr;
    }
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const CodedSpan span = spans[BlockIndex()];
    const int64_t first = table.AtOrBefore(span.offset);
    const int64_t last = table.AtOrBefore(span.offset + span.elements - 1);
    const Target target{{table.segments + first, last - first + 1}};
    uint32_t missed = 0;
    if (span.k == kRawCoding) {
      missed = AddRaw(span, target);
    } else if (span.k == kBitmap4Coding) {
      missed = AddBitmap4Span(span, target);
    } else {
      FindOnes(shared, span);
      SyncBlock();
      missed = AddEntries(shared, span, target);
    }
    uint32_t total = 0;
    SumBefore(missed, shared.warp_sums, &total);
    if (ThreadIndex() == 0) skipped[BlockIndex()] = total;
  }

  STROM_DEVICE static uint32_t LoadWord(const uint8_t* from) {
    return static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[1]) << 8 |
           static_cast<uint32_t>(from[2]) << 16 | static_cast<uint32_t>(from[3]) << 24;
  }

  STROM_DEVICE uint32_t AddRaw(const CodedSpan& span, const Target& target) const {
    uint32_t missed = 0;
    for (int64_t i = ThreadIndex(); i < span.elements; i += kBlockThreads) {
      const float raw = FloatOf(LoadWord(payloads + span.payload + 4 * i));
      float* const place = target.Find(span.offset + i);
      if (place != nullptr) {
        *place += raw;
      } else {
        missed += raw != 0;
      }
    }
    return missed;
  }

  // Four states an element, as in core/codec/bitmap4.h.
  STROM_DEVICE uint32_t AddBitmap4Span(const CodedSpan& span, const Target& target) const {
    uint32_t missed = 0;
    for (int64_t i = ThreadIndex(); i < span.elements; i += kBlockThreads) {
      const uint8_t* const pair = payloads + span.payload + 2 * (i >> 3);
      const bool plus = (pair[0] >> (i & 7) & 1) != 0;
      const bool minus = (pair[1] >> (i & 7) & 1) != 0;
      if (!plus && !minus) continue;
      float* const place = target.Find(span.offset + i);
      if (place == nullptr) {
        ++missed;
        continue;
      }
      const bool half = plus && minus;
      const bool negative = half ? ((i ^ iteration) & 1) != 0 : minus;
      const float magnitude = half ? value / 2 : value;
      *place += negative ? -magnitude : magnitude;
    }
    return missed;
  }

  // Writes where each entry's one stands.
  STROM_DEVICE void FindOnes(Shared& shared, const CodedSpan& span) const {
    const uint32_t field_bytes = BytesOfBits32(span.count * (span.k + 1));
    const uint32_t bytes = span.payload_bytes - field_bytes;
    const uint8_t* const unary = payloads + span.payload + field_bytes;
    uint32_t* const span_ones = ones + span.first_entry;
    uint32_t found = 0;  // in all words before this round
    for (uint32_t round = 0; round < bytes; round += 4 * kBlockThreads) {
      const uint32_t start = round + 4 * static_cast<uint32_t>(ThreadIndex());
      uint32_t word = 0;
      if (start < bytes) {
        word = LoadWord(unary + start);
        // What follows belongs to the next span.
        if (bytes - start < 4) word &= (uint32_t{1} << 8 * (bytes - start)) - 1;
      }
      uint32_t total = 0;
      uint32_t entry =
          found + SumBefore(static_cast<uint32_t>(CountOnes(word)), shared.warp_sums, &total);
      for (; word != 0; word &= word - 1) {
        span_ones[entry++] = 8 * start + static_cast<uint32_t>(LowestOne(word));
      }
      found += total;
    }
  }

  // index = sum of the low parts so far + (sum of the high parts so far << k) + number of entries
  // before; the high parts' sum is the one's position less the ones before it.
  STROM_DEVICE uint32_t AddEntries(Shared& shared, const CodedSpan& span,
                                   const Target& target) const {
    const uint8_t* const fields = payloads + span.payload;
    const uint32_t* const span_ones = ones + span.first_entry;
    const uint32_t width = span.k + 1;
    uint32_t low_parts = 0;  // of all entries before this round
    uint32_t missed = 0;
    for (uint32_t round = 0; round < span.count; round += kBlockThreads) {
      const uint32_t i = round + static_cast<uint32_t>(ThreadIndex());
      uint32_t field = 0;
      if (i < span.count) {
        const uint32_t place = i * width;
        field = LoadWord(fields + place / 8) >> place % 8 & ((uint32_t{1} << width) - 1);
      }
      uint32_t total = 0;
      const uint32_t low = field >> 1;
      const uint32_t before = SumBefore(low, shared.warp_sums, &total);
      if (i < span.count) {
        const uint32_t index = low_parts + before + low + ((span_ones[i] - i) << span.k) + i;
        float* const place = target.Find(span.offset + index);
        if (place != nullptr) {
          *place += FloatOf(BitsOf(ValueOf(span.first_entry + i)) ^ field << 31);
        } else {
          ++missed;
        }
      }
      low_parts += total;
    }
    return missed;
  }

  // What an entry of the message adds, but for its sign.
  STROM_DEVICE float ValueOf(int64_t entry) const {
    if (run_count == 0) return value;
    int64_t low = 0;  // the first run that ends behind the entry
    int64_t high = run_count - 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (runs[middle].end <= entry) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return runs[low].value;
  }
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_RICE_KERNELS_H_
