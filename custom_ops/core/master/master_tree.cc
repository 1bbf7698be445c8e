#include "core/master/master_tree.h"

#include "core/replication/formatting.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// Three failure timeouts of beacons: who holds a lost member's updates may have to find another
// parent first. Counted and not timed, for a master that was stopped has heard nobody meanwhile.
constexpr int32_t kMostQuietBeacons = 30;

}  // namespace

bool MasterTree::Join(int64_t now_ns, const Member& member, bool resumed) {
  if (!placement_.tree().Contains(member.origin) &&
      !placement_.Join(member.origin, ContactOf(member), member.host)) {
    return false;
  }
  if (resumed) placement_.TellAgain(member.origin);
  Update(now_ns);
  return true;
}

void MasterTree::Leave(int64_t now_ns, uint64_t origin) {
  placement_.Leave(origin);
  Update(now_ns);
}

bool MasterTree::HandleOrphan(int64_t now_ns, const Member& member, const Orphan& orphan) {
  const bool too_far_behind = orphan.too_far_behind != 0;
  if (!placement_.MoveOrphan(member.origin, orphan.version, too_far_behind)) return false;
  Update(now_ns);
  return true;
}

void MasterTree::SendBeacons(int64_t now_ns, uint64_t epoch, uint32_t missing) {
  const Buffer whole = EncodeControl(Beacon{epoch, version(), relay_->received(), missing});
  for (const auto& [rank, member] : membership_->members()) {
    if (member.link == 0) continue;
    const VersionVector own = {{member.origin, CounterOf(relay_->received(), member.origin)}};
    links_->Send(
        now_ns, member.link, Channel::kControl,
        relay_->Has(member.link) ? whole : EncodeControl(Beacon{epoch, version(), own, missing}));
  }
}

bool MasterTree::Settled() const {
  return placement_.Settled(relay_->layout().generation, relay_->received());
}

std::optional<std::string> MasterTree::GiveUpLost() {
  const auto holder = placement_.FindHolder(relay_->layout().generation, relay_->received());
  if (!holder) {
    quiet_beacons_ = 0;
  } else if (heard_ != relay_->received()) {
    heard_ = relay_->received();
    quiet_beacons_ = 0;
  } else if (placement_.AllTaken()) {
    ++quiet_beacons_;
  }
  if (quiet_beacons_ < kMostQuietBeacons) return std::nullopt;
  quiet_beacons_ = 0;
  placement_.ForgetLost();
  return WorkerName(membership_->FindOrigin(*holder)->rank) +
         " has said that it has updates of a lost worker, which have not come; the end of the fit "
         "waits for them no longer";
}

void MasterTree::AddStatus(const Member& member, JsonObject* json) const {
  const Tree& tree = placement_.tree();
  const bool placed = tree.Contains(member.origin);
  const NodeId parent = placed ? tree.parent(member.origin) : kMasterNode;
  const Member* above = parent == kMasterNode ? nullptr : membership_->FindOrigin(parent);
  json->Add("parent", above == nullptr ? -1 : above->rank)
      .Add("depth", placed ? tree.depth(member.origin) : 0);
}

// Its host may have another address since it said hello, with a new link or without.
Contact MasterTree::ContactOf(const Member& member) const {
  Contact contact{member.rank, member.instance, member.address, member.public_key};
  if (const auto from = links_->PeerAddress(member.link)) contact.address.ip = from->ip;
  return contact;
}

// Tells everybody whose place has changed; the master's children are its relay's neighbours.
void MasterTree::Update(int64_t now_ns) {
  for (const auto& [rank, member] : membership_->members()) {
    if (member.link != 0) placement_.SetContact(member.origin, ContactOf(member));
  }
  for (const auto& [origin, place] : placement_.TakeChanges()) {
    const Member* member = membership_->FindOrigin(origin);
    if (member == nullptr || member->link == 0) continue;
    links_->Send(now_ns, member->link, Channel::kControl, EncodeControl(place));
  }
  for (const auto& [rank, member] : membership_->members()) {
    if (member.link == 0) continue;
    const bool below = placement_.IsUnderMaster(member.origin);
    if (below == relay_->Has(member.link)) continue;
    if (below) {
      relay_->Add(now_ns, member.link, Relay::Role::kChild, WorkerName(rank));
    } else {
      relay_->Remove(member.link);
    }
  }
}

}  // namespace strom
