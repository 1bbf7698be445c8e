#include "sim/application.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/hash.h"
#include "core/replication/version_vector.h"
#include "sim/list_codec.h"

namespace strom {
namespace {

uint64_t HashOf(const std::vector<float>& values) { return Hash(AsBytes(values)); }

// The state of a worker: its first byte says whose it is, and all others follow from that.
std::vector<uint8_t> StateOf(int32_t rank, int64_t bytes) {
  std::vector<uint8_t> state(static_cast<size_t>(bytes));
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<uint8_t>(rank + 7 * i);
  return state;
}

}  // namespace

Application::Application(int32_t rank, const Script& script, int32_t max_staleness,
                         uint64_t first_generation, WorkerNode* node, Ledger* ledger, uint64_t seed,
                         Hooks hooks)
    : rank_(rank),
      script_(script),
      max_staleness_(max_staleness),
      node_(node),
      ledger_(ledger),
      random_(seed),
      hooks_(std::move(hooks)),
      joint_(node, HooksOfJoint()) {
  record_.generation = first_generation - 1;
}

JointProgram::Hooks Application::HooksOfJoint() {
  JointProgram::Hooks hooks;
  hooks.on_given = [this](GivenModels::Given given) {
    ledger_->Give(record_.generation, given.steps);
    if (GivenModels* const models = Models()) models->Give(std::move(given));
  };
  hooks.on_asked = [this] {
    if (GivenModels* const models = Models()) models->Ask(rank_);
  };
  const auto expect = [this](const std::string& wrong) {
    if (!wrong.empty()) hooks_.on_violation(wrong);
  };
  hooks.on_taken = [this, expect](const std::vector<float>& values) {
    if (GivenModels* const models = Models()) expect(models->Take(rank_, values));
  };
  hooks.on_target = [this, expect](int32_t shard, uint64_t tick, const std::vector<float>& values) {
    if (GivenModels* const models = Models()) {
      expect(models->TakeTarget(rank_, shard, tick, values));
    }
  };
  return hooks;
}

void Application::CheckEndOfModels(const std::vector<float>& parameters) {
  GivenModels* const models = Models();
  if (models == nullptr) return;
  std::vector<float> joint;
  Gather(script_.plan, parameters, &joint);
  const std::string wrong = models->End(joint);
  if (!wrong.empty()) hooks_.on_violation(wrong);
}

GivenModels* Application::Models() {
  return ledger_->Models(script_.plan, record_.generation, node_->master_epoch());
}

void Application::Act(int64_t now_ns) {
  while (!record_.over()) {
    auto event = node_->PollEvent();
    if (!event) break;
    HandleEvent(now_ns, std::move(*event));
  }
  if (handed_over_) return LeaveOnceHeld(now_ns);
  // Within a step a program does nothing else.
  if (gradient_ && record_.state == ApplicationRecord::State::kTraining) {
    if (next_action_ns_ <= now_ns) EndStepByGradient(now_ns);
    return;
  }
  gradient_.reset();
  const bool awaited = joint_.waits();
  const bool is_within_step = !joint_.Continue(now_ns, &record_.parameters);
  if (awaited && !is_within_step && script_.plan.IsOfGradients()) NoteRound();
  if (is_within_step) {
    waits_ |= next_action_ns_ <= now_ns;
    if (waits_) next_action_ns_ = kNever;
    return;
  }
  if (node_->ReplicaWanted() && !record_.parameters.empty() && now_ns >= validates_until_ns_) {
    ++record_.handed_over;
    node_->HandOver(now_ns, record_.parameters);
  }
  if (script_.donation_bytes >= 0 && node_->DonationWanted() && !record_.ending &&
      now_ns >= validates_until_ns_) {
    node_->Donate(now_ns, StateToGive());
  }
  if (record_.state != ApplicationRecord::State::kTraining) return;
  // One that waits for a STEP or for room looks again whenever anything has happened.
  if (waits_ || next_action_ns_ <= now_ns) Continue(now_ns);
}

// The parameters, or what is near to them, or not near in a place, or nothing.
std::shared_ptr<std::vector<float>> Application::ValuesAtEnd() {
  auto values = std::make_shared<std::vector<float>>(record_.parameters);
  switch (random_.Below(4)) {
    case 0:
      return nullptr;
    case 1:
      for (size_t i = 0; i < values->size(); i += 50) {
        (*values)[i] = std::nextafter((*values)[i], 1.0f);
      }
      break;
    case 2:
      values->front() = -1 - 2 * values->front();
      break;
    default:
      break;
  }
  return values;
}

void Application::HandleEvent(int64_t now_ns, WorkerEvent event) {
  using State = ApplicationRecord::State;
  if (script_.die_on == event.type) {
    Die();
    return hooks_.die();
  }
  switch (event.type) {
    case WorkerEvent::Type::kJoined:
      record_.origin = event.origin;
      return Begin(now_ns);
    case WorkerEvent::Type::kStarted:
      return Started(now_ns, event);
    case WorkerEvent::Type::kAverage:
      if (script_.averages_meet) CheckAverage(event);
      record_.averages.push_back(std::move(event));
      record_.state = State::kTraining;
      next_action_ns_ = now_ns;
      return;
    case WorkerEvent::Type::kFinal:
      record_.ending = true;
      LookAtRound(/*ends=*/true);
      TakeReceived();
      hooks_.on_final();
      return node_->SendState(now_ns, {script_.state}, ValuesAtEnd());
    case WorkerEvent::Type::kResult: {
      hooks_.on_result(*event.parameters);
      CheckEndOfModels(*event.parameters);
      record_.parameters = *event.parameters;
      record_.started = false;  // from here on they are the master's
      const uint64_t hash =
          script_.wrong_hash != 0 ? script_.wrong_hash : HashOf(record_.parameters);
      record_.results.push_back(std::move(event));
      return node_->Verify(now_ns, 0.5 * rank_, hash);
    }
    case WorkerEvent::Type::kEnd:
      record_.worst = event.values.at(0);
      record_.taken_of_generation[record_.generation] = std::exchange(record_.taken, {});
      return Begin(now_ns);
    case WorkerEvent::Type::kDonation:
      if (script_.plan.IsOfGradients()) {
        InstallState(event.donation);
      } else if (event.donation) {
        CheckDonation(event.donation);
      }
      record_.state = State::kTraining;
      next_action_ns_ = now_ns + random_.Between(0, script_.think_ns);
      return;
    case WorkerEvent::Type::kJoint:
      return joint_.HandleJoint(std::move(event.parameters));
    case WorkerEvent::Type::kStop:
      record_.stop_heard = true;
      return;
    case WorkerEvent::Type::kNotice:
      record_.notices.push_back(event.text);
      return;
    case WorkerEvent::Type::kFailed:
      record_.failure = event.status;
      record_.state = State::kFailed;
      next_action_ns_ = kNever;
      return;
  }
}

void Application::Started(int64_t now_ns, const WorkerEvent& event) {
  record_.beginning = event.beginning;
  record_.parameters = *event.parameters;
  if (event.beginning.ended) {
    ++record_.ended_starts;
    return Begin(now_ns);
  }
  record_.started = true;
  record_.applied = event.cut;
  record_.joint_steps = 0;
  record_.rounds = 0;
  round_hash_.reset();
  if (script_.plan.IsJoint()) joint_.Begin(script_.plan, rank_, script_.workers);
  if (event.beginning.late) {
    ++record_.late_starts;
    record_.first_step = static_cast<int>(event.beginning.resume_iteration) + 1;
    record_.step = record_.first_step;
    for (const auto& [origin, counter] : event.cut) {
      const uint64_t base = ledger_->Base(record_.generation, origin);
      record_.taken_before += counter > base ? counter - base : 0;
    }
  }
  // A late joiner may even be the first whom START reaches.
  const bool comes_first = !ledger_->HasStarted(record_.generation);
  if ((!event.beginning.late || comes_first) &&
      !ledger_->Start(record_.generation, record_.parameters)) {
    if (hooks_.nobody_else_has_started(record_.generation)) {
      ledger_->StartAnew(record_.generation, record_.parameters);
    } else {
      hooks_.on_violation("starts with other values than the others");
    }
  }
  if (GivenModels* const models = Models()) models->Join(rank_, event.beginning.late);
  if (event.beginning.late) return node_->AskDonation(now_ns);
  record_.state = ApplicationRecord::State::kTraining;
  next_action_ns_ = now_ns + random_.Between(0, script_.think_ns);
}

void Application::CheckDonation(const Buffer& donation) {
  ++record_.donations;
  const int32_t donor = donation->at(0);
  if (donor == rank_) hooks_.on_violation("got its own state");
  if (*donation != StateOf(donor, static_cast<int64_t>(donation->size()))) {
    hooks_.on_violation("got another state than worker " + std::to_string(donor) + " gave");
  }
}

// In rounds of gradients: whose it is, how many are in it, and the parameters.
Buffer Application::StateToGive() const {
  if (!script_.plan.IsOfGradients()) return MakeBuffer(StateOf(rank_, script_.donation_bytes));
  std::vector<uint8_t> state(1 + sizeof(record_.rounds) + 4 * record_.parameters.size());
  state[0] = static_cast<uint8_t>(rank_);
  std::memcpy(state.data() + 1, &record_.rounds, sizeof(record_.rounds));
  std::memcpy(state.data() + 1 + sizeof(record_.rounds), record_.parameters.data(),
              4 * record_.parameters.size());
  return MakeBuffer(std::move(state));
}

void Application::InstallState(const Buffer& donation) {
  if (!donation) return hooks_.on_violation("trains without the state of the others");
  ++record_.donations;
  std::memcpy(&record_.rounds, donation->data() + 1, sizeof(record_.rounds));
  std::memcpy(record_.parameters.data(), donation->data() + 1 + sizeof(record_.rounds),
              4 * record_.parameters.size());
  round_hash_ = HashOf(record_.parameters);
  ledger_->BeginAfter(record_.generation, record_.rounds);
}

void Application::NoteRound() {
  if (!joint_.failure().ok()) {
    hooks_.on_violation("cannot step: " + joint_.failure().message);
  }
  LookAtRound(/*ends=*/false);
  if (!joint_.mean().empty()) {
    const std::string wrong =
        ledger_->gradients().Check(script_.plan, record_.generation, record_.rounds, joint_.mean());
    if (!wrong.empty()) hooks_.on_violation(wrong);
  }
  ++record_.rounds;
  round_hash_ = HashOf(record_.parameters);
  ledger_->Reach(record_.generation, record_.rounds, *round_hash_);
}

// It goes on from the last round's parameters, or ends with them.
void Application::LookAtRound(bool ends) {
  if (!round_hash_) return;
  const auto agree = ends ? &Ledger::EndWith : &Ledger::GoOnFrom;
  if (((*ledger_).*agree)(record_.generation, record_.rounds, *round_hash_)) return;
  hooks_.on_violation("has others' parameters no more after " + std::to_string(record_.rounds) +
                      " rounds");
}

void Application::Begin(int64_t now_ns) {
  record_.state = ApplicationRecord::State::kWaiting;
  record_.ending = false;
  if (drains_) {  // FINAL has named all that it has made
    handed_over_ = 0;
    return LeaveOnceHeld(now_ns);
  }
  if (record_.generation >= script_.steps.size()) {
    record_.state = ApplicationRecord::State::kFinished;
    return node_->Leave(now_ns, "");
  }
  record_.step = record_.first_step = 0;
  record_.taken_before = 0;
  record_.stop_heard = record_.started = false;
  averaged_ = 0;
  validated_ = waits_ = false;
  Generation generation;
  generation.number = ++record_.generation;
  generation.layout_size = script_.layout_size;
  generation.layout_hash = script_.layout_hash;
  generation.options_text = script_.options_text;
  generation.plan = script_.plan;
  generation.values = DrawValues();
  node_->BeginGeneration(now_ns, std::move(generation));
}

// Those of the last end, or of its own, of which most are as everybody's, or none.
std::shared_ptr<std::vector<float>> Application::DrawValues() {
  if (rank_ != 0 && random_.Below(4) == 0) return nullptr;
  auto values = std::make_shared<std::vector<float>>(record_.parameters);
  if (random_.Below(2) == 0) values->clear();
  const uint64_t before = record_.generation - 1;
  const bool may_restore = script_.restores && values->empty() && ledger_->HasStarted(before);
  if (may_restore && random_.Chance(.8)) {
    *values = ledger_->Replica(before, ledger_->submitted());
    values->back() = static_cast<float>(random_.Between(-100, 100));
    return values;
  }
  values->resize(static_cast<size_t>(script_.layout_size), 1);
  const int64_t assigned = random_.Below(4);
  for (float& value : *values) {
    if (random_.Below(4) < assigned) value = static_cast<float>(random_.Between(-100, 100));
  }
  return values;
}

void Application::Continue(int64_t now_ns) {
  next_action_ns_ = kNever;
  const bool validates = script_.validate_before.contains(record_.step) && !validated_;
  if (validates) {
    validated_ = true;
    next_action_ns_ = validates_until_ns_ = now_ns + script_.validate_ns;
    return;
  }
  TakeReceived();
  if (record_.step >= script_.steps.at(record_.generation - 1) || record_.stop_heard) {
    record_.state = ApplicationRecord::State::kWaiting;
    if (script_.plan.IsJoint()) joint_.Finish(now_ns, record_.step - 1, record_.parameters);
    return node_->Finish(now_ns, script_.stop_all);
  }
  if (drains_ && IsReleased() && !node_->WaitsForMaster()) return HandOver(now_ns);
  if (!MayStep(now_ns)) return;
  if (script_.average_before.contains(record_.step) && averaged_ < script_.averages) {
    return AskAverage(now_ns);
  }
  TrainStep(now_ns);
}

// As a training does: on a joint model under the same keys after every epoch.
void Application::AskAverage(int64_t now_ns) {
  ++averaged_;
  record_.state = ApplicationRecord::State::kWaiting;
  const auto key = static_cast<uint64_t>(script_.plan.IsJoint() ? averaged_ : record_.step);
  const double value = script_.plan.IsJoint() ? record_.step : 1.0;
  node_->Average(now_ns, key, {static_cast<double>(rank_), value});
}

void Application::CheckAverage(const WorkerEvent& average) {
  const std::vector<double> mean = {(script_.workers - 1) / 2.0, 1.0 * record_.step};
  if (average.contributors == script_.workers && average.values == mean) return;
  hooks_.on_violation("has an average before step " + std::to_string(record_.step) +
                      " that is not of what all have said there");
}

bool Application::MayStep(int64_t now_ns) {
  const bool blocked = node_->OutgoingBytes() > script_.outgoing_cap_bytes;
  if (blocked && blocked_since_ns_ == kNever) blocked_since_ns_ = now_ns;
  if (!blocked && blocked_since_ns_ != kNever) {
    record_.blocked_ns += now_ns - std::exchange(blocked_since_ns_, kNever);
  }
  waits_ = blocked || node_->missing_workers() > 0 || node_->WaitsForMaster() || !IsReleased();
  return !waits_;
}

bool Application::IsReleased() const {
  return !sequenced() ||
         node_->ReleasedSteps() >= record_.step - record_.first_step - max_staleness_;
}

// What has not been sent, as one more update of its last step; nothing where it has made none.
void Application::HandOver(int64_t now_ns) {
  next_action_ns_ = kNever;
  uint64_t last = CounterOf(ledger_->submitted(), record_.origin);
  // Beside a joint model there is no residual to hand over.
  const bool has_nothing = record_.step == 0 || script_.plan.IsJoint();
  const int64_t parts = has_nothing ? 0 : random_.Between(1, 3);
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<uint8_t> update = ListCodec::Write(
        {{static_cast<uint32_t>(random_.Below(script_.trained.value_or(script_.layout_size))),
          3.0f},
         {0, -1.0f}});
    const std::vector<uint8_t> message(update.begin() + kUpdateHeaderBytes, update.end());
    const UpdateId id =
        node_->Submit(now_ns, record_.step - 1, part + 1 == parts, std::move(update));
    ledger_->Submit(id, record_.generation, message);
    last = id.counter;
  }
  handed_over_ = last;
  LeaveOnceHeld(now_ns);
}

void Application::LeaveOnceHeld(int64_t now_ns) {
  if (node_->LastHeld() < *handed_over_ || node_->GivenBytes() > 0) return;
  hooks_.on_drained();
  if (GivenModels* const models = Models()) models->Drain(now_ns, rank_);
  record_.state = ApplicationRecord::State::kDrained;
  next_action_ns_ = kNever;
  node_->Leave(now_ns, std::string(kDrained));
}

// What an optimizer would do: elements move a little, of a large model some.
void Application::TrainJointStep(int64_t now_ns) {
  const int64_t stride = 1 + script_.plan.size() / 1000;
  for (const ElementRange& range : script_.plan.ranges) {
    for (int64_t i = range.offset; i < range.end(); i += stride) {
      record_.parameters[static_cast<size_t>(i)] += static_cast<float>(random_.Between(-8, 8));
    }
  }
  ++record_.joint_steps;
  joint_.Step(now_ns, record_.step, &record_.parameters);
  if (!joint_.failure().ok()) hooks_.on_violation("cannot step: " + joint_.failure().message);
}

std::vector<float> Application::DrawGradient() {
  std::vector<float> gradient(static_cast<size_t>(script_.plan.size()));
  const size_t stride = 1 + gradient.size() / 1000;
  for (size_t i = 0; i < gradient.size(); i += stride) {
    gradient[i] = static_cast<float>(random_.Between(-8, 8)) / 7;
  }
  return gradient;
}

// Some of a gradient is there before the rest.
void Application::TrainStepByGradient(int64_t now_ns) {
  ++record_.joint_steps;
  gradient_ = DrawGradient();
  ledger_->gradients().Give(record_.generation, record_.rounds, rank_, *gradient_);
  if (!random_.Chance(.5)) return EndStepByGradient(now_ns);
  const size_t pieces = JointProgram::Cut(*gradient_).size();
  const auto first = static_cast<size_t>(random_.Below(static_cast<int64_t>(pieces)));
  joint_.GiveEarly(now_ns, record_.step, *gradient_, first, pieces);
  if (!joint_.failure().ok()) hooks_.on_violation("cannot give: " + joint_.failure().message);
  // Now and then a step fails in its middle, and the program makes another one.
  if (random_.Chance(.1)) {
    gradient_ = DrawGradient();
    ledger_->gradients().Skip(record_.generation, record_.rounds);
  }
  next_action_ns_ = now_ns + random_.Between(0, 2 * script_.think_ns);
}

void Application::EndStepByGradient(int64_t now_ns) {
  joint_.StepByGradient(now_ns, record_.step, *gradient_);
  gradient_.reset();
  EndStep(now_ns);
}

void Application::TrainStep(int64_t now_ns) {
  if (script_.plan.IsOfGradients()) {
    return TrainStepByGradient(now_ns);
  }
  if (script_.plan.IsJoint()) {
    TrainJointStep(now_ns);
    return EndStep(now_ns);
  }
  const int64_t parts = random_.Between(1, 3);
  for (int64_t part = 0; part < parts; ++part) {
    ListCodec::Entries entries;
    for (int64_t i = random_.Between(0, 4); i > 0; --i) {
      entries.emplace_back(
          static_cast<uint32_t>(random_.Below(script_.trained.value_or(script_.layout_size))),
          static_cast<float>(random_.Between(-8, 8)));
    }
    if (script_.bad_update_at == record_.step) entries = {{0xffffffff, 1.0f}};
    std::vector<uint8_t> update = ListCodec::Write(entries);
    const std::vector<uint8_t> message(update.begin() + kUpdateHeaderBytes, update.end());
    const UpdateId id = node_->Submit(now_ns, record_.step, part + 1 == parts, std::move(update));
    ledger_->Submit(id, record_.generation, message);
    if (sequenced()) continue;
    record_.applied[id.origin] = id.counter;
    if (script_.bad_update_at != record_.step) kListCodec.Apply(message, record_.parameters);
  }
  node_->SetApplied(record_.applied);
  EndStep(now_ns);
}

void Application::EndStep(int64_t now_ns) {
  ++record_.step;
  averaged_ = 0;
  validated_ = false;
  const auto& cuts = script_.cut_off_at;
  if (std::find(cuts.begin(), cuts.end(), record_.step) != cuts.end()) hooks_.cut_off();
  if (script_.die_after_steps == record_.step) {
    Die();
    return hooks_.die();
  }
  next_action_ns_ = now_ns + random_.Between(0, 2 * script_.think_ns);
}

void Application::TakeReceived() {
  const Received received = node_->TakeReceived();
  if (received.snapshot) {
    node_->SnapshotInstalled();
    ++record_.snapshots;
    record_.parameters = *received.snapshot->parameters;
    record_.applied = received.snapshot->cut;
  }
  for (const ReceivedUpdate& update : received.updates) {
    hooks_.on_taken(update);
    ForEachApplied(update, [this](uint64_t origin, uint64_t, uint64_t last) {
      record_.applied[origin] = last;
    });
    record_.taken.push_back(update.id);
    kListCodec.Apply(update.message(), record_.parameters);
  }
  node_->SetApplied(record_.applied);
}

}  // namespace strom
