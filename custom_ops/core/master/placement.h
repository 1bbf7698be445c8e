// The master's record of places in the tree: the place last sent to each node, and the place that
// it has reported as taken (PLACED). core/replication/topology.h decides the tree;
// core/worker/tree_links.h is a worker's side.
#ifndef KERAS_STROM_CORE_MASTER_PLACEMENT_H_
#define KERAS_STROM_CORE_MASTER_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/types.h"
#include "core/replication/control.h"
#include "core/replication/topology.h"

namespace strom {

// What others need to connect to a worker, and to know it when it connects to them.
struct Contact {
  int32_t rank = -1;
  Token instance{};
  Address address;
  PublicKeyBytes public_key{};
  friend bool operator==(const Contact&, const Contact&) = default;
};

class Placement {
 public:
  Placement(const TreeBounds& bounds, const HostToken& master_host) : tree_(bounds, master_host) {}

  // False: the tree is full.
  [[nodiscard]] bool Join(NodeId node, const Contact& contact, const HostToken& host);
  // Nothing happens where the node has no place.
  void Leave(NodeId node);
  // The node says that in its place of `version` it has lost its parent or, `too_far_behind`, lacks
  // what that keeps no longer. False: it has been assigned a newer one meanwhile.
  bool MoveOrphan(NodeId node, uint64_t version, bool too_far_behind);
  // Where the node is reached now: where that has changed, its children are told. Nothing happens
  // where it has no place.
  void SetContact(NodeId node, const Contact& contact);
  // It came back over a new link: what it was told may not have reached it.
  void TellAgain(NodeId node);

  // The places that have changed since they were last sent, parents before children. From this call
  // on they count as sent.
  struct Change {
    NodeId node;
    TreePlace place;
  };
  std::vector<Change> TakeChanges();

  void HandlePlaced(NodeId node, const Placed& placed);
  // True once every node has taken its place and the master has `received` all that any of them had
  // then of the lost: no update of theirs is left in the tree that the master does not know.
  bool Settled(uint64_t generation, const VersionVector& received) const;
  // Whether every node has taken its place.
  bool AllTaken() const;
  // Who had more of a lost node's updates than the master has `received`; nullopt = nobody.
  std::optional<NodeId> FindHolder(uint64_t generation, const VersionVector& received) const;
  // What the nodes lost so far have made is waited for no longer: the word of who is in the tree
  // does not prove that there is such an update, and in another generation none of it counts.
  void ForgetLost() { lost_.clear(); }

  // Whether updates of `origin` may come from `node`: its own do, and in a tree those of whoever is
  // below it. Of who has no place (lost, or about to have another) anybody there may still have
  // some.
  bool MaySpeakFor(NodeId node, uint64_t origin) const;

  const Tree& tree() const { return tree_; }
  bool IsUnderMaster(NodeId node) const {
    return tree_.Contains(node) && tree_.parent(node) == kMasterNode;
  }

 private:
  struct Assignment {
    Contact contact;
    TreePlace place;  // a fresh node takes itself for a leaf under the master
    bool known = true;
    Placed taken;
  };
  TreePlace PlaceOf(NodeId node) const;

  Tree tree_;
  std::map<NodeId, Assignment> assignments_;
  std::set<NodeId> lost_;  // have left a tree; the last of their updates may still be in it
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_PLACEMENT_H_
