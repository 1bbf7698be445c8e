// A worker whose master is lost, and another one that comes at its address with a higher epoch:
// docs/internals/control_messages.md, "Another master". core/master/master_resumption.h is the
// master's side.
#include <utility>

#include "core/replication/version_vector.h"
#include "core/worker/worker_node_state.h"

namespace strom {

namespace {

// What a lost master has published another one knows by the updates that it contains.
void ForgetPublications(VersionVector* vector) {
  erase_if(*vector, [](const auto& entry) { return IsOfMaster(entry.first); });
}

}  // namespace

uint64_t WorkerNode::master_epoch() const { return state_->epoch; }

bool WorkerNode::WaitsForMaster() const {
  const State& s = *state_;
  if (s.life == State::Life::kOver || s.options.master_wait_ns == 0) return false;
  return s.resuming || s.give_up_ns.has_value();
}

bool WorkerNode::ReplicaWanted() const { return state_->replica_wanted.has_value() && state_->up; }

bool WorkerNode::AwaitsParameters() const {
  const State& s = *state_;
  return s.request.has_fast_forwarded() || s.fast_forwarded.snapshot || s.lost_parameters;
}

void WorkerNode::HandOver(int64_t now_ns, const std::vector<float>& parameters) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (!ReplicaWanted() || s.life == State::Life::kOver) return;
  const uint64_t number = *std::exchange(s.replica_wanted, std::nullopt);
  const uint64_t generation = s.relay.layout().generation;
  VersionVector contained = s.beginning;
  Join(s.applied, &contained);
  ForgetPublications(&contained);
  s.Send(ReplicaCut{generation, number, std::move(contained)});
  s.SendBlob(EncodeBlob({BlobKind::kReplica, generation, 0, number, 0}, parameters));
}

// Who waits for START has the parameters with which the generation before has ended.
void WorkerNode::State::Handle(const AskReplica& ask) {
  const bool has_one = resuming || generation->phase() == WorkerGeneration::Phase::kStarting;
  if (has_one && ask.generation == relay.layout().generation) replica_wanted = ask.number;
}

// What others have made, and their links, belong to the old master's time.
void WorkerNode::State::FollowAnotherMaster() {
  Note(Master() + " is back, as epoch " + std::to_string(epoch));
  missing = 0;
  replica_wanted.reset();
  donor = {};  // whoever wants a state asks again
  tree.Restart(now_ns);
  relay.Suspend();
  generation->MasterChanged();
  resuming = generation->IsTraining();
  if (!resuming) return ForgetOthers();
  // What follows on a snapshot that will not come any more cannot be applied.
  if (request.has_fast_forwarded()) generation->TakeReceived();
  lost_parameters |= request.has_fast_forwarded();
  request.Clear();
  request.Begin();
}

void WorkerNode::State::ForgetOthers() {
  lost_parameters = false;
  generation->TakeReceived();
  VersionVector made;
  if (counter > 0) made[origin] = counter;
  relay.Forget(made, origin);
}

void WorkerNode::State::SendResume() {
  early.clear();
  AskResume resume;
  resume.layout = relay.layout();
  resume.origin = origin;
  resume.applied = beginning;
  Join(applied, &resume.applied);
  ForgetPublications(&resume.applied);
  resume.kept_after = relay.replication().KeptAfter(origin);
  resume.iteration = last_iteration;
  resume.lacks_state = generation->lacks_state() ? 1 : 0;
  resume.options_text = generation->options_text();
  resume.plan = generation->plan();
  if (generation->joint() != nullptr) resume.cycles = generation->joint()->cycles();
  Send(resume);
}

// From the replica that the other master has got: what of this worker's own that lacks goes to the
// master again, and comes to the application with the parameters.
void WorkerNode::State::GoOn(const StartGeneration& start) {
  if (start.generation != relay.layout().generation) return;
  if (relay.replication().KeptAfter(origin) > CounterOf(start.cut, origin)) {
    return Fail(Code::kMasterLost,
                "training goes on from another worker's state, which lacks updates of this worker "
                "that are kept no longer; start it anew");
  }
  resuming = lost_parameters = false;
  replica_wanted.reset();
  cut = start.cut;
  fast_forwarded = {};
  own.clear();
  hands_out_own = false;
  relay.Reopen(now_ns, start.cut, origin, start.merging_ns);
  relay.KeepBeyond(now_ns, start.cut);
  request.Name({start.generation, start.cut, start.snapshot});
  tree.Started(now_ns);
  relay.AttachLate(now_ns, link, start.cut, 0);  // sends what the master lacks
  generation->GoOn();
  for (const Buffer& update : std::exchange(early, {})) HandleUpdate(link, update);
}

}  // namespace strom
