// Adds messages to parameters (core/codec/message.h).
//
// The flat space is walked in regions, the longest span of any of the messages. Where the messages
// of a region are sparse they are added one by one. Where they are dense together, most of its
// cache lines change more than once: then all are decoded first, and the parameters taken block by
// block, each block getting its part of every message while it is in the cache. Either way a
// parameter sees the messages in their order, so the bits are the same.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <vector>

#include "core/base/fetch_ahead.h"
#include "core/codec/bitmap4.h"
#include "core/codec/message.h"
#include "core/codec/message_payload.h"
#include "core/codec/rice.h"

namespace strom {
namespace {

int64_t End(const ParameterRange& range) {
  return range.offset + static_cast<int64_t>(range.values.size());
}

// The position of the first code from `start` on whose index is not below `index`.
size_t Below(Codes codes, size_t start, int64_t index) {
  // Mostly it is near: double the step until it is passed.
  size_t step = 16;
  while (start + step < codes.size() && int64_t{codes[start + step] >> 1} < index) {
    start += step;
    step *= 2;
  }
  const auto first = codes.begin() + static_cast<std::ptrdiff_t>(start);
  const auto last =
      codes.begin() + static_cast<std::ptrdiff_t>(std::min(start + step, codes.size()));
  const auto found =
      std::partition_point(first, last, [&](uint32_t code) { return int64_t{code >> 1} < index; });
  return static_cast<size_t>(found - codes.begin());
}

// Brings elements into the cache at the speed of a plain pass: the processor sees it coming, which
// it cannot when entries here and there are the first to touch a line.
void ReadInOrder(const float* values, int64_t size) {
  for (int64_t i = 0; i < size; i += kLineFloats) {
    static_cast<void>(*static_cast<const volatile float*>(values + i));
  }
}

// `values` is where the element with index `first` goes.
void AddEntries(Codes codes, uint32_t value_bits, int64_t first, float* values) {
  for (const uint32_t code : codes) {
    values[(code >> 1) - first] += std::bit_cast<float>(value_bits ^ (code << 31));
  }
}

// Adds entries [start, done) of the codes, of which the first is `first_entry` of the message.
void AddEntries(const ParsedMessage& message, int64_t first_entry, Codes codes, size_t start,
                size_t done, int64_t first, float* values) {
  message.ForEachValue(
      first_entry + static_cast<int64_t>(start), first_entry + static_cast<int64_t>(done),
      [&](int64_t begin, int64_t end, float value) {
        const auto begins = static_cast<size_t>(begin - first_entry);
        const auto size = static_cast<size_t>(end - begin);
        AddEntries(codes.subspan(begins, size), std::bit_cast<uint32_t>(value), first, values);
      });
}

float RawValue(const ParsedMessage::Span& span, int64_t i) {
  return LoadLittleEndian<float>(span.payload.data() + 4 * i);
}

// Raw elements [first, last) of a span.
void AddRaw(const ParsedMessage::Span& span, int64_t first, int64_t last, float* values) {
  for (int64_t i = first; i < last; ++i) values[i - first] += RawValue(span, i);
}

int64_t NonZeros(const ParsedMessage::Span& span, int64_t first, int64_t last) {
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) count += RawValue(span, i) != 0;
  return count;
}

// Calls visit(first, last, values) for the parts of the flat elements [begin, end) that lie in
// ranges, in ascending order, as indices from `begin`. `ranges` loses those that end before.
template <typename Visit>
void ForEachPart(std::span<const ParameterRange>* ranges, int64_t begin, int64_t end, Visit visit) {
  while (!ranges->empty() && End(ranges->front()) <= begin) *ranges = ranges->subspan(1);
  for (const ParameterRange& range : *ranges) {
    if (range.offset >= end) break;
    const int64_t first = std::max(range.offset, begin);
    const int64_t last = std::min(End(range), end);
    if (first < last)
      visit(first - begin, last - begin, range.values.data() + (first - range.offset));
  }
}

// Adds the spans of one message; like the ranges they only go forward.
class SpanAdder {
 public:
  SpanAdder(const ParsedMessage& message, std::span<const ParameterRange> ranges)
      : message_(&message), ranges_(ranges) {}

  // Returns how many of the span's entries lie in no range.
  int64_t Add(const ParsedMessage::Span& span) {
    if (span.count == 0) return 0;
    if (span.k == kRawCoding) return AddRawSpan(span);
    if (span.k == kBitmap4Coding) return AddBitmap4Span(span);
    const int64_t end = span.offset + span.elements;
    // The bitmap of a span in one range: no codes are needed, and where there are many entries
    // going over all elements is faster.
    float value = 0;
    if (Rice().add_bitmap != nullptr && span.k == 0 && 16 * span.count > span.elements &&
        HasOneValue(span, &value)) {
      float* whole = nullptr;
      ForEachPart(&ranges_, span.offset, end, [&](int64_t first, int64_t last, float* values) {
        if (first == 0 && last == span.elements) whole = values;
      });
      if (whole != nullptr) {
        Rice().add_bitmap(payloads_.Read(span), span.count, value, span.elements, whole);
        return 0;
      }
    }
    codes_.resize(std::max(codes_.size(), static_cast<size_t>(span.count) + kCodeSlack));
    Rice().decode(payloads_.Read(span), span.count, span.k, codes_.data());
    const Codes codes = Codes(codes_).first(static_cast<size_t>(span.count));
    size_t done = 0;
    int64_t added = 0;
    ForEachPart(&ranges_, span.offset, end, [&](int64_t first, int64_t last, float* values) {
      const size_t start = first == 0 ? done : Below(codes, done, first);
      done = last == span.elements ? codes.size() : Below(codes, start, last);
      AddEntries(*message_, span.first_entry, codes, start, done, first, values);
      added += static_cast<int64_t>(done - start);
    });
    return span.count - added;
  }

 private:
  // Whether all entries of the span add the same, and what.
  bool HasOneValue(const ParsedMessage::Span& span, float* value) const {
    bool one = false;
    message_->ForEachValue(span.first_entry, span.first_entry + span.count,
                           [&](int64_t first, int64_t last, float here) {
                             one = last - first == span.count;
                             *value = here;
                           });
    return one;
  }

  int64_t AddRawSpan(const ParsedMessage::Span& span) {
    int64_t skipped = 0;
    int64_t covered = 0;
    ForEachPart(&ranges_, span.offset, span.offset + span.elements,
                [&](int64_t first, int64_t last, float* values) {
                  skipped += NonZeros(span, covered, first);
                  AddRaw(span, first, last, values);
                  covered = last;
                });
    return skipped + NonZeros(span, covered, span.elements);
  }

  int64_t AddBitmap4Span(const ParsedMessage::Span& span) {
    const MessageFields& fields = message_->fields();
    int64_t skipped = 0;
    int64_t covered = 0;
    ForEachPart(&ranges_, span.offset, span.offset + span.elements,
                [&](int64_t first, int64_t last, float* values) {
                  skipped += CountBitmap4(span.payload, covered, first);
                  AddBitmap4(span.payload.data(), first, last, {fields.value, fields.iteration},
                             values);
                  covered = last;
                });
    return skipped + CountBitmap4(span.payload, covered, span.elements);
  }

  const ParsedMessage* message_;
  std::span<const ParameterRange> ranges_;
  PayloadReader payloads_;
  std::vector<uint32_t> codes_;
};

// Adds all messages in one region after the other.
class RegionAdder {
 public:
  RegionAdder(std::span<const ParsedMessage> messages, std::span<const ParameterRange> ranges,
              int log2_region)
      : messages_(messages), ranges_(ranges), log2_region_(log2_region) {
    adders_.reserve(messages.size());
    for (const ParsedMessage& message : messages) adders_.emplace_back(message, ranges);
    decoded_.resize(messages.size());
  }

  // Returns how many entries lie in no range.
  int64_t Add(int64_t region) {
    if (IsDense(region)) return AddTogether(region);
    int64_t skipped = 0;
    for (size_t i = 0; i < messages_.size(); ++i) {
      ForEachSpan(region, i,
                  [&](const ParsedMessage::Span& span) { skipped += adders_[i].Add(span); });
    }
    return skipped;
  }

 private:
  // 32 KiB: a block stays in the nearest caches while every message is added to it.
  static constexpr int64_t kBlock = 8192;

  struct Decoded {
    std::vector<uint32_t> codes;  // relative to the region
    size_t size = 0;              // of the codes
    size_t done = 0;              // of these have been added
    int64_t first_entry = 0;      // of the message, the first of them

    Codes view() const { return Codes(codes).first(size); }
  };

  // Calls visit for the spans of message i in the region.
  template <typename Visit>
  void ForEachSpan(int64_t region, size_t i, Visit visit) const {
    const ParsedMessage& message = messages_[i];
    const int shift = log2_region_ - message.log2_span();
    const int64_t first = (region << shift) - message.first_span();
    const int64_t last = std::min(first + (int64_t{1} << shift), message.spans());
    for (int64_t span = std::max<int64_t>(first, 0); span < last; ++span) {
      visit(message.span(span));
    }
  }

  // Whether the counts of several messages add up to over 3 % of the region. Bitmaps do not count:
  // they are added at the speed of a plain pass as it is. Raw spans and those of four states go in
  // order by themselves.
  bool IsDense(int64_t region) const {
    int64_t count = 0;
    int64_t messages = 0;
    bool by_itself = false;
    for (size_t i = 0; i < messages_.size(); ++i) {
      const int64_t before = count;
      ForEachSpan(region, i, [&](const ParsedMessage::Span& span) {
        if (span.k > 0) count += span.count;
        by_itself |= span.k == kRawCoding || span.k == kBitmap4Coding;
      });
      messages += count > before;
    }
    return !by_itself && messages >= 2 && 100 * count > int64_t{3} << log2_region_;
  }

  int64_t AddTogether(int64_t region) {
    const int64_t begin = region << log2_region_;
    int64_t left = 0;
    for (size_t i = 0; i < messages_.size(); ++i) {
      Decode(region, i);
      left += static_cast<int64_t>(decoded_[i].size);
    }
    const int64_t end = begin + (int64_t{1} << log2_region_);
    const bool ahead = GainsByFetchingAhead();
    ForEachPart(&ranges_, begin, end, [&](int64_t first, int64_t last, float* values) {
      for (Decoded& message : decoded_) message.done = Below(message.view(), message.done, first);
      for (int64_t block = first; block < last; block += kBlock) {
        const int64_t block_end = std::min(last, block + kBlock);
        // Either before messages are added to a block, or while they are added to the one before.
        if (!ahead || block == first) ReadInOrder(values + (block - first), block_end - block);
        const int64_t next = ahead ? std::min(kBlock, last - block_end) : 0;
        for (size_t i = 0; i < messages_.size(); ++i) {
          FetchPart(values + (block_end - first), next, i, messages_.size());
          Decoded& message = decoded_[i];
          const size_t start = message.done;
          message.done = Below(message.view(), start, block_end);
          left -= static_cast<int64_t>(message.done - start);
          AddEntries(messages_[i], message.first_entry, message.view(), start, message.done, block,
                     values + (block - first));
        }
      }
    });
    return left;
  }

  void Decode(int64_t region, size_t i) {
    Decoded& decoded = decoded_[i];
    decoded.size = 0;
    decoded.done = 0;
    ForEachSpan(region, i, [&](const ParsedMessage::Span& span) {
      if (span.count == 0) return;
      if (decoded.size == 0) decoded.first_entry = span.first_entry;
      const auto count = static_cast<size_t>(span.count);
      const size_t needed = decoded.size + count + kCodeSlack;
      if (decoded.codes.size() < needed) decoded.codes.resize(2 * needed);
      uint32_t* const codes = decoded.codes.data() + decoded.size;
      Rice().decode(payloads_.Read(span), span.count, span.k, codes);
      const auto offset = static_cast<uint32_t>(span.offset - (region << log2_region_));
      for (size_t j = 0; j < count; ++j) codes[j] += 2 * offset;
      decoded.size += count;
    });
  }

  std::span<const ParsedMessage> messages_;
  std::span<const ParameterRange> ranges_;
  int log2_region_;
  std::vector<SpanAdder> adders_;
  std::vector<Decoded> decoded_;
  PayloadReader payloads_;
};

}  // namespace

int64_t ApplyMessage(const ParsedMessage& message, int64_t offset, std::span<float> parameters) {
  const ParameterRange range{offset, parameters};
  return ApplyMessage(message, {&range, 1});
}

int64_t ApplyMessage(const ParsedMessage& message, std::span<const ParameterRange> ranges,
                     const Parallel& parallel) {
  return ApplyMessages({&message, 1}, ranges, parallel);
}

int64_t ApplyMessages(std::span<const ParsedMessage> messages,
                      std::span<const ParameterRange> ranges, const Parallel& parallel) {
  int log2_region = kMinLog2Span;
  for (const ParsedMessage& message : messages) {
    log2_region = std::max(log2_region, message.log2_span());
  }
  int64_t first = kMaxElements;
  int64_t last = 0;  // regions
  for (const ParsedMessage& message : messages) {
    if (message.spans() == 0) continue;
    const int shift = log2_region - message.log2_span();
    first = std::min(first, message.first_span() >> shift);
    last = std::max(last, ((message.first_span() + message.spans() - 1) >> shift) + 1);
  }
  if (first >= last) return 0;
  const int64_t regions = last - first;
  // A part has at least a few thousand entries where the spans are as long as a writer makes them.
  const int64_t parts = PartsFor(parallel, regions, 8);
  std::vector<int64_t> skipped(static_cast<size_t>(parts));
  parallel.For(parts, [&](int64_t part) {
    RegionAdder adder(messages, ranges, log2_region);
    int64_t here = 0;
    const int64_t end = first + regions * (part + 1) / parts;
    for (int64_t region = first + regions * part / parts; region < end; ++region) {
      here += adder.Add(region);
    }
    skipped[static_cast<size_t>(part)] = here;
  });
  return std::accumulate(skipped.begin(), skipped.end(), int64_t{0});
}

}  // namespace strom
