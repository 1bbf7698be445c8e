// The master's side of the tree: gives places to those who join, come back, leave or lose their
// parent, tells whom that concerns, and keeps its own children in the relay.
// core/master/placement.h is the book that it keeps; core/worker/tree_links.h is a worker's side.
#ifndef KERAS_STROM_CORE_MASTER_MASTER_TREE_H_
#define KERAS_STROM_CORE_MASTER_MASTER_TREE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/base/link_layer.h"
#include "core/master/membership.h"
#include "core/master/placement.h"
#include "core/replication/control.h"
#include "core/replication/relay.h"

namespace strom {

class MasterTree {
 public:
  // The pointers outlive this.
  MasterTree(const TreeBounds& bounds, const HostToken& own_host, const Membership* membership,
             Relay* relay, LinkLayer* links)
      : membership_(membership), relay_(relay), links_(links), placement_(bounds, own_host) {}

  // Gives a place to a member whose link stands; one that is `resumed` may not know its own.
  // False: the tree is full.
  [[nodiscard]] bool Join(int64_t now_ns, const Member& member, bool resumed);
  bool Has(const Member& member) const { return placement_.tree().Contains(member.origin); }
  // Nothing happens where the member has no place.
  void Leave(int64_t now_ns, uint64_t origin);
  // False: the member has been told a newer place meanwhile.
  bool HandleOrphan(int64_t now_ns, const Member& member, const Orphan& orphan);
  void HandlePlaced(const Member& member, const Placed& placed) {
    placement_.HandlePlaced(member.origin, placed);
  }

  // The vector flows down the tree, so that the master sends it a few times only; the others hear
  // over their own links that it lives, and how many of their own updates it has: of those nobody
  // else's word counts.
  void SendBeacons(int64_t now_ns, uint64_t epoch, uint32_t missing);
  // No update of a lost member is on its way through the tree.
  bool Settled() const;
  // A generation starts: what the lost have made belongs to earlier ones.
  void ForgetLost() { placement_.ForgetLost(); }
  // With every beacon. Where a member has said that it has updates of a lost one, and for a while
  // nobody's have come, they are waited for no longer, and these are the words for it.
  std::optional<std::string> GiveUpLost();

  bool MaySpeakFor(const Member& member, uint64_t origin) const {
    return placement_.MaySpeakFor(member.origin, origin);
  }
  bool is_star() const { return placement_.tree().is_star(); }

  uint64_t version() const { return placement_.tree().version(); }
  // Parent's rank (-1: the master, or no place) and depth (0: no place).
  void AddStatus(const Member& member, JsonObject* json) const;
  // Where others reach it now.
  Contact ContactOf(const Member& member) const;

 private:
  void Update(int64_t now_ns);

  const Membership* const membership_;
  Relay* const relay_;
  LinkLayer* const links_;
  Placement placement_;
  VersionVector heard_;        // what had come by the last beacon, while some is waited for
  int32_t quiet_beacons_ = 0;  // in a row: nothing has come since
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MASTER_TREE_H_
