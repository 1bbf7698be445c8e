#include "core/master/placement.h"

#include <algorithm>

#include "core/replication/version_vector.h"

namespace strom {

namespace {

bool SamePlace(const TreePlace& a, const TreePlace& b) {
  return a.parent == b.parent && a.depth == b.depth && a.children == b.children;
}

}  // namespace

bool Placement::Join(NodeId node, const Contact& contact, const HostToken& host) {
  if (!tree_.Join(node, host)) return false;
  assignments_[node] = {contact, {}, true, {}};
  lost_.erase(node);
  return true;
}

void Placement::Leave(NodeId node) {
  if (!tree_.Contains(node)) return;
  tree_.Leave(node);
  assignments_.erase(node);
  if (!tree_.is_star()) lost_.insert(node);
}

bool Placement::MoveOrphan(NodeId node, uint64_t version, bool too_far_behind) {
  auto assigned = assignments_.find(node);
  if (assigned == assignments_.end() || assigned->second.place.version != version) return false;
  if (too_far_behind) {
    tree_.MoveUnderMaster(node);  // where it gets all, or hears that nobody keeps it
  } else {
    tree_.Move(node);
  }
  assigned->second.known = false;  // it connects anew even where it stays
  return true;
}

void Placement::SetContact(NodeId node, const Contact& contact) {
  auto assigned = assignments_.find(node);
  if (assigned == assignments_.end() || assigned->second.contact == contact) return;
  assigned->second.contact = contact;
  const std::set<NodeId>& children = tree_.children(node);
  for (const NodeId child : children) assignments_.at(child).known = false;
  if (!children.empty()) tree_.TellAnew();  // of a version that they have they take no notice
}

void Placement::TellAgain(NodeId node) {
  if (tree_.is_star()) return;  // there is one place only
  auto assigned = assignments_.find(node);
  if (assigned != assignments_.end()) assigned->second.known = false;
}

std::vector<Placement::Change> Placement::TakeChanges() {
  std::vector<Change> changes;
  for (const NodeId node : tree_.FromTheTop()) {
    Assignment& assigned = assignments_.at(node);
    TreePlace place = PlaceOf(node);
    if (assigned.known && SamePlace(place, assigned.place)) continue;
    place.version = tree_.version();
    assigned.place = place;
    assigned.known = true;
    changes.push_back({node, std::move(place)});
  }
  return changes;
}

void Placement::HandlePlaced(NodeId node, const Placed& placed) {
  auto assigned = assignments_.find(node);
  if (assigned != assignments_.end() && placed.version >= assigned->second.taken.version) {
    assigned->second.taken = placed;
  }
}

bool Placement::Settled(uint64_t generation, const VersionVector& received) const {
  if (tree_.is_star()) return true;  // nobody else passes on what the lost have made
  return AllTaken() && !FindHolder(generation, received);
}

bool Placement::AllTaken() const {
  return std::all_of(assignments_.begin(), assignments_.end(), [](const auto& entry) {
    const Assignment& assigned = entry.second;
    return assigned.known && assigned.taken.version == assigned.place.version;
  });
}

std::optional<NodeId> Placement::FindHolder(uint64_t generation,
                                            const VersionVector& received) const {
  // Of who has a place its own DONE says how much there is; what others say of it is not waited
  // for. The lost are few, and vectors name everybody.
  std::vector<UpdateId> here;  // of the lost
  for (const NodeId lost : lost_) here.push_back({lost, CounterOf(received, lost)});
  for (const auto& [node, assigned] : assignments_) {
    const Placed& taken = assigned.taken;
    const auto has_more = [&](const UpdateId& last) {
      return CounterOf(taken.vector, last.origin) > last.counter;
    };
    if (taken.generation == generation && std::any_of(here.begin(), here.end(), has_more)) {
      return node;
    }
  }
  return std::nullopt;
}

bool Placement::MaySpeakFor(NodeId node, uint64_t origin) const {
  if (origin == node) return true;
  if (tree_.is_star()) return false;
  if (!tree_.Contains(origin)) return true;
  while (origin != node && origin != kMasterNode) origin = tree_.parent(origin);
  return origin == node;
}

TreePlace Placement::PlaceOf(NodeId node) const {
  TreePlace place;
  place.depth = static_cast<uint32_t>(tree_.depth(node));
  place.parent = tree_.parent(node);
  if (place.parent != kMasterNode) {
    const Contact& parent = assignments_.at(place.parent).contact;
    place.parent_rank = parent.rank;
    place.parent_address = parent.address;
    place.parent_key = parent.public_key;
  }
  for (const NodeId child : tree_.children(node)) {
    const Contact& contact = assignments_.at(child).contact;
    place.children.push_back({child, contact.rank, contact.instance});
  }
  return place;
}

}  // namespace strom
