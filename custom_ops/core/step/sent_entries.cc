#include "core/step/sent_entries.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/codec/value_table.h"

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
  int64_t count = 0;

  void Add(float residual) {
    Add({static_cast<double>(std::fabs(residual)), std::fabs(residual), 1});
  }
  void Add(const Magnitudes& more) {
    sum += more.sum;
    largest = std::max(largest, more.largest);
    count += more.count;
  }
};

// Those of one group of segments, and all of a chunk, in ascending order.
struct GroupMagnitudes {
  size_t group;
  Magnitudes magnitudes;
};
using ChunkMagnitudes = std::vector<GroupMagnitudes>;

std::vector<ChunkMagnitudes> MeasureEntries(const EntryList& entries,
                                            std::span<const strom_segment> segments,
                                            SegmentValues thresholds,
                                            const ResidualStore& residuals,
                                            const Parallel& parallel) {
  std::vector<ChunkMagnitudes> found(entries.chunks());
  parallel.For(static_cast<int64_t>(found.size()), [&](int64_t i) {
    const EntryList::Chunk chunk = entries.chunk(static_cast<size_t>(i));
    ChunkMagnitudes& part = found[static_cast<size_t>(i)];
    const float* const residual = residuals.Find(chunk.index);
    VisitEntries(chunk, segments, [&](size_t segment, int64_t, uint32_t code) {
      const size_t group = thresholds.group(segment);
      if (part.empty() || part.back().group != group) part.push_back({group, {}});
      part.back().magnitudes.Add(residual[code >> 1]);
    });
  });
  return found;
}

// Puts the chunks together in order.
void AddUp(const std::vector<ChunkMagnitudes>& chunks, std::span<Magnitudes> groups) {
  for (const ChunkMagnitudes& chunk : chunks) {
    for (const auto& [group, magnitudes] : chunk) groups[group].Add(magnitudes);
  }
}

// The largest residual where the entries' have changed from `left` to `after`. If an entry held the
// largest one, that of the other elements is not known, but below the threshold.
float LargestAfter(float largest, const Magnitudes& left, const Magnitudes& after,
                   float threshold) {
  const bool held = largest <= left.largest;
  return std::max(after.largest, held ? std::min(largest, threshold) : largest);
}

}  // namespace

void SendMean(const EntryList& entries, std::span<const strom_segment> segments,
              SegmentValues thresholds, bool apply_own, ResidualStore* residuals,
              std::span<float> means, const SentStatistics& statistics, const Parallel& parallel) {
  const std::vector<ChunkMagnitudes> before =
      MeasureEntries(entries, segments, thresholds, *residuals, parallel);
  // Memory for all that comes, which must not fail half-way.
  std::vector<ChunkMagnitudes> moved = before;
  std::vector<Magnitudes> left(thresholds.groups()), after(thresholds.groups());
  AddUp(before, left);
  for (size_t group = 0; group < left.size(); ++group) {
    if (left[group].count == 0) continue;
    const auto mean = static_cast<float>(static_cast<double>(thresholds[group]) +
                                         left[group].sum / static_cast<double>(left[group].count));
    means[group] = thresholds.differ() ? TableValue(mean) : mean;
  }
  parallel.For(static_cast<int64_t>(moved.size()), [&](int64_t i) {
    const EntryList::Chunk chunk = entries.chunk(static_cast<size_t>(i));
    auto part = moved[static_cast<size_t>(i)].begin();
    part->magnitudes = {};
    float* const residual = residuals->Find(chunk.index);
    VisitEntries(chunk, segments, [&](size_t segment, int64_t index, uint32_t code) {
      if (part->group != thresholds.group(segment)) (++part)->magnitudes = {};
      const float mean = means[part->group];
      const float more = mean - thresholds[segment];
      residual[code >> 1] -= code & 1 ? -more : more;
      part->magnitudes.Add(residual[code >> 1]);
      if (apply_own) segments[segment].value[index] += code & 1 ? -mean : mean;
    });
  });
  AddUp(moved, after);
  Magnitudes all_left, all_after;
  float threshold = 0;
  for (size_t group = 0; group < left.size(); ++group) {
    all_left.Add(left[group]);
    all_after.Add(after[group]);
    threshold = std::max(threshold, thresholds[group]);
    if (statistics.segments.empty()) continue;
    strom_segment_result& segment = statistics.segments[group];
    segment.sum_residual += after[group].sum - left[group].sum;
    segment.max_residual =
        LargestAfter(segment.max_residual, left[group], after[group], thresholds[group]);
  }
  statistics.all->sum_residual += all_after.sum - all_left.sum;
  statistics.all->max_residual =
      LargestAfter(statistics.all->max_residual, all_left, all_after, threshold);
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

void TakeBackEntries(const EntryList& entries, std::span<const strom_segment> segments,
                     SegmentValues values, bool applied, ResidualStore* residuals) {
  for (size_t i = 0; i < entries.chunks(); ++i) {
    const EntryList::Chunk chunk = entries.chunk(i);
    float* const residual = residuals->Touch(chunk.index);
    VisitEntries(chunk, segments, [&](size_t segment, int64_t index, uint32_t code) {
      const float sent = code & 1 ? -values[segment] : values[segment];
      residual[code >> 1] += sent;
      if (applied) segments[segment].value[index] -= sent;
    });
  }
}

}  // namespace strom
