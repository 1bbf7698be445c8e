// A worker's side of training on a joint model, face to face with a test that plays the network:
// what is copied, installed and pulled, and in which order.
#include "core/joint/local_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/joint/joint_model.h"

namespace strom {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSize = 96;

class Played final : public JointExchange {
 public:
  struct Gift {
    uint64_t mark;
    int64_t iteration;
    int64_t steps;
    std::vector<float> values;
  };
  JointOrders TakeOrders() override { return orders.Take(); }
  void Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) override {
    given.push_back({mark, iteration, steps, std::move(values)});
  }
  void BeginGradient(int64_t, GrowingGradient values) override {
    if (fails) throw std::bad_alloc();
    growing = std::move(values);
  }
  void GivePart(int64_t part) override { parts.push_back(part); }
  void EndGradient(int64_t iteration, GrowingGradient values) override {
    EXPECT_EQ(values, growing);
    given.push_back({0, iteration, 1, *values});
  }
  void AskJoint() override { ++questions; }
  void AwaitJoint(int64_t, std::function<void(Status)>) override {}
  JointValues TakeJoint() override { return std::exchange(joint, nullptr); }

  JointOrders orders;
  std::vector<Gift> given;
  bool fails = false;  // to begin a gradient
  GrowingGradient growing;
  std::vector<int64_t> parts;  // that were given early
  JointValues joint;
  int questions = 0;
};

strom_method Mpca(int32_t phases) {
  strom_method method{};
  method.kind = STROM_MPCA;
  method.phases = phases;
  method.weighted = 1;
  method.alpha = .5;
  method.beta = 1;
  return method;
}

JointValues Filled(int64_t size, float value) {
  return std::make_shared<const std::vector<float>>(static_cast<size_t>(size), value);
}

class LocalModelTest : public testing::Test {
 protected:
  void Begin(const strom_method& method, int32_t rank = 0, int32_t workers = 1) {
    model.Begin(exchange, kSize, method, rank, workers);
  }
  // In two pieces, so that shards and variables do not end together.
  std::vector<LocalPiece> Pieces() {
    return {{std::span(x).first(40), "kernel"}, {std::span(x).subspan(40), "bias"}};
  }
  Status Step(int64_t iteration = 0) {
    now_ns += 1'000'000;
    return model.Step(Pieces(), iteration, now_ns, {}, &result);
  }
  Status Install() { return model.Install(Pieces(), now_ns += 1'000'000, {}, &result); }

  std::vector<float> x = std::vector<float>(kSize, 1.0f);
  std::shared_ptr<Played> exchange = std::make_shared<Played>();
  LocalModel model;
  strom_pull_result result{};
  int64_t now_ns = 1;
};

TEST_F(LocalModelTest, GivesASnapshotOfTheAskedShardWithTheStepsBehindIt) {
  Begin(Mpca(3));
  ASSERT_TRUE(Step(0).ok());
  ASSERT_TRUE(Step(1).ok());
  exchange->orders.asked = 4;  // shard 1: elements 32 to 64
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  ASSERT_TRUE(Step(2).ok());
  ASSERT_THAT(exchange->given, SizeIs(1));
  EXPECT_EQ(exchange->given[0].mark, 4u);
  EXPECT_EQ(exchange->given[0].iteration, 2);
  EXPECT_EQ(exchange->given[0].steps, 3);
  ASSERT_THAT(exchange->given[0].values, SizeIs(32));
  EXPECT_EQ(exchange->given[0].values.front(), 32);
  EXPECT_EQ(exchange->given[0].values.back(), 63);
  // Each shard counts for itself.
  exchange->orders.asked = 5;
  ASSERT_TRUE(Step(3).ok());
  exchange->orders.asked = 7;
  ASSERT_TRUE(Step(4).ok());
  EXPECT_EQ(exchange->given[1].steps, 4);
  EXPECT_EQ(exchange->given[2].steps, 2);
}

TEST_F(LocalModelTest, CopiesBeforeItInstallsAndPullsWhatHasATarget) {
  Begin(Mpca(3));
  exchange->orders.asked = 0;
  exchange->orders.alpha = .5;
  exchange->orders.targets.push_back({0, Filled(32, 3)});
  ASSERT_TRUE(Step().ok());
  EXPECT_THAT(exchange->given[0].values, Each(1.0f));
  EXPECT_EQ(x[0], 2);
  EXPECT_EQ(x[31], 2);
  EXPECT_EQ(x[32], 1);
  EXPECT_EQ(result.shards, 1);
  EXPECT_EQ(result.distance, 32 * 4);
  EXPECT_EQ(result.target, 32 * 9);
  ASSERT_TRUE(Step().ok());  // in every step
  EXPECT_EQ(x[0], 2.5);
}

TEST_F(LocalModelTest, WithoutAPullTheParametersKeepTheirBits) {
  Begin(Mpca(2));
  x[5] = -0.0f;
  const std::vector<float> before = x;
  exchange->orders.targets.push_back({0, Filled(48, 3)});
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ(x, before);
  EXPECT_TRUE(std::signbit(x[5]));
}

TEST_F(LocalModelTest, ASnapshotThatIsNotFiniteIsNotSentAndTheThirdIsAnError) {
  Begin(Mpca(1));
  x[50] = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t tick = 0; tick < 2; ++tick) {
    exchange->orders.asked = tick;
    EXPECT_TRUE(Step().ok());
  }
  exchange->orders.asked = 2;
  const Status third = Step();
  EXPECT_EQ(third.code, Code::kNotFinite);
  EXPECT_THAT(third.message, HasSubstr("bias"));
  ASSERT_THAT(exchange->given, SizeIs(3));
  for (const Played::Gift& gift : exchange->given) EXPECT_THAT(gift.values, IsEmpty());
}

TEST_F(LocalModelTest, SparkNetWaitsForTheMeanAndTakesIt) {
  strom_method method{};
  method.kind = STROM_SPARKNET;
  method.phases = 1;
  method.steps = 2;
  Begin(method);
  exchange->orders.round = 6;
  ASSERT_TRUE(Step(0).ok());
  EXPECT_EQ(result.waits, 0);
  ASSERT_TRUE(Step(1).ok());
  EXPECT_EQ(result.waits, 1);
  ASSERT_THAT(exchange->given, SizeIs(1));
  EXPECT_EQ(exchange->given[0].mark, 6u);
  EXPECT_EQ(exchange->given[0].steps, 2);
  EXPECT_FALSE(Step(2).ok()) << "not before the mean has been installed";
  exchange->joint = Filled(kSize, 9);
  ASSERT_TRUE(Install().ok());
  EXPECT_THAT(x, Each(9.0f));
}

TEST_F(LocalModelTest, AnElasticExchangeKeepsTheSumOfBoth) {
  strom_method method{};
  method.kind = STROM_EASGD;
  method.phases = 1;
  method.steps = 1;
  method.alpha = .25;
  Begin(method);
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ(exchange->questions, 1);
  exchange->joint = Filled(kSize, 5);
  ASSERT_TRUE(Install().ok());
  EXPECT_THAT(x, Each(2.0f));  // 1 - .25 (1 - 5)
  JointModel joint(method, std::vector<float>(kSize, 5));
  joint.Move(0, exchange->given[0].values);
  EXPECT_THAT(joint.joint(), Each(4.0f));
}

TEST_F(LocalModelTest, WorkersBeginTheirOwnExchangesAtDifferentSteps) {
  strom_method method{};
  method.kind = STROM_EASGD;
  method.phases = 1;
  method.steps = 8;
  std::vector<int> first;
  for (int32_t rank = 0; rank < 4; ++rank) {
    Begin(method, rank, 4);
    int steps = 0;
    do {
      ASSERT_TRUE(Step().ok());
      ++steps;
    } while (result.waits == 0);
    first.push_back(steps);
  }
  EXPECT_THAT(first, ElementsAre(2, 4, 6, 8));
}

TEST_F(LocalModelTest, TheLastSnapshotIsOfEveryShard) {
  Begin(Mpca(3));
  ASSERT_TRUE(Step(0).ok());
  exchange->orders.asked = 1;
  ASSERT_TRUE(Step(1).ok());
  exchange->given.clear();
  ASSERT_TRUE(model.Finish(x, 1).ok());
  ASSERT_THAT(exchange->given, SizeIs(3));
  EXPECT_EQ(exchange->given[0].steps, 2);
  EXPECT_EQ(exchange->given[1].steps, 0);
  EXPECT_EQ(exchange->given[2].mark, LastMark(2));
}

TEST_F(LocalModelTest, SaysWhatOfTheLastSnapshotWasNotFiniteAndGivesTheRest) {
  Begin(Mpca(3));
  ASSERT_TRUE(Step(0).ok());
  x[40] = std::numeric_limits<float>::quiet_NaN();  // in the second of three shards of 32
  const Status finished = model.Finish(x, 0);
  EXPECT_EQ(finished.code, Code::kNotFinite);
  EXPECT_THAT(finished.message, HasSubstr("1 of its 3 shards"));
  ASSERT_THAT(exchange->given, SizeIs(3));
  EXPECT_THAT(exchange->given[0].values, SizeIs(32));
  EXPECT_THAT(exchange->given[1].values, IsEmpty());
  EXPECT_THAT(exchange->given[2].values, SizeIs(32));
}

TEST_F(LocalModelTest, SegmentsThatDoNotCoverTheJointModelAreRefused) {
  Begin(Mpca(1));
  std::vector<LocalPiece> pieces = Pieces();
  pieces.pop_back();
  EXPECT_EQ(model.Step(pieces, 0, 1, {}, &result).code, Code::kInvalidArgument);
}

TEST_F(LocalModelTest, AStepWhoseExchangeIsVoidEndsWithItsOwnParameters) {
  for (const int32_t kind : {STROM_SPARKNET, STROM_EASGD, STROM_EASGD_SYNCHRONOUS}) {
    strom_method method{};
    method.kind = kind;
    method.phases = 1;
    method.alpha = method.beta = .5;
    method.steps = 2;
    Begin(method);
    for (int exchange_number = 0; exchange_number < 2; ++exchange_number) {
      ASSERT_TRUE(Step().ok());
      ASSERT_FALSE(result.waits);
      ASSERT_TRUE(Step().ok());
      ASSERT_TRUE(result.waits);
      ASSERT_TRUE(Install().ok());  // nothing has come
      EXPECT_EQ(result.shards, 0);
      EXPECT_THAT(x, Each(1.0f));
    }
    ASSERT_TRUE(Step().ok());
    ASSERT_TRUE(Step().ok());
    exchange->joint = Filled(kSize, 3);
    ASSERT_TRUE(Install().ok());
    EXPECT_EQ(result.shards, 1);
    EXPECT_THAT(x, Each(kind == STROM_SPARKNET ? 3.0f : 2.0f));
    x.assign(x.size(), 1);
  }
}

class PenaltyTest : public LocalModelTest {
 protected:
  void SetUp() override { model.Begin(exchange, kSize, Mpca(3), 0, 1, PullKind::kGradient); }
  std::vector<PenalizedPiece> Gradients() {
    return {{std::span(gradient).first(40), std::span(x).first(40), 0},
            {std::span(gradient).subspan(40), std::span(x).subspan(40), 40}};
  }

  std::vector<float> gradient = std::vector<float>(kSize, .25f);
};

TEST_F(PenaltyTest, ThePullIsAPartOfTheGradientsWhereAShardHasATarget) {
  exchange->orders.alpha = .5;
  exchange->orders.targets.push_back({1, Filled(32, 3)});  // elements 32 to 64
  ASSERT_TRUE(Step().ok());
  EXPECT_THAT(x, Each(1.0f));  // no step of its own
  EXPECT_EQ(result.distance, 32 * 4);
  EXPECT_EQ(result.alpha, .5);
  ASSERT_TRUE(model.Penalize(Gradients(), {}).ok());
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(gradient[i], i < 32 || i >= 64 ? .25f : .25f + .5f * (1 - 3)) << i;
  }
}

TEST_F(PenaltyTest, WithoutAPullGradientsKeepTheirBits) {
  gradient[5] = -0.0f;
  exchange->orders.targets.push_back({0, Filled(32, 3)});
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(model.Penalize(Gradients(), {}).ok());
  EXPECT_TRUE(std::signbit(gradient[5]));
}

TEST_F(PenaltyTest, GradientsOutsideOfTheJointModelAreRefused) {
  std::vector<PenalizedPiece> pieces = Gradients();
  pieces.back().offset = 41;
  EXPECT_EQ(model.Penalize(pieces, {}).code, Code::kInvalidArgument);
  pieces.back() = {std::span(gradient).first(3), std::span(x).first(2), 0};
  EXPECT_EQ(model.Penalize(pieces, {}).code, Code::kInvalidArgument);
  Begin(Mpca(3));
  EXPECT_THAT(model.Penalize(Gradients(), {}).message, HasSubstr("no part of the gradients"));
}

class GradientsTest : public LocalModelTest {
 protected:
  GradientsTest() {
    strom_method method{};
    method.kind = STROM_SPARKNET;
    method.phases = 1;
    method.steps = 1;
    method.gradients = 1;
    Begin(method);
  }
  // Of elements 8 to 24.
  Status Give(float value, float rate = .25f) {
    const std::vector<float> gradient(16, value);
    const GradientPiece<const float> piece{gradient, 8, "kernel"};
    return model.GiveGradient({&piece, 1}, rate, 7, now_ns += 1'000'000, {});
  }
  Status Take(bool may_overflow = false) {
    const GradientPiece<float> piece{std::span(mean), 8, "kernel"};
    return model.TakeGradient({&piece, 1}, may_overflow, now_ns += 1'000'000, {}, &rate);
  }

  std::vector<float> mean = std::vector<float>(16);
  float rate = 0;
};

TEST_F(GradientsTest, AreZeroWhereThereIsNoneAndTheRateGoesWithThem) {
  ASSERT_TRUE(Give(3).ok());
  ASSERT_THAT(exchange->given, SizeIs(1));
  const std::vector<float>& values = exchange->given[0].values;
  ASSERT_THAT(values, SizeIs(kSize + 1));
  EXPECT_EQ(std::count(values.begin(), values.end() - 1, 3.0f), 16);
  EXPECT_EQ(std::count(values.begin(), values.end() - 1, 0.0f), kSize - 16);
  EXPECT_EQ(values[8], 3);
  EXPECT_EQ(values.back(), .25f);
  EXPECT_EQ(exchange->given[0].iteration, 7);
}

TEST_F(GradientsTest, BecomeTheMeanAndTheModelIsLeftToTheOptimizer) {
  ASSERT_TRUE(Give(3).ok());
  exchange->joint = Filled(kSize + 1, .5f);
  ASSERT_TRUE(Take().ok());
  EXPECT_THAT(mean, Each(.5f));
  EXPECT_EQ(rate, .5f);
  ASSERT_TRUE(Step(7).ok());
  EXPECT_EQ(result.waits, 0);
  EXPECT_EQ(result.exchanges, 1);
  EXPECT_THAT(x, Each(1.0f));
  EXPECT_THAT(exchange->given, SizeIs(1));
}

TEST_F(GradientsTest, AMeanThatIsNotFiniteIsRefusedUnlessTheOptimizerLeavesOutTheStep) {
  ASSERT_TRUE(Give(std::numeric_limits<float>::infinity()).ok());
  exchange->joint = Filled(kSize + 1, std::numeric_limits<float>::infinity());
  const Status refused = Take();
  EXPECT_EQ(refused.code, Code::kNotFinite);
  EXPECT_THAT(refused.message, HasSubstr("mean gradient of kernel"));
  ASSERT_TRUE(Give(1).ok());
  exchange->joint = Filled(kSize + 1, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(Take(/*may_overflow=*/true).ok());
}

TEST_F(GradientsTest, PartsLeaveOnceAllThatIsInThemIsThere) {
  const std::vector<float> gradient(kSize, 3), other(kSize, 5);
  const auto piece = [](const std::vector<float>& values, size_t first, size_t size) {
    return GradientPiece<const float>{std::span(values).subspan(first, size),
                                      static_cast<int64_t>(first), "kernel"};
  };
  // Parts are of 16 elements.
  const GradientPiece<const float> last = piece(gradient, 40, 56);
  ASSERT_TRUE(model.GiveEarly({&last, 1}, .25f, 7, {}).ok());
  EXPECT_THAT(exchange->parts, ElementsAre(3, 4, 5));
  const GradientPiece<const float> middle = piece(gradient, 20, 20);
  ASSERT_TRUE(model.GiveEarly({&middle, 1}, .25f, 7, {}).ok());
  EXPECT_THAT(exchange->parts, ElementsAre(3, 4, 5, 2));
  EXPECT_EQ(exchange->growing->back(), .25f);
  // A step that has failed is made again: what may have left stays as it was.
  const GradientPiece<const float> again = piece(other, 20, 20);
  ASSERT_TRUE(model.GiveEarly({&again, 1}, .5f, 7, {}).ok());
  EXPECT_THAT(exchange->parts, SizeIs(4));
  const std::vector<GradientPiece<const float>> all = {piece(other, 0, 10), again,
                                                       piece(other, 40, 56)};
  ASSERT_TRUE(model.GiveGradient(all, .5f, 8, now_ns += 1'000'000, {}).ok());
  ASSERT_THAT(exchange->given, SizeIs(1));
  std::vector<float> expected(10, 5.0f);
  expected.resize(20, 0.0f);
  expected.resize(kSize, 3.0f);
  expected.push_back(.25f);
  EXPECT_EQ(exchange->given[0].values, expected);
  EXPECT_EQ(exchange->given[0].iteration, 8);
  EXPECT_EQ(model.GiveEarly({&last, 1}, .25f, 9, {}).code, Code::kInvalidArgument);
}

TEST_F(GradientsTest, WhatAStepThatFailedHasGivenStaysWhereTheNextOneHasOtherVariables) {
  const std::vector<float> gradient(kSize, 3);
  const GradientPiece<const float> early{std::span(gradient).subspan(40, 30), 40, "of one"};
  ASSERT_TRUE(model.GiveEarly({&early, 1}, .25f, 7, {}).ok());
  ASSERT_TRUE(Give(5).ok());
  std::vector<float> expected(kSize, 0.0f);
  std::fill_n(expected.begin() + 8, 16, 5.0f);
  std::fill_n(expected.begin() + 40, 30, 3.0f);
  expected.push_back(.25f);
  EXPECT_EQ(exchange->given[0].values, expected);
}

TEST_F(GradientsTest, AVariableWithoutElementsHidesNoOther) {
  const std::vector<float> gradient(kSize, 3);
  const GradientPiece<const float> none{{}, 8, "empty"};
  ASSERT_TRUE(model.GiveEarly({&none, 1}, .25f, 7, {}).ok());
  ASSERT_TRUE(Give(5).ok());
  EXPECT_EQ(exchange->given[0].values[8], 5);
}

// Of memory that runs out as a gradient is begun nothing is left behind.
TEST_F(GradientsTest, AStepThatFoundNoMemoryIsFollowedByAnother) {
  exchange->fails = true;
  EXPECT_THROW(static_cast<void>(Give(3)), std::bad_alloc);
  exchange->fails = false;
  ASSERT_TRUE(Give(5).ok());
  EXPECT_THAT(exchange->given[0].values, SizeIs(kSize + 1));
}

TEST_F(GradientsTest, AStepWithoutTheMeanIsRefused) {
  EXPECT_EQ(Take().code, Code::kInvalidArgument);
  ASSERT_TRUE(Give(3).ok());
  EXPECT_EQ(Give(3).code, Code::kInvalidArgument);
  EXPECT_EQ(Take().code, Code::kMasterLost);
}

}  // namespace
}  // namespace strom
