// Places in the tree as the master gives them: to whom they are told, and what moves with them.
#include <gtest/gtest.h>

#include "core/replication/topology.h"
#include "scripted_master.h"

namespace strom {
namespace {

// Ranks 0 and 1 under the master, 2 under rank 0.
const MasterNodeOptions kTree = {
    .topology = Topology::kMesh, .max_children = 2, .merging = Merging::kOff};

TEST(PlacesTest, WhoLacksWhatItsParentDoesNotKeepGetsItUnderTheMaster) {
  Master master(3, kTree);
  master.Start();
  const auto before = master.links.Last<TreePlace>(3);
  ASSERT_TRUE(before);
  ASSERT_EQ(before->parent, Master::Origin(1));
  master.Update(1, {Master::Origin(1), 1});
  EXPECT_EQ(master.links.Updates(3), 0);
  master.Say(3, Orphan{before->version, 1, "it keeps no longer what this worker lacks"});
  const auto place = master.links.Last<TreePlace>(3);
  EXPECT_GT(place->version, before->version);
  EXPECT_EQ(place->parent, kMasterNode);
  EXPECT_EQ(master.links.Last<TreePlace>(2)->parent, Master::Origin(1)) << "it has made room";
  master.Say(3, Attach{1, {}});
  EXPECT_EQ(master.links.Updates(3), 1);
}

}  // namespace
}  // namespace strom
