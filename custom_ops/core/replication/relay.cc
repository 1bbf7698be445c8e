#include "core/replication/relay.h"

#include <algorithm>
#include <utility>

#include "core/replication/merged_update.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// While somebody waits for a queue to shrink, a look so often within the failure timeout (every
// 10 ms by default).
constexpr int64_t kLooksPerTimeout = 500;

}  // namespace

Relay::Relay(const RelayOptions& options, LinkLayer* links, DropCounters* drops)
    : options_(options), links_(links), drops_(drops), replication_(options.replication) {}

void Relay::Add(int64_t now_ns, LinkId link, Role role, std::string name) {
  Neighbour& neighbour = neighbours_[link];
  neighbour = {};
  neighbour.role = role;
  neighbour.name = std::move(name);
  if (role == Role::kChild && holds_back_) links_->HoldBack(now_ns, link, true);
}

void Relay::Part(LinkId link) {
  Remove(link);
  replication_.ForgetHeldFrom(link);
}

bool Relay::IsAttached(LinkId link) const {
  auto found = neighbours_.find(link);
  return found != neighbours_.end() && found->second.state == Neighbour::State::kAttached;
}

void Relay::Begin(const Layout& layout) {
  layout_ = layout;
  open_ = false;
  replication_.BeginGeneration();
  for (auto& [link, neighbour] : neighbours_) {
    neighbour.state = Neighbour::State::kDetached;
    neighbour.lagged = neighbour.asked = false;
    neighbour.cursor.clear();
  }
}

void Relay::Open(int64_t now_ns, const VersionVector& cut,
                 std::vector<Replication::Accepted>* accepted, int64_t merging_ns,
                 uint64_t own_origin) {
  open_ = true;
  merging_ns_ = merging_ns;
  upward_.Restart(layout_, merging_ns);
  replication_.KeepUnpublished(merges() ? own_origin : 0);
  replication_.KeepOfMasterOnly(merges() && options_.is_root);
  replication_.Retire(cut);
  replication_.InstallCut(now_ns, cut, accepted);
  for (auto& [link, neighbour] : neighbours_) {
    if (auto early = std::exchange(neighbour.early, std::nullopt)) {
      HandleAttach(now_ns, link, *early);
    }
  }
}

void Relay::Reopen(int64_t now_ns, const VersionVector& cut, uint64_t own_origin,
                   int64_t merging_ns) {
  replication_.KeepUnpublished(merging_ns != kNotMerging ? own_origin : 0);
  replication_.Reset(cut, own_origin);
  std::vector<Replication::Accepted> none;  // nothing was held
  Open(now_ns, cut, &none, merging_ns, own_origin);
}

void Relay::Learn(int64_t now_ns, const VersionVector& contents) {
  std::vector<Replication::Accepted> accepted;
  replication_.InstallCut(now_ns, contents, &accepted);
  for (const Replication::Accepted& held : accepted) Relayed(now_ns, held);
}

Replication::Origins Relay::OriginsFor(const Neighbour& neighbour) const {
  if (!merges()) return Replication::Origins::kAll;
  return neighbour.role == Role::kChild ? Replication::Origins::kOfMaster
                                        : Replication::Origins::kOfWorkers;
}

void Relay::FastForward(int64_t now_ns, const VersionVector& cut,
                        std::vector<Replication::Accepted>* accepted) {
  replication_.InstallCut(now_ns, cut, accepted);
  for (auto& [link, neighbour] : neighbours_) {
    const bool attached = neighbour.state == Neighbour::State::kAttached ||
                          neighbour.state == Neighbour::State::kCatchingUp;
    if (neighbour.role != Role::kChild || !attached) continue;
    neighbour.state = Neighbour::State::kLagging;
    neighbour.asked = true;
    SendControl(now_ns, link, AttachAnew{layout_.generation});
  }
  for (const Replication::Accepted& held : *accepted) Relayed(now_ns, held);
}

void Relay::AskToAttach(int64_t now_ns, LinkId link) {
  SendControl(now_ns, link, Attach{layout_.generation, received()});
}

void Relay::AttachAtStart(LinkId link) {
  auto found = neighbours_.find(link);
  if (found != neighbours_.end()) found->second.state = Neighbour::State::kAttached;
}

void Relay::AttachLate(int64_t now_ns, LinkId link, const VersionVector& cut,
                       int64_t snapshot_bytes) {
  auto found = neighbours_.find(link);
  if (found == neighbours_.end()) return;
  Neighbour& neighbour = found->second;
  neighbour.state = Neighbour::State::kCatchingUp;
  neighbour.cursor = cut;
  neighbour.allowance_bytes = snapshot_bytes;
  CatchUp(now_ns, link, &neighbour);
}

void Relay::HandleAttach(int64_t now_ns, LinkId link, const Attach& attach) {
  auto found = neighbours_.find(link);
  if (found == neighbours_.end() || attach.generation < layout_.generation) return;
  Neighbour& neighbour = found->second;
  if (attach.generation > layout_.generation || !open_) {
    neighbour.early = attach;
    return;
  }
  // The answer, the registration and the replay are one step: nothing can fall between them. One
  // that lagged is attached upward all the time and needs no answer.
  if (neighbour.role == Role::kChild && neighbour.state != Neighbour::State::kLagging) {
    AskToAttach(now_ns, link);
  }
  neighbour.state = Neighbour::State::kCatchingUp;
  neighbour.asked = false;
  neighbour.cursor = attach.vector;
  CatchUp(now_ns, link, &neighbour);
}

Relay::Checked Relay::Check(const Buffer& update) {
  Checked checked;
  if (ParseUpdateHeader(*update, &checked.header).ok() &&
      checked.header.layout.generation < layout_.generation) {
    ++(*drops_)["update of an earlier generation"];  // the next START's snapshot contains it
    checked.verdict = Checked::Verdict::kStale;
    return checked;
  }
  const Status valid = ValidateUpdate(*update, layout_, *options_.codec, &checked.header);
  const bool has_room =
      !merges() || checked.header.merged() || SizeOf(update) <= kMaxMessageBytes - kMergedRoomBytes;
  // A publication may overtake START, which says whether there are any.
  const bool may_be_merged = merges() || (!open_ && IsOfMaster(checked.header.id.origin));
  if (valid.ok() && checked.header.merged() && !may_be_merged) {
    ++(*drops_)["invalid update"];
    checked.why = "merged update, where none are merged";
  } else if (valid.ok() && !has_room) {
    ++(*drops_)["invalid update"];
    checked.why = "update, which is too long to be merged with others";
  } else if (valid.ok()) {
    checked.verdict = Checked::Verdict::kFits;
  } else {
    ++(*drops_)["invalid update"];
    checked.why = valid.message;
  }
  return checked;
}

std::string Relay::Take(int64_t now_ns, LinkId link, const UpdateId& id, const Buffer& update,
                        std::vector<Replication::Accepted>* accepted) {
  if (IsOfMaster(id.origin) && IsChild(link)) {
    return "a merged update, which only a master publishes";
  }
  const size_t before = accepted->size();
  switch (replication_.Receive(now_ns, link, id, update, accepted)) {
    case Replication::Verdict::kAccepted:
    case Replication::Verdict::kHeld:
      break;
    case Replication::Verdict::kRefused:  // only merged ones are
    case Replication::Verdict::kDuplicate:
      ++(*drops_)["duplicate update"];
      break;
    case Replication::Verdict::kClosed:
      ++(*drops_)["update of a closed origin"];
      break;
    case Replication::Verdict::kNoRoom:
      return MakeRoom(link) ? Take(now_ns, link, id, update, accepted) : "";
    case Replication::Verdict::kTooManyOrigins:
      ++(*drops_)["update over the bound of origins"];
      return "updates of too many processes";
  }
  for (size_t i = before; i < accepted->size(); ++i) Relayed(now_ns, (*accepted)[i]);
  return "";
}

// Whoever makes much of the room be taken pays for it, and not who comes when none is left. False:
// that is the sender itself, or nothing can be done for an update of that size.
bool Relay::MakeRoom(LinkId sender) {
  LinkId most = replication_.HoldsMost();
  if (most == 0) most = sender;
  ++(*drops_)["update over the hold bound"];
  replication_.DropHeldFrom(most);
  notices_.push_back({RelayNotice::Type::kHoldsTooMuch, most, "too many updates out of order"});
  return most != sender;
}

void Relay::SetAllowance(int64_t bytes) {
  for (auto& [link, neighbour] : neighbours_) neighbour.allowance_bytes = bytes;
}

void Relay::Relayed(int64_t now_ns, const Replication::Accepted& accepted) {
  const int64_t size = SizeOf(accepted.update);
  for (auto& [link, neighbour] : neighbours_) {
    if (link == accepted.from) {
      // It need not be sent what came from it, where nothing before that is missing either.
      auto cursor = neighbour.cursor.find(accepted.id.origin);
      if (cursor != neighbour.cursor.end() && cursor->second + 1 == accepted.id.counter) {
        cursor->second = accepted.id.counter;
      }
      continue;
    }
    if (neighbour.state != Neighbour::State::kAttached) continue;
    if (!replication_.Is(accepted.id.origin, OriginsFor(neighbour))) continue;
    const int64_t queued = links_->QueuedBytes(link);
    neighbour.allowance_bytes = std::min(neighbour.allowance_bytes, queued);
    const int64_t cap = options_.queue_bytes + neighbour.allowance_bytes;
    if (neighbour.role == Role::kChild && queued + size > cap) {
      Lag(now_ns, link, &neighbour, queued);
      continue;
    }
    if (merges() && neighbour.role == Role::kParent) {
      upward_.Add(accepted.update);
      upward_.NoteStep(now_ns, ContentsOf(accepted.update).back().iteration);
      continue;
    }
    links_->Send(now_ns, link, Channel::kUpdate, accepted.update);
    ++relayed_messages_;
    relayed_bytes_ += size;
  }
}

void Relay::CatchUp(int64_t now_ns, LinkId link, Neighbour* neighbour) {
  while (neighbour->state == Neighbour::State::kCatchingUp) {
    const int64_t queued = links_->QueuedBytes(link);
    neighbour->allowance_bytes = std::min(neighbour->allowance_bytes, queued);
    const int64_t updates = queued - neighbour->allowance_bytes;
    if (updates > options_.queue_bytes / 4) return;
    // What the master holds, by a beacon or a snapshot since, need not go up: a parent that lacks
    // it gets it from above.
    if (neighbour->role == Role::kParent) Join(replication_.master(), &neighbour->cursor);
    std::vector<Buffer> missing;
    const Replication::Origins origins = OriginsFor(*neighbour);
    if (!replication_.Replay(origins, options_.queue_bytes / 2 - updates, &neighbour->cursor,
                             &missing)) {
      neighbour->state = Neighbour::State::kDetached;
      notices_.push_back({RelayNotice::Type::kTooFarBehind, link,
                          neighbour->name + " lacks more updates than are kept for it (" +
                              std::to_string(options_.replication.ring_bytes >> 20) + " MiB)"});
      return;
    }
    for (const Buffer& update : missing) {
      links_->Send(now_ns, link, Channel::kUpdate, update);
      ++replayed_messages_;
    }
    if (!replication_.HasAll(origins, neighbour->cursor)) continue;
    neighbour->state = Neighbour::State::kAttached;
    neighbour->cursor.clear();
    if (std::exchange(neighbour->lagged, false)) {
      notices_.push_back({RelayNotice::Type::kCaughtUp, link, neighbour->name + " has caught up"});
    }
  }
}

void Relay::Lag(int64_t now_ns, LinkId link, Neighbour* neighbour, int64_t queued) {
  links_->Void(now_ns, link, Channel::kUpdate);
  neighbour->state = Neighbour::State::kLagging;
  ++times_lagged_;
  if (std::exchange(neighbour->lagged, true)) return;
  notices_.push_back({RelayNotice::Type::kLags, link,
                      neighbour->name + " lags: " + std::to_string(queued >> 20) +
                          " MiB wait for it; it gets them anew when its link has drained"});
}

void Relay::AskAgain(int64_t now_ns, LinkId link, Neighbour* neighbour) {
  if (neighbour->asked || links_->QueuedBytes(link) > options_.queue_bytes / 4) return;
  neighbour->asked = true;
  SendControl(now_ns, link, AttachAnew{layout_.generation});
}

void Relay::Advance(int64_t now_ns) {
  bool waits = false, catches_up = false;
  for (auto& [link, neighbour] : neighbours_) {
    if (neighbour.state == Neighbour::State::kLagging) AskAgain(now_ns, link, &neighbour);
    CatchUp(now_ns, link, &neighbour);
    catches_up |= neighbour.state == Neighbour::State::kCatchingUp;
    waits |= neighbour.state == Neighbour::State::kLagging && !neighbour.asked;
  }
  waits |= catches_up;
  replication_.KeepForNeighbours(catches_up);
  const int64_t upward_ns = SendUpward(now_ns);
  HoldChildrenBack(now_ns);
  next_look_ns_ = std::min(upward_ns, waits || holds_back_ ? NextLook(now_ns) : kNever);
}

int64_t Relay::NextLook(int64_t now_ns) const {
  return now_ns + options_.failure_timeout_ns / kLooksPerTimeout;
}

int64_t Relay::SendUpward(int64_t now_ns) {
  const LinkId parent = AttachedParent();
  if (parent == 0) return kNever;  // to attach is an event
  while (upward_.due_ns() <= now_ns) {
    if (links_->QueuedBytes(parent) > kBusyLinkBytes) return NextLook(now_ns);
    const Buffer update = upward_.Take(now_ns, *options_.codec);
    links_->Send(now_ns, parent, Channel::kUpdate, update);
    ++relayed_messages_;
    relayed_bytes_ += SizeOf(update);
  }
  return upward_.due_ns();
}

LinkId Relay::AttachedParent() const {
  for (const auto& [link, neighbour] : neighbours_) {
    if (neighbour.role == Role::kParent && neighbour.state == Neighbour::State::kAttached) {
      return link;
    }
  }
  return 0;
}

bool Relay::HasIdleChild() const {
  bool has_child = false;
  for (const auto& [link, neighbour] : neighbours_) {
    if (neighbour.role != Role::kChild || neighbour.state != Neighbour::State::kAttached) continue;
    if (links_->QueuedBytes(link) <= kBusyLinkBytes) return true;
    has_child = true;
  }
  return !has_child;
}

void Relay::TakeMerged(int64_t now_ns, LinkId link, UpdateRanges contents, const Buffer& update,
                       std::vector<Replication::Accepted>* accepted) {
  using Verdict = Replication::Verdict;
  const Verdict verdict =
      replication_.ReceiveMerged(now_ns, link, std::move(contents), update, accepted);
  if (verdict == Verdict::kDuplicate) ++(*drops_)["duplicate update"];
  if (verdict == Verdict::kRefused) ++(*drops_)["merged update of which a part is here"];
}

void Relay::HoldChildrenBack(int64_t now_ns) {
  if (options_.is_root) return;
  const int64_t waiting = UpwardBytes();
  const bool hold = waiting > options_.queue_bytes / (holds_back_ ? 4 : 2);
  if (hold == holds_back_) return;
  holds_back_ = hold;
  times_held_back_ += hold ? 1 : 0;
  for (const auto& [link, neighbour] : neighbours_) {
    if (neighbour.role == Role::kChild) links_->HoldBack(now_ns, link, hold);
  }
}

// Without an attached parent everything that the master is not known to hold waits.
int64_t Relay::UpwardBytes() const {
  if (const LinkId parent = AttachedParent()) {
    return links_->QueuedBytes(parent) + upward_.bytes();
  }
  const bool has_children =
      std::any_of(neighbours_.begin(), neighbours_.end(),
                  [](const auto& entry) { return entry.second.role == Role::kChild; });
  return has_children ? replication_.UncoveredBytes() + upward_.bytes() : 0;
}

int64_t Relay::OutgoingBytes(uint64_t origin) const {
  return AttachedParent() != 0 ? UpwardBytes() : replication_.UncoveredBytes(origin);
}

bool Relay::HasAll(LinkId link) const {
  if (merges()) return false;  // what has left may be refused with what it was merged with
  return link != 0 && AttachedParent() == link && links_->QueuedBytes(link) == 0;
}

std::optional<RelayNotice> Relay::PollNotice() {
  if (notices_.empty()) return std::nullopt;
  RelayNotice notice = std::move(notices_.front());
  notices_.pop_front();
  return notice;
}

void Relay::AddStatus(JsonObject* json) const {
  std::string neighbours;
  for (const auto& [link, neighbour] : neighbours_) {
    static constexpr const char* kStates[] = {"detached", "catching up", "attached", "lagging"};
    JsonObject one;
    one.Add("name", neighbour.name)
        .Add("role", std::string(neighbour.role == Role::kParent ? "parent" : "child"))
        .Add("state", std::string(kStates[static_cast<size_t>(neighbour.state)]))
        .Add("queued_bytes", links_->QueuedBytes(link));
    neighbours += (neighbours.empty() ? "" : ", ") + one.Text();
  }
  json->AddRaw("neighbours", "[" + neighbours + "]")
      .Add("relayed_messages", relayed_messages_)
      .Add("relayed_bytes", relayed_bytes_)
      .Add("replayed_messages", replayed_messages_)
      .Add("times_lagged", times_lagged_)
      .Add("times_held_back", times_held_back_)
      .Add("merges", merges());
  AddReplication(replication_, json);
}

}  // namespace strom
