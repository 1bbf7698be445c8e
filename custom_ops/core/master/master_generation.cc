#include "core/master/master_generation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/hash.h"
#include "core/master/pieces_for_members.h"
#include "core/replication/merged_update.h"
#include "core/replication/pieces.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// Averages under more keys than this at once make the oldest key forgotten.
constexpr size_t kMaxAverageKeys = 64;

}  // namespace

MasterGeneration::MasterGeneration(const Layout& layout, const JointPlan& plan, uint64_t cycles,
                                   const std::optional<SequencerBounds>& sequenced,
                                   const std::map<int32_t, uint64_t>& origins,
                                   const UpdateCodec& codec, std::vector<float>* parameters,
                                   GenerationHost* host)
    : layout_(layout), codec_(codec), parameters_(parameters), host_(host) {
  std::map<Stepper, uint64_t> counters;
  for (const auto& [rank, origin] : origins) {
    members_[rank].origin = origin;
    rank_of_origin_[origin] = rank;
    counters[{rank, origin}] = CounterOf(host->received(), origin);
  }
  if (sequenced) sequencer_.emplace(counters, *sequenced);
  if (!plan.IsJoint()) return;
  exchange_.emplace(plan, layout.generation, *parameters, cycles, host);
  for (const auto& [rank, member] : members_) exchange_->Join(rank, /*late=*/false);
}

void MasterGeneration::HandleAccepted(const Replication::Accepted& accepted) {
  for (const UpdateRange& range : ContentsOf(accepted.update)) {
    const auto rank = rank_of_origin_.find(range.origin);
    if (rank == rank_of_origin_.end()) continue;
    Progress& progress = members_.at(rank->second).progress;
    progress.last_iteration =
        std::max(progress.last_iteration, static_cast<int64_t>(range.iteration));
    progress.updates += static_cast<int64_t>(range.to - range.from);
  }
  if (!sequencer_) {
    ForEachMessage(accepted.update, [this](Bytes message) { codec_.Apply(message, *parameters_); });
  } else if (const auto rank = rank_of_origin_.find(accepted.id.origin);
             rank != rank_of_origin_.end()) {
    UpdateHeader header;
    STROM_CHECK(ParseUpdateHeader(*accepted.update, &header).ok());  // validated before
    sequencer_->Add({rank->second, accepted.id.origin}, {accepted.id, accepted.update},
                    header.last_part());
  }
  Advance();
}

std::optional<MasterGeneration::Excess> MasterGeneration::FindExcess() {
  if (!sequencer_) return std::nullopt;
  while (const auto excess = sequencer_->FindExcess()) {
    const Stepper& who = excess->who;
    if (IsLiveMember(who.rank) && StepperOf(who.rank) == who) {
      return Excess{who.rank, "worker " + std::to_string(who.rank) +
                                  (excess->of_parts
                                       ? " sends a step's update in more parts than a STEP can name"
                                       : " is too many steps ahead of the slowest worker")};
    }
    sequencer_->Discard(who);
  }
  return std::nullopt;
}

std::string MasterGeneration::HandleShard(int64_t now_ns, int32_t rank, const BlobChunk& chunk) {
  if (!exchange_ || !IsLiveMember(rank)) return "";
  bool whole = false;
  const std::string fault = exchange_->HandleShard(now_ns, rank, chunk, &whole);
  if (whole) NoteStep(rank, static_cast<int64_t>(chunk.name.key));
  if (whole && chunk.name.mark >= kFirstLastMark) Advance();
  return fault;
}

void MasterGeneration::NoteStep(int32_t rank, int64_t iteration) {
  Progress& progress = members_.at(rank).progress;
  progress.last_iteration = std::max(progress.last_iteration, iteration);
  ++progress.updates;
}

void MasterGeneration::HandleHave(int64_t now_ns, int32_t rank, const Have& have) {
  if (!exchange_ || !IsLiveMember(rank)) return;
  if (exchange_->Handle(now_ns, rank, have)) NoteStep(rank, have.iteration);
}

void MasterGeneration::HandleAsk(int32_t rank, const AskJoint& ask) {
  if (exchange_ && IsLiveMember(rank)) exchange_->Handle(rank, ask);
}

void MasterGeneration::HandleStepping(int32_t rank, const Stepping& stepping) {
  if (exchange_ && IsLiveMember(rank)) exchange_->Handle(rank, stepping);
}

void MasterGeneration::HandleLinked(int32_t rank, const Linked& linked) {
  if (exchange_ && IsLiveMember(rank)) exchange_->Handle(rank, linked);
}

bool MasterGeneration::HandleAtRound(int32_t rank, const AtRound& at) {
  return !exchange_ || !IsLiveMember(rank) || exchange_->Handle(rank, at);
}

void MasterGeneration::AdvanceExchange(int64_t now_ns) {
  if (!ExchangeGoesOn()) return;
  exchange_->Advance(now_ns);
  AnswerHeldUp();
}

int64_t MasterGeneration::NextTimeout() const {
  return ExchangeGoesOn() ? exchange_->NextTimeout() : kNever;
}

void MasterGeneration::Refresh() {
  if (exchange_ && phase_ == Phase::kTraining) exchange_->WriteTo(parameters_);
}

void MasterGeneration::HandleDone(int32_t rank, const Done& done) {
  if (!IsLiveMember(rank) || phase_ != Phase::kTraining) return;
  if (exchange_) exchange_->Finish(rank, done.stop != 0, done.rounds);
  members_[rank].final_counter = done.counter;
  if (sequencer_) sequencer_->Done(StepperOf(rank), done.counter);
  if (done.stop != 0) {
    stopped_ = true;
    ForLive([&](int32_t other, Member&) {
      if (other != rank) host_->Send(other, Stop{layout_.generation});
    });
  }
  Advance();
}

void MasterGeneration::HandleAverage(int32_t rank, const BlobName& name,
                                     std::vector<double> values) {
  if (!IsLiveMember(rank) || phase_ != Phase::kTraining) return;
  if (sequencer_) {
    members_[rank].average = {name, std::move(values)};
    sequencer_->Wait(StepperOf(rank), name.mark);
    Advance();
    return;
  }
  // Its oldest go for its newest; nobody else's do.
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(double));
  for (auto oldest = latest_.begin();
       oldest != latest_.end() && ValuesBytes(rank) + bytes > host_->MostValuesBytes(); ++oldest) {
    oldest->second.erase(rank);
  }
  Vectors& latest = LatestUnder(name.key);
  latest[rank] = std::move(values);
  if (!HasRounds() || !exchange_->IsAwaited(rank)) {
    // What it gave under the key for which it waits may have gone.
    members_[rank].asked.reset();
    if (exchange_) exchange_->EndWait(rank);
    return AnswerAverage(rank, name, latest);
  }
  members_[rank].asked = name;
  exchange_->Wait(rank, name.mark);
  Advance();
}

int64_t MasterGeneration::ValuesBytes(int32_t rank) const {
  size_t values = 0;
  for (const auto& [key, by_rank] : latest_) {
    const auto found = by_rank.find(rank);
    if (found != by_rank.end()) values += found->second.size();
  }
  if (const auto found = members_.find(rank); found != members_.end()) {
    const Member& member = found->second;
    if (member.average) values += member.average->second.size();
    if (member.state) values += member.state->size();
  }
  return static_cast<int64_t>(values * sizeof(double));
}

void MasterGeneration::HandleHashes(int32_t rank, std::vector<uint64_t> hashes) {
  if (!IsLiveMember(rank)) return;
  Member& member = members_.at(rank);
  if (phase_ != Phase::kResult) {
    member.hashes = std::move(hashes);
  } else if (std::exchange(member.has_near, false)) {
    final_pieces_->Send(BlobKind::kPieces, rank, hashes);
  }
}

void MasterGeneration::HandleState(int32_t rank, std::vector<double> state) {
  if (!IsLiveMember(rank) || phase_ != Phase::kFinal) return;
  members_[rank].state = std::move(state);
  Advance();
}

void MasterGeneration::HandleVerification(int32_t rank, const Verification& verification) {
  if (!IsLiveMember(rank) || phase_ != Phase::kResult) return;
  if (!parameters_hash_) parameters_hash_ = Hash(AsBytes(*parameters_));
  if (verification.hash != 0 && verification.hash != *parameters_hash_) {
    host_->Fail(rank, Code::kInternal,
                "worker " + std::to_string(rank) +
                    "'s parameters differ from the master's after the final copy; did something "
                    "assign to them meanwhile?");
    return;
  }
  members_[rank].difference = verification.difference;
  Advance();
}

void MasterGeneration::Lose(int32_t rank, uint64_t returning) {
  const auto found = members_.find(rank);
  if (found == members_.end()) return;
  Member& member = found->second;
  // In the sequenced modes nobody may return.
  const bool returns = returning == member.origin && !sequencer_ && phase_ == Phase::kTraining;
  if (member.lost) {
    if (std::exchange(member.returns, returns) != returns) Advance();
    return;
  }
  Member lost;
  lost.returns = returns;
  lost.origin = member.origin;
  lost.progress = member.progress;
  lost.late = member.late;
  lost.has_state = member.has_state;
  lost.lost = true;
  member = std::move(lost);
  if (sequencer_) sequencer_->Lose(StepperOf(rank));
  if (exchange_) exchange_->Leave(rank);
  for (auto& [key, by_rank] : latest_) by_rank.erase(rank);
  Advance();
}

void MasterGeneration::Join(int32_t rank, uint64_t origin) {
  Member joined;
  joined.origin = origin;
  joined.progress = progress(rank);
  joined.late = true;
  joined.has_state = false;
  members_[rank] = std::move(joined);
  rank_of_origin_[origin] = rank;
  if (sequencer_) sequencer_->Join(StepperOf(rank), CounterOf(host_->received(), origin));
  if (exchange_) exchange_->Join(rank, /*late=*/true);
}

void MasterGeneration::GoOn(int32_t rank, uint64_t origin, const AskResume& resume) {
  Member& member = members_[rank];
  const Progress before = member.progress;
  member = {};
  member.origin = origin;
  member.late = resume.lacks_state != 0;
  member.has_state = !member.late;
  member.progress = before;
  member.progress.last_iteration = std::max(before.last_iteration, resume.iteration);
  rank_of_origin_[origin] = rank;
  if (!exchange_) return;
  const bool is_first = exchange_->joint().cycles() == 0 && resume.cycles > 0;
  if (is_first) exchange_->Restart(resume.cycles);
  exchange_->Join(rank, /*late=*/true, member.has_state);
}

std::optional<int32_t> MasterGeneration::FindDonor(const std::set<int32_t>& asked) const {
  std::optional<int32_t> is_done;
  for (const auto& [rank, member] : members_) {
    if (!MayDonate(rank) || asked.contains(rank)) continue;
    if (!member.final_counter) return rank;
    if (!is_done) is_done = rank;
  }
  return is_done;
}

bool MasterGeneration::MayDonate(int32_t rank) const {
  return IsLiveMember(rank) && phase_ == Phase::kTraining && members_.at(rank).has_state;
}

bool MasterGeneration::MayBeBackWithState() const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const auto& [rank, member] = entry;
    return member.lost && member.has_state && host_->IsAway(rank) &&
           (!exchange_ || exchange_->MayReturn(rank));
  });
}

bool MasterGeneration::BeginToAsk(int32_t rank) {
  if (!IsLiveMember(rank)) return false;
  Member& member = members_.at(rank);
  const bool may_lack_it = member.late || IsOfGradients();
  if (!may_lack_it || std::exchange(member.asks, true)) return false;
  member.has_state = false;  // what was sent over an earlier link has not arrived
  ReleaseRound(rank);
  return true;
}

bool MasterGeneration::HoldRound(int32_t rank, uint64_t round) {
  return !exchange_ || exchange_->Hold(rank, round);
}

void MasterGeneration::ReleaseRound(int32_t rank) {
  if (exchange_) exchange_->Release(rank);
}

void MasterGeneration::HasState(int32_t rank) {
  if (IsLiveMember(rank)) members_.at(rank).has_state = true;
}

MasterGeneration::Progress MasterGeneration::progress(int32_t rank) const {
  const auto found = members_.find(rank);
  return found == members_.end() ? Progress{} : found->second.progress;
}

bool MasterGeneration::Reinstate(int32_t rank, uint64_t origin) {
  auto found = members_.find(rank);
  if (found == members_.end() || found->second.origin != origin) return false;
  if (sequencer_ || phase_ != Phase::kTraining) return false;
  // Who waits for its state asks anew.
  if (exchange_ && found->second.has_state && !exchange_->MayReturn(rank)) return false;
  found->second.lost = found->second.returns = false;
  if (exchange_) exchange_->Return(rank);
  return true;
}

const char* MasterGeneration::phase_name() const {
  switch (phase_) {
    case Phase::kTraining:
      return "training";
    case Phase::kFinal:
      return "final";
    case Phase::kResult:
      return "result";
    case Phase::kEnded:
      return "ended";
  }
  return "";
}

bool MasterGeneration::IsLiveMember(int32_t rank) const {
  auto found = members_.find(rank);
  return found != members_.end() && !found->second.lost;
}

int32_t MasterGeneration::live_members() const {
  return static_cast<int32_t>(std::count_if(members_.begin(), members_.end(),
                                            [](const auto& entry) { return !entry.second.lost; }));
}

void MasterGeneration::Advance() {
  if (sequencer_) {
    // A completed barrier makes its members step again, so that more STEPs may be due; a queue of
    // complete contributions is finite, and so is this.
    EmitSteps();
    CompleteBarrier();
  }
  AnswerHeldUp();
  if (phase_ == Phase::kTraining && AllDone()) SendFinal();
  if (phase_ == Phase::kFinal && AllLive([](const Member& m) { return m.state.has_value(); })) {
    SendResult();
  }
  if (phase_ == Phase::kResult &&
      AllLive([](const Member& m) { return m.difference.has_value(); })) {
    SendEnd();
  }
}

void MasterGeneration::EmitSteps() {
  while (auto step = sequencer_->NextStep()) {
    Step message{layout_.generation, sequencer_->steps() - 1, {}};
    for (const ReceivedUpdate& update : *step) {
      message.ids.push_back(update.id);
      codec_.Apply(update.message(), *parameters_);
    }
    ForLive([&](int32_t rank, Member&) { host_->Send(rank, message); });
    Keep(std::move(message), *std::move(step));
  }
}

void MasterGeneration::KeepSteps(int64_t most_bytes) {
  kept_steps_ = KeptSteps{.first = steps(), .bytes_left = most_bytes, .steps = {}};
}

void MasterGeneration::Keep(Step step, Sequencer::Contribution updates) {
  if (!kept_steps_) return;
  for (const ReceivedUpdate& update : updates) kept_steps_->bytes_left -= SizeOf(update.update);
  if (kept_steps_->bytes_left < 0) return KeepNoSteps();
  kept_steps_->steps.push_back({std::move(step), std::move(updates)});
}

void MasterGeneration::CompleteBarrier() {
  if (!sequencer_->BarrierComplete()) return;
  std::map<uint64_t, Vectors> by_key;
  ForLive([&](int32_t rank, Member& member) {
    if (member.average) by_key[member.average->first.key][rank] = member.average->second;
  });
  ForLive([&](int32_t rank, Member& member) {
    if (!member.average) return;
    AnswerAverage(rank, member.average->first, by_key[member.average->first.key]);
  });
  ForLive([](int32_t, Member& member) { member.average.reset(); });
  sequencer_->ReleaseBarrier();
}

// In rounds all who train wait for each other, but none for who waits for it. An average is of what
// each has said last, so who has ended counts, and who is an epoch behind. Who waits under the
// lowest key goes first: where one has lost its answer and asks again, others may be ahead of it.
void MasterGeneration::AnswerHeldUp() {
  if (!HasRounds() || !ExchangeGoesOn()) return;
  while (exchange_->IsHeldUp()) {
    std::map<uint64_t, std::vector<int32_t>> by_key;
    ForLive([&](int32_t rank, Member& member) {
      if (member.asked) by_key[member.asked->key].push_back(rank);
    });
    STROM_CHECK(!by_key.empty());
    const auto& [key, ranks] = *by_key.begin();
    for (const int32_t rank : ranks) {
      exchange_->EndWait(rank);
      AnswerAverage(rank, *std::exchange(members_.at(rank).asked, {}), LatestUnder(key));
    }
  }
}

bool MasterGeneration::AllDone() const {
  if (!AnyLive() || AnyReturns()) return false;  // somebody may come in their place
  if (sequencer_ && !sequencer_->Finished()) return false;
  if (exchange_ && !exchange_->HasLast()) return false;
  // Asked last, for it looks at every place in the tree.
  return AllLive([this](const Member& member) {
           return member.final_counter &&
                  CounterOf(host_->received(), member.origin) >= *member.final_counter;
         }) &&
         host_->Settled();
}

void MasterGeneration::SendFinal() {
  phase_ = AnyLive() ? Phase::kFinal : Phase::kEnded;
  host_->PublishAll();
  ForLive([&](int32_t rank, Member&) {
    host_->Send(rank, Final{layout_.generation, host_->received(), steps()});
  });
}

void MasterGeneration::SendResult() {
  phase_ = AnyLive() ? Phase::kResult : Phase::kEnded;
  if (phase_ == Phase::kEnded) return;
  if (exchange_) {
    exchange_->Close();
    exchange_->WriteTo(parameters_);
  }
  Vectors states;
  ForLive([&](int32_t rank, Member& member) { states[rank] = std::move(*member.state); });
  const size_t size = states.begin()->second.size();
  BlobName name{BlobKind::kResult, layout_.generation, 0, 0, 0};
  final_state_ = MeanInRankOrder(states, size, &name.count);
  const std::vector<Buffer> result = EncodeBlob(name, final_state_);
  // Others' updates are added in another order here and there, where nothing gives them one.
  const bool are_near = !sequencer_ && !exchange_;
  const std::vector<float>& values = *parameters_;
  final_pieces_.emplace(layout_.generation, &values, PieceGrid(values.size()).Hashes(values),
                        host_);
  for (const auto& [rank, state] : states) {
    if (state.size() != size) {
      host_->Fail(rank, Code::kInvalidArgument,
                  "worker " + std::to_string(rank) + " has " + std::to_string(state.size()) +
                      " values of non-trainable state, worker " +
                      std::to_string(states.begin()->first) + " has " + std::to_string(size) +
                      "; all have to train the same model");
      continue;
    }
    host_->SendBlob(rank, result);
    Member& member = members_.at(rank);
    member.has_near = are_near && !member.hashes.empty();
    final_pieces_->Send(member.has_near ? BlobKind::kNearPieces : BlobKind::kPieces, rank,
                        std::exchange(member.hashes, {}));
  }
  final_pieces_->ForgetCopies();
}

void MasterGeneration::SendEnd() {
  phase_ = Phase::kEnded;
  final_pieces_.reset();
  double worst = 0;
  ForLive([&](int32_t, Member& member) {
    // A difference that is no number is the worst there is; std::max would pass over it.
    if (!std::isnan(worst) && !(*member.difference <= worst)) worst = *member.difference;
  });
  ForLive([&](int32_t rank, Member&) { host_->Send(rank, End{layout_.generation, worst}); });
}

void MasterGeneration::AnswerAverage(int32_t rank, const BlobName& asked, const Vectors& by_rank) {
  BlobName name{BlobKind::kMean, layout_.generation, asked.key, steps(), 0};
  const size_t size = by_rank.at(rank).size();
  const std::vector<double> mean = MeanInRankOrder(by_rank, size, &name.count);
  host_->SendBlob(rank, EncodeBlob(name, mean));
}

MasterGeneration::Vectors& MasterGeneration::LatestUnder(uint64_t key) {
  for (auto& [known, by_rank] : latest_) {
    if (known == key) return by_rank;
  }
  if (latest_.size() >= kMaxAverageKeys) {
    // Each member waits under one key at most.
    const auto oldest = std::find_if(latest_.begin(), latest_.end(), [this](const auto& entry) {
      return AllLive(
          [&](const Member& member) { return !member.asked || member.asked->key != entry.first; });
    });
    if (oldest != latest_.end()) latest_.erase(oldest);
  }
  return latest_.emplace_back(key, Vectors{}).second;
}

template <typename Visit>
void MasterGeneration::ForLive(Visit visit) {
  for (auto& [rank, member] : members_) {
    if (!member.lost) visit(rank, member);
  }
}

template <typename Test>
bool MasterGeneration::AllLive(Test test) const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](const auto& entry) { return entry.second.lost || test(entry.second); });
}

bool MasterGeneration::AnyLive() const {
  return !AllLive([](const Member&) { return false; });
}

bool MasterGeneration::ExchangeGoesOn() const {
  return exchange_ && phase_ == Phase::kTraining && !(HasRounds() && AnyReturns());
}

bool MasterGeneration::AnyReturns() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.returns; });
}

std::vector<double> MeanInRankOrder(const std::map<int32_t, std::vector<double>>& by_rank,
                                    size_t size, uint32_t* contributors) {
  std::vector<double> mean(size, 0.0);
  *contributors = 0;
  for (const auto& [rank, values] : by_rank) {
    if (values.size() != size) continue;
    ++*contributors;
    for (size_t i = 0; i < size; ++i) mean[i] += values[i];
  }
  for (double& value : mean) value /= *contributors;
  return mean;
}

}  // namespace strom
