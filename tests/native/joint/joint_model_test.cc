// The joint model's parts and shards, and which plans are none. The rules themselves are compared
// with NumPy in tests/sharing/test_joint_model_rules.py.
#include "core/joint/joint_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace strom {
namespace {

using testing::Each;
using testing::HasSubstr;

strom_method Mpca(int32_t phases) {
  strom_method method{};
  method.kind = STROM_MPCA;
  method.phases = phases;
  method.weighted = 1;
  method.beta = 1;
  return method;
}

JointPlan PlanOf(strom_method method, int64_t size) { return {method, {{0, size}}}; }

TEST(JointModelTest, ShardsAreCutAtMultiplesOfSixteenAndCoverAll) {
  for (const int64_t size : {48, 49, 100, 1000, 786483}) {
    for (int32_t shards = 1; shards <= 3; ++shards) {
      int64_t end = 0;
      for (int32_t shard = 0; shard < shards; ++shard) {
        const ElementRange range = ShardOf(size, shards, shard);
        EXPECT_EQ(range.offset, end);
        EXPECT_EQ(range.offset % 16, 0);
        EXPECT_GE(range.size, 16);
        end = range.end();
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(JointModelTest, ASnapshotOfWhichAPartIsMissingCountsInTheOthers) {
  JointModel model(Mpca(1), std::vector<float>(2 * kPartElements, 0.0f));
  const std::vector<float> ones(kPartElements, 1.0f), threes(kPartElements, 3.0f);
  model.Add(0, ones, 2);
  model.Add(kPartElements, ones, 2);
  model.Add(0, threes, 2);  // its sender is lost before the second part
  model.Update(0);
  EXPECT_THAT(std::vector<float>(model.joint().begin(), model.joint().begin() + kPartElements),
              Each(2.0f));
  EXPECT_THAT(std::vector<float>(model.joint().begin() + kPartElements, model.joint().end()),
              Each(1.0f));
}

TEST(JointModelTest, WithoutStepsNothingChangesAndNoCycleEnds) {
  JointModel model(Mpca(1), std::vector<float>(32, 7.0f));
  model.Add(0, std::vector<float>(32, 1.0f), 0);
  model.Update(0);
  EXPECT_THAT(model.joint(), Each(7.0f));
  EXPECT_EQ(model.cycles(), 0);
}

TEST(JointModelTest, FromACheckpointTheSchedulesGoOn) {
  strom_method method = Mpca(1);
  method.beta = .5;
  method.alpha = .05;
  method.start_alpha = .5;
  method.free_cycles = 2;
  method.start_cycles = method.ramp_cycles = 20;
  JointModel model(method, std::vector<float>(32, 8.0f));
  EXPECT_EQ(model.alpha(), 0);
  model.BeginAfter(40);
  EXPECT_DOUBLE_EQ(model.alpha(), .05);
  model.Add(0, std::vector<float>(32, 2.0f), 1);
  model.Update(0);
  EXPECT_THAT(model.joint(), Each(5.0f));
  EXPECT_EQ(model.cycles(), 41);
  model.BeginAfter(-1);
  EXPECT_EQ(model.cycles(), 0);
}

TEST(JointModelTest, AfterAnotherMasterTheFirstMeanTakesThePlaceOfWhatIsThere) {
  strom_method method = Mpca(1);
  method.beta = .5;
  JointModel model(method, std::vector<float>(32, 8.0f));
  model.Restart(40);
  model.Add(0, std::vector<float>(32, 2.0f), 1);
  model.Update(0);
  EXPECT_THAT(model.joint(), Each(2.0f));
  EXPECT_EQ(model.cycles(), 41);
  model.Add(0, std::vector<float>(32, 4.0f), 1);
  model.Update(0);
  EXPECT_THAT(model.joint(), Each(3.0f));
}

TEST(JointPlanTest, RefusesNumbersOutOfTheirRangesByName) {
  const auto refused = [](strom_method method) {
    const Status status = CheckPlan(PlanOf(method, 96), 96);
    EXPECT_FALSE(status.ok());
    return status.message;
  };
  strom_method method = Mpca(4);
  EXPECT_THAT(refused(method), HasSubstr("phases"));
  method = Mpca(3);
  method.alpha = 1.5;
  EXPECT_THAT(refused(method), HasSubstr("alpha"));
  method.alpha = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refused(method), HasSubstr("alpha"));
  method = Mpca(3);
  method.beta = 0;
  EXPECT_THAT(refused(method), HasSubstr("beta"));
  method = Mpca(3);
  method.gamma = 2.5;
  EXPECT_THAT(refused(method), HasSubstr("gamma"));
  method = Mpca(3);
  method.delta = 1;
  EXPECT_THAT(refused(method), HasSubstr("delta"));
  method = Mpca(3);
  method.steps = -1;
  EXPECT_THAT(refused(method), HasSubstr("steps"));
  method = Mpca(3);
  method.kind = 9;
  EXPECT_THAT(refused(method), HasSubstr("kind"));
}

TEST(JointPlanTest, RefusesRangesOutsideTheFlatSpaceAndModelsTooSmallToCut) {
  const auto is_refused = [](std::vector<ElementRange> ranges) {
    return !CheckPlan({Mpca(2), std::move(ranges)}, 100).ok();
  };
  EXPECT_FALSE(is_refused({{0, 40}, {60, 40}}));
  EXPECT_TRUE(is_refused({{0, 40}, {60, 41}}));
  EXPECT_TRUE(is_refused({{0, 40}, {30, 40}}));
  EXPECT_TRUE(is_refused({{-1, 40}}));
  EXPECT_TRUE(is_refused({{0, 40}, {50, 0}}));
  EXPECT_TRUE(is_refused({{0, std::numeric_limits<int64_t>::max()}}));
  const Status small = CheckPlan(PlanOf(Mpca(3), 47), 47);
  EXPECT_THAT(small.message, HasSubstr("at least 48"));
}

TEST(JointPlanTest, GathersAndScattersItsRanges) {
  const JointPlan plan{Mpca(1), {{1, 2}, {4, 1}}};
  std::vector<float> flat = {0, 1, 2, 3, 4, 5}, joint;
  Gather(plan, flat, &joint);
  EXPECT_EQ(joint, (std::vector<float>{1, 2, 4}));
  Scatter(plan, std::vector<float>{7, 8, 9}, &flat);
  EXPECT_EQ(flat, (std::vector<float>{0, 7, 8, 3, 9, 5}));
}

}  // namespace
}  // namespace strom
