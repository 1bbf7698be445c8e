#include "core/replication/topology.h"

#include <algorithm>
#include <utility>

#include "core/base/types.h"

namespace strom {

int64_t TreeBounds::capacity() const {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t level = 1, sum = 0;
  for (int32_t depth = 0; depth < max_depth; ++depth) {
    if (level > kMost / max_children || sum > kMost - level * max_children) return kMost;
    level *= max_children;
    sum += level;
  }
  return sum;
}

Tree::Tree(const TreeBounds& bounds, const HostToken& master_host) : bounds_(bounds) {
  nodes_[kMasterNode].host = master_host;
}

bool Tree::Join(NodeId node, const HostToken& host) {
  STROM_CHECK(!Contains(node));
  std::optional<NodeId> parent = NearestRoom(1, &host, node);
  if (!parent) parent = NearestRoom(1, nullptr, node);
  if (!parent) return false;
  nodes_[node].host = host;
  Attach(node, *parent);
  ++version_;
  return true;
}

void Tree::Leave(NodeId node) {
  const NodeId above = At(node).parent;
  const std::set<NodeId> orphans = At(node).children;
  // Both ways begin with the tree as it is.
  const std::map<NodeId, Node> before = nodes_;
  Detach(node);
  nodes_.erase(node);
  if (!PlaceOrphans(orphans)) {
    nodes_ = before;
    const NodeId leaf = LeafBelow(node);
    Detach(leaf);
    const std::set<NodeId> left = At(node).children;
    Detach(node);
    for (const NodeId child : left) Attach(child, leaf);
    nodes_.erase(node);
    Attach(leaf, above);
  }
  for (auto& [id, other] : nodes_) other.unreachable.erase(node);
  ++version_;
}

// Each of `orphans` still names the parent that it has lost. False: one fits nowhere.
bool Tree::PlaceOrphans(const std::set<NodeId>& orphans) {
  NodeId heir = kMasterNode;  // the first child takes the others
  for (const NodeId orphan : orphans) {
    std::optional<NodeId> parent = heir;
    const int32_t height = Height(orphan);
    if (!HasRoom(heir, depth(heir), height)) parent = NearestRoom(height, nullptr, orphan);
    if (!parent) return false;
    Attach(orphan, *parent);
    if (heir == kMasterNode) heir = orphan;
  }
  return true;
}

void Tree::Move(NodeId node) {
  const NodeId lost = At(node).parent;
  At(node).unreachable.insert(lost);
  Detach(node);
  std::optional<NodeId> parent = NearestRoom(Height(node), nullptr, node);
  if (!parent) {
    At(node).unreachable.clear();  // perhaps one of them can be reached by now
    parent = lost;
  }
  Attach(node, *parent);
  ++version_;
}

void Tree::MoveUnderMaster(NodeId node) {
  ++version_;
  const NodeId above = At(node).parent;
  Detach(node);
  if (HasRoom(kMasterNode, 0, Height(node))) return Attach(node, kMasterNode);
  Attach(node, above);
  // Who joined last lacks the least, so that two that lack much do not push each other out.
  const std::set<NodeId> children = At(kMasterNode).children;
  if (children.contains(node)) return;
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    if (TakePlaceOf(*child, node)) return;
  }
  Exchange(*children.rbegin(), node);
}

// Of a child of the master, which then goes elsewhere. False: it fits nowhere, and nothing changes.
bool Tree::TakePlaceOf(NodeId child, NodeId node) {
  const std::map<NodeId, Node> before = nodes_;
  Detach(node);
  Detach(child);
  Attach(node, kMasterNode);
  const std::optional<NodeId> parent = NearestRoom(Height(child), nullptr, child);
  if (parent) {
    Attach(child, *parent);
  } else {
    nodes_ = before;
  }
  return parent.has_value();
}

// The tree keeps its shape, so that this is always possible.
void Tree::Exchange(NodeId child, NodeId node) {
  const NodeId above = At(node).parent == child ? node : At(node).parent;
  Detach(node);
  Detach(child);
  At(node).children.swap(At(child).children);
  for (const NodeId parent : {node, child}) {
    for (const NodeId below : At(parent).children) At(below).parent = parent;
  }
  Attach(node, kMasterNode);
  Attach(child, above);
}

int32_t Tree::depth(NodeId node) const {
  int32_t depth = 0;
  for (; node != kMasterNode; node = At(node).parent) ++depth;
  return depth;
}

std::vector<NodeId> Tree::FromTheTop() const {
  std::vector<NodeId> order = {kMasterNode};
  for (size_t i = 0; i < order.size(); ++i) {
    const std::set<NodeId>& children = At(order[i]).children;
    order.insert(order.end(), children.begin(), children.end());
  }
  order.erase(order.begin());
  return order;
}

bool Tree::HasRoom(NodeId parent, int32_t depth, int32_t height) const {
  return static_cast<int64_t>(At(parent).children.size()) < bounds_.max_children &&
         depth + height <= bounds_.max_depth;
}

int32_t Tree::Height(NodeId node) const {
  int32_t below = 0;
  for (const NodeId child : At(node).children) below = std::max(below, Height(child));
  return below + 1;
}

std::optional<NodeId> Tree::NearestRoom(int32_t height, const HostToken* host, NodeId node) const {
  static const std::set<NodeId> kNone;
  const auto found = nodes_.find(node);
  const std::set<NodeId>& unreachable = found == nodes_.end() ? kNone : found->second.unreachable;
  // Level by level; what is detached from the tree is not met.
  std::vector<NodeId> level = {kMasterNode};
  for (int32_t depth = 0; depth + height <= bounds_.max_depth && !level.empty(); ++depth) {
    std::vector<NodeId> next;
    for (const NodeId parent : level) {
      if (HasRoom(parent, depth, height) && !unreachable.contains(parent) &&
          (host == nullptr || At(parent).host == *host)) {
        return parent;
      }
      next.insert(next.end(), At(parent).children.begin(), At(parent).children.end());
    }
    level = std::move(next);
  }
  return std::nullopt;
}

void Tree::Attach(NodeId node, NodeId parent) {
  At(node).parent = parent;
  At(parent).children.insert(node);
}

void Tree::Detach(NodeId node) { At(At(node).parent).children.erase(node); }

NodeId Tree::LeafBelow(NodeId node) const {
  while (!At(node).children.empty()) node = *At(node).children.begin();
  return node;
}

}  // namespace strom
