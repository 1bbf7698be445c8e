#include "core/master/master_fits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/master/pieces_for_members.h"
#include "core/replication/formatting.h"
#include "core/replication/merged_update.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// What all workers' contributions to one STEP may have in parts, of 4 MiB at most: it is one
// message that names them all. A worker of any job may send some.
constexpr int32_t kPartsOfAll = 200'000;
constexpr int32_t kLeastParts = 64;

// What waits to be published while all links are busy.
constexpr int64_t kMostWaitingBytes = int64_t{1} << 20;

// Where all workers fail for a reason of their own, who comes later needs no more words than these.
constexpr size_t kMostCannotStart = 16;

}  // namespace

bool MasterFits::HandleAttach(int64_t now_ns, const Member& member, const Attach& attach) {
  if (IsAtHand(attach.generation) && (generation_->IsLiveMember(member.rank) ||
                                      generation_->Reinstate(member.rank, member.origin))) {
    return tree_->Has(member) || tree_->Join(now_ns, member, /*resumed=*/true);
  }
  FailForgotten(member.rank);
  return false;
}

void MasterFits::FailForgotten(int32_t rank) {
  host_->Fail(rank, Code::kMasterLost,
              "training went on without " + WorkerName(rank) +
                  ", which the master had not heard for too long; start it anew");
}

void MasterFits::HandleAnnounce(int64_t now_ns, const Member& member, const Announce& announce) {
  const int32_t rank = member.rank;
  resumption_.Withdraw(rank);
  last_end_.Withdraw(rank);
  const Status plan = CheckPlan(announce.plan, static_cast<int64_t>(announce.layout.size));
  if (!plan.ok()) return host_->Fail(rank, Code::kRefused, WorkerName(rank) + ": " + plan.message);
  const size_t pieces = PieceGrid(announce.layout.size).count();
  if (announce.hashes.size() != pieces && (rank == kChiefRank || !announce.hashes.empty())) {
    return host_->Fail(rank, Code::kRefused,
                       WorkerName(rank) + " names " + std::to_string(announce.hashes.size()) +
                           " pieces of its values, which have " + std::to_string(pieces));
  }
  if (generation_ && announce.layout.generation <= generation_->layout().generation) {
    generation_->Refresh();
    return late_joins_.HandleAnnounce(now_ns, member, announce, &*generation_);
  }
  TellWhoLeft(member);
  TellWhoCannotStart(member);
  if (!KnowsWhoIsLost() && !IsTheLatest(rank, announce)) return;
  if (announce.layout.size < late_joins_.most_values()) {
    return host_->Fail(rank, Code::kRefused,
                       WorkerName(rank) + "'s model has " + std::to_string(announce.layout.size) +
                           " shared values, fewer than the " +
                           std::to_string(late_joins_.most_values()) +
                           " that this job has trained; a strategy's models only add to them");
  }
  const bool in_step = !generation_ || generation_->IsLiveMember(rank);
  if (is_running()) {
    // By beginning the next one it has ended this one for itself, and relays it no more: its
    // neighbours part from it and say what they have of it.
    tree_->Leave(now_ns, member.origin);
    generation_->Lose(rank);
  }
  const std::vector<StartRendezvous::Difference> differences =
      rendezvous_.Add(rank, announce, in_step);
  for (const auto& [behind, layout] : rendezvous_.TakeOvertaken()) overtaken_[behind] = layout;
  TellOvertaken(now_ns);
  for (const StartRendezvous::Difference& difference : differences) {
    if (difference.misfit) {
      host_->Fail(*difference.misfit, Code::kRefused, difference.text);
      continue;
    }
    RefuseAll(difference.text);
  }
  FailWhoWaitsInVain();
}

// Under a master that has started nothing itself, but follows another one, the latest generation
// that anybody begins is that of all; who begins an earlier one has missed its end.
bool MasterFits::IsTheLatest(int32_t rank, const Announce& announce) {
  const uint64_t number = announce.layout.generation;
  if (rendezvous_.empty() || number == rendezvous_.layout().generation) return true;
  if (number < rendezvous_.layout().generation) {
    overtaken_[rank] = announce.layout;
    return false;
  }
  for (const auto& [other, earlier] : rendezvous_.TakeAll()) overtaken_[other] = earlier.layout;
  return true;
}

// A master that follows another one does not, before its first generation: whom it has not heard of
// may have been lost before.
bool MasterFits::KnowsWhoIsLost() const { return generation_ || !membership_->HasAdopted(); }

// Before any generation has started here there is nothing to tell them with.
void MasterFits::TellOvertaken(int64_t now_ns) {
  if (!late_joins_.KnowsAny()) return;
  for (const auto& [rank, layout] : std::exchange(overtaken_, {})) {
    late_joins_.TellEnd(now_ns, rank, layout);
  }
}

void MasterFits::Handle(const Member& member, const Done& done) {
  if (IsAtHand(done.generation)) generation_->HandleDone(member.rank, done);
}

void MasterFits::Handle(const Member& member, const Verification& verification) {
  if (IsAtHand(verification.generation)) {
    generation_->HandleVerification(member.rank, verification);
  }
}

void MasterFits::Handle(int64_t now_ns, const Member& member, const Have& have) {
  if (IsAtHand(have.generation)) generation_->HandleHave(now_ns, member.rank, have);
}

void MasterFits::Handle(const Member& member, const AskJoint& ask) {
  if (IsAtHand(ask.generation)) generation_->HandleAsk(member.rank, ask);
}

void MasterFits::Handle(const Member& member, const Stepping& stepping) {
  if (IsAtHand(stepping.generation)) generation_->HandleStepping(member.rank, stepping);
}

void MasterFits::Handle(const Member& member, const Linked& linked) {
  if (IsAtHand(linked.generation)) generation_->HandleLinked(member.rank, linked);
}

void MasterFits::Handle(const Member& member, const AtRound& at) {
  if (!IsAtHand(at.generation) || generation_->HandleAtRound(member.rank, at)) return;
  FailForgotten(member.rank);
}

std::string MasterFits::HandleShard(int64_t now_ns, const Member& member, const BlobChunk& chunk) {
  if (IsAtHand(chunk.name.generation)) {
    return generation_->HandleShard(now_ns, member.rank, chunk);
  }
  ++(*drops_)["values of another generation"];
  return "";
}

void MasterFits::HandleAsk(int64_t now_ns, const Member& member, const AskState& ask) {
  if (late_joins_.MayAskFinalState(member.rank, ask.generation)) {
    return late_joins_.GiveFinalState(member.rank);
  }
  if (IsAtHand(ask.generation)) donations_.HandleAsk(now_ns, member.rank, &*generation_);
}

bool MasterFits::HandleTooFarBehind(int32_t rank) {
  if (!generation_ || !LateJoins::MayCatchUp(*generation_)) return false;
  host_->Send(rank, TooFarBehind{generation_->layout().generation});
  return true;
}

void MasterFits::HandleAsk(int64_t now_ns, const Member& member, const AskSnapshot& ask) {
  const bool takes_part = IsAtHand(ask.generation) && is_running() &&
                          generation_->IsLiveMember(member.rank) &&
                          LateJoins::MayCatchUp(*generation_);
  if (!takes_part) {
    ++(*drops_)["question for a snapshot by who takes no part"];
    return;
  }
  generation_->Refresh();
  late_joins_.CatchUp(now_ns, member, ask, *generation_);
}

void MasterFits::HandleResume(int64_t now_ns, const Member& member, const AskResume& resume) {
  const Status plan = CheckPlan(resume.plan, static_cast<int64_t>(resume.layout.size));
  if (!plan.ok()) {
    return host_->Fail(member.rank, Code::kRefused, WorkerName(member.rank) + ": " + plan.message);
  }
  if (resume.plan.IsOfGradients()) {
    return host_->Fail(member.rank, Code::kMasterLost,
                       "in exact mode with the mean of gradients no other master goes on; start " +
                           WorkerName(member.rank) + " anew");
  }
  if (!generation_) return resumption_.Add(now_ns, member.rank, resume);
  if (generation_->phase() == MasterGeneration::Phase::kTraining && !generation_->sequenced()) {
    generation_->Refresh();
    return late_joins_.TakeBack(now_ns, member, resume, &*generation_);
  }
  host_->Fail(member.rank, Code::kMasterLost,
              "training went on without " + WorkerName(member.rank) + "; start it anew");
}

void MasterFits::Handle(const Member& member, const ReplicaCut& replica) {
  resumption_.AddCut(member.rank, replica);
  last_end_.AddCut(member.rank, replica);
}

void MasterFits::GoOnFrom(int64_t now_ns, Resumption::Whole whole) {
  const Layout layout = whole.resume.layout;
  parameters_ = std::move(whole.parameters);
  OpenRelay(now_ns, layout, whole.cut, /*may_merge=*/!whole.resume.plan.IsJoint());
  generation_.emplace(layout, whole.resume.plan, /*cycles=*/0, /*sequenced=*/std::nullopt,
                      std::map<int32_t, uint64_t>{}, codec_, &parameters_, host_);
  end_reported_ = false;
  late_joins_.Started(layout, whole.resume.options_text, whole.resume.plan);
  donations_.Clear();
  std::set<uint64_t> resumed;
  for (const auto& [rank, resume] : resumption_.resumes()) resumed.insert(resume.origin);
  const uint64_t dropped = resumption_.DroppedBeyond(whole.cut, resumed);
  resumed_ = "generation " + std::to_string(layout.generation) + " goes on from " +
             WorkerName(whole.rank) + "'s replica with " + std::to_string(resumed.size()) +
             " workers; " + std::to_string(dropped) +
             " updates of workers that are gone are not part of it, and are dropped everywhere";
  for (const auto& [rank, resume] : resumption_.resumes()) {
    late_joins_.TakeBack(now_ns, *membership_->FindRank(rank), resume, &*generation_);
  }
  resumption_.Clear();
  // Who had not begun yet when the master was lost joins what goes on.
  for (const auto& [rank, announce] : rendezvous_.TakeAll()) {
    HandleAnnounce(now_ns, *membership_->FindRank(rank), announce);
  }
}

// The chief is a new process and begins what is over for the others; the master that could have
// told it the end is lost, and without the chief's values nothing can start. The others wait
// between two generations, each with the parameters of that end.
void MasterFits::LearnLastEnd(int64_t now_ns) {
  if (late_joins_.KnowsAny() || !resumption_.empty() || !overtaken_.contains(kChiefRank)) {
    return last_end_.Clear();
  }
  for (const auto& [rank, announce] : rendezvous_.AtHand()) {
    if (last_end_.Has(rank)) continue;
    AskResume from;
    from.layout = announce.layout;
    last_end_.Add(now_ns, rank, from);
  }
  while (const auto question = last_end_.TakeQuestion(now_ns)) {
    host_->Send(question->rank, question->ask);
  }
  auto whole = last_end_.TakeWhole();
  if (!whole) return;
  parameters_ = std::move(whole->parameters);
  late_joins_.KnowEnd(whole->resume.layout);
  last_end_.Clear();
  TellOvertaken(now_ns);
}

void MasterFits::HandleDonation(int64_t now_ns, const Member& member, const BlobChunk& chunk,
                                const Buffer& whole) {
  if (generation_) donations_.HandleChunk(now_ns, member.rank, chunk, whole, &*generation_);
}

std::optional<int64_t> MasterFits::MostBytes(const Member& member, const BlobName& name) const {
  switch (name.kind) {
    case BlobKind::kReplica: {
      const Resumption& asked = last_end_.Has(member.rank) ? last_end_ : resumption_;
      const Layout* const layout = asked.Awaits(member.rank, name.mark);
      return layout == nullptr ? std::nullopt : std::optional(BytesOfFloats(layout->size));
    }
    case BlobKind::kPieces: {
      const ChiefsValues* const values = rendezvous_.chiefs_values();
      const bool awaits = member.rank == kChiefRank && values != nullptr;
      return awaits ? values->MostBytes(name) : std::nullopt;
    }
    case BlobKind::kAverage:
      if (!IsAtHand(name.generation) || !generation_->AwaitsAverage(member.rank)) break;
      return host_->MostValuesBytes();
    case BlobKind::kHashes:
      if (!IsAtHand(name.generation) || !generation_->AwaitsHashes(member.rank)) break;
      return kMostPieces * sizeof(uint64_t);
    case BlobKind::kState:
      if (!IsAtHand(name.generation) || !generation_->AwaitsState(member.rank)) break;
      return host_->MostValuesBytes();
    default:
      break;
  }
  return std::nullopt;
}

std::string MasterFits::HandleBlob(const Member& member, Blob blob) {
  if (blob.name.kind == BlobKind::kReplica) {
    Resumption& asked = last_end_.Has(member.rank) ? last_end_ : resumption_;
    asked.AddParameters(member.rank, blob.name.mark, std::move(blob.floats));
    return "";
  }
  if (blob.name.kind == BlobKind::kPieces) {
    return rendezvous_.chiefs_values()->Add(std::move(blob.floats));  // MostBytes has let them in
  }
  if (blob.name.kind == BlobKind::kHashes) {
    std::vector<uint64_t> hashes;
    const Status whole = blob.Values(&hashes);
    if (whole.ok()) generation_->HandleHashes(member.rank, std::move(hashes));
    return whole.message;
  }
  std::vector<double> values;
  const Status whole = blob.Values(&values);
  if (!whole.ok()) return whole.message;
  if (!IsAtHand(blob.name.generation)) {
    ++(*drops_)["values of another generation"];
  } else if (blob.name.kind == BlobKind::kAverage) {
    generation_->HandleAverage(member.rank, blob.name, std::move(values));
  } else if (blob.name.kind == BlobKind::kState) {
    generation_->HandleState(member.rank, std::move(values));
  } else {
    return "a chunk that only a master sends";
  }
  return "";
}

std::string MasterFits::CheckUpdate(const Member& member, const UpdateId& id) {
  // FINAL has named everything there is; a later update would part the replicas.
  if (generation_->phase() == MasterGeneration::Phase::kTraining ||
      Covers(relay_->received(), id)) {
    return "";
  }
  return WorkerName(member.rank) + " sent an update after its DONE";
}

void MasterFits::HandleAccepted(int64_t now_ns,
                                const std::vector<Replication::Accepted>& accepted) {
  // The first may end the generation, and FINAL names them all.
  for (const Replication::Accepted& next : accepted) {
    if (publisher_) publisher_->Add(next.update);
  }
  for (const Replication::Accepted& next : accepted) {
    for (const UpdateRange& range : ContentsOf(next.update)) {
      if (publisher_) publisher_->NoteStep(now_ns, range.iteration);
      // None where another process has taken its rank: what others have accepted of it counts
      // still.
      Member* const origin = membership_->FindOrigin(range.origin);
      if (origin == nullptr) continue;
      origin->updates_accepted += static_cast<int64_t>(range.to - range.from);
      if (range.origin == next.id.origin) origin->update_bytes += SizeOf(next.update);
    }
    generation_->HandleAccepted(next);
  }
}

void MasterFits::OpenRelay(int64_t now_ns, const Layout& layout, VersionVector cut,
                           bool may_merge) {
  const bool merges = merging_.is_on && may_merge && layout.size > 0;
  const uint64_t published = CounterOf(relay_->received(), merging_.origin);
  // Its publications go on being numbered.
  if (published > 0) cut[merging_.origin] = published;
  relay_->Begin(layout);
  std::vector<Replication::Accepted> none;  // nobody has sent an update of this generation yet
  relay_->Open(now_ns, cut, &none, merges ? merging_.interval_ns : kNotMerging);
  publisher_.reset();
  if (merges) {
    publisher_.emplace(layout, merging_.origin, published, merging_.interval_ns, &codec_);
  }
}

void MasterFits::PublishAll(int64_t now_ns) {
  while (publisher_ && !publisher_->empty()) {
    const auto [id, update] = publisher_->Publish(now_ns);
    std::vector<Replication::Accepted> own;
    const std::string fault = relay_->Take(now_ns, 0, id, update, &own);
    STROM_CHECK(fault.empty() && own.size() == 1);
  }
}

bool MasterFits::PublishIfDue(int64_t now_ns) {
  if (!publisher_ || publisher_->due_ns() > now_ns) return false;
  if (relay_->HasIdleChild() || publisher_->bytes() > kMostWaitingBytes) {
    PublishAll(now_ns);
    return true;
  }
  publish_ns_ = relay_->NextLook(now_ns);
  return false;
}

void MasterFits::Lose(int32_t rank, uint64_t returning) {
  rendezvous_.Withdraw(rank);
  overtaken_.erase(rank);
  late_joins_.Withdraw(rank);
  donations_.Withdraw(rank);
  resumption_.Withdraw(rank);
  last_end_.Withdraw(rank);
  if (generation_) generation_->Lose(rank, returning);
  TellAllWhoLeft();
  FailWhoWaitsInVain();
}

void MasterFits::NoteEnded(int32_t rank) {
  if (rank < 0 || rank >= membership_->workers()) return;
  ended_.insert(rank);
  TellAllWhoLeft();
  FailWhoWaitsInVain();
}

// The first training begins with all. One whose process has ended in order comes no more, and who
// waits for it would until the deadline.
void MasterFits::FailWhoWaitsInVain() {
  if (generation_ || min_workers_ > 0 || !KnowsWhoIsLost() || rendezvous_.empty()) return;
  for (const int32_t rank : ended_) {
    const Member* const member = membership_->FindRank(rank);
    const bool is_here = member != nullptr && member->state != Member::State::kLost &&
                         member->state != Member::State::kLeft;
    if (is_here) continue;
    return RefuseAll(WorkerName(rank) +
                     " has ended without a training, so none can start: all "
                     "workers must call fit equally often");
  }
}

// The training at hand can start for nobody.
void MasterFits::RefuseAll(const std::string& reason) {
  rendezvous_.Clear();
  for (const auto& [rank, member] : membership_->members()) {
    if (member.link != 0) host_->Fail(rank, Code::kRefused, reason);
  }
}

void MasterFits::NoteCannotStart(int32_t rank, const std::string& text) {
  CannotStart failed{rank, text, {}};
  for (const auto& [other, member] : membership_->members()) {
    if (member.link != 0) failed.told.insert(member.origin);
  }
  cannot_start_.push_back(std::move(failed));
  if (cannot_start_.size() > kMostCannotStart) cannot_start_.pop_front();
}

void MasterFits::TellWhoCannotStart(const Member& waiting) {
  for (CannotStart& failed : cannot_start_) {
    if (failed.rank == waiting.rank || !failed.told.insert(waiting.origin).second) continue;
    host_->Send(waiting.rank, Notice{failed.text});
  }
}

void MasterFits::TellAllWhoLeft() {
  for (const auto& [rank, member] : membership_->members()) {
    if (rendezvous_.TakesPart(rank)) TellWhoLeft(member);
  }
}

// Whoever waits for a start hears of all that will not come. At the job's end, where all leave,
// nobody waits.
void MasterFits::TellWhoLeft(const Member& waiting) {
  const auto tell = [&](int32_t rank) {
    if (!told_who_left_.emplace(waiting.origin, rank).second) return;
    host_->Send(waiting.rank, Notice{WorkerName(rank) + " has left"});
  };
  for (const auto& [rank, member] : membership_->members()) {
    if (member.state == Member::State::kLeft) tell(rank);
  }
  for (const int32_t rank : ended_) {
    if (membership_->FindRank(rank) == nullptr) tell(rank);  // it never came
  }
}

void MasterFits::Resume() {
  if (generation_) generation_->Resume();
}

void MasterFits::Settle(int64_t now_ns) {
  while (const auto question = resumption_.TakeQuestion(now_ns)) {
    host_->Send(question->rank, question->ask);
  }
  if (auto whole = resumption_.TakeWhole()) GoOnFrom(now_ns, std::move(*whole));
  LearnLastEnd(now_ns);
  AskForChiefsValues();
  if (!generation_) return;
  TellOvertaken(now_ns);
  late_joins_.Settle(now_ns, &*generation_);
  donations_.Advance(now_ns, &*generation_);
  generation_->AdvanceExchange(now_ns);
}

// Not before the master's own are those from which the next generation may start.
void MasterFits::AskForChiefsValues() {
  ChiefsValues* const values = rendezvous_.chiefs_values();
  if (values == nullptr || (is_running() && !generation_->IsAbandoned())) return;
  if (const auto question = values->TakeQuestion(parameters_)) host_->Send(kChiefRank, *question);
}

std::optional<uint64_t> MasterFits::TakeEnded() {
  if (is_running() || std::exchange(end_reported_, true)) return std::nullopt;
  late_joins_.KeepFinalState(generation_->layout().generation, generation_->final_state());
  return generation_->layout().generation;
}

int32_t MasterFits::missing() const {
  if (min_workers_ == 0 || !generation_ ||
      generation_->phase() != MasterGeneration::Phase::kTraining) {
    return 0;
  }
  return std::max(0, LeastMembers() - generation_->live_members());
}

std::optional<std::string> MasterFits::TakeMissingChange() {
  const int32_t few = missing();
  if (std::exchange(waits_, few > 0) == (few > 0)) return std::nullopt;
  if (!is_running()) return std::nullopt;  // it has ended meanwhile
  const std::string here = std::to_string(generation_->live_members());
  if (few == 0) return "training goes on with " + here + " workers";
  return "training waits: " + here + " of the " + std::to_string(LeastMembers()) +
         " workers are here that it needs at least";
}

// How many a generation needs at least. Who has said goodbye is not waited for.
int32_t MasterFits::LeastMembers() const {
  if (!generation_ && min_workers_ == 0) return KnowsWhoIsLost() ? membership_->workers() : 1;
  if (!generation_) return min_workers_;
  const auto left =
      std::count_if(membership_->members().begin(), membership_->members().end(),
                    [](const auto& entry) { return entry.second.state == Member::State::kLeft; });
  return std::max(1, min_workers_ - static_cast<int32_t>(left));
}

bool MasterFits::EveryoneAccountedFor(int64_t now_ns) const {
  if (!resumption_.empty()) return false;  // they go on with theirs first
  // Where nobody is left in the one at hand, all that have come since begin the next.
  if (rendezvous_.empty() || (is_running() && !generation_->IsAbandoned())) return false;
  // The chief may be among the missing.
  if (!generation_ && !rendezvous_.HasChiefsValues()) return false;
  int32_t ready = 0;
  for (const auto& [rank, member] : membership_->members()) {
    if (member.state == Member::State::kAway || member.state == Member::State::kExpected) {
      return false;  // it may come back, or does
    }
    if (member.state != Member::State::kLive || overtaken_.contains(rank)) continue;
    if (!rendezvous_.IsReady(rank)) return false;
    ++ready;
  }
  if (ready < LeastMembers()) return false;
  const int64_t latecomers_ns = latecomers_ns_ * (KnowsWhoIsLost() ? 1 : kTimeoutsToComeBack);
  return (min_workers_ == 0 && KnowsWhoIsLost()) || ready == membership_->workers() ||
         now_ns - membership_->last_joined_ns() >= latecomers_ns;
}

// Who takes part gets a place, who waits for a later generation loses it.
void MasterFits::PlaceAll(int64_t now_ns) {
  for (const auto& [rank, member] : membership_->members()) {
    if (member.state != Member::State::kLive) continue;
    if (!rendezvous_.TakesPart(rank)) tree_->Leave(now_ns, member.origin);
    if (!rendezvous_.TakesPart(rank) || tree_->Has(member)) continue;
    if (!tree_->Join(now_ns, member, /*resumed=*/true)) {
      host_->Fail(rank, Code::kRefused, "the tree of workers is full");
    }
  }
}

std::optional<std::string> MasterFits::StartIfReady(int64_t now_ns) {
  if (!EveryoneAccountedFor(now_ns)) return std::nullopt;
  const Layout layout = rendezvous_.layout();
  // Without the chief it is the master's own values.
  ChiefsValues* const chiefs = rendezvous_.chiefs_values();
  if (chiefs != nullptr && !chiefs->Install(&parameters_)) {
    AskForChiefsValues();
    return std::nullopt;
  }
  const bool has_values = parameters_.size() == layout.size;
  const std::vector<uint64_t> hashes =
      chiefs != nullptr ? chiefs->hashes() : PieceGrid(layout.size).Hashes(parameters_);
  PlaceAll(now_ns);
  std::map<int32_t, uint64_t> origins;
  std::map<int32_t, std::vector<uint64_t>> had;  // hashes of values, by rank
  // Who is not in it is retired, here and with START everywhere.
  VersionVector cut;
  for (const auto& [origin, counter] : relay_->received()) {
    if (membership_->MayReturn(origin)) cut[origin] = counter;
  }
  std::optional<SequencerBounds> sequenced;
  for (const auto& [rank, member] : membership_->members()) {
    if (member.state != Member::State::kLive || !rendezvous_.TakesPart(rank)) continue;
    if (!has_values) {
      host_->Fail(rank, Code::kRefused,
                  (chiefs != nullptr ? "the chief's values do not fill the model's " +
                                           std::to_string(layout.size) + " parameters"
                                     : WorkerName(kChiefRank) +
                                           ", with whose values a new model begins, takes no part "
                                           "in this training (all workers must call fit equally "
                                           "often)") +
                      ", and the master has none of its own");
      continue;
    }
    origins[rank] = member.origin;
    if (rank != kChiefRank) had[rank] = rendezvous_.hashes(rank);
    if (member.max_staleness >= 0) {
      sequenced.emplace().parts =
          static_cast<size_t>(std::max(kLeastParts, kPartsOfAll / membership_->workers()));
    }
    // What it had not sent of a generation that it gave up is void.
    cut[member.origin] = rendezvous_.counter(rank);
  }
  const std::string options_text = rendezvous_.options_text();
  const JointPlan plan = rendezvous_.plan();
  const uint64_t cycles = rendezvous_.cycles();
  rendezvous_.Clear();
  if (!has_values) return std::nullopt;
  cannot_start_.clear();
  membership_->ForgetReplaced();
  tree_->ForgetLost();
  OpenRelay(now_ns, layout, std::move(cut), /*may_merge=*/!sequenced && !plan.IsJoint());
  relay_->SetAllowance(2 * static_cast<int64_t>(parameters_.size() * sizeof(float)));
  generation_.emplace(layout, plan, cycles, sequenced, origins, codec_, &parameters_, host_);
  end_reported_ = false;
  late_joins_.Started(layout, options_text, plan);
  donations_.Clear();
  for (const auto& [rank, origin] : origins) {
    host_->Send(rank, StartGeneration{layout.generation, relay_->received(), 0, 0, -1,
                                      relay_->merging_ns()});
    relay_->AttachAtStart(membership_->FindRank(rank)->link);
  }
  PiecesForMembers pieces(layout.generation, &parameters_, hashes, host_);
  for (const auto& [rank, own] : had) pieces.Send(BlobKind::kPieces, rank, own);
  return "generation " + std::to_string(layout.generation) + " has started with " +
         std::to_string(origins.size()) + " workers and " + std::to_string(layout.size) +
         " parameters";
}

void MasterFits::AddStatus(JsonObject* json) const {
  json->Add("generation", generation_ ? generation_->layout().generation : 0)
      .Add("phase", std::string(generation_ ? generation_->phase_name() : "gathering"))
      .Add("steps", generation_ ? generation_->steps() : 0)
      .Add("parameters", parameters_.size());
  if (publisher_) json->Add("published_updates", publisher_->published_updates());
  if (generation_ && generation_->exchange() != nullptr) generation_->exchange()->AddStatus(json);
}

}  // namespace strom
