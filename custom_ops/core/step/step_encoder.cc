#include "core/step/step_encoder.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "core/step/sent_entries.h"

namespace strom {
namespace {

// Parts end at multiples of this in the flat space.
constexpr int64_t kPartElements = int64_t{1} << 17;
// At a time: starting a kernel costs nothing beside so many, and their room for codes is small.
constexpr int64_t kRunElements = 65536;
// Those for which there is no memory but a thread's own.
constexpr int64_t kLastRunElements = 1024;
// Waking threads costs some 20 us, as much as stepping about a hundred thousand elements.
constexpr int64_t kMinParallelElements = int64_t{1} << 18;
// More tasks than threads even out threads that start late or are disturbed.
constexpr int64_t kTasksPerThread = 4;

constexpr float kUnreachable = std::numeric_limits<float>::infinity();

// Elements [done, done + most) of a run, or what is left of it.
StepRun Next(const StepRun& run, int64_t done, int64_t most) {
  return {std::min(most, run.size - done),
          run.before + done,
          run.after + done,
          run.value + done,
          run.residual + done,
          run.first_index + static_cast<uint32_t>(done)};
}

// Runs the kernel over a run, which is a FullRun where the values include the residuals.
int64_t Step(const StepRun& run, const StepRules& rules, const StepRule& rule, uint32_t* codes,
             StepStatistics* statistics) {
  if (!rules.full) return BestStepKernel().step(run, rule, codes, statistics);
  const FullRun full{run.size, run.before, run.value, run.residual, run.first_index};
  return BestStepKernel().step_full(full, rule, codes, statistics);
}

// The segments [first, second) of the variable that segment `s` belongs to.
std::pair<size_t, size_t> SegmentsOfVariable(std::span<const strom_segment> segments, size_t s) {
  const char* const name = segments[s].name;
  size_t begin = s, end = s + 1;
  while (name != nullptr && begin > 0 && segments[begin - 1].name == name) --begin;
  while (name != nullptr && end < segments.size() && segments[end].name == name) ++end;
  return {begin, end};
}

}  // namespace

StepStatistics StepEncoder::Encode(std::span<const strom_segment> segments, const StepRules& rules,
                                   ResidualStore* residuals, const Parallel& parallel) {
  entries_.Clear();
  CutParts(segments, residuals);
  ShareOut(parallel);
  has_begun_ = true;
  try {
    FindEntries(rules, parallel);
  } catch (const std::exception&) {  // There is no memory for the entries.
    TakeBack(segments, rules, residuals);
    throw;
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

void StepEncoder::DescribeSegments(std::span<const strom_segment> segments,
                                   SegmentValues thresholds,
                                   std::span<strom_segment_result> results) const {
  if (results.empty()) return;
  for (size_t s = 0; s < segments.size(); ++s) {
    const bool stepped = segments[s].after != segments[s].before;
    results[s] = {};
    results[s].elements = stepped ? segments[s].size : 0;
    results[s].threshold = thresholds[s];
  }
  for (const Part& part : parts_) {
    strom_segment_result& result = results[part.segment];
    result.count += part.entries;
    result.max_residual = std::max(result.max_residual, part.statistics.max_residual);
    result.sum_residual += part.statistics.sum_residual;
  }
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
    words = "the update of " + DescribeVariable(start.name, start.offset) +
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
    // It only receives, or has not changed and sends nothing: its residual waits.
    if (segment.after == segment.before) continue;
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
      parts_.push_back({run, chunk, s});
      done += size;
    }
  }
}

// Gives each task consecutive parts with about the same number of elements.
void StepEncoder::ShareOut(const Parallel& parallel) {
  int64_t elements = 0;
  for (const Part& part : parts_) elements += part.run.size;
  const bool alone = parallel.threads <= 1 || elements < kMinParallelElements;
  const int64_t tasks = alone ? 1 : kTasksPerThread * parallel.threads;
  if (static_cast<int64_t>(task_entries_.size()) < tasks) {
    task_entries_.resize(static_cast<size_t>(tasks));
  }
  for (EntryList& entries : task_entries_) entries.Clear();
  task_starts_.assign(1, 0);
  int64_t done = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto task = static_cast<int64_t>(task_starts_.size());
    if (task < tasks && done >= elements * task / tasks) task_starts_.push_back(i);
    done += parts_[i].run.size;
  }
  task_starts_.resize(static_cast<size_t>(tasks) + 1, parts_.size());
}

void StepEncoder::FindEntries(const StepRules& rules, const Parallel& parallel) {
  const size_t tasks = task_starts_.size() - 1;
  if (tasks == 1) {
    RunParts(0, parts_.size(), rules, &entries_);
    return;
  }
  parallel.For(static_cast<int64_t>(tasks), [&](int64_t t) {
    const auto task = static_cast<size_t>(t);
    RunParts(task_starts_[task], task_starts_[task + 1], rules, &task_entries_[task]);
  });
  std::vector<const EntryList*> found;
  for (size_t task = 0; task < tasks; ++task) found.push_back(&task_entries_[task]);
  JoinEntries(found, parallel, &entries_);
}

void StepEncoder::RunParts(size_t first, size_t last, const StepRules& rules, EntryList* entries) {
  for (size_t i = first; i < last; ++i) {
    Part& part = parts_[i];
    const StepRule rule = rules.of(part.segment);
    StepStatistics statistics;  // Not in the part, whose neighbour may be another thread's.
    while (part.done < part.run.size) {
      const StepRun run = Next(part.run, part.done, kRunElements);
      const int64_t found = Step(run, rules, rule, entries->Reserve(run.size), &statistics);
      entries->Append(part.chunk, found);
      part.entries += found;
      part.done += run.size;
    }
    part.statistics = statistics;
  }
}

// Undoes FindEntries as far as it came, and adds to the residuals what it has not come to. Needs no
// memory.
void StepEncoder::TakeBack(std::span<const strom_segment> segments, const StepRules& rules,
                           ResidualStore* residuals) {
  // Where there are several tasks, entries_ is at most a part of their copy.
  if (task_starts_.size() > 2) entries_.Clear();
  const bool applied = rules.rule.apply_own && !rules.full;
  TakeBackEntries(entries_, segments, rules.thresholds, applied, residuals);
  entries_.Clear();
  for (const EntryList& entries : task_entries_) {
    TakeBackEntries(entries, segments, rules.thresholds, applied, residuals);
  }
  StepRule waiting = rules.rule;
  waiting.threshold = waiting.clip_limit = kUnreachable;
  for (Part& part : parts_) {
    while (part.done < part.run.size) {
      uint32_t codes[kLastRunElements];  // None will be in it.
      const StepRun run = Next(part.run, part.done, kLastRunElements);
      Step(run, rules, waiting, codes, &part.statistics);
      part.done += run.size;
    }
  }
}

}  // namespace strom
