// What options add to a step: momentum masking, the limit on an update's norm, the mean as value,
// values that include the worker's full progress.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compressing_worker.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "own_threads.h"

namespace strom {
namespace {

TEST(StepOptions, ClearsTheMomentumOfWhatItSendsAndOfNothingElse) {
  // Two chunks, the second segment without momentum.
  for (const int threads : {1, 4}) {
    Worker worker({kChunk + 100, 50, 3000}, 1);
    worker.parallel = OwnThreads(threads);
    const std::vector<float> update = RandomUpdate(worker.elements, 9);
    std::vector<float> first(static_cast<size_t>(kChunk) + 100, 1), last(3000, 1);
    float* const momenta[] = {first.data(), nullptr, last.data()};
    worker.options.momenta = momenta;
    ASSERT_TRUE(worker.Step(update).ok());
    EXPECT_GT(worker.result.count, 100);
    int64_t cleared = 0;
    for (size_t i = 0; i < update.size(); ++i) {
      const bool sent = std::fabs(update[i]) >= worker.options.threshold;
      if (i < first.size()) {
        ASSERT_EQ(first[i], sent ? 0 : 1) << i;
      } else if (i >= first.size() + 50) {
        ASSERT_EQ(last[i - first.size() - 50], sent ? 0 : 1) << i;
      }
      cleared += sent;
    }
    EXPECT_EQ(cleared, worker.result.count);
  }
}

TEST(StepOptions, KeepsTheMomentumOfAnUpdateThatCouldNotBeSent) {
  Worker worker({100}, 1);
  std::vector<float> momentum(100, 1);
  float* const momenta[] = {momentum.data()};
  worker.options.momenta = momenta;
  worker.exchange->fault = {Code::kBackPressure, "full"};
  EXPECT_FALSE(worker.Step(std::vector<float>(100, 1)).ok());
  EXPECT_EQ(momentum, std::vector<float>(100, 1));
}

TEST(StepOptions, ScalesAnUpdateBeyondTheLimitOnItsNormDown) {
  const std::vector<float> update = RandomUpdate(500000, 4);
  double squares = 0, mass = 0;
  for (const float u : update) {
    squares += static_cast<double>(u) * static_cast<double>(u);
    mass += std::fabs(static_cast<double>(u));
  }
  const double norm = std::sqrt(squares);
  std::vector<std::vector<float>> residuals;
  for (const int threads : {1, 4}) {
    Worker worker({400000, 100000}, 1);
    worker.parallel = OwnThreads(threads);
    worker.options.threshold = 100;  // Nothing leaves: the residual is the scaled update.
    worker.options.scale = 0.5f;
    worker.options.norm_limit = static_cast<float>(norm / 4);
    ASSERT_TRUE(worker.Step(update).ok());
    EXPECT_NEAR(worker.result.update_norm, norm, 1e-6 * norm);
    EXPECT_NEAR(worker.result.limited_mass, 0.75 * 0.5 * mass, 1e-4 * mass);
    residuals.push_back(worker.Residual());
    // Nothing is lost: what was taken off is counted.
    double kept = 0;
    for (const float r : residuals.back()) kept += std::fabs(static_cast<double>(r));
    EXPECT_NEAR(kept + worker.result.limited_mass, 0.5 * mass, 1e-5 * mass);
    for (size_t i = 0; i < update.size(); i += 997) {
      ASSERT_NEAR(residuals.back()[i], update[i] / 8, 1e-6);
    }
  }
  EXPECT_EQ(residuals[0], residuals[1]);
}

TEST(StepOptions, LeavesAnUpdateWithinTheLimitOnItsNormAsItIs) {
  const std::vector<float> update = RandomUpdate(1000, 5);
  std::vector<std::vector<float>> values;
  for (const float limit : {0.0f, 1e6f, INFINITY}) {
    Worker worker({1000}, 1);
    worker.options.norm_limit = limit;
    ASSERT_TRUE(worker.Step(update).ok());
    EXPECT_EQ(worker.result.limited_mass, 0);
    EXPECT_EQ(worker.result.update_norm > 0, limit > 0);
    values.push_back(worker.Values());
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[0], values[2]);
}

TEST(StepOptions, SendsTheMeanOfWhatReachedTheThreshold) {
  const int64_t elements = 2 * kChunk + 500;
  const std::vector<float> update = RandomUpdate(elements, 6);
  double mean = 0;
  int64_t count = 0;
  for (const float u : update) {
    if (std::fabs(u) < 0.125f) continue;
    mean += std::fabs(static_cast<double>(u));
    ++count;
  }
  mean /= static_cast<double>(count);
  std::vector<std::vector<float>> values;
  for (const int threads : {1, 4}) {
    Worker worker({kChunk + 7, elements - kChunk - 7}, 1);
    worker.parallel = OwnThreads(threads);
    worker.options.send_mean = 1;
    ASSERT_TRUE(worker.Step(update).ok());
    EXPECT_EQ(worker.result.count, count);
    EXPECT_NEAR(worker.result.value, mean, 1e-6);
    values.push_back(worker.Values());
    const std::vector<float> residual = worker.Residual();
    double sum = 0;
    float largest = 0;
    for (size_t i = 0; i < update.size(); ++i) {
      const bool sent = std::fabs(update[i]) >= 0.125f;
      const double moved = sent ? std::copysign(mean, static_cast<double>(update[i])) : 0;
      ASSERT_NEAR(values.back()[i], moved, 1e-6) << i;
      ASSERT_NEAR(values.back()[i] + residual[i], update[i], 1e-6) << i;
      sum += std::fabs(static_cast<double>(residual[i]));
      largest = std::max(largest, std::fabs(residual[i]));
    }
    EXPECT_NEAR(worker.result.sum_residual, sum, 1e-6 * sum);
    EXPECT_GE(worker.result.max_residual, largest);
    EXPECT_LE(worker.result.max_residual, std::max(largest, 0.125f));

    // Another worker that applies the message gets the same bits, in every mode.
    for (const bool sequenced : {false, true}) {
      Worker other({elements}, 2, sequenced);
      other.exchange->inbox = worker.exchange->sent;
      ASSERT_TRUE(other.compression.Apply(other.Segments(false), &other.result).ok());
      EXPECT_EQ(other.Values(), values.back());
    }
  }
  EXPECT_EQ(values[0], values[1]);
}

TEST(StepOptions, TakesTheMeanBackWhereItCouldNotBeSent) {
  Worker worker({1000}, 1);
  worker.options.send_mean = 1;
  worker.exchange->fault = {Code::kBackPressure, "full"};
  const std::vector<float> update = RandomUpdate(1000, 7);
  EXPECT_FALSE(worker.Step(update).ok());
  const std::vector<float> values = worker.Values(), residual = worker.Residual();
  for (size_t i = 0; i < update.size(); ++i) {
    ASSERT_NEAR(values[i], 0, 1e-7);
    ASSERT_NEAR(residual[i], update[i], 1e-7);
  }
}

TEST(StepOptions, FullProgressStaysInTheValuesAsTheOptimizerWroteIt) {
  const std::vector<int64_t> sizes = {kChunk + 100, 50, 3000};
  for (const bool mean : {false, true}) {
    Worker encoded(sizes, 1);
    encoded.options.send_mean = mean;
    const std::vector<float> update = RandomUpdate(encoded.elements, 9);
    ASSERT_TRUE(encoded.Step(update).ok());
    for (const int threads : {1, 4}) {
      Worker full(sizes, 1);
      full.BeFull();
      full.parallel = OwnThreads(threads);
      full.options.send_mean = mean;
      ASSERT_TRUE(full.Step(update).ok());
      EXPECT_EQ(full.Values(), update);
      // What leaves and what waits is the same as anywhere else, to the bit.
      EXPECT_EQ(full.exchange->sent.at(0).message().size(),
                encoded.exchange->sent.at(0).message().size());
      EXPECT_EQ(full.Residual(), encoded.Residual());
      const std::vector<float> shared = full.Shared(), values = encoded.Values();
      for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(shared[i], values[i], 1e-7) << i;
    }
  }
}

TEST(StepOptions, FullProgressAndWhatOthersSendAddUp) {
  Worker other({2000}, 2), full({2000}, 1);
  ASSERT_TRUE(other.Step(RandomUpdate(2000, 4)).ok());
  const std::vector<float> update = RandomUpdate(2000, 9), theirs = other.Values();
  full.BeFull();
  full.exchange->inbox = other.exchange->sent;
  ASSERT_TRUE(full.Step(update).ok());
  EXPECT_EQ(full.result.received, 1);
  EXPECT_EQ(full.exchange->applied, (VersionVector{{1, 1}, {2, 1}}));
  const std::vector<float> values = full.Values();
  for (size_t i = 0; i < update.size(); ++i) ASSERT_EQ(values[i], update[i] + theirs[i]) << i;
}

// Law: values of which a step says nothing are, to the last bit, what the optimizer wrote.
TEST(CompressionState, FullProgressSaysWhetherValuesWereWritten) {
  const std::vector<float> update = RandomUpdate(3000, 1);
  struct Case {
    float scale, clip_multiple, norm_limit;
    bool receives, writes;
  };
  const Case cases[] = {{1, 0, 0, false, false},    {1, 1e6f, INFINITY, false, false},
                        {1, 0, 1e6f, false, false}, {0.5f, 0, 0, false, true},
                        {1, 1, 0, false, true},     {1, 0, 0.5f, false, true},
                        {1, 0, 0, true, true}};
  for (const Case& one : cases) {
    Worker full({1000, 2000}, 1), other({3000}, 2);
    full.BeFull();
    full.options.scale = one.scale;
    full.options.clip_multiple = one.clip_multiple;
    full.options.norm_limit = one.norm_limit;
    ASSERT_TRUE(other.Step(std::vector<float>(3000, 1)).ok());
    if (one.receives) full.exchange->inbox = other.exchange->sent;
    ASSERT_TRUE(full.Step(update).ok());
    EXPECT_EQ(full.result.values_written, one.writes);
    EXPECT_EQ(full.Values() != update, one.writes);
  }
  Worker joins({10}, 1);
  joins.BeFull();
  joins.exchange->snapshot = Snapshot{std::make_shared<std::vector<float>>(10, 3.0f), {}};
  ASSERT_TRUE(joins.Step(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(joins.result.received, 0);
  EXPECT_EQ(joins.result.values_written, 1);
}

TEST(StepOptions, FullProgressIsScaledAndClippedWithTheResidual) {
  Worker full({3000}, 1);
  full.BeFull();
  full.options.scale = 0.5f;
  full.options.clip_multiple = 1.5f;
  std::vector<float> update = RandomUpdate(3000, 9);
  for (size_t i = 0; i < update.size(); i += 100) update[i] = 2;
  for (int step = 0; step < 2; ++step) ASSERT_TRUE(full.Step(update).ok());
  EXPECT_GE(full.result.clipped_count, 30);
  Worker encoded({3000}, 1);
  encoded.options.scale = 0.5f;
  encoded.options.clip_multiple = 1.5f;
  for (int step = 0; step < 2; ++step) ASSERT_TRUE(encoded.Step(update).ok());
  const std::vector<float> residual = full.Residual(), expected = encoded.Residual();
  const std::vector<float> values = full.Values(), shared = full.Shared();
  for (size_t i = 0; i < update.size(); ++i) {
    ASSERT_NEAR(residual[i], expected[i], 1e-7) << i;
    ASSERT_NEAR(shared[i], encoded.Values()[i], 1e-6) << i;
    if (i % 100 == 0) {
      ASSERT_LT(values[i], 1) << i;
    } else {
      ASSERT_NEAR(values[i], update[i], 1e-6) << i;
    }
  }
}

// Float32 rounds x and r apart from each other; what all share is their difference.
TEST(StepOptions, FullProgressLosesNothingInManySteps) {
  constexpr int64_t kElements = 64;
  Worker full({kElements}, 1);
  full.BeFull();
  full.options.threshold = 0x1.8p-9f;  // Its multiples are exact here, and so is their sum.
  std::vector<double> sum(kElements);
  size_t messages = 0;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1e-3f);
  std::vector<float> update(kElements);
  for (int step = 0; step < 100'000; ++step) {
    for (float& u : update) u = normal(random);
    ASSERT_TRUE(full.Step(update).ok());
    messages += full.exchange->sent.size();
    for (const ReceivedUpdate& sent : full.exchange->sent) {
      std::vector<float> values(kElements);
      ApplyMessage(OpenValidatedMessage(sent.message()), 0, values);
      for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
    }
    full.exchange->sent.clear();
  }
  const std::vector<float> shared = full.Shared();
  for (size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(shared[i]), sum[i], 1e-6) << i;
  }
  EXPECT_GT(messages, 90'000u);
}

TEST(StepOptions, FullProgressOfAnUpdateThatCouldNotBeSentIsKept) {
  Worker full({1110}, 1);
  full.BeFull();
  full.exchange->fault = {Code::kBackPressure, "full"};
  std::vector<float> update = RandomUpdate(1110, 7);
  EXPECT_FALSE(full.Step(update).ok());
  EXPECT_EQ(full.Values(), update);
  std::vector<float> residual = full.Residual();
  for (size_t i = 0; i < update.size(); ++i) ASSERT_NEAR(residual[i], update[i], 1e-7);

  full.exchange->fault = {};
  update[7] = INFINITY;
  const std::vector<float> before = full.Values();
  EXPECT_EQ(full.Step(update).code, Code::kNotFinite);
  EXPECT_EQ(full.Values(), before);
  residual = full.Residual();
  for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(residual[i], before[i], 1e-7);
}

TEST(StepOptions, FullProgressStaysOnTopOfASnapshot) {
  Worker full({100}, 1);
  full.BeFull();
  full.options.threshold = 100;  // Nothing leaves.
  const std::vector<float> update = RandomUpdate(100, 7);
  full.exchange->snapshot = {std::make_shared<std::vector<float>>(100, 3.0f), {{2, 5}}};
  ASSERT_TRUE(full.Step(update).ok());
  const std::vector<float> values = full.Values();
  for (size_t i = 0; i < update.size(); ++i) ASSERT_EQ(values[i], 3 + update[i]) << i;
}

TEST(StepOptions, ASnapshotTakesThePlaceOfValuesThatIncludeNoResidual) {
  Worker full({100, 50}, 1);
  full.BeFull();
  full.options.threshold = 100;  // Nothing leaves.
  std::vector<float> update = RandomUpdate(150, 7);
  ASSERT_TRUE(full.Step(update).ok());
  const int32_t includes[] = {1, 0};  // The second is of a layer that has been frozen since.
  full.options.includes_residual = includes;
  full.exchange->snapshot = {std::make_shared<std::vector<float>>(150, 3.0f), {{2, 5}}};
  std::fill(update.begin() + 100, update.end(), 0);
  full.Optimize(update);
  std::vector<strom_segment> segments = full.Segments(true);
  segments[1].before = segments[1].after;
  ASSERT_TRUE(full.compression.Step(segments, full.options, &full.result).ok());
  const std::vector<float> values = full.Values(), residual = full.Residual();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], i < 100 ? 3 + residual[i] : 3) << i;
    ASSERT_NE(residual[i], 0) << i;
  }
}

TEST(StepOptions, AnOwnModelGetsTheUpdatesOfOthersAlone) {
  Worker full({100}, 1, true), other({100}, 2, true);
  full.BeFull();
  ASSERT_TRUE(full.Step(RandomUpdate(100, 7)).ok());
  ASSERT_TRUE(other.Step(RandomUpdate(100, 8)).ok());
  const std::vector<float> own = full.Values();
  full.exchange->inbox = {full.exchange->sent.at(0), other.exchange->sent.at(0)};
  std::vector<float> shared(100), theirs(100), all(100);
  ApplyMessage(OpenValidatedMessage(other.exchange->sent.at(0).message()), 0, theirs);
  ApplyMessage(OpenValidatedMessage(full.exchange->sent.at(0).message()), 0, all);
  for (size_t i = 0; i < all.size(); ++i) all[i] += theirs[i];
  std::vector<strom_segment> segments = full.Segments(false);
  float* const own_models[] = {segments[0].value};
  segments[0].value = shared.data();
  ASSERT_TRUE(full.compression.Apply(segments, &full.result, {}, own_models).ok());
  EXPECT_EQ(shared, all);
  const std::vector<float> values = full.Values();
  for (size_t i = 0; i < own.size(); ++i) ASSERT_EQ(values[i], own[i] + theirs[i]) << i;
}

TEST(StepOptions, FullProgressIsRefusedWhereItWouldCountTwice) {
  Worker full({100}, 1);
  full.BeFull();
  full.options.apply_own = 1;
  Status status = full.Step(std::vector<float>(100, 1));
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("apply_own"), std::string::npos) << status.message;

  full.BeFull();
  full.Optimize(std::vector<float>(100, 1));
  std::vector<strom_segment> segments = full.Segments(true);
  segments[0].value = full.after[0].data();
  status = full.compression.Step(segments, full.options, &full.result);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("after"), std::string::npos) << status.message;
}

TEST(StepOptions, NamesWhatIsNotFiniteUnderALimitToo) {
  Worker worker({100}, 1);
  worker.options.norm_limit = 1;
  std::vector<float> update(100, 1);
  update[7] = INFINITY;
  const Status status = worker.Step(update);
  EXPECT_EQ(status.code, Code::kNotFinite);
  EXPECT_NE(status.message.find("element 7"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace strom
