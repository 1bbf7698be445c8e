// The replication rules by themselves, and who may join.
#include "core/replication/replication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "core/master/membership.h"

namespace strom {
namespace {

using testing::HasSubstr;
using Verdict = Replication::Verdict;

Buffer Bytes100() { return MakeBuffer(std::vector<uint8_t>(100)); }

TEST(Replication, AcceptsEachOriginInCounterOrderOnceInAnyArrivalOrder) {
  std::mt19937_64 random(1);
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<UpdateId> arrivals;
    for (uint64_t origin = 1; origin <= 3; ++origin) {
      for (uint64_t counter = 1; counter <= 20; ++counter) {
        arrivals.insert(arrivals.end(), 1 + random() % 2, {origin, counter});
      }
    }
    std::shuffle(arrivals.begin(), arrivals.end(), random);
    Replication replication({});
    std::vector<Replication::Accepted> accepted;
    for (const UpdateId& id : arrivals) {
      (void)replication.Receive(0, 1, id, Bytes100(), &accepted);
    }
    VersionVector last;
    for (const auto& next : accepted) ASSERT_EQ(next.id.counter, ++last[next.id.origin]);
    EXPECT_EQ(accepted.size(), 60u);
    EXPECT_EQ(replication.hold_bytes(), 0);
  }
}

TEST(Replication, RemembersWhoSentAHeldUpdate) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  EXPECT_EQ(replication.Receive(0, 7, {1, 2}, Bytes100(), &accepted), Verdict::kHeld);
  EXPECT_EQ(replication.Receive(0, 8, {1, 1}, Bytes100(), &accepted), Verdict::kAccepted);
  ASSERT_EQ(accepted.size(), 2u);
  EXPECT_EQ(accepted[0].from, 8u);
  EXPECT_EQ(accepted[1].from, 7u);
}

TEST(Replication, WhatIsHeldGoesWithTheLastLinkThatItHasComeBy) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  for (const uint64_t counter : {2, 4}) {
    EXPECT_EQ(replication.Receive(0, 7, {1, counter}, Bytes100(), &accepted), Verdict::kHeld);
  }
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(replication.Receive(0, 8, {1, 2}, Bytes100(), &accepted), Verdict::kDuplicate);
  }
  replication.ForgetHeldFrom(7);
  EXPECT_EQ(replication.hold_bytes(), 100) << "who has sent it over link 8 does not say it again";
  replication.ForgetHeldFrom(8);
  EXPECT_EQ(replication.hold_bytes(), 0);
  EXPECT_EQ(replication.Receive(0, 9, {1, 1}, Bytes100(), &accepted), Verdict::kAccepted);
  EXPECT_EQ(replication.received(), (VersionVector{{1, 1}}));
  EXPECT_EQ(replication.Receive(0, 9, {1, 2}, Bytes100(), &accepted), Verdict::kAccepted);
}

TEST(Replication, HoldsNoMoreThanItsBound) {
  Replication replication({.hold_bytes = 250});
  std::vector<Replication::Accepted> accepted;
  EXPECT_EQ(replication.Receive(0, 1, {1, 3}, Bytes100(), &accepted), Verdict::kHeld);
  EXPECT_EQ(replication.Receive(0, 1, {1, 4}, Bytes100(), &accepted), Verdict::kHeld);
  EXPECT_EQ(replication.Receive(0, 1, {1, 5}, Bytes100(), &accepted), Verdict::kNoRoom);
}

TEST(Replication, KeepsWhatTheMasterLacksWhateverTheBound) {
  Replication replication({.ring_bytes = 150, .retention_ns = 10});
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter = 1; counter <= 10; ++counter) {
    (void)replication.Receive(0, 0, {1, counter}, Bytes100(), &accepted);
  }
  EXPECT_EQ(replication.retained(), 10);
  EXPECT_EQ(replication.UncoveredBytes(1), 1000);
  replication.SetMasterVector(0, {{1, 4}});
  EXPECT_EQ(replication.retained(), 6);
  std::vector<Buffer> missing;
  VersionVector theirs = {{1, 4}};
  EXPECT_TRUE(replication.Replay(Replication::Origins::kAll, 1 << 20, &theirs, &missing));
  EXPECT_EQ(missing.size(), 6u);
  EXPECT_EQ(theirs, replication.received());
  theirs = {{1, 2}};
  EXPECT_FALSE(replication.Replay(Replication::Origins::kAll, 1 << 20, &theirs, &missing))
      << "needs a snapshot";
}

TEST(Replication, ReplaysInPiecesAndAtLeastOneUpdateAtATime) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter = 1; counter <= 4; ++counter) {
    (void)replication.Receive(0, 0, {1, counter}, Bytes100(), &accepted);
    (void)replication.Receive(0, 0, {2, counter}, Bytes100(), &accepted);
  }
  VersionVector theirs = {{1, 1}};
  std::vector<size_t> pieces;
  for (const int64_t budget : {0, 250, 1000}) {
    std::vector<Buffer> missing;
    EXPECT_TRUE(replication.Replay(Replication::Origins::kAll, budget, &theirs, &missing));
    pieces.push_back(missing.size());
  }
  EXPECT_EQ(pieces, (std::vector<size_t>{1, 2, 4}));
  EXPECT_EQ(theirs, replication.received());
}

TEST(Replication, KeepsCoveredUpdatesForTheRetention) {
  Replication replication({.ring_bytes = 1000, .retention_ns = 10});
  std::vector<Replication::Accepted> accepted;
  (void)replication.Receive(100, 0, {1, 1}, Bytes100(), &accepted);
  replication.SetMasterVector(110, {{1, 1}});
  EXPECT_EQ(replication.retained(), 1);
  replication.SetMasterVector(111, {{1, 1}});
  EXPECT_EQ(replication.retained(), 0);
}

TEST(Replication, ACutDropsWhatItCoversAndReleasesWhatFollows) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter : {3, 5, 6, 9}) {
    (void)replication.Receive(0, 1, {1, counter}, Bytes100(), &accepted);
  }
  ASSERT_TRUE(accepted.empty());
  replication.InstallCut(0, {{1, 4}}, &accepted);
  ASSERT_EQ(accepted.size(), 2u);
  EXPECT_EQ(accepted[0].id.counter, 5u);
  EXPECT_EQ(replication.received(), (VersionVector{{1, 6}}));
  EXPECT_EQ(replication.hold_bytes(), 100);
}

TEST(Replication, WhatASnapshotWillNotContainStaysUntilItIsHere) {
  Replication replication({.ring_bytes = 200, .retention_ns = 10});
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter = 1; counter <= 4; ++counter) {
    (void)replication.Receive(0, 1, {1, counter}, Bytes100(), &accepted);
  }
  replication.SetMasterVector(0, {{1, 4}});
  EXPECT_EQ(replication.retained(), 2);
  replication.KeepBeyond(0, replication.master());
  for (uint64_t counter = 5; counter <= 9; ++counter) {
    (void)replication.Receive(0, 1, {1, counter}, Bytes100(), &accepted);
  }
  replication.SetMasterVector(100, {{1, 9}});
  EXPECT_EQ(replication.PinnedBytes(), 500);
  const auto beyond = replication.Beyond({{1, 6}}, Replication::Origins::kAll);
  ASSERT_TRUE(beyond);
  ASSERT_EQ(beyond->size(), 3u);
  EXPECT_EQ(beyond->front().id, (UpdateId{1, 7}));
  EXPECT_FALSE(replication.Beyond({{1, 3}}, Replication::Origins::kAll));  // its fourth has gone
  replication.KeepBeyond(100, std::nullopt);
  EXPECT_EQ(replication.retained(), 0);
}

TEST(Replication, AClosedOriginIsHeardNoMore) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  replication.Close(1);
  EXPECT_EQ(replication.Receive(0, 1, {1, 1}, Bytes100(), &accepted), Verdict::kClosed);
  EXPECT_TRUE(accepted.empty());
}

TEST(Replication, AStartRetiresTheEarlierOriginsThatItsCutDoesNotName) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  for (const UpdateId id : {UpdateId{1, 1}, {2, 1}, {2, 2}}) {
    (void)replication.Receive(0, 1, id, Bytes100(), &accepted);
  }
  replication.SetMasterVector(0, {{1, 1}, {2, 2}});
  replication.Close(2);
  replication.BeginGeneration();
  // Updates overtake START: of a new origin, of one that the cut names, and with a gap.
  (void)replication.Receive(0, 1, {3, 1}, Bytes100(), &accepted);
  (void)replication.Receive(0, 1, {1, 2}, Bytes100(), &accepted);
  (void)replication.Receive(0, 1, {3, 3}, Bytes100(), &accepted);
  replication.Retire({{1, 1}});
  EXPECT_EQ(replication.received(), (VersionVector{{1, 2}, {3, 1}}));
  EXPECT_EQ(replication.master(), (VersionVector{{1, 1}}));
  EXPECT_EQ(replication.retained(), 3);
  EXPECT_EQ(replication.ring_bytes(), 300);
  EXPECT_EQ(replication.hold_bytes(), 100);
  // A beacon from before START does not bring it back.
  replication.SetMasterVector(0, {{1, 2}, {2, 2}});
  EXPECT_EQ(replication.master(), (VersionVector{{1, 2}}));
  // Once is enough: another START of the same generation retires nobody.
  replication.Retire({});
  EXPECT_EQ(replication.received(), (VersionVector{{1, 2}, {3, 1}}));
}

TEST(Replication, AcceptsUpdatesOfSoManyOriginsOnly) {
  Replication replication({.max_origins = 2});
  std::vector<Replication::Accepted> accepted;
  EXPECT_EQ(replication.Receive(0, 1, {1, 1}, Bytes100(), &accepted), Verdict::kAccepted);
  EXPECT_EQ(replication.Receive(0, 1, {2, 1}, Bytes100(), &accepted), Verdict::kAccepted);
  EXPECT_EQ(replication.Receive(0, 1, {3, 1}, Bytes100(), &accepted), Verdict::kTooManyOrigins);
  EXPECT_EQ(replication.Receive(0, 1, {2, 2}, Bytes100(), &accepted), Verdict::kAccepted);
  EXPECT_EQ(replication.received().size(), 2u);
}

// ------------------------------------------------------------------------------- merged updates

// A master's part in it, where merged updates of origins 1, 2, ... come up.
class MergingMaster {
 public:
  explicit MergingMaster(const ReplicationOptions& options = {}) : replication(options) {
    replication.KeepOfMasterOnly(true);
  }
  Verdict Receive(const UpdateRanges& ranges, int64_t now_ns = 0) {
    return replication.ReceiveMerged(now_ns, 1, ranges, Bytes100(), &accepted);
  }
  Verdict Receive(const UpdateId& id, int64_t now_ns = 0) {
    return replication.Receive(now_ns, 1, id, Bytes100(), &accepted);
  }

  Replication replication;
  std::vector<Replication::Accepted> accepted;
};

TEST(Replication, AMergedUpdateIsAcceptedWholeAndKeptForNobody) {
  MergingMaster master;
  EXPECT_EQ(master.Receive({{1, 0, 3, 0}, {4, 0, 1, 0}}), Verdict::kAccepted);
  EXPECT_EQ(master.replication.received(), (VersionVector{{1, 3}, {4, 1}}));
  ASSERT_EQ(master.accepted.size(), 1u);
  EXPECT_EQ(master.accepted[0].id, (UpdateId{1, 3}));
  EXPECT_EQ(master.replication.retained(), 0);
  EXPECT_EQ(master.Receive(UpdateId{MasterOrigin(1), 1}), Verdict::kAccepted);
  EXPECT_EQ(master.replication.retained(), 1);
}

TEST(Replication, AMergedUpdateThatIsHereAlreadyIsADuplicateAndNobodyIsAsked) {
  MergingMaster master;
  (void)master.Receive({{1, 0, 3, 0}, {4, 0, 1, 0}});
  EXPECT_EQ(master.Receive({{1, 1, 3, 0}, {4, 0, 1, 0}}), Verdict::kDuplicate);
  EXPECT_EQ(master.accepted.size(), 1u);
  EXPECT_TRUE(master.replication.TakeRefused().empty());
}

TEST(Replication, AMergedUpdateThatIsEarlyWaitsUntilAllOfItFollows) {
  MergingMaster master;
  EXPECT_EQ(master.Receive({{1, 2, 3, 0}, {2, 1, 2, 0}}), Verdict::kHeld);
  EXPECT_EQ(master.replication.hold_bytes(), 100);
  EXPECT_TRUE(master.replication.holds_any());
  EXPECT_EQ(master.Receive(UpdateId{2, 1}), Verdict::kAccepted);
  EXPECT_EQ(master.Receive({{1, 0, 2, 0}}), Verdict::kAccepted);
  ASSERT_EQ(master.accepted.size(), 3u);
  EXPECT_EQ(master.accepted.back().id, (UpdateId{1, 3}));
  EXPECT_EQ(master.replication.received(), (VersionVector{{1, 3}, {2, 2}}));
  EXPECT_EQ(master.replication.hold_bytes(), 0);
  EXPECT_FALSE(master.replication.holds_any());
}

TEST(Replication, OneHeldMergedUpdateReleasesThoseAndThePlainOnesThatFollowOnIt) {
  MergingMaster master;
  (void)master.Receive({{1, 2, 3, 0}, {2, 2, 3, 0}});
  (void)master.Receive(UpdateId{2, 5});
  (void)master.Receive({{1, 1, 2, 0}, {2, 1, 2, 0}});
  (void)master.Receive({{2, 3, 4, 0}});
  ASSERT_TRUE(master.accepted.empty());
  EXPECT_EQ(master.Receive({{1, 0, 1, 0}, {2, 0, 1, 0}}), Verdict::kAccepted);
  EXPECT_EQ(master.replication.received(), (VersionVector{{1, 3}, {2, 5}}));
  EXPECT_EQ(master.accepted.size(), 5u);
  EXPECT_EQ(master.replication.hold_bytes(), 0);
}

TEST(Replication, AMergedUpdateOfWhichAPartIsHereIsRefusedAndTheRestIsNamed) {
  MergingMaster master;
  (void)master.Receive({{1, 0, 3, 0}});
  const UpdateRanges ranges = {{1, 1, 3, 5}, {2, 0, 2, 6}, {3, 4, 6, 7}};
  EXPECT_EQ(master.Receive(ranges), Verdict::kRefused);
  EXPECT_EQ(master.replication.received(), (VersionVector{{1, 3}}));
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{2, 0, 2, 6}, {3, 4, 6, 7}}));
  EXPECT_TRUE(master.replication.TakeRefused().empty()) << "once";
  EXPECT_EQ(master.Receive({{1, 2, 5, 0}, {2, 0, 1, 0}}), Verdict::kRefused);
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{1, 3, 5, 0}, {2, 0, 1, 0}}));
}

TEST(Replication, WhatIsHeldIsRefusedOnceAPartOfItHasComeByAnotherWay) {
  MergingMaster master;
  (void)master.Receive({{1, 1, 3, 0}, {2, 0, 1, 0}});
  (void)master.Receive({{1, 0, 2, 0}});
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{1, 2, 3, 0}, {2, 0, 1, 0}}));
  EXPECT_EQ(master.replication.hold_bytes(), 0);
}

TEST(Replication, AMergedUpdateForWhichThereIsNoRoomIsAskedForAgain) {
  MergingMaster master({.hold_bytes = 250});
  EXPECT_EQ(master.Receive({{1, 1, 2, 0}}), Verdict::kHeld);
  EXPECT_EQ(master.Receive({{1, 2, 3, 0}}), Verdict::kHeld);
  EXPECT_EQ(master.Receive({{1, 3, 4, 0}, {2, 0, 1, 0}}), Verdict::kRefused);
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{1, 3, 4, 0}, {2, 0, 1, 0}}));
  EXPECT_EQ(master.replication.hold_bytes(), 200);
}

TEST(Replication, OfAClosedOriginNothingIsTakenAndTheOthersSayTheirsAgain) {
  MergingMaster master;
  master.replication.Close(1);
  EXPECT_EQ(master.Receive({{1, 0, 1, 0}, {2, 0, 1, 0}}), Verdict::kRefused);
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{2, 0, 1, 0}}));
  EXPECT_TRUE(master.replication.received().empty());
}

TEST(Replication, GapsAreWhatIsMissingBeforeThatWhichHasWaited) {
  MergingMaster master;
  (void)master.Receive(UpdateId{1, 1});
  (void)master.Receive({{1, 4, 5, 0}, {2, 0, 1, 0}}, 10);
  (void)master.Receive({{1, 3, 4, 0}, {3, 7, 9, 0}}, 10);
  (void)master.Receive(UpdateId{4, 2}, 20);
  EXPECT_TRUE(master.replication.Gaps(9).empty());
  EXPECT_EQ(master.replication.Gaps(10), (UpdateRanges{{1, 1, 3, 0}, {3, 0, 7, 0}}));
  EXPECT_EQ(master.replication.Gaps(20), (UpdateRanges{{1, 1, 3, 0}, {3, 0, 7, 0}, {4, 0, 1, 0}}));
}

TEST(Replication, WhatWaitsForTheLostIsRefusedAndTheRestWaitsOn) {
  MergingMaster master;
  (void)master.Receive({{1, 1, 2, 0}, {2, 0, 1, 0}});
  (void)master.Receive({{2, 1, 2, 0}, {3, 1, 2, 0}});
  master.replication.RefuseHeld(1);
  EXPECT_EQ(master.replication.TakeRefused(), (UpdateRanges{{1, 1, 2, 0}, {2, 0, 1, 0}}));
  EXPECT_EQ(master.replication.hold_bytes(), 100);
  (void)master.Receive(UpdateId{3, 1});
  EXPECT_EQ(master.Receive(UpdateId{2, 1}), Verdict::kAccepted);
  EXPECT_EQ(master.replication.received(), (VersionVector{{2, 2}, {3, 2}}));
}

TEST(Replication, HeldMergedUpdatesDoNotComeIntoTheNextGeneration) {
  MergingMaster master;
  (void)master.Receive({{1, 1, 2, 0}});
  (void)master.Receive({{1, 0, 1, 0}, {2, 1, 2, 0}});
  master.replication.BeginGeneration();
  EXPECT_EQ(master.replication.hold_bytes(), 0);
  EXPECT_FALSE(master.replication.holds_any());
  EXPECT_TRUE(master.replication.TakeRefused().empty());
}

// Every way in which messages may be merged, lost and come twice: what is refused or lies in a gap
// is said again by itself, and in the end each update has been accepted once.
TEST(Replication, AcceptsEveryUpdateOnceHoweverTheyAreMergedAndLost) {
  std::mt19937_64 random(2);
  constexpr uint64_t kOrigins = 4, kUpdates = 15;
  for (int run = 0; run < 500; ++run) {
    std::vector<UpdateRanges> arrivals;
    VersionVector said;
    while (said.size() < kOrigins || arrivals.size() < kOrigins * kUpdates) {
      UpdateRanges ranges;
      for (uint64_t origin = 1; origin <= kOrigins; ++origin) {
        const uint64_t more = random() % 3, from = said[origin];
        if (more > 0) ranges.push_back({origin, from, said[origin] = from + more, 0});
      }
      if (ranges.empty()) continue;
      const size_t times = random() % 3;  // lost, or come by two ways
      for (size_t i = 0; i < times; ++i) arrivals.push_back(ranges);
      if (random() % 4 == 0) arrivals.push_back({ranges[0]});
    }
    for (size_t i = 0; i + 1 < arrivals.size(); ++i) {
      if (random() % 2 == 0) std::swap(arrivals[i], arrivals[i + 1]);
    }
    MergingMaster master({.hold_bytes = run % 2 == 0 ? 1000 : 1 << 20});
    std::deque<UpdateRanges> left(arrivals.begin(), arrivals.end());
    VersionVector ends;
    const auto note = [&](const UpdateRanges& ranges) {
      for (const UpdateRange& range : ranges) {
        ends[range.origin] = std::max(ends[range.origin], range.to);
      }
    };
    for (const UpdateRanges& ranges : arrivals) note(ranges);
    while (!left.empty()) {
      (void)master.Receive(left.front());
      left.pop_front();
      for (const UpdateRange& again : master.replication.TakeRefused()) {
        for (uint64_t next = again.from + 1; next <= again.to; ++next) {
          (void)master.Receive(UpdateId{again.origin, next});
        }
      }
      if (!left.empty() && random() % 4 != 0) continue;
      for (const UpdateRange& gap : master.replication.Gaps(0)) {
        for (uint64_t next = gap.from + 1; next <= gap.to; ++next) {
          (void)master.Receive(UpdateId{gap.origin, next});
        }
      }
    }
    for (const auto& [origin, end] : ends) {
      for (uint64_t next = 1; next <= end; ++next) (void)master.Receive(UpdateId{origin, next});
    }
    ASSERT_EQ(master.replication.received(), ends) << run;
    ASSERT_EQ(master.replication.hold_bytes(), 0) << run;
    VersionVector accepted;
    for (const Replication::Accepted& next : master.accepted) {
      ASSERT_GT(next.id.counter, accepted[next.id.origin]) << run;
      accepted[next.id.origin] = next.id.counter;
    }
  }
}

TEST(Replication, AWorkerKeepsItsOwnUntilTheyArePublishedThoughTheMasterHoldsThem) {
  constexpr uint64_t kOwn = 7, kMaster = MasterOrigin(1);
  Replication replication({.ring_bytes = 150, .retention_ns = 10});
  replication.KeepUnpublished(kOwn);
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter = 1; counter <= 4; ++counter) {
    (void)replication.Receive(0, 0, {kOwn, counter}, Bytes100(), &accepted);
  }
  replication.SetMasterVector(100, {{kOwn, 4}});
  EXPECT_EQ(replication.retained(), 4);
  EXPECT_NE(replication.Find({kOwn, 1}), nullptr);
  EXPECT_EQ(replication.published(), 0u);
  (void)replication.Receive(100, 1, {kMaster, 1}, Bytes100(), &accepted);
  replication.InstallCut(100, {{kMaster, 1}, {kOwn, 3}, {8, 5}}, &accepted);
  EXPECT_EQ(replication.published(), 3u);
  replication.SetMasterVector(200, {{kMaster, 1}});
  EXPECT_EQ(replication.Find({kOwn, 3}), nullptr);
  EXPECT_NE(replication.Find({kOwn, 4}), nullptr);
  EXPECT_EQ(replication.retained(), 1);
  EXPECT_EQ(replication.received(), (VersionVector{{kOwn, 4}, {8, 5}, {kMaster, 1}}));
}

TEST(Replication, SaysWhichOwnUpdatesTheMasterHasLackedForLong) {
  Replication replication({});
  std::vector<Replication::Accepted> accepted;
  std::vector<Buffer> own;
  for (uint64_t counter = 1; counter <= 4; ++counter) {
    own.push_back(Bytes100());
    (void)replication.Receive(static_cast<int64_t>(counter), 0, {7, counter}, own.back(),
                              &accepted);
  }
  replication.SetMasterVector(5, {{7, 1}});
  EXPECT_EQ(replication.Uncovered(7, 4), (std::vector<Buffer>{own[1], own[2]}));
  EXPECT_TRUE(replication.Uncovered(7, 2).empty());
  EXPECT_TRUE(replication.Uncovered(8, 9).empty());
}

TEST(Replication, AnswersForTheOriginsThatAreAskedOf) {
  using Origins = Replication::Origins;
  constexpr uint64_t kMaster = MasterOrigin(1), kOwn = kMaster + 1, kOther = kMaster + 2;
  Replication replication({});
  replication.KeepUnpublished(kOwn);
  std::vector<Replication::Accepted> accepted;
  for (const uint64_t origin : {kMaster, kOwn, kOther}) {
    (void)replication.Receive(0, 1, {origin, 1}, Bytes100(), &accepted);
  }
  const auto replayed = [&](Origins origins) {
    VersionVector theirs;
    std::vector<Buffer> missing;
    EXPECT_TRUE(replication.Replay(origins, 1000, &theirs, &missing));
    EXPECT_EQ(missing.size(), theirs.size());
    EXPECT_TRUE(replication.HasAll(origins, theirs));
    return theirs;
  };
  EXPECT_EQ(replayed(Origins::kOfMaster), (VersionVector{{kMaster, 1}}));
  EXPECT_EQ(replayed(Origins::kOfWorkers), (VersionVector{{kOwn, 1}, {kOther, 1}}));
  EXPECT_EQ(replayed(Origins::kAll).size(), 3u);
  EXPECT_FALSE(replication.HasAll(Origins::kOfWorkers, {{kOwn, 1}, {kMaster, 1}}));
  const auto beyond = replication.Beyond({}, Origins::kApplied);
  ASSERT_TRUE(beyond);
  ASSERT_EQ(beyond->size(), 2u);
  EXPECT_EQ((*beyond)[0].id, (UpdateId{kMaster, 1}));
  EXPECT_EQ((*beyond)[1].id, (UpdateId{kOwn, 1}));
  // What is here by a publication alone is in no ring, and nobody who asks for others minds.
  replication.InstallCut(0, {{kOther, 9}}, &accepted);
  EXPECT_FALSE(replication.ReachesBackTo(Origins::kAll, {}));
  EXPECT_TRUE(replication.ReachesBackTo(Origins::kOfMaster, {}));
  EXPECT_TRUE(replication.ReachesBackTo(Origins::kApplied, {}));
}

TEST(Replication, AnotherMasterCountsFromItsOwnCutWhatIsPublished) {
  constexpr uint64_t kOwn = 7;
  Replication replication({.ring_bytes = 50, .retention_ns = 10});
  replication.KeepUnpublished(kOwn);
  std::vector<Replication::Accepted> accepted;
  for (uint64_t counter = 1; counter <= 3; ++counter) {
    (void)replication.Receive(0, 0, {kOwn, counter}, Bytes100(), &accepted);
  }
  replication.InstallCut(0, {{kOwn, 2}}, &accepted);
  replication.Reset({{kOwn, 1}}, kOwn);
  EXPECT_EQ(replication.published(), 1u);
  EXPECT_EQ(replication.received(), (VersionVector{{kOwn, 3}}));
  replication.SetMasterVector(100, {{kOwn, 3}});
  EXPECT_NE(replication.Find({kOwn, 2}), nullptr) << "the lost one's publications count no more";
}

// ------------------------------------------------------------------------------- joining

Hello HelloOf(int32_t rank, uint8_t instance, int32_t attempt = 0) {
  Hello hello;
  hello.rank = rank;
  hello.size = 2;
  hello.attempt = attempt;
  hello.instance[0] = instance;
  return hello;
}

// The refusal, or "" and the link is a member.
std::string JoinOver(Membership* membership, LinkId link, const Hello& hello, uint64_t* origin) {
  const std::string refusal = membership->Judge(0, link, {}, hello, origin);
  if (refusal.empty()) (void)membership->LinkUp(0, link);
  return refusal;
}

TEST(Membership, RefusesInWordsThatNameTheRemedy) {
  Membership membership(2, 1, 0);
  uint64_t origin = 0;
  ASSERT_EQ(JoinOver(&membership, 1, HelloOf(0, 1), &origin), "");
  Hello hello = HelloOf(1, 2);
  hello.version = 99;
  EXPECT_THAT(JoinOver(&membership, 2, hello, &origin), HasSubstr("protocol version 99"));
  hello = HelloOf(1, 2);
  hello.size = 3;
  EXPECT_THAT(JoinOver(&membership, 2, hello, &origin), HasSubstr("the master for 2"));
  EXPECT_THAT(JoinOver(&membership, 2, HelloOf(2, 2), &origin), HasSubstr("out of range"));
  EXPECT_THAT(JoinOver(&membership, 2, HelloOf(0, 2), &origin), HasSubstr("already taken"));
  hello = HelloOf(1, 2);
  hello.max_staleness = 0;
  EXPECT_THAT(JoinOver(&membership, 2, hello, &origin),
              HasSubstr("worker 1 uses max_staleness=0 but worker 0 uses None"));
}

TEST(Membership, OriginsCarryTheEpochAndAreNeverReused) {
  Membership membership(2, 7, 0);
  uint64_t first = 0, second = 0;
  ASSERT_EQ(JoinOver(&membership, 1, HelloOf(0, 1), &first), "");
  ASSERT_EQ(JoinOver(&membership, 2, HelloOf(1, 2), &second), "");
  EXPECT_EQ(first >> 32, 7u);
  EXPECT_NE(first, second);
}

TEST(Membership, AStartForgetsWhoWasReplaced) {
  Membership membership(2, 2, 0);
  uint64_t other = 0, adopted = 0, replaced = 0, member = 0, waiting = 0, later = 0;
  const uint64_t unheard = (uint64_t{1} << 32) + 9;
  EXPECT_TRUE(membership.MayReturn(unheard)) << "one of an earlier master's, whose rank is free";
  ASSERT_EQ(JoinOver(&membership, 1, HelloOf(0, 1), &other), "");
  Hello of_earlier_master = HelloOf(1, 2);
  of_earlier_master.origin = (uint64_t{1} << 32) + 7;
  ASSERT_EQ(JoinOver(&membership, 2, of_earlier_master, &adopted), "");
  ASSERT_EQ(adopted, of_earlier_master.origin);
  ASSERT_EQ(JoinOver(&membership, 3, HelloOf(1, 3, 1), &replaced), "");
  ASSERT_EQ(JoinOver(&membership, 4, HelloOf(1, 4, 2), &member), "");
  ASSERT_EQ(membership.Judge(0, 5, {}, HelloOf(1, 5, 3), &waiting), "");
  for (const uint64_t origin : {other, adopted, replaced, member, waiting}) {
    EXPECT_TRUE(membership.IsKnown(origin));
  }
  EXPECT_TRUE(membership.MayReturn(member));
  EXPECT_FALSE(membership.MayReturn(replaced));
  EXPECT_FALSE(membership.MayReturn(adopted));
  membership.ForgetReplaced();
  EXPECT_FALSE(membership.IsKnown(adopted));
  EXPECT_FALSE(membership.IsKnown(replaced));
  ASSERT_EQ(JoinOver(&membership, 6, HelloOf(1, 6, 4), &later), "");
  // What they have sent may still be on its way, whoever has their rank by now.
  for (const uint64_t origin : {other, member, waiting, later}) {
    EXPECT_TRUE(membership.IsKnown(origin));
  }
  EXPECT_FALSE(membership.IsKnown(later + 1));
  membership.ForgetReplaced();
  EXPECT_FALSE(membership.IsKnown(member));
  EXPECT_TRUE(membership.IsKnown(later));
}

TEST(Membership, TheSameProcessResumesAndAHigherAttemptSupersedes) {
  Membership membership(2, 1, 0);
  uint64_t first = 0, resumed = 0, superseding = 0, late = 0;
  ASSERT_EQ(JoinOver(&membership, 1, HelloOf(0, 1), &first), "");
  ASSERT_EQ(JoinOver(&membership, 2, HelloOf(0, 1), &resumed), "");
  EXPECT_EQ(first, resumed);
  ASSERT_EQ(JoinOver(&membership, 3, HelloOf(0, 9, 1), &superseding), "");
  EXPECT_NE(first, superseding);
  EXPECT_THAT(JoinOver(&membership, 4, HelloOf(0, 1), &late), HasSubstr("superseded by attempt 1"));
}

TEST(Membership, WhoComesBackFromAnotherAddressIsReachedThere) {
  Membership membership(2, 1, 0);
  uint64_t origin = 0;
  Address address;
  address.port = 1;
  for (LinkId link = 1; link <= 2; ++link) {
    address.ip[15] = static_cast<uint8_t>(link);
    ASSERT_EQ(membership.Judge(0, link, address, HelloOf(0, 1), &origin), "");
    EXPECT_EQ(membership.LinkUp(0, link).resumed, link == 2);
    EXPECT_EQ(membership.FindRank(0)->address, address);
  }
}

TEST(Membership, AReplayedHelloAloneSupersedesNobody) {
  Membership membership(2, 1, 0);
  uint64_t origin = 0;
  ASSERT_EQ(JoinOver(&membership, 1, HelloOf(0, 1), &origin), "");
  ASSERT_EQ(membership.Judge(0, 2, {}, HelloOf(0, 9, 1), &origin), "");
  EXPECT_EQ(membership.FindRank(0)->link, 1u);
  EXPECT_EQ(membership.FindRank(0)->attempt, 0);
}

}  // namespace
}  // namespace strom
