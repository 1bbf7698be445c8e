#include "core/sent_entries.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

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

// Magnitudes of the residuals of some entries.
struct Magnitudes {
  double sum = 0;
  float largest = 0;

  void Add(float residual) {
    sum += static_cast<double>(std::fabs(residual));
    largest = std::max(largest, std::fabs(residual));
  }
};

// What measure(chunk, magnitudes) adds for each chunk, put together in order.
template <typename Measure>
Magnitudes OverChunks(const EntryList& entries, const Parallel& parallel, Measure measure) {
  std::vector<Magnitudes> parts(entries.chunks());
  parallel.For(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    measure(entries.chunk(static_cast<size_t>(i)), &parts[static_cast<size_t>(i)]);
  });
  Magnitudes all;
  for (const Magnitudes& part : parts) {
    all.sum += part.sum;
    all.largest = std::max(all.largest, part.largest);
  }
  return all;
}

}  // namespace

float SendMean(const EntryList& entries, std::span<const strom_segment> segments, float threshold,
               bool apply_own, ResidualStore* residuals, StepStatistics* statistics,
               const Parallel& parallel) {
  if (entries.size() == 0) return threshold;
  const Magnitudes left =
      OverChunks(entries, parallel, [&](const EntryList::Chunk& chunk, Magnitudes* magnitudes) {
        const float* const residual = residuals->Find(chunk.index);
        for (const uint32_t code : chunk.codes) magnitudes->Add(residual[code >> 1]);
      });
  const auto value = static_cast<float>(static_cast<double>(threshold) +
                                        left.sum / static_cast<double>(entries.size()));
  const float more = value - threshold;
  const Magnitudes after =
      OverChunks(entries, parallel, [&](const EntryList::Chunk& chunk, Magnitudes* magnitudes) {
        float* const residual = residuals->Find(chunk.index);
        VisitEntries(chunk, segments, [&](size_t segment, int64_t index, uint32_t code) {
          residual[code >> 1] -= code & 1 ? -more : more;
          magnitudes->Add(residual[code >> 1]);
          if (apply_own) segments[segment].value[index] += code & 1 ? -value : value;
        });
      });
  statistics->sum_residual += after.sum - left.sum;
  // Where an entry held the largest one, that of the other elements is not known, but below tau.
  const bool held = statistics->max_residual <= left.largest;
  const float others =
      held ? std::min(statistics->max_residual, threshold) : statistics->max_residual;
  statistics->max_residual = std::max(after.largest, others);
  return value;
}

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

void AddEntries(const EntryList& entries, std::span<const strom_segment> segments, float value,
                const Parallel& parallel) {
  parallel.For(static_cast<int64_t>(entries.chunks()), [&](int64_t i) {
    VisitEntries(entries.chunk(static_cast<size_t>(i)), segments,
                 [&](size_t segment, int64_t index, uint32_t code) {
                   segments[segment].value[index] += code & 1 ? -value : value;
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
