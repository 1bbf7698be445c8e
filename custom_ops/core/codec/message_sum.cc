// The addends' entries are taken block by block. A block is so short that its sums stay in the
// nearest caches, whatever the number of elements; which of them an entry has touched stands in a
// bitmap, so an element without entries costs nothing. Blocks without entries are passed over.
#include "core/codec/message_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "core/codec/bitmap4.h"
#include "core/codec/entries.h"
#include "core/codec/message_payload.h"
#include "core/codec/message_writer.h"
#include "core/codec/rice.h"

namespace strom {
namespace {

// 32 KiB of sums, and 64 words of 64 bits that tell which are touched: one more word tells which of
// those are.
constexpr int64_t kBlock = 4096;
constexpr int kWords = 64;
static_assert(kBlock == 64 * kWords && kChunk % kBlock == 0);

constexpr int64_t kNoElement = std::numeric_limits<int64_t>::max();

// The largest value of a scale is at most 2^kMaxShift times its unit. An element has one entry of
// each addend at most, so this is how many digits a sum has.
constexpr int kMaxShift = 40;
constexpr int kDigits = kMaxShift + std::bit_width(kMaxAddends);
static_assert(kDigits < 63);

// A normal number's magnitude: its mantissa above its exponent. In ascending order those with the
// same mantissa stand together, and twice a number is one more.
using Magnitude = uint32_t;
constexpr int kMantissaBits = 23;
constexpr int kExponentBits = 8;

Magnitude MagnitudeOf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) << 1;  // without the sign
  return std::rotl(bits, kExponentBits);
}

float ValueOf(Magnitude magnitude) {
  return std::bit_cast<float>(std::rotr(magnitude, kExponentBits) >> 1);
}

bool HasSummableValue(float value) {
  constexpr uint32_t kLeast = uint32_t{1} << kMantissaBits;
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffff;
  return bits == 0 || (bits >= kLeast && bits < std::bit_cast<uint32_t>(kSummableBelow));
}

// A value as a number of the units of one scale.
struct Measure {
  size_t scale;
  int64_t units;  // with the value's sign
};

// Every value that occurs, by scale: a scale is a unit, which occurs itself, and what is 2^0 to
// 2^kMaxShift times it.
class Scales {
 public:
  // In any order, and as often as they like.
  explicit Scales(std::vector<Magnitude> magnitudes) {
    std::sort(magnitudes.begin(), magnitudes.end());
    for (const Magnitude magnitude : magnitudes) {
      const bool fits = !units_.empty() &&
                        magnitude >> kExponentBits == units_.back() >> kExponentBits &&
                        magnitude - units_.back() <= kMaxShift;
      if (!fits) units_.push_back(magnitude);
    }
  }

  const std::vector<Magnitude>& units() const { return units_; }

  Measure Of(float value) const {
    const Magnitude magnitude = MagnitudeOf(value);
    const auto next = std::upper_bound(units_.begin(), units_.end(), magnitude);
    const int64_t units = int64_t{1} << (magnitude - *(next - 1));
    return {static_cast<size_t>(next - units_.begin()) - 1, value < 0 ? -units : units};
  }

 private:
  std::vector<Magnitude> units_;  // ascending
};

// A whole number as powers of two to add and to take away: a set bit is one.
struct Digits {
  uint64_t plus;
  uint64_t minus;
};

// As few as there can be, and among such the binary digits, which are the smallest. So a sum never
// has more entries than its addends: 2^40 - 1, which they may say in two, has 40 binary digits.
Digits DigitsOf(uint64_t number) {
  if ((number & (number - 1)) == 0) return {number, 0};
  // The non-adjacent form (Reitwiesner, "Binary Arithmetic", 1960) is never longer than another.
  const uint64_t tripled = 3 * number;
  const Digits shortest{(tripled & ~number) >> 1, (number & ~tripled) >> 1};
  const int count = std::popcount(shortest.plus | shortest.minus);
  return std::popcount(number) <= count ? Digits{number, 0} : shortest;
}

// What the entries of one scale's values add up to: in the block at hand for each element, and as
// lists of entries, one for each binary digit, of those that are done.
class ScaleSum {
 public:
  explicit ScaleSum(Magnitude unit) : unit_(unit), sums_(static_cast<size_t>(kBlock)) {}

  // The codes count from `offset` elements behind the block's first, or before it.
  void Add(Codes codes, int64_t offset, int64_t units) {
    int64_t* const sums = sums_.data();
    uint64_t words = touched_words_;
    for (const uint32_t code : codes) {
      const auto i = static_cast<size_t>(offset + int64_t{code >> 1});
      const int64_t sign = -int64_t{code & 1};
      sums[i] += (units ^ sign) - sign;
      touched_[i >> 6] |= uint64_t{1} << (i & 63);
      words |= uint64_t{1} << (i >> 6);
    }
    touched_words_ = words;
  }

  // Turns the sums of the block that begins at element `begin` into entries, and into zeros.
  void Take(int64_t begin) {
    if (touched_words_ == 0) return;
    const auto first_code = static_cast<uint32_t>(begin % kChunk * 2);
    uint64_t used = 0;  // digits that have got an entry
    std::array<uint32_t*, kDigits> starts;
    std::array<uint32_t*, kDigits> ends;
    for (; touched_words_ != 0; touched_words_ &= touched_words_ - 1) {
      const auto word = static_cast<size_t>(std::countr_zero(touched_words_));
      for (uint64_t bits = std::exchange(touched_[word], 0); bits != 0; bits &= bits - 1) {
        const size_t i = 64 * word + static_cast<size_t>(std::countr_zero(bits));
        const int64_t sum = std::exchange(sums_[i], 0);
        const uint32_t code = first_code + static_cast<uint32_t>(2 * i) + (sum < 0 ? 1u : 0u);
        const Digits digits = DigitsOf(static_cast<uint64_t>(sum < 0 ? -sum : sum));
        for (uint64_t left = digits.plus | digits.minus; left != 0; left &= left - 1) {
          const auto digit = static_cast<size_t>(std::countr_zero(left));
          if ((used >> digit & 1) == 0) {
            used |= uint64_t{1} << digit;
            starts[digit] = ends[digit] = digits_[digit].Reserve(kBlock);
          }
          *ends[digit]++ = code ^ static_cast<uint32_t>(digits.minus >> digit & 1);
        }
      }
    }
    for (; used != 0; used &= used - 1) {
      const auto digit = static_cast<size_t>(std::countr_zero(used));
      digits_[digit].Append(begin / kChunk, ends[digit] - starts[digit]);
    }
  }

  // Calls visit(value, entries) for every digit that has entries.
  template <typename Visit>
  void ForEachDigit(Visit visit) const {
    for (size_t digit = 0; digit < digits_.size(); ++digit) {
      if (digits_[digit].size() == 0) continue;
      visit(ValueOf(unit_ + static_cast<Magnitude>(digit)), digits_[digit]);
    }
  }

 private:
  Magnitude unit_;
  std::vector<int64_t> sums_;               // in units
  std::array<uint64_t, kWords> touched_{};  // a bit for each of the block's elements
  uint64_t touched_words_ = 0;              // a bit for each of those words
  std::array<EntryList, kDigits> digits_;
};

// The codes of a four-state bitmap's elements that add all of the value, or a half of it.
void DecodeBitmap4(const ParsedMessage::Span& span, bool halves, int64_t iteration,
                   std::vector<uint32_t>* codes) {
  codes->clear();
  const int64_t pairs = BytesOfBits(span.elements);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const uint32_t plus = span.payload[static_cast<size_t>(2 * pair)];
    const uint32_t minus = span.payload[static_cast<size_t>(2 * pair + 1)];
    const auto negative =
        halves ? static_cast<uint32_t>(NegativeHalves(8 * pair, iteration)) : minus;
    for (uint32_t bits = halves ? plus & minus : plus ^ minus; bits != 0; bits &= bits - 1) {
      const int bit = std::countr_zero(bits);
      const auto index = static_cast<uint32_t>(8 * pair + bit);
      codes->push_back(index << 1 | (negative >> bit & 1));
    }
  }
}

// The entries of one addend, a span at a time, in ascending order. The halves in four-state bitmaps
// are a source of their own beside it.
class Source {
 public:
  Source(const ParsedMessage& message, bool negative, bool halves, const Scales& scales)
      : message_(&message), scales_(&scales), negative_(negative), halves_(halves) {
    ReadSpan();
  }

  // Where its next entry lies, or kNoElement.
  int64_t next() const { return next_; }

  // Adds what lies in the block that begins at element `begin`, and is left.
  void AddTo(int64_t begin, std::vector<ScaleSum>* sums) {
    while (next_ < begin + kBlock) {
      const Run& run = runs_[run_];
      const int64_t offset = offset_ - begin;
      const int64_t behind = 2 * (kBlock - offset);  // the code of the block's end
      size_t end = done_ + 1;
      while (end < run.end && codes_[end] < behind) ++end;
      (*sums)[run.measure.scale].Add(Codes(codes_).subspan(done_, end - done_), offset,
                                     run.measure.units);
      done_ = end;
      if (done_ == run.end) ++run_;
      if (run_ < runs_.size()) {
        next_ = offset_ + int64_t{codes_[done_] >> 1};
      } else {
        ReadSpan();
      }
    }
  }

 private:
  // Codes that follow one another in the span and stand for one value.
  struct Run {
    size_t end;
    Measure measure;
  };

  // Goes on to the next span that has entries.
  void ReadSpan() {
    runs_.clear();
    run_ = done_ = 0;
    next_ = kNoElement;
    while (runs_.empty() && next_span_ < message_->spans()) {
      const ParsedMessage::Span span = message_->span(next_span_++);
      if (span.count == 0) continue;
      const float sign = negative_ ? -1.0f : 1.0f;
      if (span.k == kBitmap4Coding) {
        DecodeBitmap4(span, halves_, message_->fields().iteration, &codes_);
        if (codes_.empty()) continue;
        const float value = halves_ ? message_->fields().value / 2 : message_->fields().value;
        runs_.push_back({codes_.size(), scales_->Of(sign * value)});
      } else if (!halves_) {
        const auto count = static_cast<size_t>(span.count);
        codes_.resize(std::max(codes_.size(), count + kCodeSlack));
        Rice().decode(payloads_.Read(span), span.count, span.k, codes_.data());
        message_->ForEachValue(span.first_entry, span.first_entry + span.count,
                               [&](int64_t, int64_t last, float value) {
                                 runs_.push_back({static_cast<size_t>(last - span.first_entry),
                                                  scales_->Of(sign * value)});
                               });
      }
      if (!runs_.empty()) {
        offset_ = span.offset;
        next_ = offset_ + int64_t{codes_[0] >> 1};
      }
    }
  }

  const ParsedMessage* message_;
  const Scales* scales_;
  bool negative_;
  bool halves_;
  int64_t next_span_ = 0;
  PayloadReader payloads_;
  // Of the span at hand:
  int64_t offset_ = 0;
  std::vector<uint32_t> codes_;  // and whatever lies behind the last run
  std::vector<Run> runs_;
  size_t run_ = 0;
  size_t done_ = 0;  // codes that have been added
  int64_t next_ = kNoElement;
};

// Calls visit(value) for what entries of the message add, once or more often.
template <typename Visit>
void ForEachValueIn(const ParsedMessage& message, Visit visit) {
  message.ForEachValue(0, message.count(), [&](int64_t, int64_t, float value) { visit(value); });
}

bool HasSpansOf(const ParsedMessage& message, int k) {
  for (int64_t i = 0; i < message.spans(); ++i) {
    if (message.span(i).k == k) return true;
  }
  return false;
}

}  // namespace

bool CanSum(const ParsedMessage& message) {
  bool summable = true;
  // The halves in four-state bitmaps are normal as well: ParseMessage sees to it.
  ForEachValueIn(message, [&](float value) { summable &= HasSummableValue(value); });
  return summable && !HasSpansOf(message, kRawCoding);
}

std::vector<std::vector<uint8_t>> SumMessages(std::span<const Addend> addends, int64_t max_bytes,
                                              int64_t room) {
  STROM_CHECK(addends.size() <= kMaxAddends);
  struct Part {
    ParsedMessage message;
    bool negative;
    bool has_halves;
  };
  std::vector<Part> parts;
  parts.reserve(addends.size());
  std::vector<Magnitude> magnitudes;
  MessageFields fields;
  for (const Addend& addend : addends) {
    ParsedMessage message = OpenValidatedMessage(addend.message);
    fields.elements = std::max(fields.elements, message.elements());
    fields.iteration = std::max(fields.iteration, message.fields().iteration);
    STROM_CHECK(CanSum(message));
    // Without a table a value can be zero, and its entries add nothing.
    if (message.count() == 0 || (!message.has_table() && message.fields().value == 0)) continue;
    ForEachValueIn(message, [&](float value) { magnitudes.push_back(MagnitudeOf(value)); });
    const bool has_halves = HasSpansOf(message, kBitmap4Coding);
    if (has_halves) magnitudes.push_back(MagnitudeOf(message.fields().value / 2));
    parts.push_back({std::move(message), addend.negative, has_halves});
  }

  const Scales scales(std::move(magnitudes));
  std::vector<ScaleSum> sums;
  sums.reserve(scales.units().size());
  for (const Magnitude unit : scales.units()) sums.emplace_back(unit);
  std::vector<Source> sources;
  for (const Part& part : parts) {
    sources.emplace_back(part.message, part.negative, false, scales);
    if (part.has_halves) sources.emplace_back(part.message, part.negative, true, scales);
  }
  // Apart from the sources, for most have nothing in a block where entries are rare.
  std::vector<int64_t> next;
  for (const Source& source : sources) next.push_back(source.next());
  int64_t first = next.empty() ? kNoElement : *std::min_element(next.begin(), next.end());
  while (first != kNoElement) {
    const int64_t begin = first / kBlock * kBlock;
    first = kNoElement;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (next[i] < begin + kBlock) {
        sources[i].AddTo(begin, &sums);
        next[i] = sources[i].next();
      }
      first = std::min(first, next[i]);
    }
    for (ScaleSum& sum : sums) sum.Take(begin);
  }

  std::vector<std::vector<uint8_t>> messages;
  for (const ScaleSum& sum : sums) {
    sum.ForEachDigit([&](float value, const EntryList& entries) {
      fields.threshold = fields.value = value;
      for (auto& message : WriteEntries(fields, entries, max_bytes, room)) {
        messages.push_back(std::move(message));
      }
    });
  }
  return messages;
}

}  // namespace strom
