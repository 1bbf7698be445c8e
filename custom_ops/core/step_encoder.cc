#include "core/step_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace strom {
namespace {

// Parts end at multiples of this in the flat space.
constexpr int64_t kPartElements = int64_t{1} << 17;
// A few pages at a time, so that the room for codes stays small and in cache.
constexpr int64_t kRunElements = 16384;
// Waking threads costs some 20 us, as much as stepping about a hundred thousand elements.
constexpr int64_t kMinParallelElements = int64_t{1} << 18;
// More tasks than threads even out threads that start late or are disturbed.
constexpr int64_t kTasksPerThread = 4;

// The segments [first, second) of the variable that segment `s` belongs to.
std::pair<size_t, size_t> SegmentsOfVariable(std::span<const strom_segment> segments, size_t s) {
  const char* const name = segments[s].name;
  size_t begin = s, end = s + 1;
  while (name != nullptr && begin > 0 && segments[begin - 1].name == name) --begin;
  while (name != nullptr && end < segments.size() && segments[end].name == name) ++end;
  return {begin, end};
}

}  // namespace

StepStatistics StepEncoder::Encode(std::span<const strom_segment> segments, const StepRule& rule,
                                   ResidualStore* residuals, const Parallel& parallel) {
  entries_.Clear();
  CutParts(segments, residuals);
  int64_t elements = 0;
  for (const Part& part : parts_) elements += part.run.size;
  if (parallel.threads <= 1 || elements < kMinParallelElements) {
    RunParts(0, parts_.size(), rule, &entries_);
  } else {
    const int64_t tasks = kTasksPerThread * parallel.threads;
    ShareOut(elements, tasks);
    parallel.For(tasks, [&](int64_t t) {
      const auto task = static_cast<size_t>(t);
      task_entries_[task].Clear();
      RunParts(task_starts_[task], task_starts_[task + 1], rule, &task_entries_[task]);
    });
    std::vector<const EntryList*> found;
    for (int64_t t = 0; t < tasks; ++t) found.push_back(&task_entries_[static_cast<size_t>(t)]);
    JoinEntries(found, parallel, &entries_);
  }
  StepStatistics total;
  for (const Part& part : parts_) {
    total.max_residual = std::max(total.max_residual, part.statistics.max_residual);
    total.sum_residual += part.statistics.sum_residual;
    total.clipped_mass += part.statistics.clipped_mass;
    total.clipped_count += part.statistics.clipped_count;
    total.nonfinite_count += part.statistics.nonfinite_count;
  }
  return total;
}

std::string StepEncoder::DescribeNonfinite(std::span<const strom_segment> segments) const {
  std::string words;
  int64_t total = 0, variables = 0;
  for (size_t i = 0; i < parts_.size();) {
    const Part* first = nullptr;
    int64_t count = 0;
    const auto [begin, end] = SegmentsOfVariable(segments, parts_[i].segment);
    for (; i < parts_.size() && parts_[i].segment < end; ++i) {
      count += parts_[i].statistics.nonfinite_count;
      if (first == nullptr && count > 0) first = &parts_[i];
    }
    if (count == 0) continue;
    total += count;
    if (variables++ > 0) continue;
    const strom_segment& start = segments[begin];
    const strom_segment& last = segments[end - 1];
    const int64_t element = first->chunk * kChunk + first->statistics.first_nonfinite;
    words = "the update of " +
            (start.name == nullptr ? "the variable at flat element " + std::to_string(start.offset)
                                   : "'" + std::string(start.name) + "'") +
            " is NaN or infinite in " + std::to_string(count) + " of its " +
            std::to_string(last.offset + last.size - start.offset) +
            " elements, first in element " + std::to_string(element - start.offset);
  }
  if (variables > 1) {
    words += " (" + std::to_string(total) + " elements of " + std::to_string(variables) +
             " variables in all)";
  }
  return words;
}

void StepEncoder::CutParts(std::span<const strom_segment> segments, ResidualStore* residuals) {
  static_assert(kChunk % kPartElements == 0);
  parts_.clear();
  for (size_t s = 0; s < segments.size(); ++s) {
    const strom_segment& segment = segments[s];
    if (segment.before == nullptr) continue;  // It only receives.
    for (int64_t done = 0; done < segment.size;) {
      const int64_t element = segment.offset + done;
      const int64_t size = std::min(segment.size - done, kPartElements - element % kPartElements);
      const int64_t chunk = element / kChunk;
      const int64_t index = element % kChunk;
      const StepRun run{size,
                        segment.before + done,
                        segment.after + done,
                        segment.value + done,
                        residuals->Touch(chunk) + index,
                        static_cast<uint32_t>(index)};
      parts_.push_back({run, chunk, s, {}});
      done += size;
    }
  }
}

// Gives each task consecutive parts with about the same number of elements.
void StepEncoder::ShareOut(int64_t elements, int64_t tasks) {
  if (static_cast<int64_t>(task_entries_.size()) < tasks) {
    task_entries_.resize(static_cast<size_t>(tasks));
  }
  task_starts_.assign(1, 0);
  int64_t done = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto task = static_cast<int64_t>(task_starts_.size());
    if (task < tasks && done >= elements * task / tasks) task_starts_.push_back(i);
    done += parts_[i].run.size;
  }
  task_starts_.resize(static_cast<size_t>(tasks) + 1, parts_.size());
}

void StepEncoder::RunParts(size_t first, size_t last, const StepRule& rule, EntryList* entries) {
  const StepFunction step = BestStepKernel().step;
  StepRule waiting;
  waiting.threshold = std::numeric_limits<float>::infinity();  // Nothing reaches it.
  for (size_t i = first; i < last; ++i) {
    Part& part = parts_[i];
    const StepRule& part_rule = part.run.after == part.run.before ? waiting : rule;
    StepStatistics statistics;  // Not in the part, whose neighbour may be another thread's.
    for (int64_t done = 0; done < part.run.size; done += kRunElements) {
      const StepRun run{std::min(kRunElements, part.run.size - done),
                        part.run.before + done,
                        part.run.after + done,
                        part.run.value + done,
                        part.run.residual + done,
                        part.run.first_index + static_cast<uint32_t>(done)};
      entries->Append(part.chunk, step(run, part_rule, entries->Reserve(run.size), &statistics));
    }
    part.statistics = statistics;
  }
}

}  // namespace strom
