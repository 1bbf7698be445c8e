// What options add to a step: momentum masking, the limit on an update's norm, the mean as value,
// values that include what has not been sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/entries.h"
#include "own_threads.h"
#include "replica_worker.h"

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
      ASSERT_TRUE(other.replica.Apply(other.Segments(false), &other.result).ok());
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

// A worker whose values are G + r, except in its second segment, where they are G.
struct IncludingUnsent {
  IncludingUnsent(std::vector<int64_t> sizes, int threads) : worker(sizes, 1) {
    for (const int64_t size : sizes) shared.emplace_back(static_cast<size_t>(size));
    sums = {shared[0].data(), nullptr, shared[2].data()};
    worker.parallel = OwnThreads(threads);
    worker.options.shared = sums.data();
  }

  // G over the flat space.
  std::vector<float> Shared() const {
    std::vector<float> all;
    for (size_t i = 0; i < shared.size(); ++i) {
      const std::vector<float>& part = sums[i] == nullptr ? worker.variables[i] : shared[i];
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  Worker worker;
  std::vector<std::vector<float>> shared;
  std::vector<float*> sums;
};

TEST(StepOptions, ValuesMayIncludeWhatHasNotBeenSent) {
  const std::vector<int64_t> sizes = {kChunk + 100, 50, 3000};
  for (const bool mean : {false, true}) {
    Worker encoded(sizes, 1), other(sizes, 2);
    encoded.options.send_mean = mean;
    ASSERT_TRUE(other.Step(RandomUpdate(other.elements, 4)).ok());
    encoded.exchange->inbox = other.exchange->sent;
    const std::vector<float> update = RandomUpdate(encoded.elements, 9);
    ASSERT_TRUE(encoded.Step(update).ok());
    for (const int threads : {1, 4}) {
      IncludingUnsent full(sizes, threads);
      full.worker.options.send_mean = mean;
      full.worker.exchange->inbox = other.exchange->sent;
      ASSERT_TRUE(full.worker.Step(update).ok());
      EXPECT_EQ(full.worker.result.received, 1);
      // What all workers hold is the same, to the bit, and so is what waits.
      EXPECT_EQ(full.Shared(), encoded.Values());
      const std::vector<float> residual = full.worker.Residual(), values = full.worker.Values();
      EXPECT_EQ(residual, encoded.Residual());
      const std::vector<float> shared = full.Shared();
      for (size_t i = 0; i < values.size(); ++i) {
        const bool included = i < static_cast<size_t>(sizes[0]) || i >= values.size() - 3000;
        ASSERT_EQ(values[i], shared[i] + (included ? residual[i] : 0)) << i;
      }
    }
  }
}

TEST(StepOptions, ValuesThatIncludeWhatWaitsKeepAnUpdateThatCouldNotBeSent) {
  IncludingUnsent full({1000, 10, 100}, 1);
  full.worker.exchange->fault = {Code::kBackPressure, "full"};
  const std::vector<float> update = RandomUpdate(1110, 7);
  EXPECT_FALSE(full.worker.Step(update).ok());
  EXPECT_EQ(full.Shared(), std::vector<float>(1110, 0));
  const std::vector<float> residual = full.worker.Residual();
  for (size_t i = 0; i < update.size(); ++i) ASSERT_NEAR(residual[i], update[i], 1e-7);
}

TEST(StepOptions, OnlyAsynchronousStepsIncludeWhatHasNotBeenSent) {
  IncludingUnsent full({100, 10, 100}, 1);
  full.worker.options.apply_own = 0;
  const Status status = full.worker.Step(std::vector<float>(210, 1));
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("apply_own"), std::string::npos) << status.message;
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
