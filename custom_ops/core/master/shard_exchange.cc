#include "core/master/shard_exchange.h"

#include <algorithm>
#include <utility>

#include "core/joint/bfloat16.h"
#include "core/joint/pull.h"
#include "core/replication/formatting.h"

namespace strom {

namespace {

// A tick waits at most so long, or twice the median of the latest.
constexpr int64_t kLeastPatience = 1'000'000'000;
constexpr size_t kRememberedTicks = 9;
// No tick waits longer than this for steps to be made.
constexpr int64_t kMostPacing = 10'000'000'000;
// Who has more than this on its way gets no target of this tick.
constexpr int64_t kMostQueuedBytes = int64_t{64} << 20;
// Of the joint model for one worker on its way at once, and how often a look is taken.
constexpr int64_t kStreamBytes = int64_t{8} << 20;
constexpr int64_t kStreamLook = 1'000'000;
// SparkNet: 5 C / c. The steps of the first round, before anything is measured.
constexpr double kStepsOverExchange = 5;
constexpr int64_t kFirstSteps = 10;
constexpr int64_t kMostSteps = 10'000;
constexpr size_t kRememberedRounds = 5;

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

std::vector<float> FromFlat(const JointPlan& plan, const std::vector<float>& flat) {
  if (plan.IsOfGradients()) return std::vector<float>(static_cast<size_t>(plan.size()), 0.0f);
  std::vector<float> joint;
  Gather(plan, flat, &joint);
  return joint;
}

}  // namespace

ShardExchange::ShardExchange(const JointPlan& plan, uint64_t generation,
                             const std::vector<float>& flat, uint64_t cycles,
                             ShardExchangeHost* host)
    : plan_(plan),
      generation_(generation),
      host_(host),
      joint_(plan.method, FromFlat(plan, flat)),
      part_elements_(PartElements(plan.method, plan.size())),
      tick_ns_(kRememberedTicks),
      asked_ns_(static_cast<size_t>(plan.method.phases), kNever),
      steps_(plan.method.steps > 0 ? plan.method.steps : kFirstSteps),
      ratios_(kRememberedRounds),
      peers_(generation, host) {
  joint_.BeginAfter(static_cast<int64_t>(cycles));
}

void ShardExchange::Join(int32_t rank, bool late, bool has_trained) {
  Member& member = members_[rank] = {};
  member.here = member.trains = true;
  member.in_rounds = !late;
  member.awaited = !late || has_trained;
  EndWait(rank);
  streams_.erase(rank);
  asked_.erase(rank);
  if (plan_.HasRounds()) host_->Send(rank, CurrentTick());
  peers_.Forget(rank);
  StopPeers();
  next_ns_ = 0;
}

void ShardExchange::Return(int32_t rank) {
  const auto found = members_.find(rank);
  if (found == members_.end()) return;
  Member& member = found->second;
  member.here = true;
  if (next_part_ > 0) member.gets_target = false;  // it lacks what went out over the other link
  if (member.owes) {
    Tick again = CurrentTick();
    again.number = *member.owes;
    again.asks = 1;
    host_->Send(rank, again);
  }
  if (plan_.HasRounds()) host_->Send(rank, CurrentTick());
  StopPeers();
  if (plan_.IsOfGradients()) peers_.Return(rank, number_);
}

void ShardExchange::Leave(int32_t rank) {
  const auto found = members_.find(rank);
  if (found == members_.end()) return;
  found->second.here = found->second.gets_target = found->second.asked_last = false;
  found->second.next_round = NextRoundOf(found->second);
  EndWait(rank);
  streams_.erase(rank);
  late_.erase(rank);
  peers_.Leave(rank);
  if (peers_.Has(rank)) StopPeers();
  next_ns_ = 0;
}

void ShardExchange::Finish(int32_t rank, bool stop, uint64_t rounds) {
  const auto found = members_.find(rank);
  if (found == members_.end()) return;
  Member& member = found->second;
  if (member.trains) member.ended_before = number_;
  member.trains = member.in_rounds = member.in_round = false;
  member.awaited = false;
  if (plan_.IsOfGradients() && rounds != Done::kNone) {
    member.ran = rounds;
    if (stop) stopped_after_.insert(rounds);
  }
  next_ns_ = 0;
}

void ShardExchange::Release(int32_t rank) {
  const auto found = members_.find(rank);
  if (found == members_.end() || !plan_.IsOfGradients()) return;
  found->second.in_rounds = found->second.awaited = false;
  StopPeers();
  next_ns_ = 0;
}

bool ShardExchange::Hold(int32_t rank, uint64_t round) {
  const auto found = members_.find(rank);
  if (!plan_.IsOfGradients()) return true;
  if (found == members_.end()) return false;
  const bool stops = peers_.where(number_) == PeerPlan::Where::kStopping;
  if (stops && round != number_ && round != number_ + 1) return false;
  if (round != number_ && peers_.where(number_) == PeerPlan::Where::kAtMaster) {
    if (!MayGoBackTo(round)) return false;
    GoBackTo(round);
  }
  found->second.next_round = round;
  found->second.in_rounds = found->second.awaited = found->second.trains;
  return true;
}

// Whoever trained on alone when the others had ended is lost, and with it the only state that has
// the last rounds. Its successor goes on from where the others are.
bool ShardExchange::MayGoBackTo(uint64_t round) const {
  std::optional<uint64_t> most;  // rounds in the state of one that has ended
  for (const auto& [rank, member] : members_) {
    if (member.MakesRounds()) return false;
    if (member.here) most = std::max(most, member.ran);
  }
  return round < number_ && round == most;
}

// What was given for a later round, and what of it was made, is forgotten. Nobody who returns has
// the whole of it.
void ShardExchange::GoBackTo(uint64_t round) {
  number_ = round;
  has_mean_before_ = false;
  next_part_ = 0;
  round_filled_ns_.reset();
  joint_.ForgetGiven();
  for (auto& [rank, member] : members_) member.in_round = member.gets_target = false;
}

// Of gradients: what it gives next, or says again.
uint64_t ShardExchange::NextRoundOf(const Member& member) const {
  if (!member.gave) return member.next_round;
  return member.has == member.gave ? *member.gave + 1 : *member.gave;
}

// The mean of the round before is here until a part of the next has one. Who was away when all went
// back may be ahead.
bool ShardExchange::MayReturn(int32_t rank) const {
  const auto found = members_.find(rank);
  if (!plan_.IsOfGradients() || found == members_.end()) return true;
  const Member& member = found->second;
  if (member.here || !member.trains) return true;
  if (peers_.IsUnheard(rank)) return !peers_.IsAmongPeers();  // it is asked how far it is
  const bool mean_is_here = has_mean_before_ && next_part_ == 0;
  return member.next_round <= number_ && member.next_round + (mean_is_here ? 1 : 0) >= number_;
}

Tick ShardExchange::CurrentTick() const {
  Tick tick{generation_, number_};
  tick.alpha = joint_.alpha();
  tick.steps = static_cast<uint64_t>(steps_);
  tick.cycles = static_cast<uint64_t>(joint_.cycles());
  return tick;
}

// Which elements the values with this mark are; nullopt = nobody waits for them.
std::optional<ElementRange> ShardExchange::RangeOf(const Member& member, uint64_t mark) const {
  if (mark >= kFirstLastMark) {
    const uint64_t shard = mark - kFirstLastMark;
    if (shard >= static_cast<uint64_t>(joint_.shards())) return std::nullopt;
    return joint_.shard(static_cast<int32_t>(shard));
  }
  if (plan_.IsMpca()) {
    if (member.owes != mark) return std::nullopt;
    return joint_.shard(static_cast<int32_t>(mark % static_cast<uint64_t>(joint_.shards())));
  }
  if (plan_.HasRounds() && mark > number_) return std::nullopt;
  return joint_.shard(0);
}

std::string ShardExchange::HandleShard(int64_t now_ns, int32_t rank, const BlobChunk& chunk,
                                       bool* whole) {
  *whole = false;
  const auto found = members_.find(rank);
  if (found == members_.end() || closed_) return "";
  Member& member = found->second;
  const uint64_t mark = chunk.name.mark;
  if (plan_.IsOfGradients() && mark >= kFirstLastMark && !member.asked_last) return "";
  if (plan_.IsOfGradients() && mark < kFirstLastMark) {
    if (mark >= kFirstMeanMark) return TakeMean(rank, chunk);
    // It has not had the word in time.
    if (peers_.where(mark) != PeerPlan::Where::kAtMaster) {
      StopPeers();
      return "";
    }
    member.begins_again = member.begins_again && chunk.offset != 0;
    if (member.begins_again) return "";
    const bool mean_is_gone = mark + 1 < number_ || (mark + 1 == number_ && !has_mean_before_);
    if (mean_is_gone) {
      // Said again before it had the mean that it has by now.
      if (!member.trains || member.has >= mark) return "";
      return "a gradient of a round that is long over; start it anew";
    }
    if (mark > number_) return "a gradient of a round that has not begun; start it anew";
  }
  // Said again over another link; what is here counts already.
  if (member.gave && mark <= *member.gave) {
    const bool is_last = chunk.offset + chunk.bytes.size() == chunk.total;
    if (plan_.HasRounds() && is_last && mark < number_) {
      late_[rank] = mark;
      next_ns_ = 0;
    }
    return "";
  }
  if (member.mark != mark) {
    const std::optional<ElementRange> expected = RangeOf(member, mark);
    if (!expected) return "";
    member.mark = mark;
    member.received = 0;
    if (mark >= kFirstLastMark) Finish(rank);  // it may overtake the word
  }
  const ElementRange range = *RangeOf(member, mark);
  const bool nothing = chunk.total == 0;
  // As bfloat16 come the changes of who has the last round's x~.
  // Gradients come rounded from all.
  const bool is_change = plan_.method.bfloat16 != 0 && mark < kFirstLastMark &&
                         chunk.total == static_cast<uint64_t>(range.size * kBfloat16Bytes);
  const int64_t width = is_change ? kBfloat16Bytes : kFloatBytes;
  const auto total = static_cast<uint64_t>(range.size * width);
  const auto part_bytes = static_cast<uint64_t>(part_elements_ * width);
  const uint64_t size = std::min(part_bytes, total - std::min(total, chunk.offset));
  if (!nothing && (chunk.total != total || chunk.offset > member.received ||
                   chunk.offset % part_bytes != 0 || chunk.bytes.size() != size || size == 0)) {
    return "a piece of a snapshot that does not follow the one before";
  }
  if (!nothing && chunk.offset < member.received) return "";
  // In a round that has been closed without it: it gets what came of that, and nothing is added.
  const bool too_late = plan_.HasRounds() && mark < number_;
  if (!nothing && !too_late) {
    const std::string fault = Take(rank, chunk, range);
    if (!fault.empty()) return fault;
  }
  member.received += size;
  member.gets_change = is_change;
  if (mark < kFirstLastMark) member.rate = chunk.name.count;
  if (plan_.HasRounds()) next_ns_ = 0;
  if (plan_.HasRounds() && mark == number_ && chunk.offset == 0) round_filled_ns_ = now_ns;
  if (!nothing && member.received < total) return "";
  *whole = true;
  member.gave = mark;
  member.in_rounds = member.awaited = member.trains;
  if (plan_.HasRounds() && mark >= kFirstLastMark) {
    member.has_last = !nothing;
    if (plan_.IsOfGradients()) KeepOneLast(&member);
  }
  if (member.owes == mark) member.owes.reset();
  if (plan_.IsOfGradients()) {
    steps_counted_ += mark < kFirstLastMark ? 1 : 0;
  } else if (!nothing && !too_late) {
    steps_counted_ += chunk.name.count;
  }
  NoteSteps(now_ns, chunk.name, &member);
  if (too_late) late_[rank] = mark;
  next_ns_ = 0;
  return "";
}

// To one that waits for a round which is over.
void ShardExchange::SendRound(int32_t rank, uint64_t round) {
  host_->Send(rank, CurrentTick());
  host_->SendBlob(rank,
                  EncodeBlob({BlobKind::kTarget, generation_, 0, round, rate_}, joint_.joint()));
}

std::string ShardExchange::Take(int32_t rank, const BlobChunk& chunk, const ElementRange& range) {
  if (plan_.HasRounds()) return TakeOfRound(rank, chunk, range);
  std::vector<float> values(chunk.bytes.size() / sizeof(float));
  std::copy(chunk.bytes.begin(), chunk.bytes.end(), reinterpret_cast<uint8_t*>(values.data()));
  if (!IsFinite(values)) return "a snapshot that holds a NaN or an infinity";
  const int64_t offset = range.offset + static_cast<int64_t>(chunk.offset) / kFloatBytes;
  if (plan_.method.kind != STROM_EASGD) {
    joint_.Add(offset, values, chunk.name.count);
  } else if (chunk.name.mark >= kFirstLastMark) {
    joint_.MoveTowards(offset, values);
  } else {
    joint_.Move(offset, values);
  }
  return "";
}

std::string ShardExchange::TakeOfRound(int32_t rank, const BlobChunk& chunk,
                                       const ElementRange& range) {
  if (chunk.name.mark >= kFirstLastMark) return TakeLast(chunk, &members_[rank]);
  const bool is_gradient = plan_.IsOfGradients();
  const bool is_change = chunk.total != static_cast<uint64_t>(range.size * kFloatBytes);
  const int64_t width = is_change ? kBfloat16Bytes : kFloatBytes;
  const int64_t part = static_cast<int64_t>(chunk.offset) / width / part_elements_;
  const ElementRange place = joint_.part(part);
  std::vector<float> values(chunk.bytes.size() / static_cast<size_t>(width));
  if (is_change && is_gradient) {
    DecodeRounded(chunk.bytes, values);
  } else if (is_change) {
    const auto before = std::span(joint_.joint()).subspan(static_cast<size_t>(place.offset));
    AddChange(before.first(values.size()), chunk.bytes, values);
  } else {
    std::copy(chunk.bytes.begin(), chunk.bytes.end(), reinterpret_cast<uint8_t*>(values.data()));
  }
  // Of a gradient that overflows all are told.
  if (!is_gradient && !IsFinite(values)) return "a snapshot that holds a NaN or an infinity";
  // Its mean may have gone out without a late worker's values.
  if (part >= next_part_) joint_.Keep(part, rank, std::move(values));
  return "";
}

std::string ShardExchange::TakeLast(const BlobChunk& chunk, Member* member) {
  const auto at = static_cast<int64_t>(chunk.offset) / kFloatBytes;
  if (at == 0) member->last.assign(static_cast<size_t>(joint_.size()), 0.0f);
  std::copy(chunk.bytes.begin(), chunk.bytes.end(),
            reinterpret_cast<uint8_t*>(member->last.data() + at));
  const auto count = chunk.bytes.size() / sizeof(float);
  const bool is_finite = IsFinite(std::span(member->last).subspan(static_cast<size_t>(at), count));
  return is_finite ? "" : "a snapshot that holds a NaN or an infinity";
}

void ShardExchange::NoteSteps(int64_t now_ns, const BlobName& name, Member* member) {
  const auto iteration = static_cast<int64_t>(name.key);
  if (member->at && iteration > member->at->first) {
    // Numbers that a member makes up may be further apart than an int64_t holds.
    const auto steps = static_cast<double>(name.key - static_cast<uint64_t>(member->at->first));
    const double step_ns = static_cast<double>(now_ns - member->at->second) / steps;
    // A pause, to validate or to save, says little of the steps.
    member->step_ns = member->step_ns > 0 ? std::min(step_ns, 2 * member->step_ns) : step_ns;
  }
  member->at = {iteration, now_ns};
}

bool ShardExchange::Handle(int64_t now_ns, int32_t rank, const Have& have) {
  const auto found = members_.find(rank);
  if (found == members_.end() || have.generation != generation_) return false;
  if (peers_.Has(rank) && peers_.HasMade(have.number)) return NotePeerRound(have, &found->second);
  if (have.number <= number_) found->second.has = have.number;
  if (plan_.HasRounds() && have.number + 1 == number_) MeasureRound(now_ns);
  next_ns_ = 0;
  return false;
}

void ShardExchange::Handle(int32_t rank, const Stepping& stepping) {
  const auto found = members_.find(rank);
  if (found == members_.end() || stepping.generation != generation_) return;
  found->second.steps = true;
  next_ns_ = 0;
}

void ShardExchange::Handle(int32_t rank, const AskJoint& ask) {
  if (ask.generation != generation_ || !members_.contains(rank)) return;
  streams_[rank] = {ask.mark, 0};
  next_ns_ = 0;
}

void ShardExchange::Advance(int64_t now_ns) {
  next_ns_ = kNever;
  AdvanceStreams(now_ns);
  if (closed_) return;
  if (plan_.IsMpca()) AdvanceTicks(now_ns);
  if (plan_.IsOfGradients()) AskForLast();
  if (plan_.HasRounds()) AdvanceRounds(now_ns);
}

// ----------------------------------------------------------------------------------- ticks

// With three phases, tick n: shard n mod 3 is reduced, n-1 prepared and n-2 broadcast at once. With
// two the preparation follows the reduction within the tick, with one the broadcast follows, too.
void ShardExchange::AdvanceTicks(int64_t now_ns) {
  if (runs_) {
    if (HasWork()) DoWork();
    const bool late = now_ns >= started_ns_ + Patience();
    if (!HasWork() && !reduced_ && (IsReduced() || late)) PlanWork();
    if (HasWork()) {
      next_ns_ = now_ns;
      return;
    }
    if (!late && !(IsReduced() && IsBroadcast())) {
      next_ns_ = std::min(next_ns_, started_ns_ + Patience());
      return;
    }
    tick_ns_.Add(now_ns - started_ns_);
    sent_last_ = target_.shard.has_value();
    ++number_;
    runs_ = false;
  }
  const bool any = std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.here && entry.second.trains && entry.second.steps;
  });
  if (!any) return;
  if (now_ns < NotBefore()) {
    next_ns_ = std::min(next_ns_, NotBefore());
    return;
  }
  StartTick(now_ns);
  next_ns_ = HasWork() ? now_ns : std::min(next_ns_, started_ns_ + Patience());
}

void ShardExchange::StartTick(int64_t now_ns) {
  const int32_t shards = joint_.shards();
  const auto shard = static_cast<int32_t>(number_ % static_cast<uint64_t>(shards));
  runs_ = true;
  started_ns_ = now_ns;
  asked_ns_[static_cast<size_t>(shard)] = now_ns;
  asked_.clear();
  const auto earlier = [&](uint64_t ticks) -> std::optional<int32_t> {
    if (number_ < ticks) return std::nullopt;
    return static_cast<int32_t>((number_ - ticks) % static_cast<uint64_t>(shards));
  };
  reduced_ = shards == 3;
  update_ = WorkOn(shards == 3 ? earlier(1) : std::nullopt);
  std::optional<int32_t> prepared = shards > 1 ? earlier(shards == 3 ? 2 : 1) : std::nullopt;
  if (prepared && joint_.cycles(*prepared) == 0) prepared.reset();
  target_ = WorkOn(prepared);
  for (auto& [rank, member] : members_) {
    member.gets_target = false;
    if (!member.here || !member.trains) continue;
    Tick tick = CurrentTick();
    const bool asks = member.steps && !member.owes;
    tick.asks = asks ? 1 : 0;
    tick.installs = sent_last_ ? 1 : 0;
    if (asks) {
      member.owes = number_;
      asked_.insert(rank);
    }
    member.gets_target = host_->QueuedBytes(rank) <= kMostQueuedBytes;
    host_->Send(rank, tick);
  }
}

// Somebody was asked, and whoever was has given or is gone.
bool ShardExchange::IsReduced() const {
  return !asked_.empty() && std::all_of(asked_.begin(), asked_.end(), [&](int32_t rank) {
    const Member& member = members_.at(rank);
    return !member.here || !member.trains || member.owes != number_;
  });
}

bool ShardExchange::IsBroadcast() const {
  return !target_.shard || std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    return !member.here || !member.trains || !member.gets_target || member.has == number_;
  });
}

// Fewer than three phases: what follows the reduction within a tick.
void ShardExchange::PlanWork() {
  const auto shard = static_cast<int32_t>(number_ % static_cast<uint64_t>(joint_.shards()));
  reduced_ = true;
  update_ = WorkOn(shard);
  if (joint_.shards() == 1) target_ = WorkOn(shard);
}

ShardExchange::Work ShardExchange::WorkOn(std::optional<int32_t> shard) const {
  if (!shard) return {};
  return {shard, joint_.first_part(*shard), joint_.last_part(*shard)};
}

// One part of each. Where both are of one shard the target is that after the update.
void ShardExchange::DoWork() {
  if (update_.IsLeft()) {
    joint_.UpdatePart(update_.part++);
    if (!update_.IsLeft()) joint_.EndCycle(*update_.shard);
  }
  const bool waits = update_.shard == target_.shard && update_.IsLeft();
  if (target_.IsLeft() && !waits) SendTargetPart();
}

void ShardExchange::SendTargetPart() {
  const ElementRange part = joint_.part(target_.part++);
  const ElementRange& shard = joint_.shard(*target_.shard);
  std::vector<float> values(static_cast<size_t>(part.size));
  joint_.ReadTarget(part, values.data());
  const Buffer chunk =
      EncodePiece({BlobKind::kTarget, generation_, 0, number_, 0}, values,
                  static_cast<uint64_t>((part.offset - shard.offset) * kFloatBytes),
                  static_cast<uint64_t>(shard.size * kFloatBytes));
  for (auto& [rank, member] : members_) {
    if (member.here && member.gets_target) host_->SendBlob(rank, {chunk});
  }
}

int64_t ShardExchange::Patience() const {
  if (tick_ns_.empty()) return kLeastPatience;
  return std::max(kLeastPatience, 2 * tick_ns_.Median());
}

// A shard is not asked for again before workers have made so many steps, in their mean.
int64_t ShardExchange::NotBefore() const {
  const int64_t asked_ns = asked_ns_[number_ % asked_ns_.size()];
  if (asked_ns == kNever) return 0;
  double step_ns = 0;
  int32_t known = 0;
  for (const auto& [rank, member] : members_) {
    if (!member.here || !member.trains || member.step_ns <= 0) continue;
    step_ns += member.step_ns;
    ++known;
  }
  if (known == 0) return 0;
  const double pace = step_ns / known * static_cast<double>(plan_.method.min_steps);
  return asked_ns + static_cast<int64_t>(std::min(pace, static_cast<double>(kMostPacing)));
}

// ----------------------------------------------------------------------------------- rounds

void ShardExchange::AdvanceRounds(int64_t now_ns) {
  for (const auto& [rank, round] : std::exchange(late_, {})) SendRound(rank, round);
  AskWhoHasGiven();
  if (!AdvancePeers(now_ns) || !IsPartGiven()) return;
  if (next_part_ == 0) {
    for (auto& [rank, member] : members_) {
      member.in_round = member.gets_target = member.MakesRounds();
    }
  }
  if (next_part_ == 0) TakeRate();
  ClosePart();
  if (next_part_ == joint_.last_part(0)) CloseRound(now_ns);
  next_ns_ = now_ns;
}

// All step with that of the lowest rank.
void ShardExchange::TakeRate() {
  if (!plan_.IsOfGradients()) return;
  for (const auto& [rank, member] : members_) {
    if (member.in_round && HasGiven(member, 0)) return void(rate_ = member.rate);
  }
}

// Of the round at hand.
bool ShardExchange::HasGiven(const Member& member, int64_t part) const {
  if (member.gave == number_) return true;
  const int64_t width = member.gets_change ? kBfloat16Bytes : kFloatBytes;
  const auto end = static_cast<uint64_t>(joint_.part(part).end() * width);
  return member.mark == number_ && member.received >= end;
}

// All have given the next part. Leave ends the waiting for who is gone, and where all are gone
// whose first parts have been taken, the others end the round.
bool ShardExchange::IsPartGiven() const {
  bool any = false;
  for (const bool of_round : {true, false}) {
    if (any || (of_round && next_part_ == 0)) continue;
    for (const auto& [rank, member] : members_) {
      if (!member.here || !(of_round ? member.in_round : member.in_rounds)) continue;
      if (!HasGiven(member, next_part_)) return false;
      any = true;
    }
  }
  return any;
}

void ShardExchange::ClosePart() {
  const ElementRange part = joint_.part(next_part_);
  joint_.UpdatePart(next_part_);
  const BlobName name{BlobKind::kTarget, generation_, 0, number_, rate_};
  const auto offset = static_cast<uint64_t>(part.offset),
             size = static_cast<uint64_t>(joint_.size());
  Buffer values, change;
  for (const auto& [rank, member] : members_) {
    if (!member.here || !member.gets_target) continue;
    if (member.gets_change && !change) {
      change =
          EncodePiece(name, joint_.RoundChange(), offset * kBfloat16Bytes, size * kBfloat16Bytes);
    } else if (!member.gets_change && !values) {
      values = EncodePiece(name, joint_.RoundTarget(next_part_), offset * sizeof(float),
                           size * sizeof(float));
    }
    host_->SendBlob(rank, {member.gets_change ? change : values});
  }
  ++next_part_;
}

void ShardExchange::CloseRound(int64_t now_ns) {
  joint_.EndCycle(0);
  next_part_ = 0;
  filled_ns_ = round_filled_ns_.value_or(now_ns);
  round_filled_ns_.reset();
  for (auto& [rank, member] : members_) {
    member.in_round = false;
    if (member.here && member.gave == number_ && !member.gets_target) late_[rank] = number_;
  }
  ++number_;
  has_mean_before_ = true;
  for (auto& [rank, member] : members_) {
    if (member.here && member.trains) host_->Send(rank, CurrentTick());
  }
  PlanPeers();
}

// C from when the last worker began to give until all have the result, c from one to the next.
void ShardExchange::MeasureRound(int64_t now_ns) {
  const bool all = std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    return !member.here || !member.gets_target || member.has == number_ - 1;
  });
  if (!all || round_ended_ns_ >= filled_ns_) return;
  const int64_t began_ns = std::exchange(round_ended_ns_, now_ns);
  if (plan_.method.steps > 0 || began_ns == 0) return;
  const auto exchange = static_cast<double>(now_ns - filled_ns_);
  const double step = static_cast<double>(filled_ns_ - began_ns) / static_cast<double>(steps_);
  ratios_.Add(exchange / step);
  const double steps = kStepsOverExchange * ratios_.Median();
  steps_ = std::clamp(static_cast<int64_t>(std::min(steps, 1e6) + .5), int64_t{1}, kMostSteps);
}

// ----------------------------------------------------------------------------------- the rest

void ShardExchange::AdvanceStreams(int64_t now_ns) {
  const int64_t parts = joint_.last_part(joint_.shards() - 1);
  for (auto at = streams_.begin(); at != streams_.end();) {
    auto& [rank, stream] = *at;
    while (stream.part < parts && host_->QueuedBytes(rank) < kStreamBytes) {
      const ElementRange part = joint_.part(stream.part++);
      const auto values =
          std::span(joint_.joint())
              .subspan(static_cast<size_t>(part.offset), static_cast<size_t>(part.size));
      host_->SendBlob(rank, {EncodePiece({BlobKind::kJoint, generation_, 0, stream.mark, 0}, values,
                                         static_cast<uint64_t>(part.offset * kFloatBytes),
                                         static_cast<uint64_t>(joint_.size() * kFloatBytes))});
    }
    at = stream.part == parts ? streams_.erase(at) : std::next(at);
  }
  if (!streams_.empty()) next_ns_ = std::min(next_ns_, now_ns + kStreamLook);
}

void ShardExchange::Close() {
  if (std::exchange(closed_, true) || plan_.IsOfGradients()) return;
  if (plan_.HasRounds()) KeepLast();
  for (int32_t shard = 0; shard < joint_.shards(); ++shard) {
    if (plan_.method.kind != STROM_EASGD) joint_.Update(shard);
  }
}

// They are of the round at hand. Who has ended before one that the others have made without it is
// in their models by what it gave until then.
void ShardExchange::KeepLast() {
  for (auto& [rank, member] : members_) {
    const std::vector<float> last = std::exchange(member.last, {});
    if (!member.has_last || member.ended_before != number_) continue;
    for (int64_t part = 0; part < joint_.last_part(0); ++part) {
      const ElementRange place = joint_.part(part);
      joint_.Keep(part, rank, {last.begin() + place.offset, last.begin() + place.end()});
    }
  }
}

void ShardExchange::WriteTo(std::vector<float>* flat) const {
  if (!plan_.IsOfGradients()) return Scatter(plan_, joint_.joint(), flat);
  for (const auto& [rank, member] : members_) {
    if (closed_ && member.has_last) Scatter(plan_, member.last, flat);
  }
}

void ShardExchange::AddStatus(JsonObject* json) const {
  json->Add("ticks", number_)
      .Add("cycles", joint_.cycles())
      .Add("steps_counted", steps_counted_)
      .Add("steps_of_a_round", steps_)
      .Add("rounds_among_workers", rounds_among_peers_);
}

}  // namespace strom
