// The wire format of an update's values (docs/internals/codec.md; the field table is in
// docs/internals/message_format.md): a header with a checksum, a directory of spans, and a payload
// per span in split Rice, bitmap (split Rice with k = 0), four-state bitmap (core/codec/bitmap4.h)
// or raw float32 coding. core/codec/message_writer.h makes messages.
//
// Bytes from outside are parsed once by ParseMessage; everything below takes only parsed messages.
#ifndef KERAS_STROM_CORE_CODEC_MESSAGE_H_
#define KERAS_STROM_CORE_CODEC_MESSAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/types.h"
#include "core/codec/value_table.h"

namespace strom {

inline constexpr uint16_t kMessageMagic = 0x534b;  // the bytes "KS"
inline constexpr uint8_t kMessageVersion = 1;
inline constexpr int64_t kMaxMessageHeaderBytes = 48;

// Flags; a reader refuses those it does not know.
inline constexpr uint8_t kFlagValue = 1;   // the value differs from the threshold and is there
inline constexpr uint8_t kFlagTable = 2;   // entries differ in their values, of which a table tells
inline constexpr uint8_t kFlagLevels = 4;  // reserved: entries are multiples of the value

// A span is 2^kMinLog2Span to 2^kMaxLog2Span elements long.
inline constexpr int kMinLog2Span = 11;
inline constexpr int kMaxLog2Span = 21;

// In the place of k:
inline constexpr int kBitmap4Coding =
    30;                                // the span's elements in four states (core/codec/bitmap4.h)
inline constexpr int kRawCoding = 31;  // the span's elements as float32

// Limits that keep the header under kMaxMessageHeaderBytes: 2 TB of parameters.
inline constexpr int64_t kMaxElements = int64_t{1} << 39;
inline constexpr int64_t kMaxIteration = (int64_t{1} << 35) - 1;

// What a message says about all of its entries.
struct MessageFields {
  float threshold = 0;  // the sender's tau, the least of several; 0 for raw spans only
  // What an entry adds, with its sign; or a half, in a four-state bitmap. 0 where a table tells.
  float value = 0;
  int64_t elements = 0;  // of the flat space, 2^39 at most
  int64_t iteration = 0;
  // For a writer whose entries differ: all of them, in place of the two above. Borrowed; a reader
  // leaves it empty (ParsedMessage::ForEachValue).
  std::span<const ValueRun> runs = {};
};

// A message that has passed every check: applying it cannot read or write out of bounds.
// Borrows the bytes it was parsed from.
class ParsedMessage {
 public:
  struct Span {
    int64_t offset;    // its first flat element
    int64_t elements;  // 2^log2_span, fewer at the end of the flat space
    int64_t count;     // entries; the elements of a raw span, 0 for an empty one
    int k;             // split Rice's parameter, kBitmap4Coding or kRawCoding
    Bytes payload;
    size_t slack;         // readable bytes behind the payload, those of the message's other spans
    int64_t first_entry;  // how many entries the spans before it have, where there is a table
  };

  const MessageFields& fields() const { return fields_; }
  int64_t elements() const { return fields_.elements; }
  int64_t count() const { return count_; }
  int log2_span() const { return log2_span_; }
  int64_t first_span() const { return first_span_; }
  int64_t spans() const { return spans_; }

  // Span first_span() + i, 0 <= i < spans(), in constant time.
  Span span(int64_t i) const;

  // Whether entries differ in what they add.
  bool has_table() const { return !table_.empty(); }

  // Calls visit(first, last, value) for entries [first, last) of the message that add ±value, in
  // order, until all of [begin, end) have come.
  template <typename Visit>
  void ForEachValue(int64_t begin, int64_t end, Visit visit) const {
    if (!table_.empty()) {
      table_.ForEachRun(begin, end, visit);
    } else if (begin < end) {
      visit(begin, end, fields_.value);
    }
  }

 private:
  friend Status ParseMessage(Bytes bytes, ParsedMessage* message, const Parallel& parallel);
  friend ParsedMessage OpenValidatedMessage(Bytes bytes);

  struct Entry {  // one row of the directory
    int64_t count;
    int k;
    int64_t end;
  };

  const char* ReadHeader(Bytes bytes);
  const char* CheckDirectory() const;
  const char* CheckPayloads(const Parallel& parallel) const;
  const char* CheckPayloads(int64_t first, int64_t last) const;
  void CountEntries();
  Entry entry(int64_t i) const;
  int64_t SpanElements(int64_t i) const;

  MessageFields fields_;
  int log2_span_ = kMinLog2Span;
  int count_bits_ = 0;
  int64_t first_span_ = 0;
  int64_t spans_ = 0;
  int64_t count_ = 0;
  Bytes directory_;
  Bytes payload_;
  ValueTable table_;
  std::vector<int64_t> first_entries_;  // of each span, where there is a table
};

// Checks magic, version, flags, lengths, CRC32C, every span's directory entry and payload, and that
// all values are finite. kCorrupt names the first check that failed.
Status ParseMessage(Bytes bytes, ParsedMessage* message, const Parallel& parallel = {});

// The message in bytes that this process has already parsed or written: without the checks.
ParsedMessage OpenValidatedMessage(Bytes bytes);

// Flat elements [offset, offset + values.size()) and the memory where they live.
struct ParameterRange {
  int64_t offset = 0;
  std::span<float> values;
};

// parameters[i] += value for every entry; `parameters` holds flat elements
// [offset, offset + parameters.size()). Entries outside are skipped; returns how many those are (of
// raw spans, elements that are not zero).
int64_t ApplyMessage(const ParsedMessage& message, int64_t offset, std::span<float> parameters);

// The same where the parameters lie in several ranges, ascending and disjoint; a span is decoded
// once, however many ranges it touches.
int64_t ApplyMessage(const ParsedMessage& message, std::span<const ParameterRange> ranges,
                     const Parallel& parallel = {});

// Several messages at once, each parameter getting what they add in the order of the messages: the
// bits are those of ApplyMessage for one after the other, in every mode, and where the messages are
// dense the parameters come through the cache once instead of once for each. Returns the sum of
// what is skipped.
int64_t ApplyMessages(std::span<const ParsedMessage> messages,
                      std::span<const ParameterRange> ranges, const Parallel& parallel = {});

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_MESSAGE_H_
