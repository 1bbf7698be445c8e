// How a node relays, the same at the master and at a worker: its neighbours in the tree, what each
// of them has been sent, and the replication rules behind it (core/replication/replication.h).
//
// A neighbour attaches with its vector. It is then sent what it lacks, as fast as its link takes
// it, and after that every update as it is accepted here, except what came from it. Back-pressure:
//   - what goes up to the parent is never dropped: while more than half of the queue's cap waits,
//     the children are held back, until it is less than a quarter;
//   - a child over its queue's cap lags: what waits for it is given up and, once its link has
//     drained, it is asked to attach anew. Nobody else notices.
// Where the master publishes what it has merged, children get that alone and the parent the
// updates of workers.
#ifndef KERAS_STROM_CORE_REPLICATION_RELAY_H_
#define KERAS_STROM_CORE_REPLICATION_RELAY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/replication/control.h"
#include "core/replication/node_status.h"
#include "core/replication/replication.h"
#include "core/replication/update.h"
#include "core/replication/upward_queue.h"

namespace strom {

// Where updates are merged: a link that has more than this to send is busy, and what comes
// meanwhile goes out together.
inline constexpr int64_t kBusyLinkBytes = int64_t{64} << 10;

struct RelayOptions {
  ReplicationOptions replication;
  int64_t queue_bytes = int64_t{32} << 20;  // a neighbour's cap
  int64_t failure_timeout_ns = 5'000'000'000;
  bool is_root = false;  // the master: it has no parent
  const UpdateCodec* codec = &MessageCodec();
};

// Of a node's own options.
template <typename NodeOptions>
RelayOptions RelayOptionsOf(const NodeOptions& node, bool is_root) {
  RelayOptions options;
  options.replication = {node.ring_bytes, node.ring_bytes, 3 * node.failure_timeout_ns};
  options.queue_bytes = node.link_queue_bytes;
  options.failure_timeout_ns = node.failure_timeout_ns;
  options.is_root = is_root;
  options.codec = node.codec;
  return options;
}

// Something about a neighbour that a user should know, or its node has to act on.
struct RelayNotice {
  enum class Type {
    kLags,
    kCaughtUp,
    kTooFarBehind,  // the ring does not reach back to its vector: it needs a snapshot
    kHoldsTooMuch   // the most of what is held for a gap came from it: its link must be closed
  };
  Type type = Type::kLags;
  LinkId link = 0;
  std::string text;
};

class Relay {
 public:
  enum class Role { kParent, kChild };

  // `links` and `drops` outlive this.
  Relay(const RelayOptions& options, LinkLayer* links, DropCounters* drops);

  // --- neighbours; `name` is for notices and the status
  void Add(int64_t now_ns, LinkId link, Role role, std::string name);
  // No neighbour any more; the link may stand still.
  void Remove(LinkId link) { neighbours_.erase(link); }
  // The same of a link that is closed; what is held and has come by no other is forgotten.
  void Part(LinkId link);
  bool Has(LinkId link) const { return neighbours_.contains(link); }
  bool IsAttached(LinkId link) const;
  bool IsChild(LinkId link) const {
    const auto found = neighbours_.find(link);
    return found != neighbours_.end() && found->second.role == Role::kChild;
  }

  // --- generations
  // The updates from now on belong to `layout`; nobody is attached any more.
  void Begin(const Layout& layout);
  // START: what `cut` covers came by a snapshot, and of earlier generations only the origins that
  // it names are known any more. Children that attached before are answered now. Where the master
  // publishes, `own_origin` is this worker's, 0 at the master.
  void Open(int64_t now_ns, const VersionVector& cut, std::vector<Replication::Accepted>* accepted,
            int64_t merging_ns = kNotMerging, uint64_t own_origin = 0);
  bool merges() const { return merging_ns_ != kNotMerging; }
  int64_t merging_ns() const { return merging_ns_; }
  // What a published update contains is here by it; what is accepted thereby goes up.
  void Learn(int64_t now_ns, const VersionVector& contents);
  // See Replication.
  void KeepBeyond(int64_t now_ns, std::optional<VersionVector> vector) {
    replication_.KeepBeyond(now_ns, std::move(vector));
  }
  // What `cut` covers comes by a snapshot in the middle of the generation: children lack it, and
  // are asked to attach anew.
  void FastForward(int64_t now_ns, const VersionVector& cut,
                   std::vector<Replication::Accepted>* accepted);
  // The master is gone for good: nothing is relayed until Reopen. Neighbours are to be removed.
  void Suspend() { open_ = false; }
  // Another master goes on from `cut`. Of the updates here those of `own_origin` beyond it stay.
  void Reopen(int64_t now_ns, const VersionVector& cut, uint64_t own_origin,
              int64_t merging_ns = kNotMerging);
  // Another master, between two generations: drops all updates but those of `own_origin`.
  void Forget(const VersionVector& own, uint64_t own_origin) {
    replication_.Reset(own, own_origin);
  }
  // Between Open and the next Begin, and not suspended.
  bool is_open() const { return open_; }
  const Layout& layout() const { return layout_; }

  // --- attaching
  // Says ATTACH to the parent at `link`; its answer comes to HandleAttach.
  void AskToAttach(int64_t now_ns, LinkId link);
  // START attaches the two ends of a link to the master without a word: both hold the cut.
  void AttachAtStart(LinkId link);
  // The same for a child that starts late: it gets what is beyond `cut`. `snapshot_bytes` of what
  // is queued for it are none of its updates.
  void AttachLate(int64_t now_ns, LinkId link, const VersionVector& cut, int64_t snapshot_bytes);
  // A child's ATTACH is answered, registered and replayed in one step, or once this node has
  // started; a parent's is the answer to ours.
  void HandleAttach(int64_t now_ns, LinkId link, const Attach& attach);

  // --- updates
  struct Checked {
    enum class Verdict { kFits, kStale, kBad };
    Verdict verdict = Verdict::kBad;
    UpdateHeader header;
    std::string why;  // kBad
  };
  // Parses and validates one update; kStale is of an earlier generation and counted as dropped.
  Checked Check(const Buffer& update);
  // Takes a checked update from the neighbour at `link`, or an own one (link 0), and relays what
  // is thereby accepted. "" or the reason why the link that it came over must be closed. Where too
  // much is held a notice names whose link must be.
  std::string Take(int64_t now_ns, LinkId link, const UpdateId& id, const Buffer& update,
                   std::vector<Replication::Accepted>* accepted);
  // Where the master publishes: a checked update that a child has sent goes on upward.
  void PassUp(Buffer update) { upward_.Add(std::move(update)); }
  // At that master: a checked merged update, with what it contains.
  void TakeMerged(int64_t now_ns, LinkId link, UpdateRanges contents, const Buffer& update,
                  std::vector<Replication::Accepted>* accepted);
  UpdateRanges TakeRefused() { return replication_.TakeRefused(); }
  void RefuseHeld(uint64_t origin) { replication_.RefuseHeld(origin); }
  // Some child's link has nearly nothing left to send, or there is none.
  bool HasIdleChild() const;
  void Close(uint64_t origin) { replication_.Close(origin); }
  void SetMasterVector(int64_t now_ns, const VersionVector& vector) {
    replication_.SetMasterVector(now_ns, vector);
  }

  // --- time: after every event, and when NextTimeout is over
  void Advance(int64_t now_ns);
  int64_t NextTimeout() const { return next_look_ns_; }
  // Queues shrink without an event: who waits for that looks again then.
  int64_t NextLook(int64_t now_ns) const;
  std::optional<RelayNotice> PollNotice();

  // Snapshots that wait in the same queue are no lag: until they have left, so much more than its
  // cap may be queued for each neighbour.
  void SetAllowance(int64_t bytes);
  // Bytes of `origin`'s updates, or in the parent's queue, that wait to go up.
  int64_t OutgoingBytes(uint64_t origin) const;
  // Whether `link` leads to the attached parent, and that has acknowledged all that is here.
  bool HasAll(LinkId link) const;

  // Whether a child that has what `cut` covers can be told all else.
  bool ReachesBackTo(const VersionVector& cut) const {
    return replication_.ReachesBackTo(
        merges() ? Replication::Origins::kOfMaster : Replication::Origins::kAll, cut);
  }
  // What a worker has to apply beyond a cut, its own updates too; see Replication::Beyond.
  std::optional<std::vector<ReceivedUpdate>> Beyond(const VersionVector& cut) const {
    return replication_.Beyond(
        cut, merges() ? Replication::Origins::kApplied : Replication::Origins::kAll);
  }
  const Replication& replication() const { return replication_; }
  const VersionVector& received() const { return replication_.received(); }
  void AddStatus(JsonObject* json) const;

 private:
  struct Neighbour {
    enum class State {
      kDetached,
      kCatchingUp,  // gets what it lacks beyond `cursor` as fast as its link takes it
      kAttached,    // gets every update as it is accepted
      kLagging      // gets nothing until its link has drained and it has attached anew
    };
    Role role = Role::kChild;
    std::string name;
    State state = State::kDetached;
    VersionVector cursor;         // catching up: what it has or has been sent
    std::optional<Attach> early;  // came before this node's START
    bool lagged = false;          // a notice said so
    bool asked = false;           // lagging: to attach anew
    int64_t allowance_bytes = 0;  // of what is queued, at most so much is a snapshot's
  };

  // What a neighbour gets.
  Replication::Origins OriginsFor(const Neighbour& neighbour) const;
  void Relayed(int64_t now_ns, const Replication::Accepted& accepted);
  void CatchUp(int64_t now_ns, LinkId link, Neighbour* neighbour);
  void Lag(int64_t now_ns, LinkId link, Neighbour* neighbour, int64_t queued);
  void AskAgain(int64_t now_ns, LinkId link, Neighbour* neighbour);
  bool MakeRoom(LinkId sender);
  void HoldChildrenBack(int64_t now_ns);
  int64_t UpwardBytes() const;
  // The link to the parent, where that is attached; 0 = none is.
  LinkId AttachedParent() const;
  // When a look at what waits for the parent is due; kNever where nothing does.
  int64_t SendUpward(int64_t now_ns);
  void SendControl(int64_t now_ns, LinkId link, const ControlMessage& message) {
    links_->Send(now_ns, link, Channel::kControl, EncodeControl(message));
  }

  const RelayOptions options_;
  LinkLayer* const links_;
  DropCounters* const drops_;
  Replication replication_;
  Layout layout_;
  bool open_ = false;
  int64_t merging_ns_ = kNotMerging;
  UpwardQueue upward_;
  std::map<LinkId, Neighbour> neighbours_;
  bool holds_back_ = false;
  int64_t next_look_ns_ = kNever;
  std::deque<RelayNotice> notices_;
  int64_t relayed_messages_ = 0;
  int64_t relayed_bytes_ = 0;
  int64_t replayed_messages_ = 0;
  int64_t times_lagged_ = 0;
  int64_t times_held_back_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_RELAY_H_
