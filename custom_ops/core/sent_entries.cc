#include "core/sent_entries.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace strom {
namespace {

// Calls visit(segment, index in the segment, code) for the entries of a chunk, ascending.
template <typename Visit>
void VisitEntries(const EntryList::Chunk& chunk, std::span<const strom_segment> segments,
                  Visit visit) {
  const int64_t start = chunk.index * kChunk;
  const int64_t first = start + (chunk.codes.front() >> 1);
  auto segment =
      std::partition_point(segments.begin(), segments.end(),
                           [&](const strom_segment& s) { return s.offset + s.size <= first; });
  for (const uint32_t code : chunk.codes) {
    const int64_t element = start + (code >> 1);
    while (element >= segment->offset + segment->size) ++segment;
    visit(static_cast<size_t>(segment - segments.begin()), element - segment->offset, code);
  }
}

}  // namespace

void MaskMomenta(const EntryList& entries, std::span<const strom_segment> segments,
                 float* const* momenta, const Parallel& parallel) {
  if (momenta == nullptr) return;
  parallel.For(static_cast<int64_t>(entries.chunks()), [&](int64_t i) {
    VisitEntries(entries.chunk(static_cast<size_t>(i)), segments,
                 [&](size_t segment, int64_t index, uint32_t) {
                   if (momenta[segment] != nullptr) momenta[segment][index] = 0;
                 });
  });
}

void TakeBackEntries(const EntryList& entries, std::span<const strom_segment> segments, float value,
                     bool applied, ResidualStore* residuals) {
  for (size_t i = 0; i < entries.chunks(); ++i) {
    const EntryList::Chunk chunk = entries.chunk(i);
    float* const residual = residuals->Touch(chunk.index);
    VisitEntries(chunk, segments, [&](size_t segment, int64_t index, uint32_t code) {
      const float sent = code & 1 ? -value : value;
      residual[code >> 1] += sent;
      if (applied) segments[segment].value[index] -= sent;
    });
  }
}

}  // namespace strom
