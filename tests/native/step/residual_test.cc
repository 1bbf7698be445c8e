#include "core/step/residual.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/bits.h"
#include "core/codec/entries.h"

namespace strom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr uint32_t kFirstIndex = 1000;

// One run of the kernel with memory of its own. The arrays start at an odd offset, so that nothing
// relies on alignment.
struct Case {
  std::vector<float> before, after, residual;
  StepRule rule;
};

struct Outcome {
  std::vector<float> value, residual;
  std::vector<uint32_t> codes;
  StepStatistics statistics;
};

std::vector<float> Updates(const Case& input) {
  std::vector<float> updates(input.after.size());
  for (size_t i = 0; i < updates.size(); ++i) updates[i] = input.after[i] - input.before[i];
  return updates;
}

enum class ValueIs { kApart, kBefore, kAfter };

Outcome RunStep(StepFunction step, Case input, ValueIs value_is = ValueIs::kApart) {
  const size_t size = input.before.size();
  std::vector<float> apart(size, -99);
  float* value = value_is == ValueIs::kBefore  ? input.before.data()
                 : value_is == ValueIs::kAfter ? input.after.data()
                                               : apart.data();
  Outcome outcome;
  outcome.codes.resize(size);
  const StepRun run{static_cast<int64_t>(size), input.before.data(), input.after.data(), value,
                    input.residual.data(),      kFirstIndex};
  const int64_t count = step(run, input.rule, outcome.codes.data(), &outcome.statistics);
  outcome.codes.resize(static_cast<size_t>(count));
  outcome.value.assign(value, value + size);
  outcome.residual = input.residual;
  return outcome;
}

// The same updates where the values include the residuals.
Outcome RunFull(FullFunction step, Case input) {
  const size_t size = input.before.size();
  Outcome outcome;
  outcome.codes.resize(size);
  const FullRun run{static_cast<int64_t>(size), input.before.data(), input.after.data(),
                    input.residual.data(), kFirstIndex};
  const int64_t count = step(run, input.rule, outcome.codes.data(), &outcome.statistics);
  outcome.codes.resize(static_cast<size_t>(count));
  outcome.value = input.after;
  outcome.residual = input.residual;
  return outcome;
}

// The same updates, out of an array.
Outcome RunEncode(EncodeFunction encode, Case input) {
  const std::vector<float> update = Updates(input);
  Outcome outcome;
  outcome.codes.resize(update.size());
  const EncodeRun run{static_cast<int64_t>(update.size()), update.data(), input.residual.data(),
                      kFirstIndex};
  const int64_t count = encode(run, input.rule, outcome.codes.data(), &outcome.statistics);
  outcome.codes.resize(static_cast<size_t>(count));
  outcome.residual = input.residual;
  return outcome;
}

// The bitmap's streams with guard bytes behind the room that a kernel may use, and entries of an
// earlier run before.
struct BitmapRoom {
  explicit BitmapRoom(size_t size)
      : bits(size / 8 + 2 + kBitmapSlack + kGuard, kGuarded),
        signs(bits),
        bitmap{bits.data(), signs.data()} {
    bitmap.Append(0b10110, 0b101, kBefore, kEntriesBefore);
  }

  bool guarded() const {
    const auto whole = [](const std::vector<uint8_t>& stream) {
      return std::all_of(stream.end() - kGuard, stream.end(),
                         [](uint8_t byte) { return byte == kGuarded; });
    };
    return whole(bits) && whole(signs);
  }

  // The codes that the run's part of the bitmap stands for.
  std::vector<uint32_t> Codes() const {
    std::vector<uint32_t> codes;
    for (int64_t i = kBefore, sign = kEntriesBefore; i < bitmap.elements; ++i) {
      if (ReadBits(bits.data(), i, 1) == 0) continue;
      const auto index = kFirstIndex + static_cast<uint32_t>(i - kBefore);
      codes.push_back(index << 1 | static_cast<uint32_t>(ReadBits(signs.data(), sign++, 1)));
    }
    return codes;
  }

  static constexpr int kBefore = 5;  // an odd place to go on from
  static constexpr int kEntriesBefore = 3;
  static constexpr uint8_t kGuarded = 0xa5;
  static constexpr int kGuard = 64;
  std::vector<uint8_t> bits, signs;
  Bitmap bitmap;
};

Case RandomCase(size_t size, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  Case input;
  input.rule.threshold = 0.01f;
  input.rule.scale = 0.7f;
  for (size_t i = 0; i < size; ++i) {
    const bool large = unit(random) * 0.5 + 0.5 < density;
    input.before.push_back(unit(random));
    input.after.push_back(input.before[i] + unit(random) * (large ? 0.2f : 0.004f));
    input.residual.push_back(unit(random) * 0.005f);
  }
  return input;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct HalvesOutcome {
  std::vector<uint8_t> bytes;  // no more than the bitmap's own
  int64_t count = 0;
  std::vector<float> residual;
  StepStatistics statistics;
};

// As a bitmap of four states.
HalvesOutcome EncodeHalves(const StepKernel& kernel, Case input, int64_t iteration) {
  const std::vector<float> update = Updates(input);
  const auto size = static_cast<int64_t>(update.size());
  HalvesOutcome outcome;
  outcome.bytes.resize(static_cast<size_t>(Bitmap4Bytes(size)));
  Bitmap4 bitmap{outcome.bytes.data(), iteration};
  kernel.encode_bitmap4({size, update.data(), input.residual.data(), kFirstIndex}, input.rule,
                        &bitmap, &outcome.statistics);
  EXPECT_EQ(bitmap.elements, size);
  outcome.count = bitmap.count;
  outcome.residual = input.residual;
  return outcome;
}

class EveryKernel : public testing::TestWithParam<StepKernel> {
 protected:
  StepFunction step() const { return GetParam().step; }

  // The oracle's and this kernel's outcome are the same.
  void ExpectAgrees(const Case& input, ValueIs value_is = ValueIs::kApart) const {
    const Outcome expected = RunStep(StepKernels().front().step, input, ValueIs::kApart);
    const Outcome actual = RunStep(step(), input, value_is);
    ExpectSame(actual, expected);
    ASSERT_TRUE(SameBits(actual.value, expected.value));
  }

  // The same where the values include the residuals.
  void ExpectAgreesInFull(const Case& input) const {
    const Outcome encoded = RunStep(StepKernels().front().step, input);
    const Outcome expected = RunFull(StepKernels().front().step_full, input);
    ExpectSame(expected, encoded);
    const Outcome actual = RunFull(GetParam().step_full, input);
    ExpectSame(actual, expected);
    ASSERT_TRUE(SameBits(actual.value, expected.value));
  }

  // What a bitmap of four states has, too.
  void ExpectAgreesWithHalves(const Case& input, int64_t iteration) const {
    const HalvesOutcome expected = EncodeHalves(StepKernels().front(), input, iteration);
    const HalvesOutcome actual = EncodeHalves(GetParam(), input, iteration);
    ASSERT_EQ(actual.bytes, expected.bytes);
    ASSERT_EQ(actual.count, expected.count);
    ASSERT_TRUE(SameBits(actual.residual, expected.residual));
    ExpectSame(actual.statistics, expected.statistics);
  }

  // The array's encoder and its bitmap writer find the same.
  void ExpectAllAgree(const Case& input) const {
    const Outcome expected = RunStep(StepKernels().front().step, input);
    ExpectSame(RunEncode(GetParam().encode, input), expected);

    BitmapRoom room(input.before.size());
    const std::vector<float> update = Updates(input);
    Outcome encode;
    encode.residual = input.residual;
    GetParam().encode_bitmap(
        {static_cast<int64_t>(update.size()), update.data(), encode.residual.data(), kFirstIndex},
        input.rule, &room.bitmap, &encode.statistics);
    encode.codes = room.Codes();
    ExpectSame(encode, expected);
    ASSERT_EQ(room.bitmap.elements, BitmapRoom::kBefore + static_cast<int64_t>(update.size()));
    ASSERT_EQ(room.bitmap.count,
              BitmapRoom::kEntriesBefore + static_cast<int64_t>(expected.codes.size()));
    ASSERT_TRUE(room.guarded());
  }

 private:
  static void ExpectSame(const Outcome& actual, const Outcome& expected) {
    ASSERT_EQ(actual.codes, expected.codes);
    ASSERT_TRUE(SameBits(actual.residual, expected.residual));
    ExpectSame(actual.statistics, expected.statistics);
  }

  static void ExpectSame(const StepStatistics& a, const StepStatistics& e) {
    ASSERT_EQ(a.max_residual, e.max_residual);
    ASSERT_NEAR(a.sum_residual, e.sum_residual, 1e-5 * e.sum_residual);
    ASSERT_NEAR(a.clipped_mass, e.clipped_mass, 1e-9 * e.clipped_mass);
    ASSERT_EQ(a.clipped_count, e.clipped_count);
    ASSERT_EQ(a.nonfinite_count, e.nonfinite_count);
    ASSERT_EQ(a.first_nonfinite, e.first_nonfinite);
  }
};

INSTANTIATE_TEST_SUITE_P(Step, EveryKernel,
                         testing::ValuesIn(StepKernels().begin(), StepKernels().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryKernel, GivesTheBitsOfTheScalarOracle) {
  uint32_t seed = 0;
  for (const size_t size : {0, 1, 2, 15, 63, 64, 65, 127, 128, 129, 1000, 4096 + 17}) {
    for (const double density : {0.0, 0.001, 0.03, 0.5, 1.0}) {
      for (const ValueIs value_is : {ValueIs::kApart, ValueIs::kBefore, ValueIs::kAfter}) {
        Case input = RandomCase(size, density, ++seed);
        ExpectAgrees(input, value_is);
        input.rule.apply_own = false;
        ExpectAgrees(input, value_is);
        input.rule.clip_limit = 3 * input.rule.threshold;
        ExpectAgrees(input, value_is);
      }
    }
  }
}

TEST_P(EveryKernel, GivesTheBitsOfTheScalarOracleWhereValuesIncludeTheResiduals) {
  uint32_t seed = 300;
  for (const size_t size : {0, 1, 2, 15, 63, 64, 65, 127, 128, 129, 1000, 4096 + 17}) {
    for (const double density : {0.0, 0.001, 0.03, 0.5, 1.0}) {
      for (const float scale : {1.0f, 0.7f}) {
        Case input = RandomCase(size, density, ++seed);
        input.rule.scale = scale;
        ExpectAgreesInFull(input);
        input.rule.clip_limit = 3 * input.rule.threshold;
        ExpectAgreesInFull(input);
        if (size < 2) continue;
        input.after[size / 2] = kInfinity;
        ExpectAgreesInFull(input);
      }
    }
  }
}

TEST_P(EveryKernel, LeavesFullProgressAsTheOptimizerWroteItButForScalingAndClipping) {
  Case input = RandomCase(1000, 0.1, 11);
  input.rule.scale = 1;
  EXPECT_TRUE(SameBits(RunFull(GetParam().step_full, input).value, input.after));

  input.rule.scale = 0.5f;
  Outcome outcome = RunFull(GetParam().step_full, input);
  for (size_t i = 0; i < input.before.size(); ++i) {
    ASSERT_EQ(outcome.value[i], input.before[i] + 0.5f * (input.after[i] - input.before[i]));
  }

  input.rule.scale = 1;
  input.rule.clip_limit = 2 * input.rule.threshold;
  outcome = RunFull(GetParam().step_full, input);
  double taken = 0;
  for (size_t i = 0; i < input.before.size(); ++i) {
    taken += std::fabs(static_cast<double>(outcome.value[i]) - input.after[i]);
  }
  EXPECT_GT(outcome.statistics.clipped_count, 10);
  EXPECT_NEAR(taken, outcome.statistics.clipped_mass, 1e-5);
}

TEST_P(EveryKernel, FindsTheSameInAnArrayAndWritesTheSameAsABitmap) {
  uint32_t seed = 100;
  for (const size_t size : {0, 1, 31, 32, 33, 63, 64, 65, 127, 129, 1000, 4096 + 17}) {
    for (const double density : {0.0, 0.001, 0.03, 0.5, 1.0}) {
      Case input = RandomCase(size, density, ++seed);
      ExpectAllAgree(input);
      input.rule.apply_own = false;
      input.rule.clip_limit = 3 * input.rule.threshold;
      ExpectAllAgree(input);
    }
  }
}

TEST_P(EveryKernel, SendsHalvesAsTheOracleDoes) {
  uint32_t seed = 200;
  for (const size_t size : {0, 1, 31, 32, 33, 63, 64, 65, 129, 4096 + 17}) {
    for (const double density : {0.0, 0.03, 0.5, 1.0}) {
      for (const int64_t iteration : {0, 1}) {
        Case input = RandomCase(size, density, ++seed);
        ExpectAgreesWithHalves(input, iteration);
        input.rule.clip_limit = 1.5f * input.rule.threshold;
        ExpectAgreesWithHalves(input, iteration);
        if (size < 2) continue;
        input.after[size / 2] = kInfinity;
        ExpectAgreesWithHalves(input, iteration);
      }
    }
  }
}

TEST_P(EveryKernel, LosesNoMassInHalves) {
  Case input = RandomCase(1000, 0.3, 77);
  input.rule.scale = 1;
  const float tau = input.rule.threshold;
  const std::vector<float> update = Updates(input);
  const HalvesOutcome outcome = EncodeHalves(GetParam(), input, 8);
  int halves = 0;
  for (size_t i = 0; i < update.size(); ++i) {
    const float total = input.residual[i] + update[i];
    float sent = 0;
    AddBitmap4(outcome.bytes.data(), static_cast<int64_t>(i), static_cast<int64_t>(i) + 1, {tau, 8},
               &sent);
    ASSERT_EQ(outcome.residual[i], total - sent) << i;
    if (std::fabs(total) >= tau) {
      ASSERT_EQ(sent, std::copysign(tau, total));
    } else {
      const float half = (kFirstIndex + i) % 2 == 0 ? tau / 2 : -tau / 2;
      ASSERT_EQ(sent, std::fabs(total) >= tau / 2 && total * half > 0 ? half : 0) << i;
    }
    halves += std::fabs(sent) == tau / 2;
  }
  EXPECT_GT(halves, 50);
}

TEST_P(EveryKernel, WritesNoCodeBehindTheRunsSize) {
  for (const size_t size : {1, 8, 16, 32, 64, 65, 200}) {
    Case input = RandomCase(size, 1.0, static_cast<uint32_t>(size));
    std::vector<uint32_t> codes(size + 64, 12345);
    StepStatistics statistics;
    const std::vector<float> update = Updates(input);
    GetParam().encode({static_cast<int64_t>(size), update.data(), input.residual.data(), 0},
                      input.rule, codes.data(), &statistics);
    for (size_t i = size; i < codes.size(); ++i) ASSERT_EQ(codes[i], 12345u) << size;
  }
}

TEST_P(EveryKernel, IndicesGoUpToTheEndOfAChunk) {
  const Case input = RandomCase(200, 1.0, 9);
  Case changed = input;
  const std::vector<float> update = Updates(input);
  std::vector<uint32_t> codes(200);
  StepStatistics statistics;
  const auto first = static_cast<uint32_t>(kChunk - 200);
  const int64_t count = GetParam().encode({200, update.data(), changed.residual.data(), first},
                                          input.rule, codes.data(), &statistics);
  const Outcome expected = RunStep(StepKernels().front().step, input);
  ASSERT_EQ(count, static_cast<int64_t>(expected.codes.size()));
  for (size_t i = 0; i < expected.codes.size(); ++i) {
    ASSERT_EQ(codes[i], expected.codes[i] + ((first - kFirstIndex) << 1));
  }
}

TEST(StepKernels, BeginWithTheOracleAndAreFoundByName) {
  ASSERT_EQ(StepKernels().front().name, std::string("scalar"));
  for (const StepKernel& kernel : StepKernels()) {
    EXPECT_EQ(FindStepKernel(kernel.name), &kernel);
  }
  EXPECT_EQ(FindStepKernel("abacus"), nullptr);
  EXPECT_EQ(&BestStepKernel(), &StepKernels().back());
}

TEST_P(EveryKernel, LosesNoMass) {
  Case input = RandomCase(5000, 0.1, 7);
  input.rule.clip_limit = 2 * input.rule.threshold;
  const Outcome outcome = RunStep(step(), input);
  std::vector<float> sent(5000);
  for (const uint32_t code : outcome.codes) {
    sent[(code >> 1) - 1000] = code & 1 ? -input.rule.threshold : input.rule.threshold;
  }
  double clipped = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const double in = static_cast<double>(input.residual[i]) +
                      0.7 * (static_cast<double>(input.after[i]) - input.before[i]);
    const double out = static_cast<double>(outcome.residual[i]) + sent[i];
    const double lost = std::fabs(in - out);
    if (std::fabs(outcome.residual[i]) == input.rule.clip_limit) {
      clipped += lost;
    } else {
      ASSERT_LE(lost, 1e-7) << i;
    }
    ASSERT_EQ(outcome.value[i], sent[i] != 0 ? input.before[i] + sent[i] : input.before[i]);
  }
  EXPECT_GT(outcome.statistics.clipped_count, 0);
  EXPECT_NEAR(outcome.statistics.clipped_mass, clipped, 1e-4);
}

TEST_P(EveryKernel, SendsOneQuantumWhenTheResidualReachesTheThreshold) {
  Case input;
  input.rule.threshold = 0.5f;
  input.before.assign(70, 0);
  input.after.assign(70, 0);
  input.residual.assign(70, 0);
  input.after[3] = 0.5f;                        // just there
  input.after[4] = std::nextafter(0.5f, 0.0f);  // just not
  input.after[5] = -0.5f;
  input.after[69] = -7;  // in the tail; one quantum only
  const Outcome outcome = RunStep(step(), input);
  EXPECT_EQ(outcome.codes, (std::vector<uint32_t>{1003 << 1, 1005 << 1 | 1, 1069 << 1 | 1}));
  EXPECT_EQ(outcome.residual[3], 0);
  EXPECT_EQ(outcome.residual[4], input.after[4]);
  EXPECT_EQ(outcome.residual[5], 0);
  EXPECT_EQ(outcome.residual[69], -6.5f);
  EXPECT_EQ(outcome.value[5], -0.5f);
  EXPECT_EQ(outcome.statistics.max_residual, 6.5f);
}

TEST_P(EveryKernel, KeepsNegativeZeroOfAValueThatDoesNotChange) {
  Case input = RandomCase(100, 0, 3);
  input.before.assign(100, -0.0f);
  input.after = input.before;
  input.residual.assign(100, 0);
  for (const float value : RunStep(step(), input).value) EXPECT_TRUE(std::signbit(value));
}

TEST_P(EveryKernel, WhatIsNotFiniteIsCountedAndNeverSent) {
  for (const float bad : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity, 3.4e38f}) {
    Case input = RandomCase(200, 0.2, 5);
    input.rule.scale = 2;  // 3.4e38 overflows
    input.after[77] = bad;
    input.after[150] = bad;
    ExpectAgrees(input);
    ExpectAgrees(input, ValueIs::kBefore);
    ExpectAgrees(input, ValueIs::kAfter);
    ExpectAllAgree(input);
    const Outcome outcome = RunStep(step(), input);
    EXPECT_EQ(outcome.statistics.nonfinite_count, 2);
    EXPECT_EQ(outcome.statistics.first_nonfinite, 1077u);
    EXPECT_EQ(outcome.residual[77], input.residual[77]);
    EXPECT_EQ(outcome.value[77], input.before[77]);
    EXPECT_TRUE(std::isfinite(outcome.statistics.sum_residual));
    for (const uint32_t code : outcome.codes) EXPECT_NE(code >> 1, 1077u);
  }
}

}  // namespace
}  // namespace strom
