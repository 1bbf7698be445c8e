// A WorkerNode's links to the other workers of the rounds of gradients.
#include "core/worker/worker_node_state.h"

namespace strom {

bool WorkerNode::IsToPeer(LinkId link) const { return state_->peers.Has(link); }

int64_t WorkerNode::GivenBytes() const {
  const State& s = *state_;
  if (!s.generation->plan().IsJoint() || s.life == State::Life::kOver) return 0;
  const ShardAgent* const joint = s.generation->joint();
  int64_t bytes = joint == nullptr ? 0 : joint->BytesToGive();
  if (s.up) bytes += s.links->QueuedBytes(s.link);
  for (const int32_t rank : s.peers.ranks()) {
    if (const LinkId link = s.peers.LinkTo(rank)) bytes += s.links->QueuedBytes(link);
  }
  return bytes;
}

void WorkerNode::BeginGradient(int64_t now_ns, int64_t iteration, GrowingGradient values) {
  if (ShardAgent* const joint = state_->JointAt(now_ns)) {
    joint->BeginGradient(iteration, std::move(values));
  }
}

void WorkerNode::GivePart(int64_t now_ns, int64_t part) {
  ShardAgent* const joint = state_->JointAt(now_ns);
  if (joint == nullptr) return;
  joint->GivePart(part);
  joint->Advance(now_ns);
}

void WorkerNode::EndGradient(int64_t now_ns, int64_t iteration, GrowingGradient values) {
  state_->last_iteration = iteration;
  ShardAgent* const joint = state_->JointAt(now_ns);
  if (joint == nullptr) return;
  joint->EndGradient(iteration, std::move(values));
  joint->Advance(now_ns);
}

void WorkerNode::State::Handle(const Peers& named) {
  if (named.generation != generation->layout().generation) return;
  const Status status = peers.Handle(now_ns, named, link);
  if (!status.ok()) Fail(status.code, "the master sent " + status.message);
}

void WorkerNode::State::Handle(const Rounds& rounds) {
  const Status status = generation->Handle(rounds, peers.ranks(), options.rank);
  if (!status.ok()) Fail(status.code, "the master sent " + status.message);
}

bool WorkerNode::State::HandlePeerEvent(const LinkEvent& event) {
  switch (event.type) {
    case LinkEvent::Type::kHello:
      return peers.HandleHello(now_ns, event);
    case LinkEvent::Type::kUp:
      return peers.HandleUp(now_ns, event.link);
    case LinkEvent::Type::kDown:
      return peers.HandleDown(now_ns, event);
    case LinkEvent::Type::kSuspect:
    case LinkEvent::Type::kMessage:
      break;
  }
  const auto from = peers.RankOf(event.link);
  if (!from) return false;
  if (event.type == LinkEvent::Type::kMessage) HandlePeerChunk(event, *from);
  return true;
}

// One that breaks the protocol loses the link, and so the master hears of it.
void WorkerNode::State::HandlePeerChunk(const LinkEvent& event, int32_t from) {
  ShardAgent* const joint = generation->joint();
  BlobChunk chunk;
  Status status = event.channel == Channel::kState
                      ? ParseChunk(*event.payload, &chunk)
                      : Status{Code::kCorrupt, "a message on another channel"};
  if (status.ok() && joint != nullptr) status = joint->HandlePeerChunk(from, chunk);
  if (status.ok()) return;
  ++drops["message of another worker that breaks the protocol"];
  links->Close(now_ns, event.link, status.message);
  peers.HandleDown(
      now_ns,
      {LinkEvent::Type::kDown, event.link, Channel::kControl, {}, Code::kClosed, status.message});
}

}  // namespace strom
