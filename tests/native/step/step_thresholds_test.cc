// Steps with a threshold for each segment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compressing_worker.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/value_table.h"
#include "own_threads.h"

namespace strom {
namespace {

const std::vector<float> kThresholds = {0.0625f, 0.125f, 0.1f};

// Residual and value of one element, by the rule in words.
struct Element {
  float value = 0;
  float residual = 0;

  void Step(float update, float threshold, float clip_limit) {
    residual += (value + update) - value;
    if (std::fabs(residual) >= threshold) {
      const float sent = std::copysign(threshold, residual);
      residual -= sent;
      value += sent;
    }
    if (std::fabs(residual) > clip_limit) residual = std::copysign(clip_limit, residual);
  }
};

const std::vector<int64_t> kSizes = {kChunk + 100, 50, 3000};

// A worker whose segments have a threshold each.
struct Sender : Worker {
  explicit Sender(int threads) : Worker(kSizes, 1) {
    parallel = OwnThreads(threads);
    options.thresholds = kThresholds.data();
    options.segment_results = results.data();
  }

  std::vector<strom_segment_result> results = std::vector<strom_segment_result>(kSizes.size());
};

// Another one that gets the sender's messages ends with its values.
void ExpectTheSameElsewhere(const Sender& sender) {
  Worker other({sender.elements}, 2);
  other.exchange->inbox = sender.exchange->sent;
  ASSERT_TRUE(other.compression.Apply(other.Segments(false), &other.result).ok());
  EXPECT_EQ(other.Values(), sender.Values());
}

TEST(StepThresholds, GiveTheBitsOfTheRuleInWordsOnEveryWorker) {
  for (const int threads : {1, 4}) {
    Sender worker(threads);
    worker.options.clip_multiple = 2;
    std::vector<Element> expected(static_cast<size_t>(worker.elements));
    for (const uint32_t seed : {9u, 10u}) {
      const std::vector<float> update = RandomUpdate(worker.elements, seed);
      ASSERT_TRUE(worker.Step(update).ok());
      std::vector<strom_segment_result> sums(3);
      size_t i = 0;
      for (size_t s = 0; s < kSizes.size(); ++s) {
        const float threshold = TableValue(kThresholds[s]);
        for (const size_t end = i + static_cast<size_t>(kSizes[s]); i < end; ++i) {
          const float before = expected[i].value;
          expected[i].Step(update[i], threshold, 2 * threshold);
          sums[s].count += expected[i].value != before;
          const float left = std::fabs(expected[i].residual);
          sums[s].max_residual = std::max(sums[s].max_residual, left);
          sums[s].sum_residual += static_cast<double>(left);
        }
        EXPECT_EQ(worker.results[s].count, sums[s].count);
        EXPECT_EQ(worker.results[s].elements, kSizes[s]);
        EXPECT_EQ(worker.results[s].threshold, threshold);
        EXPECT_EQ(worker.results[s].value, threshold);
        EXPECT_EQ(worker.results[s].max_residual, sums[s].max_residual);
        EXPECT_NEAR(worker.results[s].sum_residual, sums[s].sum_residual,
                    1e-6 * sums[s].sum_residual);
      }
      EXPECT_EQ(worker.result.count, sums[0].count + sums[1].count + sums[2].count);
      EXPECT_EQ(worker.result.threshold, 0.0625f);  // the least
    }
    const std::vector<float> values = worker.Values(), residual = worker.Residual();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], expected[i].value) << i;
      ASSERT_EQ(residual[i], expected[i].residual) << i;
    }
    ExpectTheSameElsewhere(worker);
  }
}

TEST(StepThresholds, ThatAreAllTheSameSendTheBytesOfOneThreshold) {
  const std::vector<float> update = RandomUpdate(4000, 3), same(2, 0.125f);
  Worker one({1000, 3000}, 1), each({1000, 3000}, 1);
  each.options.thresholds = same.data();
  for (Worker* worker : {&one, &each}) {
    worker->compression.KeepMessages(true);
    ASSERT_TRUE(worker->Step(update).ok());
  }
  EXPECT_EQ(each.compression.kept_messages(), one.compression.kept_messages());
  EXPECT_EQ(each.Residual(), one.Residual());
  EXPECT_EQ(each.result.threshold, one.result.threshold);
  EXPECT_EQ(each.result.value, one.result.value);
}

TEST(StepThresholds, HaveAMeanEachWhereTheMeanIsSent) {
  std::vector<std::vector<float>> all_values;
  for (const int threads : {1, 4}) {
    Sender worker(threads);
    worker.options.send_mean = 1;
    const std::vector<float> update = RandomUpdate(worker.elements, 11);
    ASSERT_TRUE(worker.Step(update).ok());
    all_values.push_back(worker.Values());
    const std::vector<float> residual = worker.Residual();
    double mass = 0;
    size_t i = 0;
    for (size_t s = 0; s < kSizes.size(); ++s) {
      const float threshold = TableValue(kThresholds[s]);
      double mean = 0, left = 0;
      int64_t count = 0;
      const size_t start = i;
      for (const size_t end = i + static_cast<size_t>(kSizes[s]); i < end; ++i) {
        left += static_cast<double>(std::fabs(residual[i]));
        if (std::fabs(update[i]) < threshold) continue;
        mean += static_cast<double>(std::fabs(update[i]));
        ++count;
      }
      mean /= static_cast<double>(count);
      EXPECT_EQ(worker.results[s].count, count);
      EXPECT_TRUE(IsTableValue(worker.results[s].value));
      EXPECT_GE(worker.results[s].value, threshold);
      EXPECT_NEAR(worker.results[s].value, mean, mean / 256 + 1e-6);
      EXPECT_NEAR(worker.results[s].sum_residual, left, 1e-5 * left);
      mass += static_cast<double>(count) * static_cast<double>(worker.results[s].value);
      for (size_t j = start; j < i; ++j) {
        const bool sent = std::fabs(update[j]) >= threshold;
        ASSERT_EQ(all_values.back()[j],
                  sent ? std::copysign(worker.results[s].value, update[j]) : 0);
        ASSERT_NEAR(all_values.back()[j] + residual[j], update[j], 1e-6);
      }
    }
    EXPECT_NEAR(worker.result.value, mass / static_cast<double>(worker.result.count), 1e-6);
    ExpectTheSameElsewhere(worker);
  }
  EXPECT_EQ(all_values[0], all_values[1]);
}

TEST(StepThresholds, TakeBackWhatCouldNotBeSent) {
  for (const int send_mean : {0, 1}) {
    Worker worker({500, 500}, 1);
    worker.options.thresholds = kThresholds.data();
    worker.options.send_mean = send_mean;
    worker.exchange->fault = {Code::kBackPressure, "full"};
    const std::vector<float> update = RandomUpdate(1000, 7);
    EXPECT_FALSE(worker.Step(update).ok());
    EXPECT_EQ(worker.Values(), std::vector<float>(1000));
    const std::vector<float> residual = worker.Residual();
    for (size_t i = 0; i < update.size(); ++i) ASSERT_NEAR(residual[i], update[i], 1e-7);
  }
}

TEST(StepThresholds, GoWithValuesThatIncludeWhatHasNotBeenSent) {
  Worker worker({500, 500}, 1);
  worker.options.thresholds = kThresholds.data();
  worker.BeFull();
  const std::vector<float> update = RandomUpdate(1000, 12);
  ASSERT_TRUE(worker.Step(update).ok());
  EXPECT_EQ(worker.Values(), update);
  const std::vector<float> shared = worker.Shared();
  for (size_t i = 0; i < update.size(); ++i) {
    const float threshold = TableValue(kThresholds[i / 500]);
    const bool sent = std::fabs(update[i]) >= threshold;
    ASSERT_NEAR(shared[i], sent ? std::copysign(threshold, update[i]) : 0, 1e-7) << i;
  }
}

TEST(StepThresholds, OfASegmentThatDidNotStepShowInNoResult) {
  Worker worker({100, 100}, 1);
  worker.options.thresholds = kThresholds.data();
  std::vector<strom_segment_result> results(2);
  worker.options.segment_results = results.data();
  worker.after = worker.variables;
  for (float& value : worker.after[1]) value = 1;
  std::vector<strom_segment> segments = worker.Segments(true);
  segments[0].after = segments[0].before;
  ASSERT_TRUE(worker.compression.Step(segments, worker.options, &worker.result).ok());
  EXPECT_EQ(results[0].elements, 0);
  EXPECT_EQ(results[0].count, 0);
  EXPECT_EQ(results[1].count, 100);
  EXPECT_EQ(worker.result.threshold, 0.125f);
}

TEST(StepThresholds, MustBeNormalNumbersOverZero) {
  for (const float bad : {0.0f, -1.0f, 1e-40f, HUGE_VALF, std::nanf("")}) {
    Worker worker({100, 100}, 1);
    const std::vector<float> thresholds = {0.5f, bad};
    worker.options.thresholds = thresholds.data();
    const Status status = worker.Step(std::vector<float>(200, 1));
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find("the threshold of segment 1 is"), std::string::npos)
        << status.message;
    EXPECT_EQ(worker.Residual(), std::vector<float>(200));
  }
  Worker worker({100}, 1);
  strom_segment_result result;
  worker.options.segment_results = &result;
  EXPECT_FALSE(worker.Step(std::vector<float>(100, 1)).ok());
}

}  // namespace
}  // namespace strom
