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

// A worker says hello over `link`, which leads to it at this last byte of its address.
void Come(Master* master, LinkId link, int32_t rank, uint8_t ip) {
  master->links.peers[link].ip.back() = ip;
  Hello hello{.rank = rank, .size = 3, .port = 4000};
  hello.instance.fill(static_cast<uint8_t>(rank + 1));
  master->node.HandleLinkEvent(kNow, HelloOn(link, EncodeHello(hello)));
  master->node.HandleLinkEvent(kNow, Up(link));
}

TEST(PlacesTest, WhoComesBackFromAnotherAddressIsSoughtThere) {
  Master master(3, kTree);
  for (int32_t rank = 0; rank < 3; ++rank) Come(&master, static_cast<LinkId>(rank + 1), rank, 1);
  const auto before = master.links.Last<TreePlace>(3);
  ASSERT_TRUE(before);
  ASSERT_EQ(before->parent, Master::Origin(1));
  EXPECT_EQ(before->parent_address.ip.back(), 1);
  Come(&master, 11, 0, 2);  // before the old link is missed
  const auto after = master.links.Last<TreePlace>(3);
  EXPECT_GT(after->version, before->version) << "else the worker takes no notice";
  EXPECT_EQ(after->parent, Master::Origin(1));
  EXPECT_EQ(after->parent_address.ip.back(), 2);
  EXPECT_EQ(after->parent_address.port, 4000);
}

TEST(PlacesTest, AWorkerIsSoughtWhereItsLinkToTheMasterLeads) {
  Master master(3, kTree);
  for (int32_t rank = 0; rank < 2; ++rank) Come(&master, static_cast<LinkId>(rank + 1), rank, 1);
  master.links.peers[1].ip.back() = 2;  // the link has gone along with it
  Come(&master, 3, 2, 1);
  const auto place = master.links.Last<TreePlace>(3);
  ASSERT_TRUE(place);
  ASSERT_EQ(place->parent, Master::Origin(1));
  EXPECT_EQ(place->parent_address.ip.back(), 2);
}

TEST(PlacesTest, SoAreThoseWhoseGradientsGoFromWorkerToWorker) {
  Master master(3);
  for (int32_t rank = 0; rank < 3; ++rank) Come(&master, static_cast<LinkId>(rank + 1), rank, 1);
  master.links.peers[1].ip.back() = 2;
  JointPlan plan;
  plan.method.kind = STROM_SPARKNET;
  plan.method.phases = plan.method.steps = plan.method.gradients = 1;
  plan.ranges = {{0, static_cast<int64_t>(kLayout.size)}};
  master.BeginAsChief(1, {kLayout, 0, "", plan});
  for (LinkId link = 2; link <= 3; ++link) master.Say(link, Announce{kLayout, 0, "", plan});
  for (LinkId link = 1; link <= 3; ++link) {
    const std::vector<float> values(kLayout.size, 1);
    master.SayBlob(link, EncodeBlob({BlobKind::kShard, 1, 0, 0, 1}, values, 16 * sizeof(float)));
  }
  const auto named = master.links.Last<Peers>(3);
  ASSERT_TRUE(named);
  ASSERT_EQ(named->peers.size(), 3u);
  EXPECT_EQ(named->peers[0].address.ip.back(), 2);
  EXPECT_EQ(named->peers[0].address.port, 4000);
  EXPECT_EQ(named->peers[1].address.ip.back(), 1);
}

}  // namespace
}  // namespace strom
