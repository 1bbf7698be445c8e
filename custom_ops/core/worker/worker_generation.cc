#include "core/worker/worker_generation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/little_endian.h"
#include "core/replication/version_vector.h"

namespace strom {

namespace {

// An optimizer has a few values for each parameter; what is not trained may be much more.
constexpr int64_t kLeastDonationBytes = int64_t{8} << 30;
constexpr int64_t kDonatedBytesOfValue = 32;
// Of what only the master itself makes.
constexpr int64_t kMostBytes = int64_t{1} << 40;

}  // namespace

void WorkerGeneration::Begin(Generation generation) {
  layout_ = {generation.number, static_cast<uint64_t>(generation.layout_size),
             generation.layout_hash};
  generation_ = std::move(generation);
  queue_.Begin();
  phase_ = Phase::kStarting;
  registered_ = false;
  started_ = false;
  ForgetPieces();
  parameters_ = is_chief_ ? generation_.values : nullptr;
  parameters_snapshot_ = 0;
  pending_.reset();
  beginning_ = {};
  asks_as_.reset();
  has_asked_ = false;
  asked_.reset();
  mean_.reset();
  final_.reset();
  result_.reset();
  stop_ = false;
  joint_.reset();
  if (generation_.plan.IsJoint()) {
    joint_.emplace(generation_.plan, layout_.generation, generation_.cycles, host_, drops_);
  }
}

void WorkerGeneration::Average(uint64_t key, std::vector<double> values) {
  asked_ = {key, std::move(values)};
  mean_.reset();
  if (joint_) joint_->BeginToWait();
  if (registered_) AskAverage();
}

void WorkerGeneration::Finish(bool stop) {
  if (phase_ != Phase::kTraining) return;
  phase_ = Phase::kFinishing;
  stop_ = stop;
  if (registered_) SayDone();
}

void WorkerGeneration::SendState(const std::vector<double>& state,
                                 std::shared_ptr<std::vector<float>> values) {
  if (phase_ != Phase::kFinal) return;
  phase_ = Phase::kResult;
  ForgetPieces();
  asks_far_ = false;
  parameters_ = nullptr;
  generation_.values = std::move(values);
  host_->SendBlob(EncodeBlob({BlobKind::kHashes, layout_.generation, 0, 0, 0}, TakeHashes()));
  host_->SendBlob(EncodeBlob({BlobKind::kState, layout_.generation, 0, 0, 0}, state));
}

void WorkerGeneration::Verify(double difference, uint64_t hash) {
  if (phase_ == Phase::kVerify) host_->Send(Verification{layout_.generation, difference, hash});
}

void WorkerGeneration::AskDonation(int32_t own_rank, bool is_up) {
  const bool lacks_state = beginning_.late || generation_.plan.IsOfGradients();
  const bool may_ask = beginning_.ended ? is_up : lacks_state && IsTraining();
  if (!may_ask || std::exchange(has_asked_, true)) {
    WorkerEvent none;
    none.type = WorkerEvent::Type::kDonation;
    return host_->Raise(std::move(none));
  }
  asks_as_ = own_rank;
  if (registered_ || beginning_.ended) host_->Send(AskState{layout_.generation, own_rank, 0});
}

void WorkerGeneration::HandleDonation(Blob blob) {
  asks_as_.reset();
  if (joint_) joint_->BeginAt(blob.name.mark);
  WorkerEvent event;
  event.type = WorkerEvent::Type::kDonation;
  if (!blob.bytes.empty()) event.donation = MakeBuffer(std::move(blob.bytes));
  host_->Raise(std::move(event));
}

void WorkerGeneration::Register() {
  registered_ = true;
  if (asks_as_) host_->Send(AskState{layout_.generation, *asks_as_, 0});
  if (asked_ && !mean_) AskAverage();
  if (joint_) joint_->Register();
  if (phase_ == Phase::kFinishing) SayDone();
}

void WorkerGeneration::LinkDown() {
  registered_ = false;
  if (joint_) joint_->LinkDown();
  if (beginning_.ended && asks_as_) HandleDonation({});  // nobody asks again for an end's state
}

void WorkerGeneration::MasterChanged() {
  registered_ = false;
  if (joint_) joint_->MasterChanged();
  if (phase_ == Phase::kStarting) Begin(std::move(generation_));
}

void WorkerGeneration::GoOn() {
  mean_.reset();
  final_.reset();
  Register();
}

void WorkerGeneration::Announce() {
  host_->Send(strom::Announce{layout_, host_->last_own_counter(), generation_.options_text,
                              generation_.plan, generation_.cycles, TakeHashes()});
}

// Of the pieces of this worker's values, which the master is told.
const std::vector<uint64_t>& WorkerGeneration::TakeHashes() {
  const bool has_values = generation_.values != nullptr;
  hashes_.clear();
  if (has_values) hashes_ = PieceGrid(layout_.size).Hashes(*generation_.values);
  return hashes_;
}

void WorkerGeneration::Handle(const AskPieces& ask) {
  const bool has_them = ask.generation == layout_.generation && generation_.values != nullptr;
  if (!has_them || phase_ != Phase::kStarting) return;
  const PieceGrid grid(layout_.size);
  if (!grid.Has(ask.indices)) {
    return host_->Fail(Code::kCorrupt, "the master asks for pieces of values that are none");
  }
  host_->SendBlob(EncodeParts({BlobKind::kPieces, layout_.generation, 0, ask.number, 0},
                              grid.Parts(*generation_.values, ask.indices)));
}

bool WorkerGeneration::HandleStart(const StartGeneration& start) {
  if (start.generation != layout_.generation || phase_ != Phase::kStarting) return false;
  started_ = registered_ = true;
  if (joint_) joint_->Register();
  beginning_ = {start.snapshot != 0, false, start.resume_iteration};
  snapshot_ = start.snapshot;
  cut_ = start.cut;
  queue_.Restart(start.cut, start.step);
  return true;
}

void WorkerGeneration::Handle(const Ended& ended) {
  if (ended.generation != layout_.generation || phase_ != Phase::kStarting) return;
  started_ = true;
  beginning_ = {.ended = true};
  snapshot_ = ended.snapshot;
}

void WorkerGeneration::Handle(const Step& step) {
  if (step.generation != layout_.generation || !started_) return;
  const Status next = queue_.AddStep(step.step, step.ids);
  if (!next.ok()) host_->Fail(next.code, "the master sent " + next.message);
}

void WorkerGeneration::Handle(const Final& final) {
  if (final.generation == layout_.generation && phase_ == Phase::kFinishing) final_ = final;
}

void WorkerGeneration::Handle(const End& end) {
  if (end.generation != layout_.generation || phase_ != Phase::kVerify) return;
  phase_ = Phase::kIdle;
  registered_ = false;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kEnd;
  event.values = {end.worst_difference};
  host_->Raise(std::move(event));
}

void WorkerGeneration::Handle(const Stop& stop) {
  if (stop.generation != layout_.generation) return;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kStop;
  host_->Raise(std::move(event));
}

void WorkerGeneration::Handle(const Tick& tick) {
  if (joint_) joint_->Handle(tick);
}

Status WorkerGeneration::Handle(const Rounds& rounds, std::vector<int32_t> ranks, int32_t rank) {
  return joint_ ? joint_->Handle(rounds, std::move(ranks), rank) : Status{};
}

void WorkerGeneration::HandleJointChunk(const BlobChunk& chunk) {
  if (!joint_) {
    ++(*drops_)["values that nobody asked for"];
    return;
  }
  JointValues joint;
  const Status status = joint_->HandleChunk(chunk, &joint);
  if (!status.ok()) return host_->Fail(status.code, "the master sent " + status.message);
  if (!joint) return;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kJoint;
  event.parameters = std::move(joint);
  host_->Raise(std::move(event));
}

std::optional<int64_t> WorkerGeneration::MostBytes(const BlobName& name) const {
  if (name.generation != layout_.generation) return std::nullopt;
  switch (name.kind) {
    case BlobKind::kParameters:
      return BytesOfFloats(layout_.size);
    case BlobKind::kMean:
      if (!asked_ || asked_->first != name.key) return std::nullopt;
      return static_cast<int64_t>(asked_->second.size() * sizeof(double));
    case BlobKind::kDonation:
      if (!asks_as_) return std::nullopt;
      return kLeastDonationBytes + kDonatedBytesOfValue * static_cast<int64_t>(layout_.size);
    default:
      return kMostBytes;
  }
}

void WorkerGeneration::HandleBlob(Blob blob) {
  if (blob.name.generation != layout_.generation) {
    ++(*drops_)["values of another generation"];
  } else if (blob.name.kind == BlobKind::kParameters) {
    parameters_snapshot_ = blob.name.mark;
    const Status whole = TakeParameters(std::move(blob), &parameters_);
    if (!whole.ok()) return host_->Fail(whole.code, whole.message);
  } else if (blob.name.kind == BlobKind::kMean && asked_ && asked_->first == blob.name.key) {
    mean_ = std::move(blob);
  } else if (blob.name.kind == BlobKind::kDonation && asks_as_) {
    HandleDonation(std::move(blob));
  } else if (blob.name.kind == BlobKind::kResult && phase_ == Phase::kResult) {
    result_ = std::move(blob);
  } else {
    ++(*drops_)["values that nobody asked for"];
  }
}

Status WorkerGeneration::TakeParameters(
    Blob blob, std::shared_ptr<const std::vector<float>>* parameters) const {
  if (blob.floats.size() != layout_.size) {
    return {Code::kCorrupt, "the master sent " + std::to_string(blob.floats.size()) +
                                " parameters instead of " + std::to_string(layout_.size)};
  }
  *parameters = std::make_shared<const std::vector<float>>(std::move(blob.floats));
  return {};
}

// Into this worker's own values, for the rest of the master's are the same.
void WorkerGeneration::HandlePieces(const BlobChunk& chunk) {
  if (chunk.name.generation != layout_.generation || !AwaitsPieces(chunk.name.kind)) {
    ++(*drops_)["values that nobody asked for"];
    return;
  }
  Bytes values = chunk.bytes;
  Status status;
  if (!pieces_order_.Take(chunk)) {
    status = {Code::kCorrupt, "a chunk that does not follow the one before"};
  } else if (chunk.offset == 0) {
    status = BeginPieces(chunk, &values);
  }
  if (status.ok()) status = pieces_->Take(values);
  const bool is_last = pieces_order_.IsWhole();
  if (status.ok() && is_last != pieces_->IsWhole()) {
    status = {Code::kCorrupt, "more or fewer pieces than this worker lacks"};
  }
  if (!status.ok()) {
    ForgetPieces();
    return host_->Fail(status.code, "the master sent " + status.message);
  }
  if (is_last) EndPieces();
}

void WorkerGeneration::EndPieces() {
  asks_far_ = !pieces_->HaveTheirHashes();
  ForgetPieces();
  if (asks_far_) {
    host_->SendBlob(EncodeBlob({BlobKind::kHashes, layout_.generation, 0, 0, 0}, TakeHashes()));
    return;
  }
  parameters_ = generation_.values;
  parameters_snapshot_ = 0;
}

// Takes the hashes off the first chunk of pieces.
Status WorkerGeneration::BeginPieces(const BlobChunk& first, Bytes* values) {
  const PieceGrid grid(layout_.size);
  const size_t hashes_bytes = grid.count() * sizeof(uint64_t);
  if (values->size() < hashes_bytes) return {Code::kCorrupt, "pieces without their hashes"};
  std::vector<uint64_t> wanted(grid.count());
  for (uint64_t& hash : wanted) {
    hash = LoadLittleEndian<uint64_t>(values->data());
    *values = values->subspan(sizeof(hash));
  }
  const bool are_near = first.name.kind == BlobKind::kNearPieces;
  const std::vector<uint32_t> lacking = Lacking(wanted, hashes_);
  if (!are_near && first.total - hashes_bytes != grid.ElementsOf(lacking) * sizeof(float)) {
    return {Code::kCorrupt, "other pieces than this worker lacks"};
  }
  if (are_near && !generation_.values) return {Code::kCorrupt, "what is near to no values"};
  if (!generation_.values) generation_.values = std::make_shared<std::vector<float>>(layout_.size);
  std::vector<PieceTaker::Place> places;
  for (const uint32_t index : lacking) {
    places.push_back({grid.Piece(std::span(*generation_.values), index), wanted[index]});
  }
  if (are_near) {
    pieces_ = std::make_unique<NearPieceTaker>(std::move(places));
  } else {
    pieces_ = std::make_unique<WholePieceTaker>(std::move(places));
  }
  return {};
}

void WorkerGeneration::AddPending(uint64_t number, std::vector<ReceivedUpdate> updates) {
  if (phase_ == Phase::kStarting) pending_ = {number, std::move(updates)};
}

void WorkerGeneration::Advance() {
  if (phase_ == Phase::kStarting && started_ && HasSnapshot()) Start();
  if (mean_ && queue_.released_steps() >= mean_->name.mark) RaiseAverage();
  if (phase_ == Phase::kFinishing && final_ && Covers(host_->received(), final_->vector) &&
      queue_.released_steps() >= final_->steps) {
    phase_ = Phase::kFinal;
    WorkerEvent event;
    event.type = WorkerEvent::Type::kFinal;
    host_->Raise(std::move(event));
  }
  if (phase_ == Phase::kResult && result_ && parameters_) RaiseResult();
}

bool WorkerGeneration::HasSnapshot() const {
  if (!parameters_ || parameters_snapshot_ != snapshot_) return false;
  const bool has_pending = pending_ && pending_->first == snapshot_;
  return has_pending || !sequenced_ || !beginning_.late;
}

void WorkerGeneration::Start() {
  phase_ = beginning_.ended ? Phase::kIdle : Phase::kTraining;
  if (pending_ && pending_->first == snapshot_) {
    for (ReceivedUpdate& update : pending_->second) {
      uint64_t& contained = cut_[update.id.origin];
      contained = std::min(contained, update.id.counter - 1);
      queue_.Add(std::move(update));
    }
  }
  pending_.reset();
  WorkerEvent event;
  event.type = WorkerEvent::Type::kStarted;
  event.beginning = beginning_;
  event.cut = std::exchange(cut_, {});
  event.parameters = std::exchange(parameters_, nullptr);
  generation_.values = nullptr;
  host_->Raise(std::move(event));
}

const char* WorkerGeneration::phase_name() const {
  static constexpr const char* kPhases[] = {"idle",  "starting", "training", "finishing",
                                            "final", "result",   "verify"};
  return kPhases[static_cast<size_t>(phase_)];
}

bool WorkerGeneration::MayPause() const {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kStarting:
      return true;
    case Phase::kTraining:
      return !sequenced_;
    case Phase::kFinishing:
      return !sequenced_ && !final_;
    default:
      return false;
  }
}

void WorkerGeneration::AskAverage() {
  const uint64_t mark = joint_ ? joint_->next_round() : host_->last_own_counter();
  host_->SendBlob(
      EncodeBlob({BlobKind::kAverage, layout_.generation, asked_->first, mark, 0}, asked_->second));
}

void WorkerGeneration::SayDone() {
  host_->Send(Done{layout_.generation, host_->last_own_counter(),
                   static_cast<uint8_t>(stop_ ? 1 : 0),
                   joint_ ? joint_->rounds_in_last() : Done::kNone});
}

void WorkerGeneration::RaiseAverage() {
  WorkerEvent event;
  event.type = WorkerEvent::Type::kAverage;
  event.key = mean_->name.key;
  event.contributors = static_cast<int32_t>(mean_->name.count);
  const Status whole = mean_->Values(&event.values);
  mean_.reset();
  asked_.reset();
  if (!whole.ok()) return host_->Fail(whole.code, "the master sent " + whole.message);
  host_->Raise(std::move(event));
}

void WorkerGeneration::RaiseResult() {
  phase_ = Phase::kVerify;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kResult;
  event.contributors = static_cast<int32_t>(result_->name.count);
  const Status whole = result_->Values(&event.values);
  event.parameters = std::exchange(parameters_, nullptr);
  generation_.values = nullptr;
  if (!whole.ok()) return host_->Fail(whole.code, "the master sent " + whole.message);
  host_->Raise(std::move(event));
}

}  // namespace strom
