// The shape of the tree: who relays to whom. A pure value that the master alone changes; the same
// calls in the same order give the same tree. A tree of depth 1 without a bound on children is the
// star ("plain").
#ifndef KERAS_STROM_CORE_REPLICATION_TOPOLOGY_H_
#define KERAS_STROM_CORE_REPLICATION_TOPOLOGY_H_

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace strom {

// A member's origin; the master is 0.
using NodeId = uint64_t;
inline constexpr NodeId kMasterNode = 0;

// Equal for the nodes of one host.
using HostToken = std::array<uint8_t, 16>;

struct TreeBounds {
  int32_t max_children = std::numeric_limits<int32_t>::max();  // of any node, the master included
  int32_t max_depth = 1;                                       // the master's children are at 1
  // Nodes that fit below the master; the largest int64_t where there is no bound.
  int64_t capacity() const;
};

class Tree {
 public:
  Tree(const TreeBounds& bounds, const HostToken& master_host);

  // Adds a leaf: beside the nodes of its host where they have room, else as near to the master as
  // there is any. False: the tree is full.
  [[nodiscard]] bool Join(NodeId node, const HostToken& host);
  // The node is gone. Its first child (lowest id) goes under the master and the others under that
  // child; one that does not fit goes where it fits nearest to the master; where one fits nowhere,
  // a leaf of the failed subtree takes the failed node's place, which always fits.
  void Leave(NodeId node);
  // The link between a node and its parent fails though both live: the node with all below it goes
  // as near to the master as it fits, but not under a parent that it could not reach before. It
  // stays where it is when there is no other place.
  void Move(NodeId node);
  // The node lacks what its parent keeps no longer: it goes under the master with all below it,
  // where need be in the place of a child of the master (the one that joined last, if it fits),
  // which goes with all below it where it fits nearest to the master. Where none fits elsewhere,
  // the node and such a child change places, and whoever is below them stays.
  void MoveUnderMaster(NodeId node);

  const TreeBounds& bounds() const { return bounds_; }
  // All nodes are the master's children, whatever happens.
  bool is_star() const { return bounds_.max_depth == 1; }
  bool Contains(NodeId node) const { return nodes_.contains(node); }
  NodeId parent(NodeId node) const { return At(node).parent; }
  const std::set<NodeId>& children(NodeId node) const { return At(node).children; }
  // 0 = the master.
  int32_t depth(NodeId node) const;
  // Counts every change.
  uint64_t version() const { return version_; }
  // What is told of the places has changed, though not the places.
  void TellAnew() { ++version_; }
  // All nodes but the master, parents before their children.
  std::vector<NodeId> FromTheTop() const;

 private:
  struct Node {
    NodeId parent = kMasterNode;
    std::set<NodeId> children;
    HostToken host{};
    std::set<NodeId> unreachable;  // parents it has lost though they lived
  };

  const Node& At(NodeId node) const { return nodes_.at(node); }
  Node& At(NodeId node) { return nodes_.at(node); }
  bool HasRoom(NodeId parent, int32_t depth, int32_t height) const;
  int32_t Height(NodeId node) const;  // levels of its subtree, itself included
  // The nearest node to the master that can take a subtree of `height`; only of `host` where given,
  // and none that `node` cannot reach.
  std::optional<NodeId> NearestRoom(int32_t height, const HostToken* host, NodeId node) const;
  void Attach(NodeId node, NodeId parent);
  void Detach(NodeId node);
  bool PlaceOrphans(const std::set<NodeId>& orphans);
  bool TakePlaceOf(NodeId child, NodeId node);
  void Exchange(NodeId child, NodeId node);
  NodeId LeafBelow(NodeId node) const;

  const TreeBounds bounds_;
  std::map<NodeId, Node> nodes_;  // the master included
  uint64_t version_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_TOPOLOGY_H_
