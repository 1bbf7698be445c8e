#include "core/worker/shard_agent.h"

#include <algorithm>

#include "core/joint/joint_model.h"

namespace strom {

void ShardAgent::BeginStepping() {
  steps_ = true;
  if (registered_) host_->Send(Stepping{generation_});
}

void ShardAgent::Register() {
  registered_ = true;
  if (steps_) host_->Send(Stepping{generation_});
  for (const Given& given : given_) {
    if (plan_.HasRounds() && !tick_ && given.mark < kFirstLastMark)
      continue;  // its round is not known
    SendGiven(given);
  }
  if (last_have_) host_->Send(Have{generation_, *last_have_});
  if (awaits_joint_) host_->Send(strom::AskJoint{generation_, asked_});
}

void ShardAgent::LinkDown() {
  registered_ = false;
  targets_ = {};
  joints_ = {};
  taken_.reset();
}

void ShardAgent::MasterChanged() {
  LinkDown();
  tick_.reset();
  next_.reset();
  last_given_.reset();
  last_have_.reset();
  orders_.asked.reset();
  EraseSnapshots();
}

void ShardAgent::ForgetGiven() {
  if (!given_.empty()) orders_.spare = std::move(given_.back().values);
  given_.clear();
}

void ShardAgent::EraseSnapshots() {
  std::erase_if(given_, [](const Given& given) { return given.mark < kFirstLastMark; });
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
  const bool is_target = chunk.name.kind == BlobKind::kTarget;
  BlobAssembler& assembler = is_target ? targets_ : joints_;
  // Of a round only what this worker waits for, and that once.
  const bool awaits_target =
      !plan_.HasRounds() || (!given_.empty() && given_.front().mark == chunk.name.mark);
  const bool awaits = is_target ? awaits_target : awaits_joint_ && chunk.name.mark == asked_;
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

void ShardAgent::HandleTarget(const Blob& blob) {
  auto values = std::make_shared<std::vector<float>>();
  const uint64_t number = blob.name.mark;
  if (!blob.Values(values.get()).ok() || std::ssize(*values) != RangeOf(number).size) {
    ++(*drops_)["target of another size"];
    return;
  }
  last_have_ = number;
  if (registered_) host_->Send(Have{generation_, number});
  if (!plan_.IsMpca()) {
    ForgetGiven();
    round_target_ = std::move(values);
    // The word that the next round has begun may come later.
    tick_ = std::max(tick_.value_or(0), number + 1);
    orders_.round = *tick_;
  } else if (tick_ && *tick_ > number) {
    InstallTarget(number, std::move(values));  // it has come late
  } else {
    next_ = {number, std::move(values)};
  }
}

void ShardAgent::Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) {
  // Of EASGD's differences the latest is enough: the one before was there when the joint model
  // came.
  if (plan_.method.kind == STROM_EASGD && mark < kFirstLastMark) given_.clear();
  // The round at hand may have become another since the training thread has looked.
  if (plan_.HasRounds() && mark < kFirstLastMark && tick_) mark = *tick_;
  given_.push_back({mark, iteration, steps, std::move(values)});
  last_given_ = mark;
  if (registered_) SendGiven(given_.back());
}

void ShardAgent::SendGiven(const Given& given) {
  const int64_t steps = std::clamp<int64_t>(given.steps, 0, UINT32_MAX);
  host_->SendBlob(EncodeBlob({BlobKind::kShard, generation_, static_cast<uint64_t>(given.iteration),
                              given.mark, static_cast<uint32_t>(steps)},
                             given.values));
}

void ShardAgent::Withdraw() {
  awaits_joint_ = false;
  round_target_ = nullptr;
  if (plan_.HasRounds()) EraseSnapshots();
}

void ShardAgent::AskJoint() {
  ++asked_;
  awaits_joint_ = true;
  if (registered_) host_->Send(strom::AskJoint{generation_, asked_});
}

}  // namespace strom
