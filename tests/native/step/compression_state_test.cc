#include "core/step/compression_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <new>
#include <numeric>

#include "compressing_worker.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "own_threads.h"

namespace strom {
namespace {

TEST(CompressionState, NoMassIsLostOverSteps) {
  Worker worker({1000, 1, 7000, 333}, 1);
  std::vector<double> total(8334);
  for (uint32_t step = 0; step < 5; ++step) {
    // Powers of two: sums of multiples of 2^-20 are exact, and so is the law.
    std::vector<float> update = RandomUpdate(8334, step);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] = std::round(update[i] * 0x1p18f) * 0x1p-18f;
      total[i] += update[i];
    }
    ASSERT_TRUE(worker.Step(update).ok()) << worker.result.count;
    EXPECT_GT(worker.result.count, 0);
    const std::vector<float> values = worker.Values(), residual = worker.Residual();
    for (size_t i = 0; i < total.size(); ++i) {
      ASSERT_EQ(static_cast<double>(values[i]) + residual[i], total[i]) << i;
    }
  }

  // Whoever applies what was sent, in order, has the same bits.
  Worker other({8334}, 2);
  other.exchange->inbox = worker.exchange->sent;
  ASSERT_TRUE(other.compression.Apply(other.Segments(false), &other.result).ok());
  EXPECT_EQ(other.Values(), worker.Values());
  EXPECT_EQ(other.exchange->applied, (VersionVector{{1, worker.exchange->sent.size()}}));
}

TEST(CompressionState, TwoWorkersAgreeWhenEachHasAppliedTheOthersUpdates) {
  Worker a({500, 5000}, 1), b({500, 5000}, 2);
  for (uint32_t step = 0; step < 6; ++step) {
    a.exchange->sent.clear();
    b.exchange->sent.clear();
    ASSERT_TRUE(a.Step(RandomUpdate(5500, 2 * step)).ok());
    ASSERT_TRUE(b.Step(RandomUpdate(5500, 2 * step + 1)).ok());
    a.exchange->inbox = b.exchange->sent;
    b.exchange->inbox = a.exchange->sent;
  }
  ASSERT_TRUE(a.compression.Apply(a.Segments(false), &a.result).ok());
  ASSERT_TRUE(b.compression.Apply(b.Segments(false), &b.result).ok());
  EXPECT_EQ(a.exchange->applied, b.exchange->applied);
  // Multiples of the threshold, a power of two: the order of additions does not show.
  EXPECT_EQ(a.Values(), b.Values());
}

TEST(CompressionState, AStepThatHasNoMemoryForItsMessageIsInTheResidual) {
  constexpr int64_t kElements = 300'000;
  Worker worker({kElements}, 1);
  std::vector<float> update = RandomUpdate(kElements, 9);
  worker.options.threshold = 0x1p-4f;
  for (float& u : update) u = std::round(u * 0x1p5f) * 0x1p-5f;  // So that all sums are exact.
  int calls = 0;
  const auto run = [](void* pool, int64_t tasks, Parallel::Task task, void* context) {
    // The first two find the entries, the third codes them.
    if (++*static_cast<int*>(pool) > 2) throw std::bad_alloc();
    for (int64_t i = 0; i < tasks; ++i) task(context, i);
  };
  worker.parallel = {2, run, &calls};
  EXPECT_THROW(static_cast<void>(worker.Step(update)), std::bad_alloc);
  EXPECT_GT(worker.result.count, 0);
  EXPECT_TRUE(worker.exchange->sent.empty());
  EXPECT_EQ(worker.Residual(), update);
  EXPECT_EQ(worker.Values(), std::vector<float>(kElements, 0));
}

TEST(CompressionState, AStepInWhichNothingChangedDoesNothing) {
  Worker worker({10}, 1), other({10}, 2);
  ASSERT_TRUE(other.Step(std::vector<float>(10, 1)).ok());
  worker.exchange->inbox = other.exchange->sent;
  worker.after = worker.variables;
  ASSERT_TRUE(worker.compression.Step(worker.Segments(false), worker.options, &worker.result).ok());
  EXPECT_EQ(worker.result.stepped, 0);
  EXPECT_EQ(worker.exchange->submits, 0);
  EXPECT_EQ(worker.exchange->inbox.size(), 1u);
  // The next step applies what waited, after its own update.
  ASSERT_TRUE(worker.Step(std::vector<float>(10, 0.25f)).ok());
  EXPECT_EQ(worker.result.received, 1);
  EXPECT_EQ(worker.Values(), std::vector<float>(10, 0.25f));
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{1, 1}, {2, 1}}));
}

TEST(CompressionState, ASegmentThatDidNotChangeSendsNothing) {
  Worker worker({10, 3000}, 1);
  worker.options.threshold = 0.25f;
  ASSERT_TRUE(worker.Step(std::vector<float>(3010, 1)).ok());  // 0.25 leaves, 0.75 waits.
  for (int i = 0; i < 2; ++i) {
    worker.after = worker.variables;
    for (float& value : worker.after[0]) value += 1;
    std::vector<strom_segment> segments = worker.Segments(true);
    segments[1].after = segments[1].before;
    ASSERT_TRUE(worker.compression.Step(segments, worker.options, &worker.result).ok());
    EXPECT_EQ(worker.result.count, 10);
    EXPECT_EQ(worker.result.elements, 10);
    EXPECT_EQ(worker.result.sum_residual, 10 * (1.5 + 0.75 * i));  // 3000 * 0.75 waits unseen.
    EXPECT_EQ(worker.result.max_residual, 1.5f + 0.75f * static_cast<float>(i));
  }
  EXPECT_EQ(worker.Values()[10], 0.25f);
}

TEST(CompressionState, AnUpdateWithoutEntriesGoesOutOnlyInSequencedModes) {
  const std::vector<float> small(10, 0.01f);
  Worker asynchronous({10}, 1), synchronous({10}, 2, true);
  ASSERT_TRUE(asynchronous.Step(small).ok());
  ASSERT_TRUE(synchronous.Step(small).ok());
  EXPECT_EQ(asynchronous.result.stepped, 1);
  EXPECT_EQ(asynchronous.exchange->submits, 0);
  ASSERT_EQ(synchronous.exchange->sent.size(), 1u);
  ParsedMessage message;
  ASSERT_TRUE(ParseMessage(synchronous.exchange->sent[0].message(), &message).ok());
  EXPECT_EQ(message.count(), 0);
}

TEST(CompressionState, InSequencedModesOwnUpdatesComeBackThroughTheExchange) {
  Worker worker({2000}, 1, true);
  const std::vector<float> update = RandomUpdate(2000, 4);
  ASSERT_TRUE(worker.Step(update).ok());
  EXPECT_EQ(worker.Values(), std::vector<float>(2000, 0));
  EXPECT_TRUE(worker.exchange->applied.empty());
  worker.exchange->inbox = worker.exchange->sent;
  ASSERT_TRUE(worker.compression.Apply(worker.Segments(false), &worker.result).ok());
  EXPECT_EQ(worker.result.received, 1);
  const std::vector<float> values = worker.Values(), residual = worker.Residual();
  for (size_t i = 0; i < update.size(); ++i) ASSERT_NEAR(values[i] + residual[i], update[i], 1e-7);

  worker.options.apply_own = 1;  // would apply them twice
  EXPECT_EQ(worker.Step(update).code, Code::kInvalidArgument);
}

TEST(CompressionState, SplitsALargeUpdate) {
  Worker worker({300'000}, 1, false, kMinMessageBytes + kUpdateHeaderBytes);
  worker.options.threshold = 0.0625f;
  worker.compression.KeepMessages(true);
  ASSERT_TRUE(worker.Step(RandomUpdate(300'000, 1)).ok());
  EXPECT_GT(worker.exchange->sent.size(), 1u);
  EXPECT_EQ(worker.exchange->submits, 1);
  int64_t count = 0, bytes = 0;
  for (const auto& kept : worker.compression.kept_messages()) {
    EXPECT_LE(static_cast<int64_t>(kept.size()), kMinMessageBytes);
    ParsedMessage message;
    ASSERT_TRUE(ParseMessage(kept, &message).ok());
    count += message.count();
    bytes += static_cast<int64_t>(kept.size());
  }
  EXPECT_EQ(count, worker.result.count);
  EXPECT_EQ(bytes, worker.result.message_bytes);
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{1, worker.exchange->sent.size()}}));
  for (const auto& update : worker.exchange->sent) {
    EXPECT_LE(static_cast<int64_t>(update.update->size()), kMinMessageBytes + kUpdateHeaderBytes);
  }
}

TEST(CompressionState, AnUpdateThatIsNotFiniteIsRefusedAndNothingIsSent) {
  Worker worker({100, 100}, 1);
  std::vector<float> update(200, 1);
  update[3] = -INFINITY;
  update[150] = std::nanf("");
  update[199] = INFINITY;
  const Status status = worker.Step(update);
  EXPECT_EQ(status.code, Code::kNotFinite);
  const auto says = [&](const char* words) {
    return status.message.find(words) != std::string::npos;
  };
  EXPECT_TRUE(says("flat element 0 is NaN or infinite in 1 of its 100 elements")) << status.message;
  EXPECT_TRUE(says("first in element 3 (3 elements of 2 variables in all)")) << status.message;
  EXPECT_TRUE(says("learning rate")) << status.message;
  EXPECT_EQ(worker.exchange->submits, 0);
  EXPECT_EQ(worker.Values(), std::vector<float>(200, 0));
  std::vector<float> expected(200, 1);
  expected[3] = expected[150] = expected[199] = 0;
  EXPECT_EQ(worker.Residual(), expected);
}

TEST(CompressionState, WhatCouldNotBeSubmittedStaysInTheResidual) {
  Worker worker({100}, 1);
  worker.exchange->fault = {Code::kBackPressure, "full"};
  EXPECT_EQ(worker.Step(std::vector<float>(100, 0.25f)).code, Code::kBackPressure);
  EXPECT_EQ(worker.Values(), std::vector<float>(100, 0));
  EXPECT_EQ(worker.Residual(), std::vector<float>(100, 0.25f));
}

TEST(CompressionState, AnUpdateOfALargerFlatSpaceWaitsUntilThisOneHasGrown) {
  Worker larger({20}, 1), worker({10}, 2);
  ASSERT_TRUE(larger.Step(std::vector<float>(20, 1)).ok());
  worker.exchange->inbox = larger.exchange->sent;
  // One before it that fits does not wait with it.
  Worker smaller({10}, 3);
  ASSERT_TRUE(smaller.Step(std::vector<float>(10, 1)).ok());
  worker.exchange->inbox.insert(worker.exchange->inbox.begin(), smaller.exchange->sent[0]);
  EXPECT_EQ(worker.compression.Apply(worker.Segments(false), &worker.result).code,
            Code::kInvalidArgument);
  EXPECT_EQ(worker.result.received, 1);
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{3, 1}}));
  ASSERT_TRUE(worker.compression.Extend(20).ok());
  worker.variables.emplace_back(10);
  ASSERT_TRUE(worker.compression.Apply(worker.Segments(false), &worker.result).ok());
  std::vector<float> expected(20, 0.125f);
  std::fill_n(expected.begin(), 10, 0.25f);
  EXPECT_EQ(worker.Values(), expected);
}

TEST(CompressionState, ASumOfUpdatesIsAppliedBeforeThoseThatFollowIt) {
  Worker worker({4, 6}, 1), other({10}, 2);
  ASSERT_TRUE(other.Step(std::vector<float>(10, 1)).ok());
  other.exchange->sent[0].id.counter = 4;
  worker.exchange->inbox = other.exchange->sent;
  worker.exchange->folded = {std::vector<float>(10, 2), {{2, 1}, {3, 5}}, {{2, 3}, {3, 5}}, 0, 4};
  ASSERT_TRUE(worker.compression.Apply(worker.Segments(false), &worker.result).ok());
  EXPECT_EQ(worker.Values(), std::vector<float>(10, 2.125f));
  EXPECT_EQ(worker.result.received, 5);
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{2, 4}, {3, 5}}));

  worker.exchange->folded = {std::vector<float>(10, 1), {{3, 6}}, {{3, 6}}, 0, 1};
  auto segments = worker.Segments(false);
  segments.erase(segments.begin());
  const Status status = worker.compression.Apply(segments, &worker.result);
  EXPECT_NE(status.message.find("4 received entries"), std::string::npos) << status.message;
}

TEST(CompressionState, ASnapshotTakesThePlaceOfAllThatWasAppliedButNotOfTheResidual) {
  Worker worker({2}, 1), other({2}, 2);
  ASSERT_TRUE(worker.Step({0.2f, 0.05f}).ok());  // 0.125 leaves
  worker.exchange->inbox = {};
  ASSERT_TRUE(other.Step({0, 0.125f}).ok());
  const std::vector<float> residual = worker.Residual();
  // The master has neither of the two updates; both follow on its parameters.
  worker.exchange->snapshot = {
      std::make_shared<const std::vector<float>>(std::vector{10.0f, 20.0f}),
      {{1, 0}, {2, 0}, {3, 7}}};
  worker.exchange->inbox = {worker.exchange->sent[0], other.exchange->sent[0]};
  ASSERT_TRUE(worker.compression.Apply(worker.Segments(false), &worker.result).ok());
  EXPECT_EQ(worker.Values(), (std::vector{10.125f, 20.125f}));
  EXPECT_EQ(worker.Residual(), residual);
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{1, 1}, {2, 1}, {3, 7}}));
  ASSERT_TRUE(worker.Step({0.125f, 0}).ok());
  EXPECT_EQ(worker.exchange->applied, (VersionVector{{1, 2}, {2, 1}, {3, 7}}));
}

TEST(CompressionState, CountsHowManyStepsReceivedUpdatesAreBehind) {
  Worker worker({10}, 1), other({10}, 2);
  for (int64_t iteration : {3, 4, 9}) {
    other.options.iteration = iteration;
    ASSERT_TRUE(other.Step(std::vector<float>(10, 1)).ok());
  }
  worker.exchange->inbox = other.exchange->sent;
  worker.exchange->folded = {std::vector<float>(10, 1), {{3, 1}}, {{3, 2}}, 5, 2};
  worker.options.iteration = 6;
  worker.options.take_received = 1;
  ASSERT_TRUE(worker.Step(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(worker.result.received, 5);
  EXPECT_EQ(worker.result.staleness, (2 * 6 - 5) + 3 + 2 + 0);
}

// What stands in a merged update is the word of those whose updates are in it.
TEST(CompressionState, StalenessStaysASumWhateverOthersSayOfTheirSteps) {
  Worker worker({10}, 1), other({10}, 2);
  ASSERT_TRUE(other.Step(std::vector<float>(10, 1)).ok());
  const auto publication = [&](uint64_t counter, UpdateRange range) {
    ReceivedUpdate update = other.exchange->sent[0];
    update.id = {MasterOrigin(1), counter};
    update.contents = std::make_shared<const UpdateRanges>(UpdateRanges{range});
    return update;
  };
  constexpr uint64_t kMany = uint64_t{1} << 20;
  std::vector<ReceivedUpdate>& inbox = worker.exchange->inbox;
  inbox = {publication(1, {2, 0, 1, ~uint64_t{0}}), publication(2, {2, 1, 2, uint64_t{1} << 63})};
  worker.options.iteration = 6;
  worker.options.take_received = 1;
  ASSERT_TRUE(worker.Step(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(worker.result.received, 2);
  EXPECT_EQ(worker.result.staleness, 0);

  inbox.clear();
  for (uint64_t i = 0; i < 300; ++i) {
    inbox.push_back(publication(3 + i, {2, 2 + i * kMany, 2 + (i + 1) * kMany, 0}));
  }
  worker.options.iteration = (int64_t{1} << 35) - 1;
  ASSERT_TRUE(worker.Step(std::vector<float>(10, 1)).ok());
  EXPECT_EQ(worker.result.received, static_cast<int64_t>(300 * kMany));
  EXPECT_EQ(worker.result.staleness, int64_t{1} << 53);
}

TEST(CompressionState, ASumOfALargerFlatSpaceWaitsUntilThisOneHasGrown) {
  Worker worker({4}, 1);
  worker.exchange->folded = {std::vector<float>(6, 2), {{2, 1}}, {{2, 1}}, 0, 1};
  EXPECT_EQ(worker.compression.Apply(worker.Segments(false), &worker.result).code,
            Code::kInvalidArgument);
  EXPECT_EQ(worker.Values(), std::vector<float>(4, 0));
  ASSERT_TRUE(worker.compression.Extend(6).ok());
  worker.variables.emplace_back(2);
  ASSERT_TRUE(worker.compression.Apply(worker.Segments(false), &worker.result).ok());
  EXPECT_EQ(worker.Values(), std::vector<float>(6, 2));
}

TEST(CompressionState, TellsWhenReceivedEntriesBelongToNoSegment) {
  Worker whole({20}, 1), worker({10, 10}, 2);
  ASSERT_TRUE(whole.Step(std::vector<float>(20, 1)).ok());
  worker.exchange->inbox = whole.exchange->sent;
  auto segments = worker.Segments(false);
  segments.pop_back();
  const Status status = worker.compression.Apply(segments, &worker.result);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("10 received entries"), std::string::npos) << status.message;
}

TEST(CompressionState, ResidualsCanBeSavedAndRestored) {
  Worker worker({3000}, 1), restored({3000}, 1);
  ASSERT_TRUE(worker.Step(RandomUpdate(3000, 1)).ok());
  const std::vector<float> residual = worker.Residual();
  ASSERT_TRUE(restored.compression.WriteResidual(0, residual).ok());
  EXPECT_EQ(restored.Residual(), residual);
  EXPECT_EQ(restored.compression.WriteResidual(2999, std::vector<float>(2)).code,
            Code::kInvalidArgument);
  EXPECT_EQ(restored.compression.WriteResidual(0, std::vector<float>{std::nanf("")}).code,
            Code::kInvalidArgument);
}

TEST(CompressionState, CrossesTheBordersOfResidualChunks) {
  const int64_t elements = (int64_t{1} << 21) + 100;
  Worker worker({(int64_t{1} << 21) - 50, 150}, 1);
  std::vector<float> update(static_cast<size_t>(elements));
  for (int64_t i = elements - 200; i < elements; ++i) update[static_cast<size_t>(i)] = 0.125f;
  ASSERT_TRUE(worker.Step(update).ok());
  EXPECT_EQ(worker.result.count, 200);
  EXPECT_EQ(worker.Values(), update);
}

// Law: the number of threads shows in no bit of what a step leaves behind or sends.
TEST(CompressionState, ManyThreadsGiveTheBitsOfOne) {
  const std::vector<int64_t> sizes = {300'001, 7, (int64_t{1} << 21) - 40'000, 0, 64, 500'000};
  const int64_t elements = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (const float threshold : {0.06f, 0.2f}) {
    for (const int threads : {2, 5}) {
      Worker fresh(sizes, 1), many(sizes, 1);
      many.parallel = OwnThreads(threads);
      fresh.options.threshold = many.options.threshold = threshold;
      fresh.options.clip_multiple = many.options.clip_multiple = 1;
      for (uint32_t step = 0; step < 2; ++step) {
        const std::vector<float> update = RandomUpdate(elements, step);
        ASSERT_TRUE(fresh.Step(update).ok());
        ASSERT_TRUE(many.Step(update).ok());
        EXPECT_GT(fresh.result.count, 0);
        EXPECT_EQ(std::memcmp(&many.result, &fresh.result, sizeof(strom_step_result)), 0);
      }
      EXPECT_EQ(many.Values(), fresh.Values());
      EXPECT_EQ(many.Residual(), fresh.Residual());
      ASSERT_EQ(many.exchange->sent.size(), fresh.exchange->sent.size());
      for (size_t i = 0; i < many.exchange->sent.size(); ++i) {
        EXPECT_EQ(*many.exchange->sent[i].update, *fresh.exchange->sent[i].update);
      }
      // Applying what others sent, too.
      Worker receiver(sizes, 2), threaded(sizes, 2);
      receiver.exchange->inbox = threaded.exchange->inbox = many.exchange->sent;
      ASSERT_TRUE(receiver.compression.Apply(receiver.Segments(false), &receiver.result).ok());
      ASSERT_TRUE(threaded.compression
                      .Apply(threaded.Segments(false), &threaded.result, OwnThreads(threads))
                      .ok());
      EXPECT_EQ(threaded.Values(), receiver.Values());
      EXPECT_EQ(threaded.Values(), many.Values());
    }
  }
}

TEST(CompressionState, NamesTheVariablesWhoseUpdateIsNotFiniteOnManyThreadsToo) {
  Worker worker({400'000, 10}, 1);
  worker.parallel = OwnThreads(3);
  std::vector<float> update(400'010, 1);
  update[140'000] = update[390'000] = std::nanf("");
  worker.after = worker.variables;
  for (size_t i = 0; i < 400'000; ++i) worker.after[0][i] += update[i];
  auto segments = worker.Segments(true);
  segments[0].name = "dense/kernel";
  const Status status =
      worker.compression.Step(segments, worker.options, &worker.result, worker.parallel);
  EXPECT_EQ(status.code, Code::kNotFinite);
  EXPECT_NE(status.message.find("'dense/kernel' is NaN or infinite in 2 of its 400000 elements, "
                                "first in element 140000; nothing was sent"),
            std::string::npos)
      << status.message;
  EXPECT_EQ(worker.exchange->submits, 0);
  EXPECT_EQ(worker.Values(), std::vector<float>(400'010, 0));
}

TEST(CompressionState, ASegmentThatOnlyReceivesIsNotSteppedOver) {
  // Two rows of a table step, the rest of it takes what another worker sends.
  const char* const name = "table";
  Worker other({12}, 2);
  ASSERT_TRUE(other.Step(std::vector<float>(12, 0.5f)).ok());
  auto exchange = std::make_shared<FakeExchange>(1);
  exchange->inbox = other.exchange->sent;
  CompressionState compression(kMessageBytes);
  ASSERT_TRUE(compression.Extend(12).ok());
  compression.Bind(exchange);
  std::vector<float> value(12, 1);
  const std::vector<float> before(12, 1);
  for (const size_t i : {2, 3, 8, 9}) value[i] += 0.25f;
  const auto row = [&](size_t i) {
    return strom_segment{int64_t(i),       2,   before.data() + i, value.data() + i,
                         value.data() + i, name};
  };
  const auto rest = [&](size_t i, int64_t size) {
    return strom_segment{int64_t(i), size, nullptr, nullptr, value.data() + i, name};
  };
  strom_step_options options{};
  options.scale = 1;
  options.threshold = 0.125f;
  options.apply_own = options.take_received = 1;
  strom_step_result result;
  ASSERT_TRUE(
      compression
          .Step(std::vector{rest(0, 2), row(2), rest(4, 4), row(8), rest(10, 2)}, options, &result)
          .ok());
  EXPECT_EQ(result.elements, 4);
  EXPECT_EQ(result.count, 4);
  EXPECT_EQ(result.sum_residual, 4 * 0.125);
  for (size_t i = 0; i < 12; ++i) {
    const bool stepped = i == 2 || i == 3 || i == 8 || i == 9;
    EXPECT_EQ(value[i], stepped ? 1.25f : 1.125f) << i;
  }

  value[8] = std::nanf("");
  const Status refused =
      compression.Step(std::vector{rest(0, 8), row(8), rest(10, 2)}, options, &result);
  EXPECT_EQ(refused.code, Code::kNotFinite);
  EXPECT_NE(refused.message.find("'table' is NaN or infinite in 1 of its 12 elements, first in "
                                 "element 8"),
            std::string::npos)
      << refused.message;
}

TEST(CompressionState, RefusesWhatItCannotDo) {
  Worker worker({10}, 1);
  const std::vector<float> update(10, 1);
  const auto refused = [&](auto change) {
    const strom_step_options good = worker.options;
    change(worker.options);
    const Code code = worker.Step(update).code;
    worker.options = good;
    return code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& options) { options.threshold = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.threshold = std::nanf(""); }));
  EXPECT_TRUE(refused([](auto& options) { options.scale = INFINITY; }));
  EXPECT_TRUE(refused([](auto& options) { options.clip_multiple = -1; }));
  EXPECT_TRUE(refused([](auto& options) { options.iteration = -1; }));
  EXPECT_TRUE(refused([](auto& options) { options.norm_limit = -1; }));
  EXPECT_TRUE(refused([](auto& options) { options.norm_limit = std::nanf(""); }));
  EXPECT_EQ(worker.compression.Extend(9).code, Code::kInvalidArgument);
  auto segments = worker.Segments(false);
  segments[0].offset = 1;
  EXPECT_EQ(worker.compression.Apply(segments, &worker.result).code, Code::kInvalidArgument);
}

// --- handing over

// A worker whose residual has everything: large, tiny and subnormal values, and zeros.
void FillResidual(Worker* worker, int64_t size) {
  std::vector<float> residual = RandomUpdate(size, 11);
  for (size_t i = 0; i < residual.size(); i += 7) residual[i] = 0;
  for (size_t i = 3; i < residual.size(); i += 101) residual[i] = 0x1.8p-140f;
  for (size_t i = 5; i < residual.size(); i += 97) residual[i] *= 0x1p40f;
  ASSERT_TRUE(worker->compression.WriteResidual(0, residual).ok());
}

std::vector<float> SumOf(int64_t size, const std::vector<ReceivedUpdate>& updates) {
  Worker other({size}, 2);
  other.exchange->inbox = updates;
  EXPECT_TRUE(other.compression.Apply(other.Segments(false), &other.result).ok());
  return other.Values();
}

TEST(HandOverResidual, OthersGetEveryBitOfItAndNothingIsLeft) {
  for (const bool sequenced : {false, true}) {
    constexpr int64_t kSize = 70'003;
    Worker worker({3, 60'000, 10'000}, 1, sequenced);
    FillResidual(&worker, kSize);
    const std::vector<float> before = worker.Residual();
    strom_residual_result result{};
    ASSERT_TRUE(worker.compression.HandOverResidual(17, &result).ok());
    EXPECT_EQ(SumOf(kSize, worker.exchange->sent), before);
    EXPECT_EQ(worker.Residual(), std::vector<float>(kSize, 0));
    double mass = 0;
    for (const float r : before) mass += std::fabs(static_cast<double>(r));
    EXPECT_EQ(result.mass, mass);
    EXPECT_EQ(result.elements, kSize - std::ranges::count(before, 0.0f));
    for (const ReceivedUpdate& update : worker.exchange->sent) {
      ParsedMessage message;
      ASSERT_TRUE(ParseMessage(update.message(), &message).ok());
      EXPECT_EQ(message.fields().iteration, 17);
    }

    // Again there is nothing more than the iteration to tell.
    worker.exchange->sent.clear();
    ASSERT_TRUE(worker.compression.HandOverResidual(17, &result).ok());
    EXPECT_EQ(result.mass, 0);
    ASSERT_EQ(worker.exchange->sent.size(), 1u);
    EXPECT_EQ(SumOf(kSize, worker.exchange->sent), std::vector<float>(kSize, 0));
  }
}

TEST(HandOverResidual, ALargeOneLeavesChunkByChunkAndInSequencedModesAsOneContribution) {
  constexpr int64_t kSize = (int64_t{2} << 21) + 5;
  for (const bool sequenced : {false, true}) {
    Worker worker({kSize}, 1, sequenced);
    FillResidual(&worker, kSize);
    const std::vector<float> before = worker.Residual();
    strom_residual_result result{};
    ASSERT_TRUE(worker.compression.HandOverResidual(0, &result).ok());
    EXPECT_EQ(worker.exchange->submits, sequenced ? 1 : 3);
    EXPECT_GT(worker.exchange->sent.size(), 3u);
    EXPECT_EQ(SumOf(kSize, worker.exchange->sent), before);
  }
}

TEST(HandOverResidual, WhatHasNeverBeenTouchedTakesNoBytes) {
  constexpr int64_t kSize = int64_t{64} << 20;
  Worker worker({kSize}, 1);
  const std::vector<float> row(64, 0.125f);
  ASSERT_TRUE(worker.compression.WriteResidual(kSize - 64, row).ok());
  strom_residual_result result{};
  ASSERT_TRUE(worker.compression.HandOverResidual(0, &result).ok());
  EXPECT_EQ(result.elements, 64);
  EXPECT_LT(result.message_bytes, 70'000);
}

TEST(HandOverResidual, WhatTheExchangeRefusesStays) {
  Worker worker({1000}, 1);
  FillResidual(&worker, 1000);
  const std::vector<float> before = worker.Residual();
  worker.exchange->fault = {Code::kBackPressure, "full"};
  strom_residual_result result{};
  EXPECT_EQ(worker.compression.HandOverResidual(0, &result).code, Code::kBackPressure);
  EXPECT_EQ(worker.Residual(), before);
  EXPECT_EQ(result.mass, 0);
}

TEST(HandOverResidual, AWorkersOwnModelStaysAsItIs) {
  Worker worker({1000}, 1);
  worker.BeFull();
  const std::vector<float> update = RandomUpdate(1000, 3);
  ASSERT_TRUE(worker.Step(update).ok());
  const std::vector<float> own = worker.Values(), left = worker.Residual();
  strom_residual_result result{};
  ASSERT_TRUE(worker.compression.HandOverResidual(0, &result).ok());
  EXPECT_EQ(worker.Values(), own);
  const std::vector<float> others = SumOf(1000, worker.exchange->sent);
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(others[i], own[i], 1e-6) << left[i];
}

}  // namespace
}  // namespace strom
