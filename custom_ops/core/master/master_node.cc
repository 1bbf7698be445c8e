#include "core/master/master_node.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "core/master/master_fits.h"
#include "core/master/master_generation.h"
#include "core/master/master_tree.h"
#include "core/master/membership.h"
#include "core/master/missing_updates.h"
#include "core/master/set_aside.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/formatting.h"
#include "core/replication/merged_update.h"
#include "core/replication/node_status.h"
#include "core/replication/relay.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// A beacon ten times within the failure timeout: every 500 ms by default.
constexpr int64_t kBeaconsPerTimeout = 10;
// A member's queue may be so long whatever the model.
constexpr int64_t kLeastQueueBytes = int64_t{64} << 20;
// Epochs are the upper half of an origin.
constexpr uint64_t kEpochsEnd = uint64_t{1} << 32;
// `auto` makes a tree for more workers than this.
constexpr int32_t kMostUnderMaster = 32;

TreeBounds BoundsOf(const MasterNodeOptions& options) {
  const bool plain = options.topology == Topology::kPlain ||
                     (options.topology == Topology::kAuto && options.workers <= kMostUnderMaster);
  return plain ? TreeBounds{} : TreeBounds{options.max_children, options.max_depth};
}

MergingRules RulesOf(const MasterNodeOptions& options) {
  const bool makes_a_tree = BoundsOf(options).max_depth > 1;
  const bool is_on =
      options.merging == Merging::kOn || (options.merging == Merging::kAuto && makes_a_tree);
  return {is_on, MasterOrigin(options.epoch), options.merging_interval_ns};
}

bool ComesFromMaster(BlobKind kind) {
  return kind == BlobKind::kParameters || kind == BlobKind::kMean || kind == BlobKind::kResult ||
         kind == BlobKind::kPending || kind == BlobKind::kTarget || kind == BlobKind::kJoint ||
         kind == BlobKind::kNearPieces;
}

}  // namespace

struct MasterNode::State final : GenerationHost {
  State(const MasterNodeOptions& o, LinkLayer* l)
      : options(o),
        links(l),
        membership(o.workers, o.epoch, 2 * o.failure_timeout_ns),
        relay(RelayOptionsOf(o, /*is_root=*/true), l, &drops),
        tree(BoundsOf(o), o.host, &membership, &relay, l),
        fits(*o.codec, o.min_workers, o.failure_timeout_ns, o.link_queue_bytes / 4, RulesOf(o),
             &membership, &relay, &tree, this, &drops),
        missing_updates(o.failure_timeout_ns, &relay, &membership, this) {}

  // --- GenerationHost
  void Send(int32_t rank, const ControlMessage& message) override {
    SendTo(rank, Channel::kControl, EncodeControl(message));
  }
  void SendBlob(int32_t rank, const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) SendTo(rank, Channel::kState, chunk);
  }
  void Fail(int32_t rank, Code code, const std::string& reason) override {
    Send(rank, Failure{static_cast<int32_t>(code), reason});
    if (const Member* member = membership.FindRank(rank)) {
      // Who is refused may join anew, and begin another fit.
      const auto state = code == Code::kRefused ? Member::State::kExpected : Member::State::kLost;
      gone.push_back({member->link, state, reason, false, false});
    }
  }
  int64_t QueuedBytes(int32_t rank) const override {
    const Member* member = membership.FindRank(rank);
    return member == nullptr || member->link == 0 ? 0 : links->QueuedBytes(member->link);
  }
  int64_t FailureTimeout() const override { return options.failure_timeout_ns; }
  std::optional<Peers::Peer> ContactOf(int32_t rank) const override {
    const Member* member = membership.FindRank(rank);
    const bool alone = options.topology == Topology::kPlain;  // workers have links to it only
    if (alone || member == nullptr || member->link == 0) return std::nullopt;
    const Contact at = tree.ContactOf(*member);
    return Peers::Peer{rank, member->origin, at.instance, at.address, at.public_key};
  }
  void Report(MasterEvent event) override {
    for (const auto& [rank, member] : membership.members()) {
      if (rank != event.rank) Send(rank, Notice{event.text});
    }
    events.push_back(std::move(event));
  }
  const VersionVector& received() const override { return relay.received(); }
  int64_t MostValuesBytes() const override { return options.member_values_bytes; }
  bool Settled() const override { return tree.Settled(); }
  bool IsAway(int32_t rank) const override { return membership.IsAway(rank); }
  void PublishAll() override { fits.PublishAll(now_ns); }

  // --- links
  void HandleHello(const LinkEvent& event);
  void GiveWayTo(const Hello& hello);
  void HandleUp(const LinkEvent& event);
  void HandleMessage(Member* member, const LinkEvent& event);
  void HandleDown(const LinkEvent& event);
  void SendTo(int32_t rank, Channel channel, const Buffer& message);

  // --- what members say
  void HandleControl(Member* member, Bytes bytes);
  void Handle(Member* member, const Attach& attach);
  void Handle(Member* member, const Announce& announce) {
    fits.HandleAnnounce(now_ns, *member, announce);
  }
  void Handle(Member* member, const Done& done) { fits.Handle(*member, done); }
  void Handle(Member* member, const Verification& verification) {
    fits.Handle(*member, verification);
  }
  void Handle(Member* member, const Have& have) { fits.Handle(now_ns, *member, have); }
  void Handle(Member* member, const AskJoint& ask) { fits.Handle(*member, ask); }
  void Handle(Member* member, const Stepping& stepping) { fits.Handle(*member, stepping); }
  void Handle(Member* member, const Linked& linked) { fits.Handle(*member, linked); }
  void Handle(Member* member, const AtRound& at) { fits.Handle(*member, at); }
  void Handle(Member* member, const AskState& ask) { fits.HandleAsk(now_ns, *member, ask); }
  void Handle(Member* member, const AskSnapshot& ask) { fits.HandleAsk(now_ns, *member, ask); }
  void Handle(Member* member, const AskResume& resume) {
    fits.HandleResume(now_ns, *member, resume);
  }
  void Handle(Member* member, const ReplicaCut& replica) { fits.Handle(*member, replica); }
  void Handle(Member* member, const Placed& placed);
  void Handle(Member* member, const Orphan& orphan);
  template <typename Other>
  void Handle(Member* member, const Other&) {
    Expel(member, "a control message that only a master sends");
  }
  void HandleChunk(Member* member, const Buffer& chunk);
  int64_t ValuesBytes() const;
  int64_t MostQueuedBytes() const;
  void ExpelWhoTakesNothing(Member* member);
  void HandleUpdate(Member* member, const Buffer& update);
  void HandleMerged(Member* member, const Buffer& update);
  void HandleForeign(Member* member, const UpdateId& id, const Buffer& update);
  void LookAtForeign();
  void TakeUpdate(Member* member, const UpdateId& id, const Buffer& update);

  // --- membership
  void Expel(Member* member, const std::string& reason);  // closes its link at the end of the event
  void Beat();                                            // the regular beacon
  void BeatEarlyIfFull();
  void Settle();  // after every event: whatever it has made possible
  void ActOnNotices();
  void RemoveGone();
  void Part(const Member& member);
  void ShutDown(const std::string& reason);

  const MasterNodeOptions options;
  LinkLayer* const links;
  DropCounters drops;
  Membership membership;
  Relay relay;
  MasterTree tree;
  MasterFits fits;
  MissingUpdates missing_updates;
  std::map<LinkId, BlobAssembler> assemblers;
  int64_t most_values_bytes = 0;  // of one blob of a member so far
  SetAside foreign;               // updates from where their origin is not
  uint64_t foreign_version = 0;   // of the tree at the last look
  struct Gone {
    LinkId link;
    Member::State state;
    std::string reason;
    bool close_link;
    bool may_return;  // kLost: nobody has told it to end
  };
  std::deque<Gone> gone;  // members to remove once the event at hand is dealt with
  std::deque<MasterEvent> events;
  std::optional<std::string> shut_down;  // why
  bool superseded = false;               // by a later master
  int64_t now_ns = 0;
  int64_t next_beacon_ns = 0;
};

MasterNode::MasterNode(const MasterNodeOptions& options, LinkLayer* links)
    : state_(std::make_unique<State>(options, links)) {}
MasterNode::~MasterNode() = default;

void MasterNode::HandleLinkEvent(int64_t now_ns, LinkEvent event) {
  State& s = *state_;
  s.now_ns = now_ns;
  Member* member = s.membership.Find(event.link);
  switch (event.type) {
    case LinkEvent::Type::kHello:
      s.HandleHello(event);
      break;
    case LinkEvent::Type::kUp:
      s.HandleUp(event);
      break;
    case LinkEvent::Type::kMessage:
      if (member == nullptr) {
        ++s.drops["message of a link that is no member's"];
      } else {
        s.HandleMessage(member, event);
      }
      break;
    case LinkEvent::Type::kSuspect:
      if (member != nullptr) {
        s.events.push_back({MasterEvent::Type::kNotice, member->rank,
                            WorkerName(member->rank) + " has been silent for a while"});
      }
      break;
    case LinkEvent::Type::kDown:
      s.HandleDown(event);
      break;
  }
  s.Settle();
}

void MasterNode::HandleTimeout(int64_t now_ns) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (now_ns >= s.next_beacon_ns) s.Beat();
  s.Settle();
}

int64_t MasterNode::NextTimeout() const {
  return std::min({state_->next_beacon_ns, state_->missing_updates.NextTimeout(),
                   state_->relay.NextTimeout(), state_->fits.NextTimeout()});
}

std::optional<MasterEvent> MasterNode::PollEvent() {
  if (state_->events.empty()) return std::nullopt;
  MasterEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

void MasterNode::WorkerHasEnded(int64_t now_ns, int32_t rank) {
  state_->now_ns = now_ns;
  state_->fits.NoteEnded(rank);
}
void MasterNode::Shutdown(int64_t now_ns, const std::string& reason) {
  state_->now_ns = now_ns;
  state_->ShutDown(reason);
}

const VersionVector& MasterNode::received() const { return state_->relay.received(); }
const Replication& MasterNode::replication() const { return state_->relay.replication(); }
const std::vector<float>& MasterNode::parameters() const { return state_->fits.parameters(); }

int64_t MasterNode::steps_counted() const { return state_->fits.steps_counted(); }

void MasterNode::State::ShutDown(const std::string& reason) {
  shut_down = reason.empty() ? "the master has ended" : reason;
  for (auto& [rank, member] : membership.members()) {
    if (member.link == 0) continue;
    links->Close(now_ns, member.link, reason);
    relay.Remove(member.link);
    member.link = 0;
    member.state = Member::State::kLeft;
  }
}

// This master was stopped for so long that another one has taken its place.
void MasterNode::State::GiveWayTo(const Hello& hello) {
  if (superseded) return;
  superseded = true;
  const std::string text = WorkerName(hello.rank) + " follows a master of epoch " +
                           std::to_string(hello.epoch) + ", and this one has epoch " +
                           std::to_string(options.epoch) +
                           ": another has taken its place, and it stops";
  events.push_back({MasterEvent::Type::kSuperseded, hello.rank, text});
  ShutDown(text);
}

void MasterNode::State::HandleHello(const LinkEvent& event) {
  Hello hello;
  const Status parsed = ParseHello(*event.payload, &hello);
  // Not refused either: the worker is to look on for its own master.
  if (parsed.ok() && hello.epoch > options.epoch && hello.epoch < kEpochsEnd) {
    // Whose master has been replaced has lost them all: one worker's word alone ends nobody's job.
    if (!membership.HasOthers(hello.rank)) return GiveWayTo(hello);
    ++drops["hello that names a later master, while others are here"];
    return;
  }
  const Address from = links->PeerAddress(event.link).value_or(Address{});
  uint64_t origin = 0;
  std::string refusal = shut_down      ? *shut_down
                        : !parsed.ok() ? parsed.message
                                       : membership.Judge(now_ns, event.link, from, hello, &origin);
  const int64_t origins = std::ssize(relay.received()) + options.workers;
  if (refusal.empty() && origins > options.max_origins && !membership.FindOrigin(origin)) {
    membership.LinkDown(event.link);
    refusal = "this fit has updates of " + std::to_string(relay.received().size()) +
              " processes, which leaves no room for more; others may join when the next fit has "
              "started";
  }
  if (refusal.empty()) {
    links->Accept(now_ns, event.link, EncodeWelcome({origin, 0, options.epoch}));
    return;
  }
  events.push_back({MasterEvent::Type::kRefused, hello.rank, refusal});
  links->Refuse(now_ns, event.link, refusal);
}

void MasterNode::State::HandleUp(const LinkEvent& event) {
  if (shut_down) return links->Close(now_ns, event.link, *shut_down);
  const Membership::Joined joined = membership.LinkUp(now_ns, event.link);
  if (joined.member == nullptr) {
    events.push_back({MasterEvent::Type::kRefused, -1, joined.refusal});
    links->Close(now_ns, event.link, joined.refusal);
    return;
  }
  const int32_t rank = joined.member->rank;
  if (joined.superseded) {
    links->Close(now_ns, joined.superseded->link,
                 joined.resumed
                     ? "this worker has come back over a new link"
                     : "superseded by attempt " + std::to_string(joined.member->attempt) + " of " +
                           WorkerName(rank) + "; this process has to end");
    Part(*joined.superseded);
    if (!joined.resumed) tree.Leave(now_ns, joined.superseded->origin);
  }
  const uint64_t returning = joined.resumed ? joined.member->origin : 0;
  if (joined.superseded || joined.resumed) fits.Lose(rank, returning);  // ATTACH reinstates it
  if (joined.superseded && !joined.resumed) {
    Report({MasterEvent::Type::kLost, rank,
            WorkerName(rank) + " (attempt " + std::to_string(joined.superseded->attempt) +
                ") was lost: another process has taken its place"});
  }
  MasterEvent arrival{MasterEvent::Type::kJoined, rank, joined.Words()};
  joined.returns ? Report(std::move(arrival)) : events.push_back(std::move(arrival));
  // While a generation runs, only ATTACH or LAYOUT says that it takes part in it.
  // So it is with one that RESUME may follow from.
  const bool says_more = fits.is_running() || membership.IsAdopted(*joined.member);
  if (says_more && !tree.Has(*joined.member)) return;
  if (!tree.Join(now_ns, *joined.member, joined.resumed)) {
    Fail(rank, Code::kRefused, "the tree of workers is full");
  }
}

void MasterNode::State::HandleMessage(Member* member, const LinkEvent& event) {
  // No message is answered by more than one of each kind, so that this bounds what waits for it.
  ExpelWhoTakesNothing(member);
  switch (event.channel) {
    case Channel::kControl:
      return HandleControl(member, *event.payload);
    case Channel::kState:
      return HandleChunk(member, event.payload);
    case Channel::kUpdate:
      return HandleUpdate(member, event.payload);
  }
}

void MasterNode::State::HandleDown(const LinkEvent& event) {
  membership.LinkDown(event.link);
  if (membership.Find(event.link) == nullptr) return;
  const bool goodbye = event.code == Code::kClosed && event.reason.empty();
  const bool may_return = event.code != Code::kClosed;
  gone.push_back({event.link,
                  goodbye                                ? Member::State::kLeft
                  : may_return                           ? Member::State::kAway
                  : event.reason.starts_with(kJoinsAnew) ? Member::State::kExpected
                                                         : Member::State::kLost,
                  event.reason, false, true});
}

void MasterNode::State::SendTo(int32_t rank, Channel channel, const Buffer& message) {
  const Member* member = membership.FindRank(rank);
  if (member != nullptr && member->link != 0) {
    links->Send(now_ns, member->link, channel, message);
  }
}

void MasterNode::State::HandleControl(Member* member, Bytes bytes) {
  ControlMessage message;
  const Status parsed = ParseControl(bytes, &message);
  if (!parsed.ok()) return Expel(member, parsed.message);
  std::visit([&](const auto& value) { Handle(member, value); }, message);
}

void MasterNode::State::Handle(Member* member, const Attach& attach) {
  if (attach.generation == 0) return;  // the next START attaches it
  if (!fits.HandleAttach(now_ns, *member, attach)) return;
  if (relay.Has(member->link)) {
    relay.HandleAttach(now_ns, member->link, attach);
  } else {
    Send(member->rank, Attach{attach.generation, relay.received()});  // its parent replays
  }
}

void MasterNode::State::Handle(Member* member, const Placed& placed) {
  tree.HandlePlaced(*member, placed);
  fits.Resume();
}

void MasterNode::State::Handle(Member* member, const Orphan& orphan) {
  if (!tree.HandleOrphan(now_ns, *member, orphan)) return;
  events.push_back({MasterEvent::Type::kNotice, member->rank,
                    WorkerName(member->rank) + " gets another parent: " + orphan.reason});
}

void MasterNode::State::HandleChunk(Member* member, const Buffer& chunk) {
  BlobChunk parsed;
  const Status well_formed = ParseChunk(*chunk, &parsed);
  if (well_formed.ok() && parsed.name.kind == BlobKind::kDonation) {
    return fits.HandleDonation(now_ns, *member, parsed, chunk);  // nothing to put together here
  }
  if (!well_formed.ok()) return Expel(member, well_formed.message);
  if (static_cast<int64_t>(parsed.bytes.size()) > kChunkBytes ||
      ComesFromMaster(parsed.name.kind)) {
    return Expel(member, "a chunk that only a master sends, or that is too long");
  }
  if (parsed.name.kind == BlobKind::kShard) {
    const std::string fault = fits.HandleShard(now_ns, *member, parsed);
    if (!fault.empty()) Expel(member, WorkerName(member->rank) + " sent " + fault);
    return;
  }
  BlobAssembler& assembler = assemblers[member->link];
  std::optional<int64_t> most = fits.MostBytes(*member, parsed.name);
  if (!most) {
    ++drops["values that nobody waits for"];
  } else if (parsed.name.kind == BlobKind::kAverage || parsed.name.kind == BlobKind::kState) {
    if (ValuesBytes() + static_cast<int64_t>(parsed.bytes.size()) > options.values_bytes) {
      return Expel(member, "the workers' values that are to be averaged are more than the " +
                               MegabytesText(options.values_bytes) + " that the master takes");
    }
  }
  std::optional<Blob> blob;
  const Status status = assembler.Add(parsed, most, &blob);
  if (!status.ok()) return Expel(member, status.message);
  if (!blob) return;
  most_values_bytes = std::max(most_values_bytes, static_cast<int64_t>(blob->size_bytes()));
  const std::string fault = fits.HandleBlob(*member, *std::move(blob));
  if (!fault.empty()) Expel(member, fault);
}

// What all members' values that are to be averaged hold here.
int64_t MasterNode::State::ValuesBytes() const {
  int64_t bytes = 0;
  for (const auto& [link, assembler] : assemblers) bytes += assembler.bytes();
  for (const auto& [rank, member] : membership.members()) bytes += fits.ValuesBytes(rank);
  return bytes;
}

// What a member that takes what it is sent never has queued: snapshots, means and the updates of a
// queue.
int64_t MasterNode::State::MostQueuedBytes() const {
  return kLeastQueueBytes + 4 * options.link_queue_bytes + 2 * most_values_bytes +
         4 * static_cast<int64_t>(fits.parameters().size() * sizeof(float));
}

void MasterNode::State::ExpelWhoTakesNothing(Member* member) {
  if (member->link == 0 || links->QueuedBytes(member->link) <= MostQueuedBytes()) return;
  Expel(member, WorkerName(member->rank) + " does not take what it is sent");
}

void MasterNode::State::HandleUpdate(Member* member, const Buffer& update) {
  if (!fits.has_started()) return Expel(member, "an update before any generation has started");
  const Relay::Checked checked = relay.Check(update);
  if (checked.verdict == Relay::Checked::Verdict::kStale) return;
  const UpdateId id = checked.header.id;
  if (checked.verdict == Relay::Checked::Verdict::kBad) {
    if (id.origin == member->origin) relay.Close(id.origin);
    return Expel(member, "the master refuses " + WorkerName(member->rank) + "'s " + checked.why);
  }
  if (checked.header.merged()) return HandleMerged(member, update);
  if (!membership.IsKnown(id.origin)) {
    ++drops["update of an unknown origin"];
    return;
  }
  const bool passes_on = relay.merges() && !tree.is_star();
  if (!passes_on && !tree.MaySpeakFor(*member, id.origin)) {
    // One that attaches anew may give back what has just been relayed to it.
    if (!Covers(relay.received(), id)) return HandleForeign(member, id, update);
    ++drops["duplicate update"];
    return;
  }
  TakeUpdate(member, id, update);
}

// Whoever is below the member may have a part in it, or have had until it moved.
void MasterNode::State::HandleMerged(Member* member, const Buffer& update) {
  if (!relay.merges()) return Expel(member, "a merged update, where none are merged");
  UpdateRanges contents = ContentsOf(update);
  for (const UpdateRange& range : contents) {
    const UpdateId last = {range.origin, range.to};
    if (!membership.IsKnown(range.origin)) {
      ++drops["update of an unknown origin"];
      return;
    }
    if (tree.is_star() && range.origin != member->origin) {
      return Expel(member, WorkerName(member->rank) + " sent an update in another worker's name");
    }
    if (!fits.CheckUpdate(*member, last).empty()) {
      ++drops["update after its origin's DONE"];
      return;
    }
  }
  std::vector<Replication::Accepted> accepted;
  relay.TakeMerged(now_ns, member->link, std::move(contents), update, &accepted);
  fits.HandleAccepted(now_ns, accepted);
  BeatEarlyIfFull();
}

// In a tree a worker that has just moved may have sent it before, by who was above it then. It
// comes again from where its origin is now, unless that is lost meanwhile.
void MasterNode::State::HandleForeign(Member* member, const UpdateId& id, const Buffer& update) {
  if (tree.is_star()) {
    return Expel(member, WorkerName(member->rank) + " sent an update in another worker's name");
  }
  ++drops["update from where its origin is not"];
  foreign.Add(id, member->link, update);
  if (foreign.bytes() > options.ring_bytes) LookAtForeign();
  while (foreign.bytes() > options.ring_bytes) {
    const LinkId most = foreign.SenderOfMost();
    foreign.DropFrom(most);
    Member* const sender = membership.Find(most);  // null: gone meanwhile
    if (sender != nullptr) Expel(sender, "too many updates of workers that are not below it");
  }
}

// Of those that were set aside: what its origin has sent meanwhile goes, and what may come from
// there now, after a change of the tree, is taken.
void MasterNode::State::LookAtForeign() {
  foreign_version = tree.version();
  const auto stays = [this](LinkId from, const UpdateId& id) {
    Member* const sender = membership.Find(from);
    return sender != nullptr && !tree.MaySpeakFor(*sender, id.origin) &&
           !Covers(relay.received(), id);
  };
  foreign.Look(stays, [this](LinkId from, const UpdateId& id, const Buffer& update) {
    Member* const sender = membership.Find(from);
    const bool fits_still = !Covers(relay.received(), id) && sender != nullptr &&
                            fits.has_started() &&
                            relay.Check(update).verdict == Relay::Checked::Verdict::kFits;
    if (fits_still) TakeUpdate(sender, id, update);
  });
}

void MasterNode::State::TakeUpdate(Member* member, const UpdateId& id, const Buffer& update) {
  // None where another process has taken its rank: what others have accepted of it counts still.
  Member* const origin = membership.FindOrigin(id.origin);
  if (const std::string late = fits.CheckUpdate(*member, id); !late.empty()) {
    ++drops["update after its origin's DONE"];
    if (origin == member) Expel(member, late);
    return;
  }
  std::vector<Replication::Accepted> accepted;
  const std::string fault = relay.Take(now_ns, member->link, id, update, &accepted);
  if (!fault.empty()) Expel(member, fault);
  fits.HandleAccepted(now_ns, accepted);
  BeatEarlyIfFull();
  if (const auto excess = fits.FindExcess()) {
    Expel(membership.FindRank(excess->rank), excess->why);
  }
}

// What no beacon has named yet stays, so a beacon comes early where that is much.
void MasterNode::State::BeatEarlyIfFull() {
  if (relay.replication().ring_bytes() > 2 * options.ring_bytes) next_beacon_ns = now_ns;
}

void MasterNode::State::Beat() {
  next_beacon_ns = now_ns + options.failure_timeout_ns / kBeaconsPerTimeout;
  relay.SetMasterVector(now_ns, relay.received());
  tree.SendBeacons(now_ns, options.epoch, static_cast<uint32_t>(fits.missing()));
  LookAtForeign();
  if (const auto given_up = tree.GiveUpLost()) {
    Report({MasterEvent::Type::kNotice, -1, *given_up});
    fits.Resume();
  }
  for (auto& [rank, member] : membership.members()) ExpelWhoTakesNothing(&member);
  for (const int32_t rank : membership.GiveUp(now_ns)) {
    Report({MasterEvent::Type::kLost, rank, WorkerName(rank) + " was lost: it does not join anew"});
  }
}

void MasterNode::State::ActOnNotices() {
  while (auto notice = relay.PollNotice()) {
    Member* const member = membership.Find(notice->link);
    if (member == nullptr) continue;
    if (notice->type == RelayNotice::Type::kHoldsTooMuch) {
      Expel(member, notice->text);
      continue;
    }
    events.push_back({MasterEvent::Type::kNotice, member->rank, notice->text});
    const bool is_stuck = notice->type == RelayNotice::Type::kTooFarBehind;
    if (is_stuck && !fits.HandleTooFarBehind(member->rank)) {
      Fail(member->rank, Code::kMasterLost, notice->text + "; start it anew");
    }
  }
}

void MasterNode::State::Expel(Member* member, const std::string& reason) {
  gone.push_back({member->link, Member::State::kLost, reason, true, false});
}

void MasterNode::State::Settle() {
  missing_updates.Ask(now_ns);
  if (fits.PublishIfDue(now_ns)) BeatEarlyIfFull();
  relay.Advance(now_ns);
  ActOnNotices();
  RemoveGone();
  if (foreign_version != tree.version()) LookAtForeign();
  if (const auto ended = fits.TakeEnded()) {
    events.push_back(
        {MasterEvent::Type::kEnded, -1, "generation " + std::to_string(*ended) + " has ended"});
  }
  fits.Settle(now_ns);
  if (const auto resumed = fits.TakeResumed()) {
    Report({MasterEvent::Type::kResumed, -1, *resumed});
    next_beacon_ns = now_ns;
  }
  if (const auto waits = fits.TakeMissingChange()) {
    Report({MasterEvent::Type::kNotice, -1, *waits});
    next_beacon_ns = now_ns;  // tells all workers
  }
  if (const auto started = fits.StartIfReady(now_ns)) {
    events.push_back({MasterEvent::Type::kStarted, -1, *started});
  }
  RemoveGone();
}

void MasterNode::State::RemoveGone() {
  while (!gone.empty()) {
    const Gone leaving = std::move(gone.front());
    gone.pop_front();
    Member* member = membership.Find(leaving.link);
    if (member == nullptr) continue;  // said twice
    const int32_t rank = member->rank;
    if (leaving.close_link) links->Close(now_ns, leaving.link, leaving.reason);
    Part(*member);
    membership.Part(now_ns, member, leaving.state, leaving.may_return);
    if (leaving.state == Member::State::kLeft) {
      events.push_back({MasterEvent::Type::kLeft, rank, WorkerName(rank) + " has left"});
    } else if (leaving.reason == kDrained) {
      Report({MasterEvent::Type::kDrained, rank,
              WorkerName(rank) + " has drained: the master holds all that it has sent"});
    } else if (leaving.reason.starts_with(kJoinsAnew)) {
      const std::string why = leaving.reason.substr(kJoinsAnew.size());
      const std::string text = WorkerName(rank) + " left to join anew: " + why;
      Report({MasterEvent::Type::kNotice, rank, text});
      if (why.starts_with(kCannotStart)) fits.NoteCannotStart(rank, text);
    } else {
      const std::string text = WorkerName(rank) + " was lost: " + leaving.reason;
      Report({MasterEvent::Type::kLost, rank, text});
    }
    tree.Leave(now_ns, member->origin);
    fits.Lose(rank);
  }
}

// Its link is gone; if it comes back, it sends all again that the master lacks.
void MasterNode::State::Part(const Member& member) {
  assemblers.erase(member.link);
  relay.Part(member.link);
}

std::string MasterNode::StatusJson() const {
  const State& s = *state_;
  std::string members;
  int64_t update_bytes = 0;
  for (const auto& [rank, member] : s.membership.members()) {
    static constexpr const char* kStates[] = {"live", "away", "lost", "left", "expected"};
    JsonObject json;
    json.Add("rank", rank)
        .Add("attempt", member.attempt)
        .Add("origin", member.origin)
        .Add("state", std::string(kStates[static_cast<size_t>(member.state)]))
        .Add("attached", s.relay.IsAttached(member.link))
        .Add("updates_accepted", member.updates_accepted)
        .Add("update_bytes", member.update_bytes)
        .Add("queued_bytes", member.link == 0 ? 0 : s.links->QueuedBytes(member.link));
    s.tree.AddStatus(member, &json);
    members += (members.empty() ? "" : ", ") + json.Text();
    update_bytes += member.update_bytes;
  }
  JsonObject json;
  json.Add("role", std::string("master"))
      .Add("workers", s.options.workers)
      .Add("min_workers", s.options.min_workers)
      .Add("epoch", s.options.epoch)
      .Add("update_bytes", update_bytes)
      .Add("topology_version", s.tree.version())
      .Add("set_aside_bytes", s.foreign.bytes())
      .Add("set_aside_checks", s.foreign.looks())
      .AddRaw("members", "[" + members + "]")
      .AddRaw("drops", DropsJson(s.drops));
  s.fits.AddStatus(&json);
  s.relay.AddStatus(&json);
  return json.Text();
}

}  // namespace strom
