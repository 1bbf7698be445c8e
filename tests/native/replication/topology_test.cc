// The tree keeps its bounds and loses nobody, whatever happens in whatever order.
#include "core/replication/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace strom {
namespace {

HostToken Host(uint8_t number) {
  HostToken token{};
  token[0] = number;
  return token;
}

void ExpectWhole(const Tree& tree, const TreeBounds& bounds, const std::set<NodeId>& live) {
  const std::vector<NodeId> reached = tree.FromTheTop();
  EXPECT_EQ(std::set<NodeId>(reached.begin(), reached.end()), live);
  EXPECT_EQ(reached.size(), live.size()) << "somebody hangs at two places";
  EXPECT_LE(static_cast<int64_t>(tree.children(kMasterNode).size()), bounds.max_children);
  for (const NodeId node : reached) {
    EXPECT_TRUE(tree.children(tree.parent(node)).contains(node));
    EXPECT_LE(static_cast<int64_t>(tree.children(node).size()), bounds.max_children);
    EXPECT_LE(tree.depth(node), bounds.max_depth);
    EXPECT_EQ(tree.depth(node), tree.depth(tree.parent(node)) + 1);
  }
}

TEST(Topology, KeepsItsBoundsAndReachesEveryLiveNodeInRandomSequences) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const TreeBounds bounds{static_cast<int32_t>(pick(1, 4)), static_cast<int32_t>(pick(1, 5))};
    Tree tree(bounds, Host(0));
    std::set<NodeId> live;
    NodeId next = 1;
    uint64_t version = tree.version();
    for (int event = 0; event < 60; ++event) {
      const auto any = [&] { return *std::next(live.begin(), pick(0, std::ssize(live) - 1)); };
      if (live.empty() || pick(0, 9) < 5) {
        const bool fits = std::ssize(live) < bounds.capacity();
        EXPECT_EQ(tree.Join(next, Host(static_cast<uint8_t>(pick(0, 3)))), fits);
        if (!fits) continue;
        live.insert(next++);
      } else if (pick(0, 3) == 0) {
        tree.Move(any());
      } else if (pick(0, 3) == 0) {
        const NodeId node = any();
        tree.MoveUnderMaster(node);
        EXPECT_EQ(tree.parent(node), kMasterNode);
      } else {
        const NodeId gone = any();
        tree.Leave(gone);
        live.erase(gone);
      }
      EXPECT_GT(tree.version(), version);
      version = tree.version();
      ExpectWhole(tree, bounds, live);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Topology, PlainPutsEverybodyUnderTheMaster) {
  Tree tree({}, Host(0));
  for (NodeId node = 1; node <= 100; ++node) ASSERT_TRUE(tree.Join(node, Host(1)));
  EXPECT_EQ(tree.children(kMasterNode).size(), 100u);
  tree.Leave(50);
  EXPECT_EQ(tree.children(kMasterNode).size(), 99u);
}

TEST(Topology, NodesOfOneHostSitTogether) {
  Tree tree({.max_children = 8, .max_depth = 5}, Host(0));
  for (NodeId node = 1; node <= 12; ++node) {
    ASSERT_TRUE(tree.Join(node, Host(static_cast<uint8_t>(1 + node % 3))));
  }
  int crossing = 0;
  for (NodeId node = 1; node <= 12; ++node) {
    const NodeId parent = tree.parent(node);
    crossing += parent == kMasterNode || parent % 3 != node % 3 ? 1 : 0;
  }
  EXPECT_EQ(crossing, 3);  // one link a host
}

TEST(Topology, TheFirstChildOfAFailedNodeInheritsTheOthers) {
  Tree tree({.max_children = 3, .max_depth = 3}, Host(0));
  for (NodeId node = 1; node <= 6; ++node) ASSERT_TRUE(tree.Join(node, Host(node < 4 ? 0 : 1)));
  // 1, 2, 3 under the master; 4 under 1, 5 and 6 with it.
  ASSERT_EQ(tree.parent(4), 1u);
  ASSERT_EQ(tree.parent(5), 4u);
  ASSERT_EQ(tree.parent(6), 4u);
  tree.Leave(4);
  EXPECT_EQ(tree.parent(5), 1u) << "the master is full, 1 is the nearest with room";
  EXPECT_EQ(tree.parent(6), 5u);
  tree.Leave(3);
  tree.Leave(1);
  EXPECT_EQ(tree.parent(5), kMasterNode);
  EXPECT_EQ(tree.parent(6), 5u);
}

TEST(Topology, ALeafTakesTheFailedPlaceWhereASubtreeFitsNowhere) {
  Tree tree({.max_children = 2, .max_depth = 3}, Host(0));
  for (NodeId node = 1; node <= 14; ++node) ASSERT_TRUE(tree.Join(node, Host(9)));
  std::set<NodeId> live;
  for (NodeId node = 2; node <= 14; ++node) live.insert(node);
  tree.Leave(1);
  ExpectWhole(tree, {.max_children = 2, .max_depth = 3}, live);
}

TEST(Topology, ANodeThatLostItsParentGoesElsewhere) {
  Tree tree({.max_children = 2, .max_depth = 3}, Host(0));
  for (NodeId node = 1; node <= 3; ++node) ASSERT_TRUE(tree.Join(node, Host(0)));
  ASSERT_EQ(tree.parent(3), 1u);
  tree.Move(3);
  EXPECT_EQ(tree.parent(3), 2u);
  tree.Move(3);
  EXPECT_EQ(tree.parent(3), 2u) << "no other place is left";
}

TEST(Topology, WhoLacksMuchTakesThePlaceOfWhoJoinedLastUnderTheMaster) {
  Tree tree({.max_children = 2, .max_depth = 4}, Host(0));
  for (NodeId node = 1; node <= 5; ++node)
    ASSERT_TRUE(tree.Join(node, Host(static_cast<uint8_t>(node))));
  // 1 and 2 under the master; 3 and 4 under 1, 5 under 2.
  ASSERT_EQ(tree.parent(4), 1u);
  ASSERT_EQ(tree.parent(5), 2u);
  tree.MoveUnderMaster(4);
  EXPECT_EQ(tree.parent(4), kMasterNode);
  EXPECT_EQ(tree.parent(1), kMasterNode);
  EXPECT_EQ(tree.parent(2), 1u) << "the nearest with room";
  EXPECT_EQ(tree.parent(5), 2u) << "whoever is below goes with it";
  tree.MoveUnderMaster(3);
  EXPECT_EQ(tree.parent(3), kMasterNode);
  EXPECT_EQ(tree.parent(4), 1u);
}

TEST(Topology, InAFullTreeWhoLacksMuchAndAChildOfTheMasterChangePlaces) {
  Tree tree({.max_children = 2, .max_depth = 2}, Host(0));
  for (NodeId node = 1; node <= 6; ++node)
    ASSERT_TRUE(tree.Join(node, Host(static_cast<uint8_t>(node))));
  ASSERT_EQ(tree.children(1), (std::set<NodeId>{3, 4}));
  ASSERT_EQ(tree.children(2), (std::set<NodeId>{5, 6}));
  tree.MoveUnderMaster(3);
  EXPECT_EQ(tree.children(kMasterNode), (std::set<NodeId>{1, 3}));
  EXPECT_EQ(tree.children(3), (std::set<NodeId>{5, 6}));
  EXPECT_EQ(tree.children(1), (std::set<NodeId>{2, 4}));
  tree.MoveUnderMaster(5);  // a child of the one that it changes places with
  EXPECT_EQ(tree.children(kMasterNode), (std::set<NodeId>{1, 5}));
  EXPECT_EQ(tree.children(5), (std::set<NodeId>{3, 6}));
}

TEST(Topology, AThousandNodesFitFarWithinTheBounds) {
  const TreeBounds bounds{.max_children = 8, .max_depth = 5};
  EXPECT_EQ(bounds.capacity(), 37448);
  Tree tree(bounds, Host(0));
  std::set<NodeId> live;
  for (NodeId node = 1; node <= 1000; ++node) {
    ASSERT_TRUE(tree.Join(node, Host(static_cast<uint8_t>(node % 250))));
    live.insert(node);
  }
  ExpectWhole(tree, bounds, live);
}

}  // namespace
}  // namespace strom
