// Models for the tests of custom_ops/cuda: what a codec makes of one, and what the scalar oracle
// and core's own writer do.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_CUDA_MODELS_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_CUDA_MODELS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "core/codec/entries.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"
#include "cuda/codec.h"

namespace strom::cuda {

inline constexpr int64_t kOneMessage = int64_t{1} << 24;

// A model: variables that lie somewhere in the flat space, each with memory of its own.
struct Variable {
  int64_t offset;
  std::vector<float> before, after, value, residual;

  int64_t size() const { return static_cast<int64_t>(before.size()); }
};

struct Model {
  int64_t elements = 0;
  std::vector<Variable> variables;
};

struct Options {
  float threshold = 0.01f;
  float scale = 0.7f;
  float clip_multiple = 0;
  bool apply_own = true;
  bool full = false;
  CodingOptions coding;
  int64_t max_bytes = kOneMessage;
};

// Variables of the given sizes with a gap of three elements before each but the first; `density` of
// the elements, roughly, reach the threshold.
inline Model RandomModel(const std::vector<int64_t>& sizes, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  Model model;
  for (const int64_t size : sizes) {
    Variable variable;
    variable.offset = model.elements + (model.variables.empty() ? 0 : 3);
    for (int64_t i = 0; i < size; ++i) {
      const bool large = unit(random) * 0.5 + 0.5 < density;
      variable.before.push_back(unit(random));
      variable.after.push_back(variable.before.back() + unit(random) * (large ? 0.2f : 0.004f));
      variable.residual.push_back(unit(random) * 0.005f);
    }
    variable.value.assign(static_cast<size_t>(size), -99);
    model.elements = variable.offset + size;
    model.variables.push_back(std::move(variable));
  }
  return model;
}

struct Outcome {
  Status status;
  std::vector<uint32_t> codes;
  std::vector<std::vector<uint8_t>> messages;
  strom_step_result result{};
};

inline strom_step_options StepOptions(const Options& options) {
  strom_step_options step{};
  step.scale = options.scale;
  step.threshold = options.threshold;
  step.clip_multiple = options.clip_multiple;
  step.apply_own = options.apply_own && !options.full;
  step.full = options.full;
  step.iteration = 7;
  return step;
}

// With full progress the value is where the optimizer has written it.
inline std::vector<strom_cuda_segment> SegmentsOf(Model* model, bool full = false) {
  std::vector<strom_cuda_segment> segments;
  for (Variable& v : model->variables) {
    if (full) v.value = v.after;
    const float* const after = full ? v.value.data() : v.after.data();
    segments.push_back(
        {v.offset, v.size(), v.before.data(), after, v.value.data(), v.residual.data(), nullptr});
  }
  return segments;
}

// What the scalar oracle and core's writer make of it.
inline Outcome Expected(Model* model, const Options& options) {
  StepRule rule;
  rule.scale = options.scale;
  rule.threshold = options.threshold;
  if (options.clip_multiple > 0) rule.clip_limit = options.clip_multiple * options.threshold;
  rule.apply_own = options.apply_own;
  Outcome outcome;
  StepStatistics statistics;
  EntryList entries;
  for (Variable& v : model->variables) {
    if (options.full) v.value = v.after;
    for (int64_t done = 0; done < v.size();) {
      const int64_t index = (v.offset + done) % kChunk;
      const int64_t size = std::min(v.size() - done, kChunk - index);
      const float* const before = v.before.data() + done;
      float* const value = v.value.data() + done;
      float* const residual = v.residual.data() + done;
      const auto first = static_cast<uint32_t>(index);
      const StepRun run{size, before, v.after.data() + done, value, residual, first};
      const FullRun full_run{size, before, value, residual, first};
      const StepKernel& oracle = StepKernels().front();
      uint32_t* const codes = entries.Reserve(size);
      entries.Append((v.offset + done) / kChunk,
                     options.full ? oracle.step_full(full_run, rule, codes, &statistics)
                                  : oracle.step(run, rule, codes, &statistics));
      done += size;
    }
    outcome.result.elements += v.size();
  }
  for (size_t i = 0; i < entries.chunks(); ++i) {
    const EntryList::Chunk chunk = entries.chunk(i);
    outcome.codes.insert(outcome.codes.end(), chunk.codes.begin(), chunk.codes.end());
  }
  outcome.result.count = entries.size();
  outcome.result.max_residual = statistics.max_residual;
  outcome.result.sum_residual = statistics.sum_residual;
  outcome.result.clipped_mass = statistics.clipped_mass;
  outcome.result.clipped_count = statistics.clipped_count;
  outcome.messages = WriteEntries({options.threshold, options.threshold, model->elements, 7},
                                  entries, options.max_bytes, 0, options.coding);
  return outcome;
}

inline Outcome Actual(Codec* codec, Model* model, const Options& options) {
  Outcome outcome;
  const std::vector<strom_cuda_segment> segments = SegmentsOf(model, options.full);
  outcome.status =
      codec->FindEntries(model->elements, segments, StepOptions(options), nullptr, &outcome.result);
  if (!outcome.status.ok()) return outcome;
  outcome.codes.assign(codec->codes().begin(), codec->codes().end());
  outcome.status = codec->WriteMessages(options.coding, nullptr, &outcome.result.message_bytes);
  outcome.messages = codec->messages();
  return outcome;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void ExpectSameVariables(const Model& actual, const Model& expected) {
  for (size_t i = 0; i < expected.variables.size(); ++i) {
    ASSERT_TRUE(SameBits(actual.variables[i].residual, expected.variables[i].residual)) << i;
    ASSERT_TRUE(SameBits(actual.variables[i].value, expected.variables[i].value)) << i;
  }
}

}  // namespace strom::cuda

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_CUDA_MODELS_H_
