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

strom_method Rounds(int32_t bfloat16 = 0) {
  strom_method method{};
  method.kind = STROM_SPARKNET;
  method.phases = 1;
  method.bfloat16 = bfloat16;
  return method;
}

TEST(JointModelTest, ARoundsMeanHasTheSameBitsInWhateverOrderValuesCome) {
  // The sum of these goes by its order.
  const std::vector<float> values = {1e30f, 1.0f, -1e30f, 3e-8f};
  std::vector<std::vector<float>> means;
  for (const std::vector<int32_t>& order :
       {std::vector<int32_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    JointModel model(Rounds(), std::vector<float>(1000, 5.0f));
    for (const int32_t rank : order) {
      for (int64_t part = 0; part < model.last_part(0); ++part) {
        const auto size = static_cast<size_t>(model.part(part).size);
        model.Keep(part, rank, std::vector<float>(size, values[static_cast<size_t>(rank)]));
      }
    }
    model.Update(0);
    means.push_back(model.joint());
  }
  EXPECT_EQ(means[1], means[0]);
  EXPECT_EQ(means[2], means[0]);
  EXPECT_THAT(means[0], Each(static_cast<float>(3e-8f / 4.0)));
}

TEST(JointModelTest, ASmallModelHasSeveralPartsTooAndARoundHasMore) {
  EXPECT_EQ(PartElements(Mpca(1), 225034), 28128);
  EXPECT_EQ(JointModel(Mpca(1), std::vector<float>(225034)).last_part(0), 9);
  EXPECT_EQ(PartElements(Mpca(1), 5), 16);
  EXPECT_EQ(PartElements(Mpca(1), int64_t{1} << 40), kPartElements);
  EXPECT_EQ(PartElements(Rounds(), 225034) % 16, 0);
  EXPECT_EQ(JointModel(Rounds(), std::vector<float>(225034)).last_part(0), 17);
  EXPECT_EQ(PartElements(Rounds(), 5), 16);
  EXPECT_EQ(PartElements(Rounds(), int64_t{1} << 40), 1 << 16);
}

TEST(JointModelTest, UntilARoundEndsTheModelIsTheOneBefore) {
  JointModel model(Rounds(), std::vector<float>(32, 7.0f));
  model.Keep(0, 0, std::vector<float>(16, 1.0f));
  model.UpdatePart(0);
  EXPECT_THAT(model.joint(), Each(7.0f));
  model.UpdatePart(1);
  model.EndCycle(0);
  EXPECT_EQ(model.joint()[0], 1.0f);
  EXPECT_EQ(model.joint()[31], 7.0f);  // nobody has given it
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
  // Of a size on the wire that no int64_t holds.
  const int64_t negative = std::numeric_limits<int64_t>::min();
  EXPECT_FALSE(CheckPlan({Mpca(2), {{1, 40}}}, negative).ok());
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
