// The bounds of what the sequencer holds of members that keep none. The order of STEPs is judged by
// the simulator.
#include "core/replication/sequencer.h"

#include <gtest/gtest.h>

#include <vector>

namespace strom {
namespace {

constexpr Stepper kFirst{0, 1}, kSecond{1, 2};

class SequencerTest : public testing::Test {
 protected:
  void Add(const Stepper& who, bool last_part, size_t bytes = 100) {
    const UpdateId id{who.origin, ++counters_[who]};
    sequencer.Add(who, {id, MakeBuffer(std::vector<uint8_t>(bytes))}, last_part);
  }

  Sequencer sequencer{{{kFirst, 0}, {kSecond, 0}},
                      {.parts = 3, .step_ids = 4, .queued_bytes = 1000, .open_bytes = 250}};

 private:
  std::map<Stepper, uint64_t> counters_;
};

TEST_F(SequencerTest, FindsWhoSendsMorePartsThanAStepCanName) {
  for (int i = 0; i < 3; ++i) Add(kFirst, false);
  EXPECT_FALSE(sequencer.FindExcess());
  Add(kFirst, false);
  const auto excess = sequencer.FindExcess();
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->who, kFirst);
  EXPECT_TRUE(excess->of_parts);
  sequencer.Lose(kFirst);
  EXPECT_FALSE(sequencer.FindExcess());
  EXPECT_EQ(sequencer.queued_bytes(), 0);
}

TEST_F(SequencerTest, FindsWhoHasMostQueuedAndNotWhoCameLast) {
  for (int i = 0; i < 9; ++i) Add(kFirst, true);
  Add(kSecond, false);
  EXPECT_FALSE(sequencer.FindExcess());  // 1000 bytes
  Add(kSecond, false, 1);
  const auto excess = sequencer.FindExcess();
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->who, kFirst);
  sequencer.Lose(kFirst);
  sequencer.Discard(kFirst);
  EXPECT_FALSE(sequencer.FindExcess());
  EXPECT_EQ(sequencer.queued_bytes(), 101);
}

TEST_F(SequencerTest, IncompleteContributionsOfTheLostDoNotAddUp) {
  for (uint64_t origin = 10; origin < 10'010; ++origin) {
    const Stepper who{1, origin};
    sequencer.Join(who, 0);
    Add(who, false);
    sequencer.Lose(who);
  }
  EXPECT_LE(sequencer.queued_bytes(), 250);
  // Nobody waits for them, and what still comes of one that has gone is no contribution.
  sequencer.Lose(kSecond);
  Add({1, 10}, true);
  Add(kFirst, true);
  const auto step = sequencer.NextStep();
  ASSERT_TRUE(step);
  ASSERT_EQ(step->size(), 1u);
  EXPECT_EQ(step->front().id.origin, kFirst.origin);
}

TEST_F(SequencerTest, WhatACompleteContributionLacksMayComeAfterItsOriginWasLost) {
  Add(kSecond, false);
  sequencer.Lose(kSecond);
  Add(kSecond, true);
  Add(kFirst, true);
  const auto step = sequencer.NextStep();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->size(), 3u);
  EXPECT_EQ(sequencer.queued_bytes(), 0);
}

TEST_F(SequencerTest, AStepNamesNoMoreThanAMessageHoldsHoweverManyAreLost) {
  for (uint64_t origin = 10; origin < 20; ++origin) {
    sequencer.Join({1, origin}, 0);
    Add({1, origin}, true);
    sequencer.Lose({1, origin});
  }
  sequencer.Lose(kSecond);
  size_t named = 0;
  for (int i = 0; i < 4; ++i) {
    Add(kFirst, true);
    const auto step = sequencer.NextStep();
    ASSERT_TRUE(step);
    EXPECT_LE(step->size(), 4u);
    named += step->size();
  }
  EXPECT_EQ(named, 14u);
}

}  // namespace
}  // namespace strom
