// From whose replica another master goes on, and how long it waits for the workers.
#include "core/master/master_resumption.h"

#include <gtest/gtest.h>

namespace strom {
namespace {

constexpr int64_t kTimeout = 1'000'000'000;
constexpr uint64_t kFirst = 11, kSecond = 12, kThird = 13;

AskResume Resume(uint64_t origin, VersionVector applied, uint64_t kept_after = 0) {
  AskResume resume;
  resume.layout = {1, 2, 3};
  resume.origin = origin;
  resume.applied = std::move(applied);
  resume.kept_after = kept_after;
  return resume;
}

TEST(Resumption, AsksAtOnceWhereAllAreHere) {
  Resumption resumption(2, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {{kFirst, 3}, {kSecond, 4}}));
  EXPECT_FALSE(resumption.TakeQuestion(0));
  resumption.Add(0, 1, Resume(kSecond, {{kFirst, 3}, {kSecond, 5}}));
  const auto question = resumption.TakeQuestion(0);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->rank, 1);  // it has applied most
}

TEST(Resumption, WaitsTwoTimeoutsForOthersButNotForOneThatComesAgain) {
  Resumption resumption(3, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {}));
  EXPECT_FALSE(resumption.TakeQuestion(2 * kTimeout - 1));
  resumption.Add(2 * kTimeout - 1, 1, Resume(kSecond, {}));  // another may come as late after it
  resumption.Withdraw(0);
  resumption.Add(4 * kTimeout - 2, 0, Resume(kFirst, {}));
  EXPECT_FALSE(resumption.TakeQuestion(4 * kTimeout - 2));
  EXPECT_TRUE(resumption.TakeQuestion(4 * kTimeout - 1));
}

TEST(Resumption, PrefersAReplicaThatLeavesNobodyBehind) {
  Resumption resumption(2, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {{kFirst, 90}, {kSecond, 1}}));
  resumption.Add(0, 1, Resume(kSecond, {{kFirst, 2}, {kSecond, 5}}, /*kept_after=*/2));
  const auto question = resumption.TakeQuestion(0);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->rank, 1);  // the first lacks what the second keeps no longer
}

TEST(Resumption, AsksAnotherWhereOneDoesNotAnswerAndTakesTheFirstWholeAnswer) {
  Resumption resumption(2, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {{kFirst, 3}}));
  resumption.Add(0, 1, Resume(kSecond, {{kFirst, 2}}));
  const auto first = resumption.TakeQuestion(0);
  ASSERT_TRUE(first);
  EXPECT_FALSE(resumption.TakeQuestion(kTimeout - 1));
  const auto second = resumption.TakeQuestion(kTimeout);
  ASSERT_TRUE(second);
  EXPECT_NE(second->rank, first->rank);
  resumption.AddParameters(first->rank, first->ask.number, {1, 2, 3});  // not of the layout's size
  resumption.AddCut(second->rank, {1, second->ask.number, {{kFirst, 2}}});
  EXPECT_FALSE(resumption.TakeWhole());
  resumption.AddParameters(second->rank, second->ask.number, {1, 2});
  const auto whole = resumption.TakeWhole();
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->rank, second->rank);
  EXPECT_EQ(whole->cut, (VersionVector{{kFirst, 2}}));
}

// Half an answer to a question that nobody has put is none: a training without parameters would go
// on from it.
TEST(Resumption, NothingIsTakenThatWasNotAskedFor) {
  Resumption resumption(2, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {{kFirst, 3}}));
  resumption.AddCut(0, {1, 0, {{kFirst, 3}}});
  EXPECT_FALSE(resumption.TakeWhole());
  resumption.Add(0, 1, Resume(kSecond, {{kFirst, 2}}));
  const auto question = resumption.TakeQuestion(0);
  ASSERT_TRUE(question);
  resumption.AddCut(question->rank, {1, 0, {{kFirst, 3}}});
  EXPECT_FALSE(resumption.TakeWhole());
  resumption.AddCut(question->rank, {1, question->ask.number, {{kFirst, 3}}});
  resumption.AddParameters(question->rank, question->ask.number, {1, 2});
  EXPECT_TRUE(resumption.TakeWhole());
}

TEST(Resumption, CountsWhatIsDropped) {
  Resumption resumption(2, kTimeout);
  resumption.Add(0, 0, Resume(kFirst, {{kFirst, 9}, {kThird, 7}}));
  resumption.Add(0, 1, Resume(kSecond, {{kFirst, 4}, {kThird, 9}}));
  // The third is gone; what the first has made it sends again.
  EXPECT_EQ(resumption.DroppedBeyond({{kFirst, 4}, {kThird, 6}}, {kFirst, kSecond}), 3u);
}

}  // namespace
}  // namespace strom
