#include "core/master/missing_updates.h"

#include "core/replication/control.h"

namespace strom {

namespace {

// An update that has overtaken another waits for so long before that is asked for: 50 ms by
// default.
constexpr int64_t kGapsPerTimeout = 100;

}  // namespace

MissingUpdates::MissingUpdates(int64_t failure_timeout_ns, Relay* relay,
                               const Membership* membership, GenerationHost* host)
    : patience_ns_(failure_timeout_ns / kGapsPerTimeout),
      relay_(relay),
      membership_(membership),
      host_(host) {}

void MissingUpdates::Ask(int64_t now_ns) {
  if (!relay_->merges()) return;
  for (const UpdateRange& refused : relay_->TakeRefused()) AskFor(refused);
  if (!relay_->replication().holds_any()) {
    next_look_ns_ = kNever;
    return;
  }
  // What is held is not gone over with every event.
  if (next_look_ns_ == kNever) next_look_ns_ = now_ns + patience_ns_;
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + patience_ns_;
  for (const UpdateRange& gap : relay_->replication().Gaps(now_ns - patience_ns_)) {
    const Member* const origin = membership_->FindOrigin(gap.origin);
    if (origin == nullptr || origin->link == 0) {
      relay_->RefuseHeld(gap.origin);  // what waits behind the gap comes again without it
    } else {
      AskFor(gap);
    }
  }
  for (const UpdateRange& refused : relay_->TakeRefused()) AskFor(refused);
}

void MissingUpdates::AskFor(const UpdateRange& range) {
  const Member* const origin = membership_->FindOrigin(range.origin);
  if (origin == nullptr || origin->link == 0) return;  // lost, or says all again as it attaches
  host_->Send(origin->rank, SayAgain{relay_->layout().generation, range.from, range.to});
}

}  // namespace strom
