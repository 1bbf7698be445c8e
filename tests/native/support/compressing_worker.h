// A worker's compression state with its variables and an exchange in memory, for tests of its
// steps.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_COMPRESSING_WORKER_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_COMPRESSING_WORKER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/step/compression_state.h"

namespace strom {

inline constexpr int64_t kMessageBytes = int64_t{1} << 20;

// An exchange in memory: keeps what is submitted and gives what a test queues.
class FakeExchange : public Exchange {
 public:
  explicit FakeExchange(uint64_t origin, bool sequenced = false)
      : origin_(origin), sequenced_(sequenced) {}

  Status Submit(int64_t, std::vector<std::vector<uint8_t>> parts, UpdateId* last) override {
    if (!fault.ok()) return fault;
    ++submits;
    for (std::vector<uint8_t>& part : parts) {
      for (int64_t i = 0; i < kUpdateHeaderBytes; ++i) {
        EXPECT_EQ(part[static_cast<size_t>(i)], 0);
      }
      sent.push_back({{origin_, ++counter_}, MakeBuffer(std::move(part))});
    }
    *last = {origin_, counter_};
    return {};
  }
  Status TakeReceived(Received* received) override {
    received->snapshot = std::exchange(snapshot, std::nullopt);
    received->folded = std::exchange(folded, {});
    received->updates = std::move(inbox);
    inbox.clear();
    return {};
  }
  void SetApplied(const VersionVector& vector) override { applied = vector; }
  void AwaitStep(int64_t, int64_t, std::function<void(Status)> done) override { done({}); }
  bool sequenced() const override { return sequenced_; }

  Status fault;
  int submits = 0;
  std::vector<ReceivedUpdate> sent, inbox;
  std::optional<Snapshot> snapshot;
  FoldedUpdates folded;
  VersionVector applied;

 private:
  uint64_t origin_;
  bool sequenced_;
  uint64_t counter_ = 0;
};

// A worker with one variable per size, its replica and its exchange.
class Worker {
 public:
  Worker(std::vector<int64_t> sizes, uint64_t origin, bool sequenced = false,
         int64_t message_bytes = kMessageBytes)
      : exchange(std::make_shared<FakeExchange>(origin, sequenced)), compression(message_bytes) {
    for (const int64_t size : sizes) {
      variables.emplace_back(static_cast<size_t>(size));
      elements += size;
    }
    EXPECT_TRUE(compression.Extend(elements).ok());
    compression.Bind(exchange);
    options.scale = 1;
    options.threshold = 0.125f;
    options.apply_own = !sequenced;
    options.take_received = !sequenced;
  }

  // Has the variables include the residual.
  void BeFull() {
    options.full = 1;
    options.apply_own = 0;
  }

  // A step whose update is `update` over the flat space; the result in place of the variables.
  Status Step(const std::vector<float>& update) {
    Optimize(update);
    return compression.Step(Segments(true), options, &result, parallel);
  }

  // What comes before: the optimizer writes into `after` or, where the variables include the
  // residual, into the variables, and then `after` is what they were.
  void Optimize(const std::vector<float>& update) {
    after = variables;
    size_t next = 0;
    for (auto& variable : options.full != 0 ? variables : after) {
      for (float& value : variable) value += update[next++];
    }
  }

  std::vector<strom_segment> Segments(bool changed) {
    std::vector<strom_segment> segments;
    int64_t offset = 0;
    for (size_t i = 0; i < variables.size(); ++i) {
      const auto size = static_cast<int64_t>(variables[i].size());
      float* const value = variables[i].data();
      float* const other = changed ? after[i].data() : value;
      const bool full = options.full != 0;
      segments.push_back(
          {offset, size, full ? other : value, full ? value : other, value, nullptr});
      offset += size;
    }
    return segments;
  }

  std::vector<float> Values() const {
    std::vector<float> all;
    for (const auto& variable : variables) all.insert(all.end(), variable.begin(), variable.end());
    return all;
  }
  // G of a worker whose variables include the residual.
  std::vector<float> Shared() {
    std::vector<float> all = Values();
    const strom_segment whole{0, elements, all.data(), nullptr, all.data(), nullptr};
    EXPECT_TRUE(compression.AddResidual({&whole, 1}, -1, parallel).ok());
    return all;
  }
  std::vector<float> Residual() const {
    std::vector<float> residual(static_cast<size_t>(elements));
    EXPECT_TRUE(compression.ReadResidual(0, residual).ok());
    return residual;
  }

  std::shared_ptr<FakeExchange> exchange;
  CompressionState compression;
  std::vector<std::vector<float>> variables, after;
  int64_t elements = 0;
  strom_step_options options{};
  strom_step_result result{};
  Parallel parallel;
};

inline std::vector<float> RandomUpdate(int64_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.06f);
  std::vector<float> update(static_cast<size_t>(elements));
  for (float& u : update) u = normal(random);
  return update;
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_COMPRESSING_WORKER_H_
