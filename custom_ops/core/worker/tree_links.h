// A worker's links in the tree: to its parent and from its children, where the master has put it.
// core/master/placement.h is the master's side.
//
// The link to the master stays beside them, for control and state; under the master it is the link
// to the parent too. There is one parent at a time, and the link to the old one is closed before
// the worker attaches to the new. A worker that hears no beacon from above is an orphan, even if
// its parent answers: it tells the master and waits for another place.
#ifndef KERAS_STROM_CORE_WORKER_TREE_LINKS_H_
#define KERAS_STROM_CORE_WORKER_TREE_LINKS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/replication/control.h"
#include "core/replication/node_status.h"
#include "core/replication/relay.h"

namespace strom {

class TreeLinks {
 public:
  // `links`, `relay` and `drops` outlive this.
  TreeLinks(const Token& instance, int64_t failure_timeout_ns, LinkLayer* links, Relay* relay,
            DropCounters* drops)
      : instance_(instance),
        failure_timeout_ns_(failure_timeout_ns),
        links_(links),
        relay_(relay),
        drops_(drops) {}

  // --- the link to the master
  // Beacons of other epochs than this master's are none of ours.
  void MasterUp(int64_t now_ns, LinkId link, uint64_t own_origin, uint64_t epoch);
  void MasterDown();
  // Another master: its tree begins anew, this worker is a leaf under it.
  void Restart(int64_t now_ns);
  void HandlePlace(int64_t now_ns, const TreePlace& place);
  // The relay is open: sends ATTACH to the parent, unless that is the master, where START attaches.
  void Started(int64_t now_ns);
  // The same in the middle of a generation, where the relay has gone forward to a snapshot's cut.
  void FastForwarded(int64_t now_ns);
  // Says ATTACH to the parent.
  void AttachAgain(int64_t now_ns);

  // --- links of the tree
  void HandleHello(int64_t now_ns, const LinkEvent& event);
  // The other events of links that are not the master's, but for updates.
  void HandleUp(int64_t now_ns, LinkId link);
  void HandleDown(int64_t now_ns, const LinkEvent& event);
  void HandleControl(int64_t now_ns, LinkId link, Bytes message);
  bool IsNeighbour(LinkId link) const { return link == parent_link_ || children_.contains(link); }
  // ATTACH, AttachAnew and beacons, on a link of the tree or the master's.
  void HandleBeacon(int64_t now_ns, LinkId link, const Beacon& beacon);
  void HandleAttachAnew(int64_t now_ns, LinkId link, const AttachAnew& message);
  // A neighbour broke the protocol: its link is closed in words. A child that made the bad update
  // itself cannot go on, and ends the link when it has heard so (closed at once, the link would
  // take the words with it); whoever only relayed it may attach anew.
  void Reject(int64_t now_ns, LinkId link, uint64_t origin, const std::string& reason);
  // A child needs updates that are no longer here, or never were.
  void Abandon(int64_t now_ns, LinkId link);
  // Once, where the parent has said that of this worker. A snapshot helps, where the mode has that,
  // or else a place under the master.
  bool TakeTooFarBehind() { return std::exchange(too_far_behind_, false); }
  void AskForPlaceUnderMaster(int64_t now_ns);
  void CloseAll(int64_t now_ns, const std::string& reason);

  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;

  // What the node passes on: a notice for the user or, where `failed`, why this worker cannot go
  // on.
  struct Word {
    bool failed = false;
    Status status;
  };
  std::optional<Word> PollWord();

  // True while it waits for another place.
  bool is_orphan() const { return ask_again_ns_ != kNever; }
  void AddStatus(JsonObject* json) const;

 private:
  bool IsUnderMaster() const { return place_.parent == 0; }
  LinkId ParentLink() const { return IsUnderMaster() ? master_link_ : parent_link_; }
  std::string ParentName() const;
  const TreePlace::Child* FindChild(uint64_t origin) const;
  void JoinParent(int64_t now_ns);
  void LeaveParent(int64_t now_ns);
  void LoseParent(int64_t now_ns, const std::string& why, bool too_far_behind = false);
  void CloseChild(int64_t now_ns, LinkId link, const std::string& reason);
  void CloseFailed(int64_t now_ns, int64_t until_ns);
  void AskForPlace(int64_t now_ns);
  void Tell(LinkId link, int64_t now_ns, const ControlMessage& message) {
    links_->Send(now_ns, link, Channel::kControl, EncodeControl(message));
  }

  struct Failed {
    LinkId link = 0;
    int64_t close_ns = 0;  // at the latest
  };

  const Token instance_;
  const int64_t failure_timeout_ns_;
  LinkLayer* const links_;
  Relay* const relay_;
  DropCounters* const drops_;
  uint64_t own_origin_ = 0;
  uint64_t epoch_ = 0;      // of the master
  LinkId master_link_ = 0;  // 0 while it is down
  TreePlace place_;
  LinkId parent_link_ = 0;  // not the master's
  bool parent_up_ = false;
  bool too_far_behind_ = false;
  bool restarted_ = false;         // until the relay is open again: what it holds is void
  std::string lost_because_;       // the orphan's reason
  bool lost_by_lack_ = false;      // the parent has said that it keeps no longer what is needed
  int64_t ask_again_ns_ = kNever;  // an orphan asks then, or repeats its question
  int64_t may_ask_ns_ = 0;         // not earlier, whatever becomes of one place after another
  int64_t retry_ns_ = kNever;      // the parent did not know us yet
  int64_t last_beacon_ns_ = 0;
  std::map<LinkId, uint64_t> welcomed_;  // children whose links do not stand yet
  std::map<LinkId, uint64_t> children_;  // link -> origin
  std::map<uint64_t, Failed> failed_;    // by origin: they are no children any more
  std::deque<Word> words_;
  int64_t parents_lost_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_TREE_LINKS_H_
