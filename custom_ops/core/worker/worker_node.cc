#include "core/worker/worker_node.h"

#include <algorithm>
#include <utility>

#include "core/replication/version_vector.h"
#include "core/worker/worker_node_state.h"

namespace strom {

namespace {

// While it looks for a silent master, a worker tries again so often within the failure timeout.
constexpr int64_t kRetriesPerTimeout = 10;

}  // namespace

WorkerNode::WorkerNode(const WorkerNodeOptions& options, LinkLayer* links)
    : state_(std::make_unique<State>(options, links)) {}
WorkerNode::~WorkerNode() = default;

void WorkerNode::Start(int64_t now_ns) {
  state_->now_ns = now_ns;
  state_->Connect();
}

void WorkerNode::HandleLinkEvent(int64_t now_ns, LinkEvent event) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life == State::Life::kOver) return;
  if (event.link == s.link) {
    s.HandleMasterEvent(event);
  } else if (!s.HandlePeerEvent(event)) {
    s.HandleTreeEvent(event);
  }
  s.Advance();
}

void WorkerNode::HandleTimeout(int64_t now_ns) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life == State::Life::kOver) return;
  if (s.give_up_ns && now_ns >= *s.give_up_ns) return s.GiveUp();
  if (now_ns >= s.retry_ns) {
    s.retry_ns = kNever;
    s.Connect();
  }
  if (s.up && now_ns - s.last_beacon_ns >= s.options.failure_timeout_ns) {
    // The link answers but its master does not: the worker looks for it anew.
    s.links->Close(now_ns, s.link, "it has heard nothing of the master");
    s.LoseLink("");
  }
  s.tree.HandleTimeout(now_ns);
  s.peers.HandleTimeout(now_ns);
  s.Advance();
}

int64_t WorkerNode::NextTimeout() const {
  const State& s = *state_;
  if (s.life == State::Life::kOver) return kNever;
  int64_t next =
      std::min({s.retry_ns, s.tree.NextTimeout(), s.peers.NextTimeout(), s.relay.NextTimeout()});
  if (const ShardAgent* const joint = state_->generation->joint()) {
    next = std::min(next, joint->NextTimeout());
  }
  if (s.give_up_ns) next = std::min(next, *s.give_up_ns);
  if (s.up) next = std::min(next, s.last_beacon_ns + s.options.failure_timeout_ns);
  return next;
}

std::optional<WorkerEvent> WorkerNode::PollEvent() {
  if (state_->events.empty()) return std::nullopt;
  WorkerEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

void WorkerNode::BeginGeneration(int64_t now_ns, Generation generation) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life == State::Life::kOver) return;
  if (generation.options_text.size() > kMaxOptionsBytes) {
    return s.Fail(Code::kInvalidArgument,
                  "an options text of " + std::to_string(generation.options_text.size()) +
                      " bytes; it has at most " + std::to_string(kMaxOptionsBytes));
  }
  if (generation.values == nullptr && s.options.rank == kChiefRank) {
    generation.values = std::make_shared<std::vector<float>>();
  }
  if (!s.Fit(generation.values, generation.layout_size)) return;
  s.donor.Clear();
  s.request.Clear();
  s.relay.KeepBeyond(now_ns, std::nullopt);
  s.fast_forwarded = {};
  s.own.clear();
  s.hands_out_own = false;
  s.replica_wanted.reset();
  if (std::exchange(s.resuming, false)) s.ForgetOthers();
  s.peers.Rest();
  s.generation->Begin(std::move(generation));
  s.relay.Begin(s.generation->layout());
  if (s.up) s.generation->Announce();
}

void WorkerNode::Average(int64_t now_ns, uint64_t key, std::vector<double> values) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life != State::Life::kOver) s.generation->Average(key, std::move(values));
}

void WorkerNode::Finish(int64_t now_ns, bool stop) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life == State::Life::kOver) return;
  s.generation->Finish(stop);
  s.peers.Rest();  // the others' rounds name this worker no more
}

void WorkerNode::SendState(int64_t now_ns, std::vector<double> state,
                           std::shared_ptr<std::vector<float>> values) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life == State::Life::kOver) return;
  if (!s.Fit(values, static_cast<int64_t>(s.generation->layout().size))) return;
  s.donor.Donate(MakeBuffer({}));  // no joiner is left that could ask
  s.SendDonations();
  s.generation->SendState(state, std::move(values));
}

void WorkerNode::Verify(int64_t now_ns, double difference, uint64_t hash) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life != State::Life::kOver) s.generation->Verify(difference, hash);
}

void WorkerNode::AskDonation(int64_t now_ns) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.life != State::Life::kOver) s.generation->AskDonation(s.options.rank, s.up);
}

bool WorkerNode::DonationWanted() const { return state_->donor.IsWanted(); }

void WorkerNode::Donate(int64_t now_ns, Buffer donation) {
  State& s = *state_;
  s.now_ns = now_ns;
  const ShardAgent* const joint = s.generation->joint();
  s.donor.Donate(donation, joint == nullptr ? 0 : joint->next_round());
  s.SendDonations();
}

int32_t WorkerNode::missing_workers() const { return static_cast<int32_t>(state_->missing); }

bool WorkerNode::merges() const { return state_->relay.merges(); }

uint64_t WorkerNode::joint_cycles() const {
  const ShardAgent* joint = state_->generation->joint();
  return joint == nullptr ? 0 : joint->cycles();
}

void WorkerNode::Leave(int64_t now_ns, const std::string& reason) {
  State& s = *state_;
  if (s.life == State::Life::kOver) return;
  s.life = State::Life::kOver;
  s.up = false;
  s.tree.CloseAll(now_ns, reason);
  s.peers.CloseAll(now_ns, reason);
  if (s.link != 0) s.links->Close(now_ns, s.link, reason);
}

UpdateId WorkerNode::Submit(int64_t now_ns, int64_t iteration, bool last_part,
                            std::vector<uint8_t> update) {
  State& s = *state_;
  s.now_ns = now_ns;
  const UpdateId id{s.origin, ++s.counter};
  s.last_iteration = iteration;
  if (s.life == State::Life::kOver) {
    ++s.drops["own update after the end"];
    return id;
  }
  // Else START and FINAL would not count it.
  STROM_CHECK(s.generation->phase() == WorkerGeneration::Phase::kTraining);
  WriteUpdateHeader(
      {id, static_cast<uint64_t>(iteration), s.relay.layout(), last_part ? kLastPartFlag : 0},
      update);
  const Buffer buffer = MakeBuffer(std::move(update));
  std::vector<Replication::Accepted> accepted;
  const std::string fault = s.relay.Take(now_ns, 0, id, buffer, &accepted);
  if (!fault.empty() || accepted.empty()) {
    // Own counters have no gap, so somebody above has made some up, and a cut has named them.
    s.Fail(Code::kCorrupt, "the job has updates in this worker's name that it has not made");
    return id;
  }
  s.update_bytes_sent += static_cast<int64_t>(buffer->size());
  if (s.hands_out_own) s.own.push_back({id, buffer});
  s.Deliver(std::move(accepted));
  s.Advance();
  return id;
}

uint64_t WorkerNode::LastHeld() const {
  // A parent that is the master itself says so at once, by what it acknowledges.
  const Replication& known = state_->relay.replication();
  const bool has_all = state_->relay.HasAll(state_->link);
  return CounterOf(has_all ? known.received() : known.master(), state_->origin);
}

int64_t WorkerNode::OutgoingBytes() const { return state_->relay.OutgoingBytes(state_->origin); }

Received WorkerNode::TakeReceived() {
  State& s = *state_;
  Received taken = std::exchange(s.fast_forwarded, {});
  for (ReceivedUpdate& update : std::exchange(s.own, {})) {
    taken.updates.push_back(std::move(update));
  }
  // What waits may follow on a snapshot that is not here yet, and is part of what comes with that.
  if (s.request.has_fast_forwarded()) return taken;
  for (ReceivedUpdate& update : s.generation->TakeReceived()) {
    taken.updates.push_back(std::move(update));
  }
  return taken;
}

void WorkerNode::SnapshotInstalled() {
  state_->hands_out_own = false;
  state_->beginning.clear();
}
int64_t WorkerNode::ReleasedSteps() const {
  return state_->generation->queue().own_released_steps();
}
ShardAgent* WorkerNode::State::JointAt(int64_t at_ns) {
  now_ns = at_ns;
  return life == Life::kOver ? nullptr : generation->joint();
}

void WorkerNode::BeginStepping(int64_t now_ns) {
  if (ShardAgent* const joint = state_->JointAt(now_ns)) joint->BeginStepping();
}

JointOrders WorkerNode::TakeJointOrders() {
  ShardAgent* const joint = state_->generation->joint();
  return joint == nullptr ? JointOrders{} : joint->TakeOrders();
}

JointValues WorkerNode::TakeRound() {
  ShardAgent* const joint = state_->generation->joint();
  return joint == nullptr ? nullptr : joint->TakeRound();
}

void WorkerNode::GiveToJoint(int64_t now_ns, uint64_t mark, int64_t iteration, int64_t steps,
                             std::vector<float> values) {
  state_->last_iteration = iteration;
  ShardAgent* const joint = state_->JointAt(now_ns);
  if (joint == nullptr) return;
  joint->Give(mark, iteration, steps, std::move(values));
  joint->Advance(now_ns);
}

void WorkerNode::AskJoint(int64_t now_ns) {
  if (ShardAgent* const joint = state_->JointAt(now_ns)) joint->AskJoint();
}

void WorkerNode::WithdrawFromJoint() {
  if (ShardAgent* const joint = state_->generation->joint()) joint->Withdraw();
}

const VersionVector& WorkerNode::received() const { return state_->relay.received(); }
const Replication& WorkerNode::replication() const { return state_->relay.replication(); }
void WorkerNode::SetApplied(const VersionVector& applied) { state_->applied = applied; }

void WorkerNode::State::Fail(Code code, const std::string& message) {
  if (life == Life::kOver) return;
  WorkerEvent failed;
  failed.type = WorkerEvent::Type::kFailed;
  failed.status = {code, message};
  Raise(std::move(failed));
  life = Life::kOver;
  up = false;
  tree.CloseAll(now_ns, message);
  peers.CloseAll(now_ns, message);
  if (link != 0) links->Close(now_ns, link, message);
  link = 0;
}

bool WorkerNode::State::Fit(const std::shared_ptr<std::vector<float>>& values, int64_t elements) {
  if (values == nullptr || std::ssize(*values) == elements) return true;
  Fail(Code::kInvalidArgument,
       std::to_string(values->size()) + " values for a layout of " + std::to_string(elements));
  return false;
}

void WorkerNode::State::Connect() {
  Hello hello;
  hello.rank = options.rank;
  hello.size = options.size;
  hello.attempt = options.attempt;
  hello.instance = options.instance;
  hello.max_staleness = options.max_staleness;
  hello.public_key = options.public_key;
  hello.port = options.port;
  hello.host = options.host;
  hello.epoch = epoch;
  hello.origin = origin;
  link = links->Connect(now_ns, options.master, options.master_public_key, EncodeHello(hello));
}

void WorkerNode::State::HandleMasterEvent(const LinkEvent& event) {
  switch (event.type) {
    case LinkEvent::Type::kUp:
      return HandleUp(event);
    case LinkEvent::Type::kSuspect:
      return Note(Master() + " has been silent for a while");
    case LinkEvent::Type::kDown:
      return HandleDown(event);
    case LinkEvent::Type::kMessage:
      break;
    case LinkEvent::Type::kHello:
      return;  // not on a link that this worker has made
  }
  switch (event.channel) {
    case Channel::kControl: {
      ControlMessage message;
      const Status parsed = ParseControl(*event.payload, &message);
      if (!parsed.ok()) return Fail(parsed.code, "the master sent " + parsed.message);
      return std::visit([&](const auto& value) { Handle(value); }, message);
    }
    case Channel::kState:
      return HandleChunk(*event.payload);
    case Channel::kUpdate:
      return HandleUpdate(link, event.payload);
  }
}

void WorkerNode::State::HandleUp(const LinkEvent& event) {
  Welcome welcome;
  const Status parsed = ParseWelcome(*event.payload, &welcome);
  if (!parsed.ok()) return Fail(parsed.code, parsed.message);
  if (welcome.epoch < epoch) {
    ++drops["welcome of an earlier master"];  // it was stopped, and does not know of its successor
    links->Close(now_ns, link, "this worker follows a later master");
    return LoseLink("an earlier master answers");
  }
  const bool another = welcome.epoch > epoch && life == Life::kJoined;
  epoch = welcome.epoch;
  const bool was_sought = give_up_ns.has_value();
  up = true;
  assembler = {};
  donation_assembler = {};
  on_its_way = 0;
  give_up_ns.reset();
  way_lost.clear();
  retry_ns = kNever;
  last_beacon_ns = now_ns;
  if (life == Life::kJoining) {
    life = Life::kJoined;
    origin = welcome.origin;
    MakeGeneration(origin);
    tree.MasterUp(now_ns, link, origin, epoch);
    WorkerEvent joined;
    joined.type = WorkerEvent::Type::kJoined;
    joined.origin = origin;
    return Raise(std::move(joined));
  }
  ++reconnects;
  if (welcome.origin != origin || (another && options.master_wait_ns == 0)) {
    return Fail(Code::kMasterLost, Master() + " no longer knows this worker; start it anew");
  }
  if (another) {
    FollowAnotherMaster();
  } else if (was_sought) {
    Note(Master() + " answers again");
  }
  tree.MasterUp(now_ns, link, origin, epoch);
  if (resuming) return SendResume();
  const uint64_t number = generation->IsTraining() ? generation->layout().generation : 0;
  Send(Attach{number, relay.received()});
  if (generation->phase() == WorkerGeneration::Phase::kStarting) generation->Announce();
}

void WorkerNode::State::HandleDown(const LinkEvent& event) {
  if (life == Life::kJoining || event.code == Code::kRefused) {
    return Fail(event.code, event.reason);
  }
  if (event.code == Code::kClosed) {
    return Fail(Code::kMasterLost, Master() + " closed the connection" +
                                       (event.reason.empty() ? "" : ": " + event.reason));
  }
  if (event.code == Code::kUnreachable && !give_up_ns) way_lost = event.reason;
  LoseLink(event.reason);
}

void WorkerNode::State::LoseLink(const std::string& why) {
  donor.Clear();  // the master asks another
  up = false;
  link = 0;
  tree.MasterDown();
  generation->LinkDown();
  const bool may_look =
      options.master_wait_ns > 0 ? generation->MayOutliveMaster() : generation->MayPause();
  if (!may_look) return GiveUp();
  if (!give_up_ns) {
    give_up_ns = now_ns + Patience();
    const std::string because = why.empty() ? "" : " (" + why + ")";
    Note(options.master_wait_ns > 0
             ? Master() + " is lost" + because + "; training waits for it to come back, at most " +
                   SecondsText(Patience())
             : Master() + " is out of reach" + because + "; looking for it");
    return Connect();
  }
  retry_ns = now_ns + options.failure_timeout_ns / kRetriesPerTimeout;
}

void WorkerNode::State::GiveUp() {
  const int64_t silent_ns = options.failure_timeout_ns + (give_up_ns ? Patience() : 0);
  if (!way_lost.empty()) return Fail(Code::kMasterLost, Master() + " is out of reach: " + way_lost);
  Fail(Code::kMasterLost, Master() + " has been silent for " + SecondsText(silent_ns) +
                              "; is the master or driver still running, or was the line away for "
                              "longer than --failure-timeout allows?");
}

void WorkerNode::State::Handle(const Attach& attach) {
  if (attach.generation != generation->layout().generation) return;
  relay.HandleAttach(now_ns, link, attach);
  const bool anew = !generation->registered();
  generation->Register();
  peers.TellAgain();
  if (anew && request.is_outstanding()) AskForSnapshot();
}

void WorkerNode::State::Handle(const StartGeneration& start) {
  if (resuming) return GoOn(start);
  if (!generation->HandleStart(start)) return;
  replica_wanted.reset();
  cut = beginning = start.cut;
  applied.clear();
  std::vector<Replication::Accepted> accepted;
  relay.Open(now_ns, start.cut, &accepted, start.merging_ns, origin);
  Deliver(std::move(accepted));
  tree.Started(now_ns);
}

void WorkerNode::State::Handle(const Beacon& beacon) {
  last_beacon_ns = now_ns;
  missing = beacon.missing;
  if (resuming) return;  // it says nothing yet of what is kept here
  tree.HandleBeacon(now_ns, link, beacon);
  SayOldAgain();
}

void WorkerNode::State::Handle(const Failure& failure) {
  const bool known = failure.code < static_cast<int32_t>(Code::kOk) &&
                     failure.code >= static_cast<int32_t>(Code::kStateLost);
  Fail(known ? static_cast<Code>(failure.code) : Code::kInternal, failure.reason);
}

void WorkerNode::State::HandleChunk(Bytes chunk) {
  std::optional<Blob> blob;
  BlobChunk parsed;
  Status status = ParseChunk(chunk, &parsed);
  const BlobKind kind = parsed.name.kind;
  if (status.ok() && (kind == BlobKind::kTarget || kind == BlobKind::kJoint)) {
    return generation->HandleJointChunk(parsed);
  }
  if (status.ok() && (kind == BlobKind::kPieces || kind == BlobKind::kNearPieces)) {
    return generation->HandlePieces(parsed);
  }
  if (status.ok()) {
    const bool donated = parsed.name.kind == BlobKind::kDonation;
    status = (donated ? donation_assembler : assembler)
                 .Add(parsed, generation->MostBytes(parsed.name), &blob);
  }
  if (!status.ok()) return Fail(status.code, "the master sent " + status.message);
  if (!blob) return;
  if (blob->name.kind == BlobKind::kPending) return HandlePending(*blob);
  if (blob->name.kind == BlobKind::kParameters && request.is_outstanding()) {
    return HandleSnapshot(std::move(*blob));
  }
  generation->HandleBlob(std::move(*blob));
}

void WorkerNode::State::Handle(const AskState& ask) {
  donor.HandleAsk(ask);
  if (ask.until == 0) return;  // whoever else asks is still to be answered
  // Who waits for the others to finish has a state to give, too.
  const bool trains = generation->IsTraining() && ask.generation == generation->layout().generation;
  if (!trains) donor.Donate(MakeBuffer({}));
  SendDonations();
}

void WorkerNode::State::SendDonations() {
  if (!up) return;
  for (const Buffer& chunk : donor.TakeChunks(generation->layout().generation)) {
    links->Send(now_ns, link, Channel::kState, chunk);
  }
}

void WorkerNode::State::HandlePending(const Blob& blob) {
  if (blob.name.generation != relay.layout().generation) return;
  std::vector<Buffer> updates;
  const Status whole = ParseUpdates(blob.bytes, &updates);
  if (!whole.ok()) return Fail(whole.code, "the master sent " + whole.message);
  std::vector<ReceivedUpdate> pending;
  for (Buffer& update : updates) {
    const Relay::Checked checked = relay.Check(update);
    if (checked.verdict != Relay::Checked::Verdict::kFits) {
      return Fail(Code::kCorrupt, "the master sent " + checked.why);
    }
    pending.push_back({checked.header.id, std::move(update)});
  }
  generation->AddPending(blob.name.mark, std::move(pending));
}

void WorkerNode::State::HandleTooFarBehind() {
  if (!generation->IsTraining() || !request.Begin()) return;
  relay.KeepBeyond(now_ns, relay.replication().master());
  Note("this worker lacks updates that are kept no longer; asking the master for a snapshot");
  AskForSnapshot();
}

void WorkerNode::State::AskForSnapshot() {
  request.AskAgain();
  if (!up || !generation->registered()) return;  // once the master counts on this worker again
  Send(AskSnapshot{relay.layout().generation, *relay.replication().kept_beyond()});
}

void WorkerNode::State::Handle(const SnapshotCut& named) {
  if (named.generation != relay.layout().generation || !request.Name(named)) return;
  std::vector<Replication::Accepted> accepted;
  relay.FastForward(now_ns, named.cut, &accepted);
  relay.KeepBeyond(now_ns, named.cut);
  Deliver(std::move(accepted));
  tree.FastForwarded(now_ns);
}

// Nothing else brings parameters while a request is outstanding: the result waits for FINAL, and
// that for the snapshot.
void WorkerNode::State::HandleSnapshot(Blob blob) {
  const BlobName name = blob.name;
  std::shared_ptr<const std::vector<float>> parameters;
  const Status whole = generation->TakeParameters(std::move(blob), &parameters);
  if (!whole.ok()) return Fail(whole.code, whole.message);
  if (name.generation != relay.layout().generation) return;
  request.AddParameters(name.mark, std::move(parameters));
}

void WorkerNode::State::InstallSnapshot(Snapshot whole) {
  auto beyond = relay.Beyond(whole.cut);
  if (!beyond) return Fail(Code::kInternal, "the master's snapshot ends before what is kept here");
  std::vector<ReceivedUpdate> updates;
  for (ReceivedUpdate& update : *beyond) {
    if (!IsOfMaster(update.id.origin)) {
      updates.push_back(std::move(update));
    } else if (const auto fault = Unmerge(update.id, update.update, &updates); !fault.empty()) {
      return Fail(Code::kInternal, fault);
    }
  }
  relay.KeepBeyond(now_ns, std::nullopt);
  // They have all that waits here, too.
  generation->TakeReceived();
  own.clear();
  fast_forwarded = {.snapshot = std::move(whole), .folded = {}, .updates = std::move(updates)};
  hands_out_own = true;
  ++snapshots;
  if (request.behind_again()) tree.AttachAgain(now_ns);
}

void WorkerNode::State::HandleTreeEvent(const LinkEvent& event) {
  switch (event.type) {
    case LinkEvent::Type::kHello:
      return tree.HandleHello(now_ns, event);
    case LinkEvent::Type::kUp:
      return tree.HandleUp(now_ns, event.link);
    case LinkEvent::Type::kDown:
      return tree.HandleDown(now_ns, event);
    case LinkEvent::Type::kSuspect:
      return;  // the master moves whoever loses its parent
    case LinkEvent::Type::kMessage:
      break;
  }
  if (!tree.IsNeighbour(event.link)) return;  // an old link's
  if (event.channel == Channel::kUpdate) return HandleUpdate(event.link, event.payload);
  if (event.channel == Channel::kControl) {
    return tree.HandleControl(now_ns, event.link, *event.payload);
  }
  ++drops["state from a neighbour"];
}

void WorkerNode::State::HandleUpdate(LinkId from, const Buffer& update) {
  if (resuming) return early.push_back(update);  // they overtake START, which comes at once
  const Relay::Checked checked = relay.Check(update);
  if (checked.verdict == Relay::Checked::Verdict::kStale) return;
  if (IsOfMaster(checked.header.id.origin) && checked.header.id.origin != MasterOrigin(epoch)) {
    ++drops["publication of another master"];
    return;
  }
  std::string fault = checked.why;
  const bool goes_up = relay.merges() && !IsOfMaster(checked.header.id.origin);
  if (goes_up && checked.verdict == Relay::Checked::Verdict::kFits) {
    if (relay.IsChild(from)) return relay.PassUp(update);
    ++drops["update that goes up, from above"];
    return;
  }
  if (checked.header.id.origin == origin && checked.header.id.counter > counter) {
    ++drops["update in this worker's own name"];
    if (from == link) return;  // the master passes on what another has made up
    fault = "update in the receiver's own name";
  } else if (checked.verdict == Relay::Checked::Verdict::kFits) {
    updates_received += 1;
    update_bytes_received += static_cast<int64_t>(update->size());
    std::vector<Replication::Accepted> accepted;
    fault = relay.Take(now_ns, from, checked.header.id, update, &accepted);
    Deliver(std::move(accepted));
  }
  if (!fault.empty()) RejectNeighbour(from, checked.header.id.origin, fault);
}

// `sender`: whose update is the reason; 0 = none is.
void WorkerNode::State::RejectNeighbour(LinkId from, uint64_t sender, const std::string& fault) {
  if (from != link) return tree.Reject(now_ns, from, sender, fault);
  links->Close(now_ns, link, fault);
  LoseLink(fault);
}

void WorkerNode::State::ActOnNotices() {
  while (auto notice = relay.PollNotice()) {
    if (notice->type == RelayNotice::Type::kTooFarBehind) {
      tree.Abandon(now_ns, notice->link);
    } else if (notice->type == RelayNotice::Type::kHoldsTooMuch) {
      RejectNeighbour(notice->link, 0, notice->text);
    } else {
      Note(notice->text);
    }
  }
  if (tree.TakeTooFarBehind()) {
    const bool by_snapshot = options.max_staleness < 0 && relay.layout().size > 0;
    by_snapshot ? HandleTooFarBehind() : tree.AskForPlaceUnderMaster(now_ns);
  }
  while (auto word = tree.PollWord()) {
    if (word->failed) return Fail(word->status.code, word->status.message);
    Note(word->status.message);
  }
  while (const auto linked = up ? peers.PollLinked() : std::nullopt) Send(*linked);
  while (const auto notice = peers.PollNotice()) Note(*notice);
}

void WorkerNode::State::Advance() {
  if (life == Life::kOver) return;
  relay.Advance(now_ns);
  ActOnNotices();
  if (auto whole = request.TakeWhole()) InstallSnapshot(std::move(*whole));
  // FINAL is not reached before what it names is here in fact.
  if (life != Life::kOver && !request.has_fast_forwarded()) generation->Advance();
  ShardAgent* const joint = generation->joint();
  if (life != Life::kOver && joint != nullptr) joint->Advance(now_ns);
}

std::string WorkerNode::StatusJson() const {
  const State& s = *state_;
  const char* phase = s.life == State::Life::kJoined    ? s.generation->phase_name()
                      : s.life == State::Life::kJoining ? "joining"
                                                        : "over";
  JsonObject json;
  json.Add("role", std::string("worker"))
      .Add("rank", s.options.rank)
      .Add("origin", s.origin)
      .Add("counter", s.counter)
      .Add("generation", s.generation->layout().generation)
      .Add("phase", std::string(phase))
      .Add("up", s.up)
      .Add("epoch", s.epoch)
      .Add("waits_for_master", WaitsForMaster())
      .Add("attached", s.up && s.generation->registered())
      .Add("reconnects", s.reconnects)
      .Add("snapshots", s.snapshots)
      .Add("released_steps", s.generation->queue().released_steps())
      .Add("waiting_updates", s.generation->queue().waiting())
      .Add("outgoing_bytes", OutgoingBytes())
      .Add("updates_received", s.updates_received)
      .Add("update_bytes_received", s.update_bytes_received)
      .Add("update_bytes_sent", s.update_bytes_sent)
      .AddRaw("applied", VectorJson(s.applied))
      .AddRaw("cut", VectorJson(s.cut))
      .AddRaw("drops", DropsJson(s.drops));
  s.tree.AddStatus(&json);
  s.relay.AddStatus(&json);
  return json.Text();
}

}  // namespace strom
