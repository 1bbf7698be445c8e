#include "core/worker/shard_agent.h"

#include <algorithm>

#include "core/joint/bfloat16.h"
#include "core/joint/joint_model.h"

namespace strom {

namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
// Of a snapshot on its way at once, and how often a look is taken whether more may follow.
constexpr int64_t kLeavingBytes = int64_t{8} << 20;
constexpr int64_t kLeavingLook = 1'000'000;

}  // namespace

void ShardAgent::BeginStepping() {
  steps_ = true;
  if (registered_) host_->Send(Stepping{generation_});
}

void ShardAgent::Register() {
  registered_ = true;
  if (steps_) host_->Send(Stepping{generation_});
  for (const Given& given : given_) {
    const bool knows_round = tick_ || plan_.IsOfGradients();
    if (plan_.HasRounds() && !knows_round && given.mark < kFirstLastMark) continue;
    if (given.is_whole && !IsHeld(given)) SendGiven(given);
  }
  if (last_have_) host_->Send(Have{generation_, *last_have_, had_iteration_});
  asks_joint_ = awaits_joint_;
  next_ns_ = 0;
}

int64_t ShardAgent::BytesToGive() const {
  int64_t bytes = 0;
  for (const Given& given : given_) {
    const bool waits = given.is_whole && (!registered_ || leaving_ == given.mark);
    if (waits && !IsHeld(given)) bytes += std::ssize(*given.values) * kFloatBytes;
  }
  return bytes;
}

void ShardAgent::LinkDown() {
  registered_ = false;
  targets_ = {};
  joints_ = {};
  taken_.reset();
  leaving_.reset();
  // What is made among the workers goes on until the master, which is told of a loss, ends it.
  if (!peers_) coming_ = nullptr;
}

void ShardAgent::MasterChanged() {
  LinkDown();
  tick_.reset();
  next_.reset();
  last_given_.reset();
  last_have_.reset();
  base_ = nullptr;
  orders_.asked.reset();
  EraseSnapshots();
}

void ShardAgent::ForgetGiven() {
  // Who has written it may not have let go of it yet.
  const bool may_go = !given_.empty() && given_.back().mark < kFirstLastMark;
  if (may_go && given_.back().values.use_count() == 1) {
    orders_.spare = std::move(*given_.back().values);
  }
  EraseGiven();
}

void ShardAgent::EraseSnapshots() {
  peers_.reset();
  EraseGiven();
}

// The last snapshots stay: nobody asks for them again.
void ShardAgent::EraseGiven() {
  std::erase_if(given_, [](const Given& given) { return given.mark < kFirstLastMark; });
  leaving_.reset();
}

void ShardAgent::Handle(const Tick& tick) {
  if (tick.generation != generation_) return;
  if (plan_.IsMpca() && tick.asks != 0 && last_given_ != tick.number) {
    orders_.asked = tick.number;
    ForgetGiven();  // the master asks only who owes it nothing
  }
  if (tick_ && tick.number < *tick_) return;  // said again, to one that was away
  const bool is_first = !tick_;
  cycles_ = tick.cycles;
  orders_.alpha = tick.alpha;
  orders_.steps = static_cast<int64_t>(tick.steps);
  orders_.round = tick.number;
  tick_ = tick.number;
  if (plan_.IsOfGradients()) return;  // its rounds follow one another
  if (!plan_.IsMpca()) {
    const bool waits = is_first && !given_.empty() && given_.front().mark < kFirstLastMark;
    if (!waits || plan_.method.kind == STROM_EASGD) return;
    given_.front().mark = tick.number;
    if (registered_) SendGiven(given_.front());
    return;
  }
  if (tick.installs != 0 && next_ && next_->first + 1 == tick.number) {
    InstallTarget(next_->first, std::move(next_->second));
    next_.reset();
  }
}

Status ShardAgent::Handle(const Rounds& rounds, std::vector<int32_t> ranks, int32_t rank) {
  if (rounds.generation != generation_ || !plan_.IsOfGradients()) return {};
  if (rounds.where == Rounds::kGiveMean) {
    GiveMean(rounds.round);
    return {};
  }
  if (rounds.where == Rounds::kSayGiven) {
    says_given_ = peers_.has_value();
    SayGiven();
    return {};
  }
  if (rounds.where == Rounds::kGiveLast) {
    if (rounds_in_last() != Done::kNone) SendGiven(given_.back());
    return {};
  }
  const bool is_named = std::binary_search(ranks.begin(), ranks.end(), rank);
  const bool may_begin = is_named && !peers_ && !stopped_;
  if (rounds.where > Rounds::kGiveLast || (rounds.where == Rounds::kAmongPeers && !may_begin)) {
    return {Code::kCorrupt, "an order for rounds that cannot be"};
  }
  rounds_version_ = rounds.version;
  says_given_ = false;
  stopped_ = rounds.where == Rounds::kStopped;
  if (rounds.where == Rounds::kAmongPeers) {
    peers_.emplace(plan_, rounds, std::move(ranks), rank, host_);
    for (Early& early : std::exchange(early_, {})) {
      const BlobChunk chunk{early.name, early.total, early.offset, early.bytes};
      if (!HandlePeerChunk(early.rank, chunk).ok()) ++(*drops_)["early piece of a gradient"];
    }
    if (const Given* const given = Growing()) BeginAmongPeers(*given);
    return {};
  }
  // Of a round that is not over nobody keeps what it has: all give again.
  early_.clear();
  peers_.reset();
  leaving_.reset();
  if (stopped_) {
    coming_ = nullptr;
    taken_.reset();
    host_->Send(AtRound{generation_, rounds.version, next_round_});
    return {};
  }
  last_mean_ = nullptr;
  for (const Given& given : given_) {
    if (given.mark < kFirstLastMark && given.is_whole) SendGiven(given);
  }
  return {};
}

uint64_t ShardAgent::rounds_in_last() const {
  const bool has_last = plan_.IsOfGradients() && !given_.empty() &&
                        given_.back().mark >= kFirstLastMark && !given_.back().values->empty();
  return has_last ? static_cast<uint64_t>(given_.back().steps) : Done::kNone;
}

// What is given does not go to the master: the round is made among the workers, or nowhere yet, or
// it is a last snapshot for which the master has to ask.
bool ShardAgent::IsHeld(const Given& given) const {
  if (!plan_.IsOfGradients()) return false;
  if (given.mark >= kFirstLastMark) return true;
  return stopped_ || (peers_ && peers_->Has(given.mark));
}

void ShardAgent::GiveMean(uint64_t round) {
  const bool has_it = last_mean_ && last_have_ == round;
  BlobName name{BlobKind::kShard, generation_, 0, kFirstMeanMark + round, 0};
  std::span<const float> values;
  if (has_it) {
    values = std::span(*last_mean_).first(static_cast<size_t>(plan_.size()));
    name.count = RateBits(last_mean_->back());
  }
  host_->SendBlob(
      EncodeBlob(name, AsBytes(values), PartElements(plan_.method, plan_.size()) * kFloatBytes));
}

Status ShardAgent::HandlePeerChunk(int32_t rank, const BlobChunk& chunk) {
  if (chunk.name.generation != generation_ || chunk.name.key < rounds_version_) {
    ++(*drops_)["piece of a gradient of rounds that were stopped"];
    return {};
  }
  if (chunk.name.key > rounds_version_) {
    // They give what is added up here, for one round.
    const int64_t elements = PartElements(plan_.method, plan_.size());
    const auto most = static_cast<size_t>(plan_.size() / elements) + kMostPeers;
    if (early_.size() > most || std::ssize(chunk.bytes) > elements * kFloatBytes) {
      return {Code::kCorrupt, "more pieces of a gradient than there can be"};
    }
    early_.push_back(
        {rank, chunk.name, chunk.total, chunk.offset, {chunk.bytes.begin(), chunk.bytes.end()}});
    return {};
  }
  if (!peers_) {
    ++(*drops_)["piece of a gradient of rounds that were stopped"];
    return {};
  }
  const Status status = peers_->Handle(rank, chunk);
  if (peers_->TakeWhole()) HandleRoundTarget(next_round_);
  return status;
}

ElementRange ShardAgent::RangeOf(uint64_t number) const {
  const int32_t shards = plan_.method.phases;
  // Tick n brings the target of the shard that tick n + 1 asks for.
  const auto shard = static_cast<int32_t>((number + 1) % static_cast<uint64_t>(shards));
  return ShardOf(plan_.size(), shards, shard);
}

void ShardAgent::InstallTarget(uint64_t number, JointValues values) {
  const auto shards = static_cast<uint64_t>(plan_.method.phases);
  const auto shard = static_cast<int32_t>((number + 1) % shards);
  orders_.AddTarget(shard, std::move(values));
}

Status ShardAgent::HandleChunk(const BlobChunk& chunk, JointValues* joint) {
  if (plan_.HasRounds() && chunk.name.kind == BlobKind::kTarget) return HandleRoundChunk(chunk);
  const bool is_target = chunk.name.kind == BlobKind::kTarget;
  BlobAssembler& assembler = is_target ? targets_ : joints_;
  const bool awaits = is_target || (awaits_joint_ && chunk.name.mark == asked_);
  bool is_wanted = chunk.name.generation == generation_ && awaits;
  if (is_target) {
    // What is wanted only from its middle on was begun for an earlier question.
    if (chunk.offset == 0) taken_ = is_wanted ? std::optional(chunk.name.mark) : std::nullopt;
    is_wanted = is_wanted && taken_ == chunk.name.mark;
  }
  if (!is_wanted) {
    ++(*drops_)["values of the joint model that nobody waits for"];
    return {};
  }
  const int64_t elements = is_target ? RangeOf(chunk.name.mark).size : plan_.size();
  std::optional<Blob> blob;
  Status status = assembler.Add(chunk, elements * static_cast<int64_t>(sizeof(float)), &blob);
  if (!status.ok() || !blob) return status;
  if (is_target) {
    HandleTarget(*blob);
    return {};
  }
  auto values = std::make_shared<std::vector<float>>();
  status = blob->Values(values.get());
  if (!status.ok()) return status;
  if (std::ssize(*values) != elements) return {Code::kCorrupt, "a joint model of another size"};
  awaits_joint_ = false;
  *joint = std::move(values);
  return {};
}

// Of a round only what this worker waits for, and that once. What is wanted only from its middle on
// was begun for an earlier question.
Status ShardAgent::HandleRoundChunk(const BlobChunk& chunk) {
  const uint64_t number = chunk.name.mark;
  if (!given_.empty() && IsHeld(given_.front())) {
    ++(*drops_)["values of the joint model that nobody waits for"];
    return {};
  }
  const bool awaits = chunk.name.generation == generation_ && !given_.empty() &&
                      given_.front().mark == number && given_.front().is_whole;
  const auto of_change = static_cast<uint64_t>(plan_.size() * kBfloat16Bytes);
  const bool is_rounded = plan_.IsOfGradients() && plan_.method.bfloat16 != 0;
  const bool is_change = (base_ || is_rounded) && chunk.total == of_change;
  const int64_t width = is_change ? kBfloat16Bytes : kFloatBytes;
  if (chunk.offset == 0) {
    taken_ = awaits ? std::optional(number) : std::nullopt;
    coming_ = awaits ? MemoryOfTarget() : nullptr;
    arrived_ = 0;
  }
  if (!awaits || taken_ != number) {
    ++(*drops_)["values of the joint model that nobody waits for"];
    return {};
  }
  if (chunk.total != static_cast<uint64_t>(plan_.size() * width)) {
    ++(*drops_)["target of another size"];
    return {};
  }
  if (chunk.offset != static_cast<uint64_t>(arrived_ * width) ||
      chunk.bytes.size() % static_cast<size_t>(width) != 0) {
    return {Code::kCorrupt, "a chunk that does not follow the one before"};
  }
  const size_t elements = chunk.bytes.size() / static_cast<size_t>(width);
  const auto to = std::span(*coming_).subspan(static_cast<size_t>(arrived_), elements);
  if (is_change && is_rounded) {
    DecodeRounded(chunk.bytes, to);
  } else if (is_change) {
    AddChange(std::span(*base_).subspan(static_cast<size_t>(arrived_), elements), chunk.bytes, to);
  } else {
    std::copy(chunk.bytes.begin(), chunk.bytes.end(), reinterpret_cast<uint8_t*>(to.data()));
  }
  arrived_ += static_cast<int64_t>(elements);
  if (arrived_ < plan_.size()) return {};
  if (plan_.IsOfGradients()) coming_->back() = RateOf(chunk.name.count);
  HandleRoundTarget(number);
  return {};
}

// A target that nobody holds any more has pages that are there.
std::shared_ptr<std::vector<float>> ShardAgent::MemoryOfTarget() {
  const auto size = static_cast<size_t>(plan_.size() + (plan_.IsOfGradients() ? 1 : 0));
  for (std::shared_ptr<std::vector<float>>& memory : memory_) {
    if (!memory) memory = std::make_shared<std::vector<float>>(size);
    if (memory.use_count() == 1) return memory;
  }
  return std::make_shared<std::vector<float>>(size);
}

void ShardAgent::HandleRoundTarget(uint64_t number) {
  last_have_ = number;
  had_iteration_ = given_.empty() ? -1 : given_.front().iteration;
  if (registered_) host_->Send(Have{generation_, number, had_iteration_});
  ForgetGiven();
  round_target_ = std::exchange(coming_, nullptr);
  if (plan_.method.bfloat16 != 0 && !plan_.IsOfGradients()) base_ = round_target_;
  if (peers_) last_mean_ = round_target_;
  next_round_ = number + 1;
  taken_.reset();
  // The word that the next round has begun may come later.
  tick_ = std::max(tick_.value_or(0), number + 1);
  orders_.round = *tick_;
}

void ShardAgent::HandleTarget(const Blob& blob) {
  auto values = std::make_shared<std::vector<float>>();
  const uint64_t number = blob.name.mark;
  if (!blob.Values(values.get()).ok() || std::ssize(*values) != RangeOf(number).size) {
    ++(*drops_)["target of another size"];
    return;
  }
  last_have_ = number;
  if (registered_) host_->Send(Have{generation_, number});
  if (tick_ && *tick_ > number) {
    InstallTarget(number, std::move(values));  // it has come late
  } else {
    next_ = {number, std::move(values)};
  }
}

void ShardAgent::Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) {
  // The round at hand may have become another since the training thread has looked.
  if (plan_.HasRounds() && mark < kFirstLastMark && tick_) mark = *tick_;
  // A mean that comes later is no part of a last snapshot.
  if (plan_.IsOfGradients()) steps = static_cast<int64_t>(next_round_);
  const auto held = std::make_shared<std::vector<float>>(std::move(values));
  given_.push_back({mark, iteration, steps, held, true, {}});
  last_given_ = mark;
  if (registered_ && !IsHeld(given_.back())) SendGiven(given_.back());
}

void ShardAgent::BeginGradient(int64_t iteration, GrowingGradient values) {
  if (!given_.empty() && given_.front().mark == next_round_) return;  // one for each round
  given_.push_back({next_round_, iteration, 1, std::move(values), false, {}});
  last_given_ = next_round_;
  BeginAmongPeers(given_.back());
}

void ShardAgent::GivePart(int64_t part) {
  Given* const given = Growing();
  if (given == nullptr) return;
  given->parts.push_back(part);
  if (peers_ && IsHeld(*given)) peers_->GivePart(part);
}

void ShardAgent::EndGradient(int64_t iteration, GrowingGradient values) {
  if (Growing() == nullptr) BeginGradient(iteration, std::move(values));
  Given* const given = Growing();
  if (given == nullptr) return;
  given->is_whole = true;
  if (!IsHeld(*given)) {
    if (registered_) SendGiven(*given);
    return;
  }
  if (!peers_) return;
  peers_->GiveRest();
  if (peers_->TakeWhole()) return HandleRoundTarget(given->mark);
  SayGiven();
}

// To a master that cannot see it: who waits in an average holds up what this worker has given for,
// perhaps.
void ShardAgent::SayGiven() {
  if (!says_given_ || !registered_) return;
  for (const Given& given : given_) {
    if (!given.is_whole || given.mark >= kFirstLastMark || !IsHeld(given)) continue;
    host_->Send(AtRound{generation_, rounds_version_, given.mark});
  }
}

// The gradient that is being written; null = there is none.
ShardAgent::Given* ShardAgent::Growing() {
  const auto found = std::find_if(given_.begin(), given_.end(),
                                  [](const Given& given) { return !given.is_whole; });
  return found == given_.end() ? nullptr : &*found;
}

// What is there of it leaves, if its round is made among the workers.
void ShardAgent::BeginAmongPeers(const Given& given) {
  if (!peers_ || !peers_->Has(given.mark)) return;
  coming_ = MemoryOfTarget();
  peers_->Begin(given.mark, *given.values, *coming_);
  for (const int64_t part : given.parts) peers_->GivePart(part);
}

void ShardAgent::SendGiven(const Given& given) {
  if (plan_.HasRounds() && given.mark < kFirstLastMark && !given.values->empty()) {
    leaving_ = given.mark;
    next_part_ = 0;
    leaves_as_change_ = base_ && last_have_ && *last_have_ + 1 == given.mark;
    if (plan_.IsOfGradients()) leaves_as_change_ = plan_.method.bfloat16 != 0;
    next_ns_ = 0;
    return;
  }
  host_->SendBlob(EncodeBlob(NameOf(given), *given.values,
                             PartElements(plan_.method, plan_.size()) * kFloatBytes));
}

BlobName ShardAgent::NameOf(const Given& given) const {
  int64_t steps = std::clamp<int64_t>(given.steps, 0, UINT32_MAX);
  if (plan_.IsOfGradients() && given.mark < kFirstLastMark) steps = RateBits(given.values->back());
  return {BlobKind::kShard, generation_, static_cast<uint64_t>(given.iteration), given.mark,
          static_cast<uint32_t>(steps)};
}

void ShardAgent::Advance(int64_t now_ns) {
  next_ns_ = kNever;
  if (peers_) peers_->Advance(now_ns);
  if (!registered_) return;
  while (leaving_ && host_->QueuedBytes() < kLeavingBytes) SendNextPart();
  if (asks_joint_) AskWhenGiven();
  if (leaving_ || asks_joint_) next_ns_ = now_ns + kLeavingLook;
}

// EASGD: the master has this worker's last difference first. The question would overtake it, and
// what came would lack this worker's own move.
void ShardAgent::AskWhenGiven() {
  if (plan_.method.kind == STROM_EASGD) {
    if (!given_.empty() && host_->QueuedBytes() > 0) return;
    EraseGiven();
  }
  host_->Send(strom::AskJoint{generation_, asked_});
  asks_joint_ = false;
}

void ShardAgent::SendNextPart() {
  const auto given = std::find_if(given_.begin(), given_.end(),
                                  [&](const Given& one) { return one.mark == *leaving_; });
  if (given == given_.end()) return leaving_.reset();
  const int64_t size = plan_.size();
  const int64_t first = next_part_++ * PartElements(plan_.method, size);
  const auto elements =
      static_cast<size_t>(std::min(PartElements(plan_.method, size), size - first));
  const auto values = std::span(*given->values).subspan(static_cast<size_t>(first), elements);
  const int64_t width = leaves_as_change_ ? kBfloat16Bytes : kFloatBytes;
  std::vector<uint8_t> change;
  Bytes piece = AsBytes(values);
  if (leaves_as_change_) {
    change.resize(elements * kBfloat16Bytes);
    if (plan_.IsOfGradients()) {
      EncodeRounded(values, change);
    } else {
      EncodeChange(std::span(*base_).subspan(static_cast<size_t>(first), elements), values, change);
    }
    piece = change;
  }
  host_->SendBlob({EncodePiece(NameOf(*given), piece, static_cast<uint64_t>(first * width),
                               static_cast<uint64_t>(size * width))});
  if (first + static_cast<int64_t>(elements) == size) leaving_.reset();
}

void ShardAgent::Withdraw() {
  awaits_joint_ = asks_joint_ = false;
  round_target_ = nullptr;
  if (plan_.HasRounds()) EraseSnapshots();
}

void ShardAgent::AskJoint() {
  ++asked_;
  awaits_joint_ = asks_joint_ = true;
  next_ns_ = 0;
}

}  // namespace strom
