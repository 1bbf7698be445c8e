// The kernels of custom_ops/cuda in the emulation, against the scalar oracle and core's own coder.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"
#include "cuda/codec.h"
#include "cuda/emulation.h"
#include "cuda_models.h"

namespace strom::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Kernels and oracle give the same, in whatever order the emulated threads run.
void ExpectAgrees(const Model& model, const Options& options) {
  Model expected_model = model;
  const Outcome expected = Expected(&expected_model, options);
  for (const emulation::Order order : {emulation::Order::kForward, emulation::Order::kBackward}) {
    emulation::SetOrder(order);
    Model actual_model = model;
    Codec codec(options.max_bytes);
    const Outcome actual = Actual(&codec, &actual_model, options);
    ASSERT_TRUE(actual.status.ok()) << actual.status.message;
    ASSERT_EQ(actual.codes, expected.codes);
    ASSERT_EQ(actual.messages, expected.messages);
    ExpectSameVariables(actual_model, expected_model);
    const strom_step_result& a = actual.result;
    const strom_step_result& e = expected.result;
    ASSERT_EQ(a.stepped, 1);
    ASSERT_EQ(a.count, e.count);
    ASSERT_EQ(a.elements, e.elements);
    ASSERT_EQ(a.max_residual, e.max_residual);
    ASSERT_NEAR(a.sum_residual, e.sum_residual, 1e-5 * e.sum_residual);
    ASSERT_NEAR(a.clipped_mass, e.clipped_mass, 1e-9 * e.clipped_mass);
    ASSERT_EQ(a.clipped_count, e.clipped_count);
    if (a.values_written == 0 && options.full) {
      for (const Variable& v : actual_model.variables) ASSERT_TRUE(SameBits(v.value, v.after));
    }
  }
  emulation::SetOrder(emulation::Order::kForward);
}

TEST(CudaStep, GivesTheBitsOfTheScalarOracleAndTheBytesOfCore) {
  uint32_t seed = 0;
  for (const int64_t size : {1, 3, 1024, 4095, 4096, 4097, 9000}) {
    for (const double density : {0.0, 0.002, 0.03, 0.5, 1.0}) {
      SCOPED_TRACE(testing::Message() << size << " elements at " << density);
      ExpectAgrees(RandomModel({size}, density, ++seed), {});
    }
  }
}

TEST(CudaStep, WorksOnVariablesWithGapsBetweenThem) {
  ExpectAgrees(RandomModel({5, 4096, 1, 0, 10000, 17}, 0.02, 1), {});
  ExpectAgrees(RandomModel({0, 70, 0}, 0.5, 2), {});
}

TEST(CudaStep, ClipsAndKeepsItsOwnUpdateBackAsTheOracleDoes) {
  Options options;
  options.clip_multiple = 3;
  ExpectAgrees(RandomModel({6000}, 0.1, 3), options);
  options.apply_own = false;
  ExpectAgrees(RandomModel({6000, 300}, 0.1, 4), options);
}

TEST(CudaStep, LeavesFullProgressInTheValuesAsTheOracleDoes) {
  uint32_t seed = 40;
  for (const float scale : {1.0f, 0.7f}) {
    for (const float clip_multiple : {0.0f, 1.5f}) {
      for (const double density : {0.0, 0.03, 1.0}) {
        Options options;
        options.full = true;
        options.scale = scale;
        options.clip_multiple = clip_multiple;
        ExpectAgrees(RandomModel({5, 4096, 1, 0, 9001}, density, ++seed), options);
      }
    }
  }
}

TEST(CudaStep, SaysWhetherFullProgressHasWrittenValues) {
  Options options;
  options.full = true;
  for (const bool writes : {false, true}) {
    options.scale = writes ? 0.5f : 1.0f;
    Model model = RandomModel({5000}, 0.03, 44);
    Codec codec(kOneMessage);
    EXPECT_EQ(Actual(&codec, &model, options).result.values_written, writes);
  }
}

TEST(CudaStep, WhatIsNotFiniteLeavesNoProgressInTheValues) {
  Options options;
  options.full = true;
  for (const float scale : {1.0f, 0.7f}) {
    options.scale = scale;
    Model model = RandomModel({5000, 300}, 0.03, 45);
    const Model before = model;
    model.variables[0].after[4500] = kInfinity;
    Codec codec(kOneMessage);
    EXPECT_EQ(Actual(&codec, &model, options).status.code, Code::kNotFinite);
    for (size_t i = 0; i < model.variables.size(); ++i) {
      const Variable& is = model.variables[i];
      const Variable& was = before.variables[i];
      EXPECT_TRUE(SameBits(is.value, was.before));
      for (size_t k = 0; k < is.residual.size(); ++k) {
        ASSERT_NEAR(is.residual[k], was.residual[k], 1e-7f) << k;
      }
    }
  }
}

TEST(CudaStep, WritesEveryCoding) {
  for (const CodingOptions coding :
       {CodingOptions{Coding::kAuto, Prefer::kSpeed}, CodingOptions{Coding::kSparse, Prefer::kSize},
        CodingOptions{Coding::kBitmap, Prefer::kSize}}) {
    Options options;
    options.coding = coding;
    for (const double density : {0.001, 0.05, 0.3, 1.0}) {
      ExpectAgrees(RandomModel({4500}, density, 5), options);
    }
  }
}

TEST(CudaStep, CrossesChunksAndUnevenSpans) {
  // Quiet but for two crowded places, one of them around the border of a chunk; most of the tiles
  // are empty, so few spans hold very many entries.
  Model model = RandomModel({40}, 0, 6);
  Variable variable = RandomModel({60000}, 0, 7).variables[0];
  variable.offset = kChunk - 30000;
  for (int64_t i = 29000; i < 33000; ++i) variable.after[static_cast<size_t>(i)] += 0.5f;
  for (int64_t i = 50000; i < 50100; ++i) variable.after[static_cast<size_t>(i)] -= 0.5f;
  model.variables.push_back(variable);
  model.elements = kChunk + 40000;
  ExpectAgrees(model, {});
}

TEST(CudaStep, SplitsWhatIsTooLongForOneMessage) {
  Options options;
  options.max_bytes = kMinMessageBytes;
  options.threshold = 1e-4f;
  Model model = RandomModel({66000}, 1, 8);
  Model copy = model;
  ASSERT_GT(Expected(&copy, options).messages.size(), 1u);
  ExpectAgrees(model, options);
}

TEST(CudaStep, ValueMayBeBeforeOrAfterAndPointersMayLieAnywhere) {
  const Model model = RandomModel({8193}, 0.03, 9);
  Model expected = model;
  Expected(&expected, {});
  const Variable& want = expected.variables[0];
  for (const bool before : {true, false}) {
    for (const size_t shift : {0, 1}) {
      Model moved = model;
      Variable& v = moved.variables[0];
      for (std::vector<float>* array : {&v.before, &v.after, &v.residual}) {
        array->insert(array->begin(), shift, 0.0f);
      }
      float* const value = (before ? v.before : v.after).data() + shift;
      const std::vector<strom_cuda_segment> segments = {{0, 8193, v.before.data() + shift,
                                                         v.after.data() + shift, value,
                                                         v.residual.data() + shift, nullptr}};
      Codec codec(kOneMessage);
      strom_step_result result;
      ASSERT_TRUE(codec.FindEntries(8193, segments, StepOptions({}), nullptr, &result).ok());
      EXPECT_EQ(std::memcmp(value, want.value.data(), 8193 * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(v.residual.data() + shift, want.residual.data(), 8193 * sizeof(float)),
                0);
    }
  }
}

TEST(CudaStep, EncodesAnUpdateWithoutParameters) {
  Model model = RandomModel({5000}, 0.05, 10);
  Model expected = model;
  Variable& v = expected.variables[0];
  for (size_t i = 0; i < 5000; ++i) v.after[i] = model.variables[0].after[i] - v.before[i];
  Variable& w = model.variables[0];
  w.after = v.after;
  v.before.assign(5000, 0);
  const Outcome want = Expected(&expected, {});
  const std::vector<strom_cuda_segment> segments = {
      {0, 5000, nullptr, w.after.data(), nullptr, w.residual.data(), nullptr}};
  Codec codec(kOneMessage);
  strom_step_result result;
  ASSERT_TRUE(codec.FindEntries(5000, segments, StepOptions({}), nullptr, &result).ok());
  EXPECT_EQ(std::vector<uint32_t>(codec.codes().begin(), codec.codes().end()), want.codes);
  EXPECT_TRUE(SameBits(w.residual, v.residual));
}

TEST(CudaStep, KeepsNegativeZeroOfAValueThatDoesNotChange) {
  Model model = RandomModel({100}, 0, 11);
  model.variables[0].before.assign(100, -0.0f);
  ExpectAgrees(model, {});
}

TEST(CudaStep, DoesNothingWhereNothingChanged) {
  Model model = RandomModel({5000}, 0.1, 12);
  std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
  segments[0].after = segments[0].before;
  Codec codec(kOneMessage);
  strom_step_result result;
  const std::vector<float> residual = model.variables[0].residual;
  ASSERT_TRUE(codec.FindEntries(5000, segments, StepOptions({}), nullptr, &result).ok());
  EXPECT_EQ(result.stepped, 0);
  EXPECT_TRUE(SameBits(model.variables[0].value, model.variables[0].before));
  EXPECT_TRUE(SameBits(model.variables[0].residual, residual));
}

TEST(CudaStep, AVariableThatDidNotChangeSendsNothingAndItsResidualWaits) {
  Model model = RandomModel({5000, 6000, 70}, 0.1, 15);
  Model alone = model;  // its outer variables, which are all that may leave
  model.variables[1].residual.assign(6000, 3);
  const Model before = model;
  Options options;
  options.clip_multiple = 3;
  std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
  segments[1].after = segments[1].before;
  alone.variables.erase(alone.variables.begin() + 1);
  const Outcome want = Expected(&alone, options);
  Codec codec(kOneMessage);
  strom_step_result result;
  ASSERT_TRUE(
      codec.FindEntries(model.elements, segments, StepOptions(options), nullptr, &result).ok());
  EXPECT_EQ(result.elements, 5070);
  EXPECT_EQ(result.clipped_count, want.result.clipped_count);
  EXPECT_EQ(result.max_residual, want.result.max_residual);
  EXPECT_NEAR(result.sum_residual, want.result.sum_residual, 1e-6 * want.result.sum_residual);
  EXPECT_EQ(std::vector<uint32_t>(codec.codes().begin(), codec.codes().end()), want.codes);
  EXPECT_TRUE(SameBits(model.variables[1].residual, before.variables[1].residual));
  EXPECT_TRUE(SameBits(model.variables[1].value, before.variables[1].before));
}

TEST(CudaStep, WhatIsNotFiniteIsRefusedAndNothingLeaves) {
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    Model model = RandomModel({3, 9000}, 0.1, 13);
    model.variables[1].after[5000] = bad;
    model.variables[1].after[8999] = bad;
    const Model before = model;
    Codec codec(kOneMessage);
    const Outcome outcome = Actual(&codec, &model, {});
    EXPECT_EQ(outcome.status.code, Code::kNotFinite);
    EXPECT_NE(outcome.status.message.find("first in element 5000 (2 in all variables"),
              std::string::npos)
        << outcome.status.message;
    EXPECT_TRUE(codec.codes().empty());
    const Variable& v = model.variables[1];
    EXPECT_EQ(v.residual[5000], before.variables[1].residual[5000]);
    for (size_t i = 0; i < 5000; ++i) {
      ASSERT_NEAR(v.value[i], v.before[i], 1e-6);
      const double had = before.variables[1].residual[i] + 0.7 * (v.after[i] - v.before[i]);
      ASSERT_NEAR(v.residual[i], had, 1e-6);
    }
  }
}

TEST(CudaStep, TakesBackWhatItSentOnce) {
  Model model = RandomModel({7000}, 0.2, 14);
  const std::vector<float> before = model.variables[0].before;
  Codec codec(kOneMessage);
  ASSERT_TRUE(Actual(&codec, &model, {}).status.ok());
  ASSERT_TRUE(codec.TakeBack(nullptr).ok());
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(model.variables[0].value[i], before[i], 1e-6);
  }
  EXPECT_EQ(codec.TakeBack(nullptr).code, Code::kInvalidArgument);
  int64_t bytes = 0;
  EXPECT_EQ(codec.WriteMessages({}, nullptr, &bytes).code, Code::kInvalidArgument);
}

TEST(CudaStep, RefusesWhatMakesNoSense) {
  Model model = RandomModel({10, 10}, 0.1, 15);
  Codec codec(kOneMessage);
  strom_step_result result;
  const auto refuses = [&](auto change, strom_step_options options = StepOptions({})) {
    std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
    change(&segments);
    return codec.FindEntries(model.elements, segments, options, nullptr, &result).code ==
           Code::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](auto* s) { (*s)[1].offset = 9; }));
  EXPECT_TRUE(refuses([](auto* s) { (*s)[1].size = 11; }));
  EXPECT_TRUE(refuses([](auto* s) { (*s)[0].size = -1; }));
  EXPECT_TRUE(refuses([](auto* s) { (*s)[0].residual = nullptr; }));
  EXPECT_TRUE(refuses([](auto* s) { (*s)[1].value = nullptr; }));
  for (const float threshold : {0.0f, -1.0f, std::nanf(""), kInfinity}) {
    strom_step_options options = StepOptions({});
    options.threshold = threshold;
    EXPECT_TRUE(refuses([](auto*) {}, options));
  }
  strom_step_options full = StepOptions({});
  full.full = 1;
  EXPECT_TRUE(refuses([](auto*) {}, full));
}

// --- reading

std::vector<float> ApplyOnHost(const std::vector<uint8_t>& message, std::vector<float> parameters) {
  ParsedMessage parsed;
  EXPECT_TRUE(ParseMessage(message, &parsed).ok());
  ApplyMessage(parsed, 0, parameters);
  return parameters;
}

TEST(CudaApply, AddsWhatCoreAdds) {
  uint32_t seed = 20;
  for (const int64_t size : {1, 2048, 5000, 30001}) {
    for (const double density : {0.001, 0.02, 0.4, 1.0}) {
      for (const Coding coding : {Coding::kAuto, Coding::kSparse, Coding::kBitmap}) {
        Model model = RandomModel({size}, density, ++seed);
        Options options;
        options.coding = {coding, Prefer::kSize};
        const std::vector<uint8_t> message = Expected(&model, options).messages.at(0);
        std::vector<float>& parameters = model.variables[0].before;
        const std::vector<float> expected = ApplyOnHost(message, parameters);
        strom_cuda_segment segment{0, size, nullptr, nullptr, parameters.data(), nullptr, nullptr};
        Codec codec(kOneMessage);
        int64_t skipped = -1;
        ASSERT_TRUE(codec.Apply(message, size, {&segment, 1}, nullptr, &skipped).ok());
        EXPECT_EQ(skipped, 0);
        ASSERT_TRUE(SameBits(parameters, expected)) << size << " " << density;
      }
    }
  }
}

TEST(CudaApply, AddsWhatATableOfValuesSays) {
  Model model = RandomModel({30001}, 0.05, 49);
  const std::vector<uint32_t> codes = Expected(&model, {}).codes;
  EntryList entries;
  std::copy(codes.begin(), codes.end(), entries.Reserve(static_cast<int64_t>(codes.size())));
  entries.Append(0, static_cast<int64_t>(codes.size()));
  std::vector<ValueRun> runs;
  for (int64_t left = entries.size(), count = 1; left > 0; left -= count, count *= 2) {
    count = std::min(count, left);
    const float value = TableValue(0.01f * static_cast<float>(count));
    runs.push_back({count, value, value});
  }
  const std::vector<uint8_t> message =
      WriteEntries({0.01f, 0, 30001, 7, runs}, entries, kOneMessage).at(0);
  std::vector<float>& parameters = model.variables[0].before;
  const std::vector<float> expected = ApplyOnHost(message, parameters);
  const strom_cuda_segment segment{0, 30001, nullptr, nullptr, parameters.data(), nullptr, nullptr};
  Codec codec(kOneMessage);
  int64_t skipped = -1;
  ASSERT_TRUE(codec.Apply(message, 30001, {&segment, 1}, nullptr, &skipped).ok());
  EXPECT_EQ(skipped, 0);
  EXPECT_TRUE(SameBits(parameters, expected));
}

TEST(CudaApply, AddsRawSpansAndCountsWhatLiesInNoSegment) {
  std::vector<float> raw(5000);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = i % 3 == 0 ? 0 : 0.1f * static_cast<float>(i);
  MessageWriter writer({0, 0, 5000, 3}, 11, kOneMessage);
  for (int64_t span = 0; span < 3; ++span) {
    const auto first = static_cast<size_t>(span) << 11;
    writer.AddRawSpan(span, std::span(raw).subspan(first, std::min<size_t>(2048, 5000 - first)));
  }
  const std::vector<uint8_t> message = writer.Finish().at(0);
  std::vector<float> low(2000, 1);
  std::vector<float> high(1000, 2);
  const std::vector<strom_cuda_segment> segments = {
      {100, 2000, nullptr, nullptr, low.data(), nullptr, nullptr},
      {4000, 1000, nullptr, nullptr, high.data(), nullptr, nullptr}};
  Codec codec(kOneMessage);
  int64_t skipped = 0;
  ASSERT_TRUE(codec.Apply(message, 5000, segments, nullptr, &skipped).ok());
  int64_t outside = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (i >= 100 && i < 2100) {
      EXPECT_EQ(low[i - 100], 1 + raw[i]);
    } else if (i >= 4000) {
      EXPECT_EQ(high[i - 4000], 2 + raw[i]);
    } else {
      outside += raw[i] != 0;
    }
  }
  EXPECT_EQ(skipped, outside);
}

TEST(CudaApply, CountsEntriesThatLieInNoSegment) {
  Model model = RandomModel({20000}, 0.1, 50);
  const Outcome update = Expected(&model, {});
  std::vector<float> parameters(5000);
  const strom_cuda_segment segment{7000,    5000,   nullptr, nullptr, parameters.data(),
                                   nullptr, nullptr};
  Codec codec(kOneMessage);
  int64_t skipped = 0;
  ASSERT_TRUE(codec.Apply(update.messages.at(0), 20000, {&segment, 1}, nullptr, &skipped).ok());
  int64_t inside = 0;
  for (const float x : parameters) inside += x != 0;
  EXPECT_EQ(skipped, update.result.count - inside);
}

TEST(CudaApply, RefusesDamagedMessagesAndThoseOfALargerFlatSpace) {
  Model model = RandomModel({3000}, 0.1, 51);
  std::vector<uint8_t> message = Expected(&model, {}).messages.at(0);
  std::vector<float> parameters(3000);
  strom_cuda_segment segment{0, 2999, nullptr, nullptr, parameters.data(), nullptr, nullptr};
  Codec codec(kOneMessage);
  int64_t skipped = 0;
  EXPECT_EQ(codec.Apply(message, 2999, {&segment, 1}, nullptr, &skipped).code,
            Code::kInvalidArgument);
  message[message.size() / 2] ^= 4;
  EXPECT_EQ(codec.Apply(message, 3000, {&segment, 1}, nullptr, &skipped).code, Code::kCorrupt);
  EXPECT_EQ(parameters, std::vector<float>(3000));
}

TEST(CudaCodec, FindsTheSegmentsWhoseBitsHaveChanged) {
  Codec codec(kOneMessage);
  Model model = RandomModel({10, 9000, 5, 4096, 3 * 4096 + 1}, 0.05, 62);
  for (Variable& variable : model.variables) variable.after = variable.before;
  model.variables[1].after[8999] = std::nextafter(model.variables[1].after[8999], 9.0f);
  model.variables[2].before[0] = 0.0f;
  model.variables[2].after[0] = -0.0f;  // Equal, but not the same bits.
  model.variables[3].after[0] = model.variables[3].before[0] = std::nanf("");
  std::vector<int32_t> differ(5, 7);
  ASSERT_TRUE(codec.Compare(SegmentsOf(&model), nullptr, differ.data()).ok());
  EXPECT_EQ(differ, (std::vector<int32_t>{0, 1, 1, 0, 0}));
  Variable& last = model.variables[4];
  for (const size_t place : {size_t{0}, size_t{4095}, last.after.size() - 1}) {
    last.after = last.before;
    last.after[place] += 1;
    ASSERT_TRUE(codec.Compare(SegmentsOf(&model), nullptr, differ.data()).ok());
    EXPECT_EQ(differ.back(), 1) << place;
  }
  int64_t bytes = 0;
  EXPECT_FALSE(codec.WriteMessages({}, nullptr, &bytes).ok());  // There is no step any more.
  strom_cuda_segment without{0, 4, nullptr, last.after.data(), nullptr, nullptr, nullptr};
  EXPECT_FALSE(codec.Compare({&without, 1}, nullptr, differ.data()).ok());
  EXPECT_TRUE(codec.Compare({}, nullptr, differ.data()).ok());
}

TEST(CudaCodec, IsUsedAgainAndAgain) {
  Codec codec(kOneMessage);
  for (const int64_t size : {9000, 10, 20000, 4096}) {
    Model model = RandomModel({size}, 0.05, static_cast<uint32_t>(size));
    Model expected_model = model;
    const Outcome expected = Expected(&expected_model, {});
    const Outcome actual = Actual(&codec, &model, {});
    ASSERT_EQ(actual.messages, expected.messages);
    ExpectSameVariables(model, expected_model);
    std::vector<float> parameters(static_cast<size_t>(size));
    strom_cuda_segment segment{0, size, nullptr, nullptr, parameters.data(), nullptr, nullptr};
    int64_t skipped = 0;
    ASSERT_TRUE(codec.Apply(actual.messages.at(0), size, {&segment, 1}, nullptr, &skipped).ok());
    EXPECT_EQ(parameters,
              ApplyOnHost(expected.messages.at(0), std::vector<float>(static_cast<size_t>(size))));
  }
}

}  // namespace
}  // namespace strom::cuda
