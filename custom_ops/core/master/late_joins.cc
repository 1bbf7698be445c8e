#include "core/master/late_joins.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/replication/formatting.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// For those who share a snapshot, of the updates in STEPs since: a part of what that has, as each
// of them gets a copy, or so much.
constexpr int64_t kPartOfSnapshot = 4;
constexpr int64_t kLeastKeptBytes = int64_t{1} << 20;

std::string GenerationName(uint64_t number) { return "generation " + std::to_string(number); }

}  // namespace

void LateJoins::Started(const Layout& layout, const std::string& options_text,
                        const JointPlan& plan) {
  layouts_[layout.size] = layout.hash;
  options_text_ = options_text;
  plan_ = plan;
  snapshot_.reset();
  over_.reset();
}

void LateJoins::HandleAnnounce(int64_t now_ns, const Member& member, const Announce& announce,
                               MasterGeneration* generation) {
  const Layout& layout = announce.layout;
  end_notified_.erase(member.rank);
  const bool trains = generation->phase() == MasterGeneration::Phase::kTraining;
  if (!trains && generation->phase() != MasterGeneration::Phase::kEnded) {
    waiting_[member.rank] = layout;
    return;
  }
  if (!trains || layout.generation < generation->layout().generation) {
    return TellEnd(now_ns, member.rank, layout);
  }
  const std::string misfit = Misfit(member, announce, *generation);
  if (!misfit.empty()) return host_->Fail(member.rank, Code::kRefused, misfit);
  Join(now_ns, member, generation);
}

void LateJoins::Settle(int64_t now_ns, MasterGeneration* generation) {
  if (snapshot_ && now_ns - snapshot_->made_ns > share_ns_) {
    snapshot_.reset();
    generation->KeepNoSteps();
  }
  if (over_ && now_ns - over_->made_ns > share_ns_) over_.reset();
  if (generation->phase() != MasterGeneration::Phase::kEnded) return;
  for (const auto& [rank, layout] : std::exchange(waiting_, {})) {
    TellEnd(now_ns, rank, layout);
  }
}

std::string LateJoins::Misfit(const Member& member, const Announce& announce,
                              const MasterGeneration& generation) const {
  const std::string name = GenerationName(announce.layout.generation);
  if (announce.options_text != options_text_) {
    return WorkerName(member.rank) + "'s options differ from those of " + name + ": " +
           announce.options_text + " against " + options_text_ +
           "; give every worker the same options";
  }
  if (announce.layout != generation.layout()) {
    return WorkerName(member.rank) + "'s model has " + std::to_string(announce.layout.size) +
           " shared values, " + name + " trains " + std::to_string(generation.layout().size) +
           "; build the same model on every worker, and compile it alike";
  }
  if (!(announce.plan == plan_)) {
    return WorkerName(member.rank) + " trains other variables than " + name +
           ", or by another method; build and compile the same model on every worker";
  }
  if (generation.IsLiveMember(member.rank)) {
    return WorkerName(member.rank) + " announces " + name + " a second time";
  }
  // Others have had this process's updates up to there only, and wait for the next.
  if (announce.counter != CounterOf(relay_->received(), member.origin)) {
    return name + " has started without " + WorkerName(member.rank) +
           ", and updates of its last one are lost; start it anew";
  }
  return "";
}

void LateJoins::Join(int64_t now_ns, const Member& member, MasterGeneration* generation) {
  if (!tree_->Join(now_ns, member, /*resumed=*/true)) {
    return host_->Fail(member.rank, Code::kRefused, "the tree of workers is full");
  }
  const Frozen& snapshot = Freeze(now_ns, {}, *generation);
  const VersionVector& cut = generation->sequenced() ? relay_->received() : snapshot.cut;
  const MasterGeneration::Progress before = generation->progress(member.rank);
  generation->Join(member.rank, member.origin);
  host_->Send(member.rank, StartGeneration{snapshot.generation, cut, snapshot.number, snapshot.step,
                                           before.last_iteration, relay_->merging_ns()});
  if (generation->stopped()) host_->Send(member.rank, Stop{snapshot.generation});
  if (generation->sequenced()) SendSince(member.rank, snapshot, *generation);
  host_->SendBlob(member.rank, snapshot.chunks);
  if (generation->sequenced() && snapshot.step == generation->steps()) {
    generation->KeepSteps(std::max(kLeastKeptBytes, ParametersBytes() / kPartOfSnapshot));
  }
  relay_->AttachLate(now_ns, member.link, cut, ParametersBytes());
  const std::string away =
      member.gone_ns == kNever ? "" : " after " + SecondsText(now_ns - member.gone_ns) + " away";
  host_->Report(
      {MasterEvent::Type::kRejoined, member.rank,
       WorkerName(member.rank) + " (attempt " + std::to_string(member.attempt) + ") has rejoined " +
           GenerationName(snapshot.generation) + " from " + AddressText(member.address) + away +
           "; " + std::to_string(before.updates) +
           " updates of its predecessor are in, what that had not sent is lost; snapshot of " +
           MegabytesText(ParametersBytes())});
}

void LateJoins::CatchUp(int64_t now_ns, const Member& member, const AskSnapshot& ask,
                        const MasterGeneration& generation) {
  const Frozen& snapshot = Freeze(now_ns, ask.vector, generation);
  host_->Send(member.rank, SnapshotCut{snapshot.generation, snapshot.cut, snapshot.number});
  host_->SendBlob(member.rank, snapshot.chunks);
  relay_->AttachLate(now_ns, member.link, snapshot.cut, ParametersBytes());
  host_->Report({MasterEvent::Type::kSnapshot, member.rank,
                 WorkerName(member.rank) +
                     " lacked updates that are kept no longer; it goes on "
                     "from a snapshot of " +
                     MegabytesText(ParametersBytes())});
}

void LateJoins::TakeBack(int64_t now_ns, const Member& member, const AskResume& resume,
                         MasterGeneration* generation) {
  if (resume.layout != generation->layout() || resume.options_text != options_text_ ||
      !(resume.plan == plan_)) {
    return host_->Fail(member.rank, Code::kMasterLost,
                       "training went on without " + WorkerName(member.rank) +
                           ", in another generation or with other options; start it anew");
  }
  const Frozen& snapshot = Freeze(now_ns, {}, *generation);
  if (CounterOf(snapshot.cut, member.origin) < resume.kept_after) {
    return host_->Fail(member.rank, Code::kMasterLost,
                       "training goes on from a state that lacks updates of " +
                           WorkerName(member.rank) + " which are kept no longer; start it anew");
  }
  if (!tree_->Has(member) && !tree_->Join(now_ns, member, /*resumed=*/true)) {
    return host_->Fail(member.rank, Code::kRefused, "the tree of workers is full");
  }
  generation->GoOn(member.rank, member.origin, resume);
  host_->Send(member.rank, StartGeneration{snapshot.generation, snapshot.cut, snapshot.number,
                                           snapshot.step, -1, relay_->merging_ns()});
  if (generation->stopped()) host_->Send(member.rank, Stop{snapshot.generation});
  host_->SendBlob(member.rank, snapshot.chunks);
  relay_->AttachLate(now_ns, member.link, snapshot.cut, ParametersBytes());
  host_->Report({MasterEvent::Type::kRejoined, member.rank,
                 WorkerName(member.rank) + " goes on in " + GenerationName(snapshot.generation) +
                     " under this master"});
}

// What the joiner's cut covers and the snapshot does not contain.
void LateJoins::SendSince(int32_t rank, const Frozen& snapshot,
                          const MasterGeneration& generation) {
  std::vector<uint8_t> updates;
  if (snapshot.step != generation.steps()) {
    for (const MasterGeneration::KeptStep& kept : generation.kept_steps()->steps) {
      host_->Send(rank, kept.step);
      for (const ReceivedUpdate& update : kept.updates) AppendUpdate(*update.update, &updates);
    }
  }
  for (const ReceivedUpdate& update : generation.Waiting()) AppendUpdate(*update.update, &updates);
  host_->SendBlob(rank, EncodeBlob({BlobKind::kPending, snapshot.generation, 0, snapshot.number, 0},
                                   Bytes(updates)));
}

void LateJoins::TellEnd(int64_t now_ns, int32_t rank, const Layout& layout) {
  const auto known = layouts_.find(layout.size);
  const bool is_known = known != layouts_.end() && known->second == layout.hash;
  if (!is_known || layout.size > parameters_->size()) {
    return host_->Fail(rank, Code::kRefused,
                       GenerationName(layout.generation) + " is over, and " + WorkerName(rank) +
                           "'s model of " + std::to_string(layout.size) +
                           " shared values is none that this job has trained; build the same "
                           "model on every worker");
  }
  const Over& over = FreezeEnd(now_ns, layout);
  end_notified_[rank] = layout.generation;
  host_->Send(rank, Ended{layout.generation, over.number});
  host_->SendBlob(rank, over.chunks);
  host_->Report({MasterEvent::Type::kNotice, rank,
                 WorkerName(rank) + " has come after the end of " +
                     GenerationName(layout.generation) + " and gets its parameters"});
}

void LateJoins::GiveFinalState(int32_t rank) {
  const auto told = end_notified_.find(rank);
  const BlobName name{BlobKind::kDonation, told->second, static_cast<uint64_t>(rank), 0, 0};
  end_notified_.erase(told);
  const auto& [generation, state] = final_state_;
  std::vector<uint8_t> bytes;
  if (!state.empty()) {
    bytes.resize(sizeof(generation) + state.size() * sizeof(double));
    std::memcpy(bytes.data(), &generation, sizeof(generation));
    std::memcpy(bytes.data() + sizeof(generation), state.data(), state.size() * sizeof(double));
  }
  host_->SendBlob(rank, EncodeBlob(name, Bytes(bytes)));
}

// Those of one host may come together after its loss, and all want the same.
const LateJoins::Over& LateJoins::FreezeEnd(int64_t now_ns, const Layout& layout) {
  if (over_ && now_ns - over_->made_ns <= share_ns_ && over_->generation == layout.generation &&
      over_->size == layout.size) {
    return *over_;
  }
  const uint64_t number = ++last_number_;
  // A layout only grows, so what an earlier one holds stands first.
  const Bytes prefix = AsBytes(std::span(*parameters_).first(layout.size));
  const BlobName name{BlobKind::kParameters, layout.generation, 0, number, 0};
  over_ = Over{.number = number,
               .generation = layout.generation,
               .size = layout.size,
               .made_ns = now_ns,
               .chunks = EncodeBlob(name, prefix)};
  return *over_;
}

const LateJoins::Frozen& LateJoins::Freeze(int64_t now_ns, const VersionVector& least,
                                           const MasterGeneration& generation) {
  host_->PublishAll();  // what the parameters contain is in no later publication
  if (snapshot_ && now_ns - snapshot_->made_ns <= share_ns_ &&
      generation.HasStepsFrom(snapshot_->step) && Covers(snapshot_->cut, least) &&
      (generation.sequenced() || relay_->ReachesBackTo(snapshot_->cut))) {
    return *snapshot_;
  }
  const uint64_t number = ++last_number_;
  const uint64_t current = generation.layout().generation;
  snapshot_ = Frozen{
      .number = number,
      .generation = current,
      .cut = relay_->received(),
      .step = generation.steps(),
      .made_ns = now_ns,
      .chunks = EncodeBlob({BlobKind::kParameters, current, 0, number, 0}, *parameters_),
  };
  return *snapshot_;
}

}  // namespace strom
