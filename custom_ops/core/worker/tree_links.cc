#include "core/worker/tree_links.h"

#include <algorithm>
#include <utility>

#include "core/replication/formatting.h"

namespace strom {

namespace {

// Within the failure timeout: how often a worker knocks at a parent that the master has not yet
// told of it, how often an orphan asks for a place, and how many places it may lose again at most.
constexpr int64_t kKnocksPerTimeout = 50;
constexpr int64_t kQuestionsPerTimeout = 2;
constexpr int64_t kPlacesPerTimeout = 50;

}  // namespace

void TreeLinks::MasterUp(int64_t now_ns, LinkId link, uint64_t own_origin, uint64_t epoch) {
  own_origin_ = own_origin;
  epoch_ = epoch;
  master_link_ = link;
  last_beacon_ns_ = now_ns;
  if (IsUnderMaster()) {
    relay_->Add(now_ns, link, Relay::Role::kParent, ParentName());
  } else if (is_orphan()) {
    AskForPlace(now_ns);
  }
}

void TreeLinks::MasterDown() {
  relay_->Part(master_link_);
  master_link_ = 0;
}

void TreeLinks::Restart(int64_t now_ns) {
  CloseAll(now_ns, "");
  for (const auto& [link, origin] : std::exchange(welcomed_, {})) links_->Close(now_ns, link, "");
  place_ = {};
  too_far_behind_ = false;
  restarted_ = true;
}

void TreeLinks::HandlePlace(int64_t now_ns, const TreePlace& place) {
  if (place.version > place_.version) {
    const bool is_there = parent_up_ || place.parent_address == place_.parent_address;
    const bool same_parent = place.parent == place_.parent && is_there && !is_orphan();
    if (!same_parent) LeaveParent(now_ns);
    place_ = place;
    const std::map<LinkId, uint64_t> before = children_;
    for (const auto& [link, origin] : before) {
      if (FindChild(origin) == nullptr) CloseChild(now_ns, link, "");  // its own new place tells it
    }
    if (!same_parent) JoinParent(now_ns);
  }
  Tell(master_link_, now_ns,
       Placed{place_.version, relay_->layout().generation,
              restarted_ ? VersionVector{} : relay_->received()});
}

void TreeLinks::Started(int64_t now_ns) {
  restarted_ = false;
  if (IsUnderMaster()) {
    relay_->AttachAtStart(master_link_);
  } else if (parent_up_) {
    relay_->AskToAttach(now_ns, parent_link_);
  }
}

void TreeLinks::FastForwarded(int64_t now_ns) {
  // The master has attached this worker as it sent the snapshot.
  if (!IsUnderMaster()) AttachAgain(now_ns);
}

void TreeLinks::AttachAgain(int64_t now_ns) {
  if (IsUnderMaster() ? master_link_ != 0 : parent_up_) {
    relay_->AskToAttach(now_ns, ParentLink());
  }
}

void TreeLinks::HandleHello(int64_t now_ns, const LinkEvent& event) {
  ChildHello hello;
  const bool parsed = ParseChildHello(*event.payload, &hello).ok();
  const TreePlace::Child* child = parsed ? FindChild(hello.origin) : nullptr;
  if (child == nullptr || child->instance != hello.instance) {
    links_->Refuse(now_ns, event.link,
                   parsed ? "the master has not put this worker here"
                          : "workers take no members; join at the master");
    return;
  }
  welcomed_[event.link] = hello.origin;
  links_->Accept(now_ns, event.link, EncodeWelcome({own_origin_, place_.version, 0}));
}

void TreeLinks::HandleUp(int64_t now_ns, LinkId link) {
  if (link == parent_link_) {
    parent_up_ = true;
    relay_->Add(now_ns, link, Relay::Role::kParent, ParentName());
    if (relay_->is_open()) relay_->AskToAttach(now_ns, link);
    return;
  }
  const auto welcomed = welcomed_.extract(link);
  if (welcomed.empty()) return;
  const uint64_t origin = welcomed.mapped();
  const TreePlace::Child* child = FindChild(origin);
  if (child == nullptr) return links_->Close(now_ns, link, "the master has moved this worker");
  const auto earlier = std::find_if(children_.begin(), children_.end(),
                                    [&](const auto& entry) { return entry.second == origin; });
  if (earlier != children_.end()) {
    CloseChild(now_ns, earlier->first, "this worker has come back over a new link");
  }
  children_[link] = origin;
  relay_->Add(now_ns, link, Relay::Role::kChild, WorkerName(child->rank));
}

void TreeLinks::HandleDown(int64_t now_ns, const LinkEvent& event) {
  welcomed_.erase(event.link);
  std::erase_if(failed_, [&](const auto& entry) { return entry.second.link == event.link; });
  if (children_.erase(event.link) != 0) relay_->Part(event.link);  // the child asks for a place
  if (event.link != parent_link_ || parent_link_ == 0) return;
  if (event.code == Code::kRefused) {
    // It has not heard of us yet; where it never does, the beacons stay out and end this.
    parent_link_ = 0;
    retry_ns_ = now_ns + failure_timeout_ns_ / kKnocksPerTimeout;
    return;
  }
  LoseParent(now_ns, event.reason);
}

void TreeLinks::HandleControl(int64_t now_ns, LinkId link, Bytes bytes) {
  ControlMessage message;
  const Status parsed = ParseControl(bytes, &message);
  if (!parsed.ok()) return Reject(now_ns, link, 0, parsed.message);
  const bool from_parent = link == parent_link_;
  if (const auto* attach = std::get_if<Attach>(&message)) {
    relay_->HandleAttach(now_ns, link, *attach);
  } else if (const auto* anew = std::get_if<AttachAnew>(&message); anew && from_parent) {
    HandleAttachAnew(now_ns, link, *anew);
  } else if (const auto* beacon = std::get_if<Beacon>(&message); beacon && from_parent) {
    HandleBeacon(now_ns, link, *beacon);
  } else if (const auto* behind = std::get_if<TooFarBehind>(&message); behind && from_parent) {
    too_far_behind_ |= behind->generation == relay_->layout().generation;
  } else if (const auto* failure = std::get_if<Failure>(&message); failure && from_parent) {
    words_.push_back({true, {Code::kMasterLost, failure->reason}});
  } else {
    ++(*drops_)["control message that a neighbour may not send"];
  }
}

void TreeLinks::HandleBeacon(int64_t now_ns, LinkId link, const Beacon& beacon) {
  const bool from_master = link == master_link_ && link != 0;
  if (!from_master && (link != parent_link_ || IsUnderMaster())) return;
  if (beacon.epoch != epoch_) {
    ++(*drops_)["beacon of another master"];
    return;
  }
  // What this worker has made it keeps until the master itself says that it is there. With that a
  // parent that says more than there is makes nothing be lost.
  VersionVector vector = beacon.vector;
  if (!from_master) vector.erase(own_origin_);
  relay_->SetMasterVector(now_ns, vector);
  if (from_master != IsUnderMaster()) return;
  last_beacon_ns_ = now_ns;
  if (children_.empty()) return;
  const Buffer onward = EncodeControl(beacon);
  for (const auto& [child, origin] : children_) {
    links_->Send(now_ns, child, Channel::kControl, onward);
  }
}

void TreeLinks::HandleAttachAnew(int64_t now_ns, LinkId link, const AttachAnew& message) {
  if (!relay_->is_open() || message.generation != relay_->layout().generation) return;
  if (link == ParentLink()) relay_->AskToAttach(now_ns, link);
}

void TreeLinks::Reject(int64_t now_ns, LinkId link, uint64_t origin, const std::string& reason) {
  if (link == parent_link_) {
    links_->Close(now_ns, link, reason);
    return LoseParent(now_ns, reason);
  }
  const auto child = children_.find(link);
  if (child == children_.end()) return;
  if (origin != child->second) return CloseChild(now_ns, link, reason);
  relay_->Close(origin);
  Tell(link, now_ns,
       Failure{static_cast<int32_t>(Code::kCorrupt),
               "its parent in the tree refuses this worker's " + reason});
  relay_->Part(link);
  children_.erase(child);
  const Failed earlier = std::exchange(failed_[origin], {link, now_ns + failure_timeout_ns_});
  if (earlier.link != 0) links_->Close(now_ns, earlier.link, reason);
}

void TreeLinks::Abandon(int64_t now_ns, LinkId link) {
  if (children_.contains(link)) Tell(link, now_ns, TooFarBehind{relay_->layout().generation});
}

void TreeLinks::AskForPlaceUnderMaster(int64_t now_ns) {
  if (parent_link_ == 0) return;
  LoseParent(now_ns, "it keeps no longer what this worker lacks", /*too_far_behind=*/true);
}

void TreeLinks::CloseAll(int64_t now_ns, const std::string& reason) {
  LeaveParent(now_ns);
  ask_again_ns_ = kNever;
  while (!children_.empty()) CloseChild(now_ns, children_.begin()->first, reason);
  CloseFailed(now_ns, /*until_ns=*/kNever);
  MasterDown();
}

void TreeLinks::HandleTimeout(int64_t now_ns) {
  if (now_ns >= retry_ns_) JoinParent(now_ns);
  if (now_ns >= ask_again_ns_) AskForPlace(now_ns);
  CloseFailed(now_ns, /*until_ns=*/now_ns);
  if (!IsUnderMaster() && !is_orphan() && now_ns - last_beacon_ns_ >= failure_timeout_ns_) {
    LoseParent(now_ns, "no beacon came through it for " + SecondsText(failure_timeout_ns_));
  }
}

int64_t TreeLinks::NextTimeout() const {
  int64_t next = std::min(retry_ns_, ask_again_ns_);
  for (const auto& [origin, failed] : failed_) next = std::min(next, failed.close_ns);
  if (!IsUnderMaster() && !is_orphan()) {
    next = std::min(next, last_beacon_ns_ + failure_timeout_ns_);
  }
  return next;
}

std::optional<TreeLinks::Word> TreeLinks::PollWord() {
  if (words_.empty()) return std::nullopt;
  Word word = std::move(words_.front());
  words_.pop_front();
  return word;
}

std::string TreeLinks::ParentName() const {
  return IsUnderMaster() ? "the master" : WorkerName(place_.parent_rank);
}

const TreePlace::Child* TreeLinks::FindChild(uint64_t origin) const {
  const auto found = std::find_if(place_.children.begin(), place_.children.end(),
                                  [&](const TreePlace::Child& c) { return c.origin == origin; });
  return found == place_.children.end() ? nullptr : &*found;
}

void TreeLinks::JoinParent(int64_t now_ns) {
  retry_ns_ = kNever;
  if (!IsUnderMaster()) {
    const Address parent = FromHere(place_.parent_address, *links_, master_link_);
    parent_link_ = links_->Connect(now_ns, parent, place_.parent_key,
                                   EncodeChildHello({own_origin_, instance_}));
    return;
  }
  relay_->Add(now_ns, master_link_, Relay::Role::kParent, ParentName());
  if (relay_->is_open()) relay_->AskToAttach(now_ns, master_link_);
}

// Whatever the link's state; the beacons' time starts anew.
void TreeLinks::LeaveParent(int64_t now_ns) {
  if (IsUnderMaster()) relay_->Remove(master_link_);
  if (parent_link_ != 0) {
    relay_->Part(parent_link_);
    links_->Close(now_ns, parent_link_, "");
  }
  parent_link_ = 0;
  parent_up_ = false;
  retry_ns_ = ask_again_ns_ = kNever;
  last_beacon_ns_ = now_ns;
}

void TreeLinks::LoseParent(int64_t now_ns, const std::string& why, bool too_far_behind) {
  const std::string name = ParentName();
  LeaveParent(now_ns);
  ++parents_lost_;
  lost_because_ = why.empty() ? name + " has left" : why;
  lost_by_lack_ = too_far_behind;
  if (!why.empty()) {
    words_.push_back({false,
                      {Code::kOk, name + ", this worker's parent in the tree, is lost (" + why +
                                      "); asking the master for another"}});
  }
  AskForPlace(now_ns);
}

void TreeLinks::CloseChild(int64_t now_ns, LinkId link, const std::string& reason) {
  relay_->Part(link);
  links_->Close(now_ns, link, reason);
  children_.erase(link);
}

// Whose time is up by `until_ns`.
void TreeLinks::CloseFailed(int64_t now_ns, int64_t until_ns) {
  std::erase_if(failed_, [&](const auto& entry) {
    const bool is_due = entry.second.close_ns <= until_ns;
    if (is_due) links_->Close(now_ns, entry.second.link, "it has failed");
    return is_due;
  });
}

void TreeLinks::AskForPlace(int64_t now_ns) {
  ask_again_ns_ = may_ask_ns_;
  if (now_ns < may_ask_ns_) return;
  may_ask_ns_ = now_ns + failure_timeout_ns_ / kPlacesPerTimeout;
  ask_again_ns_ = now_ns + failure_timeout_ns_ / kQuestionsPerTimeout;
  if (master_link_ == 0) return;
  Tell(master_link_, now_ns,
       Orphan{place_.version, static_cast<uint8_t>(lost_by_lack_ ? 1 : 0), lost_because_});
}

void TreeLinks::AddStatus(JsonObject* json) const {
  json->Add("parent", is_orphan() ? "none" : ParentName())
      .Add("parent_link", is_orphan() ? 0 : ParentLink())
      .Add("depth", place_.depth)
      .Add("topology_version", place_.version)
      .Add("children", children_.size())
      .Add("parents_lost", parents_lost_);
}

}  // namespace strom
