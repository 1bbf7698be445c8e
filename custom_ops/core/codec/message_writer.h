// Makes messages (core/codec/message.h) out of an update's entries or raw elements.
#ifndef KERAS_STROM_CORE_CODEC_MESSAGE_WRITER_H_
#define KERAS_STROM_CORE_CODEC_MESSAGE_WRITER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/types.h"
#include "core/codec/bitmap.h"
#include "core/codec/bitmap4.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/rice.h"

namespace strom {

// A message can hold any span of 2^kMinLog2Span elements from this size on.
inline constexpr int64_t kMinMessageBytes = int64_t{16} << 10;

// How entries are coded. Every choice is valid for every reader and loses nothing; they differ in
// bytes and time.
enum class Coding : uint8_t {
  kAuto,     // each span by itself: sparse or bitmap, as Prefer says
  kSparse,   // split Rice with k >= 1, up to three bits an element where everything is sent
  kBitmap,   // k = 0, however few the entries are
  kBitmap4,  // four states an element, with halves of the value: only for a Bitmap4
};

// What kAuto looks for; the others leave nothing to prefer.
enum class Prefer : uint8_t {
  kSize,   // the fewest bytes, counted exactly
  kSpeed,  // the bitmap, which is coded faster, unless it costs over kBitsForSpeed
};

struct CodingOptions {
  Coding coding = Coding::kAuto;
  Prefer prefer = Prefer::kSize;
};

// How many bits an entry may grow by to be coded as a bitmap under Prefer::kSpeed. A bit takes a
// nanosecond on a link of one Gbit/s, and an entry of a bitmap about one less to write, check and
// apply.
inline constexpr int64_t kBitsForSpeed = 1;

// The span length at which 512 to 1024 of `count` entries among `elements` elements fall into one.
int ChooseLog2Span(int64_t count, int64_t elements);
// The same, but shorter where a span that is full would not fit into a message of `max_bytes`.
// `runs`: how many runs of values the entries have (MessageFields).
int ChooseLog2Span(int64_t count, int64_t elements, int64_t max_bytes, const CodingOptions& options,
                   int64_t runs = 0);

// Writes one update, split by span range over as many messages as its size needs. Spans come in
// ascending order; those between that never come are empty. What is added is borrowed until Finish,
// which does the work: first the exact size of every span, then each in its place.
class MessageWriter {
 public:
  // No message is longer than `max_bytes` (>= kMinMessageBytes). Each starts behind `room` zero
  // bytes, which the caller fills and which do not count.
  MessageWriter(const MessageFields& fields, int log2_span, int64_t max_bytes, int64_t room = 0,
                const CodingOptions& options = {});

  // Codes as in core/codec/rice.h; their indices count from any multiple of the span's length.
  void AddSpan(int64_t span, Codes codes);
  // A span that somebody else (cuda/, a Bitmap4) has coded: `count` > 0 entries, as split Rice or
  // with kBitmap4Coding for k.
  void AddCodedSpan(int64_t span, int64_t count, int k, Bytes payload);
  // A span of a bitmap, with k = 0; `bitmap` itself is borrowed too.
  void AddBitmapSpan(int64_t span, const BitmapSpan& bitmap);
  // All elements of the span; one that is all zero takes no bytes.
  void AddRawSpan(int64_t span, std::span<const float> values);

  // The messages; at least one, without spans if none was added. The writer is spent. The bytes do
  // not depend on `parallel`.
  std::vector<std::vector<uint8_t>> Finish(const Parallel& parallel = {});

 private:
  struct Source {
    int64_t span;
    Codes codes;                    // of a span of entries
    std::span<const float> values;  // of a raw span
    int k;
    int64_t bytes;     // 0 = the span is empty
    int64_t start;     // in its message's payloads
    Bytes coded = {};  // of a span of `entries` entries that came coded
    int64_t entries = 0;
    const BitmapSpan* bitmap = nullptr;  // of a span of `entries` entries out of a bitmap
    int64_t first_entry = 0;             // how many entries come before

    int64_t count() const { return static_cast<int64_t>(codes.size() + values.size()) + entries; }
  };
  using Sources = std::span<Source>;

  void Size(Source& source) const;
  void Write(const Source& source, uint8_t* out) const;
  uint32_t Origin(const Source& source) const;
  std::vector<Sources> Part();
  int64_t MessageBytesBound(int64_t spans, int64_t payload_bytes) const;
  std::vector<uint8_t> StartMessage(Sources part, uint8_t** payloads) const;
  size_t WriteHeader(uint8_t* out, const MessageFields& fields, bool has_table, Sources part,
                     int64_t spans, int count_bits) const;
  size_t RunOf(int64_t entry) const;
  int64_t RunsAmong(int64_t first, int64_t last) const;
  MessageFields FieldsOf(Sources part, std::vector<ValueRun>* runs) const;

  MessageFields fields_;
  int log2_span_;
  int64_t max_bytes_;
  int64_t room_;
  CodingOptions options_;
  std::vector<Source> sources_;
  std::vector<int64_t> run_ends_;  // of fields_.runs, the entry behind each
};

// One update's entries as messages, with the span length that suits their number.
std::vector<std::vector<uint8_t>> WriteEntries(const MessageFields& fields,
                                               const EntryList& entries, int64_t max_bytes,
                                               int64_t room = 0, const CodingOptions& options = {},
                                               const Parallel& parallel = {});

// A bitmap of all elements in four states, whose iteration is the message's.
std::vector<std::vector<uint8_t>> WriteBitmap4(const MessageFields& fields, const Bitmap4& bitmap,
                                               int64_t max_bytes, int64_t room = 0,
                                               const Parallel& parallel = {});

// The entries of a bitmap of all elements, with Coding::kBitmap: the same bytes as from their
// codes.
std::vector<std::vector<uint8_t>> WriteBitmap(const MessageFields& fields, const Bitmap& bitmap,
                                              int64_t max_bytes, int64_t room = 0,
                                              const Parallel& parallel = {});

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_MESSAGE_WRITER_H_
