// A worker where updates are merged on their way: what the master publishes becomes what the
// application is to apply, and own updates that were lost on their way up are said again.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/replication/merged_update.h"
#include "core/worker/worker_node_state.h"

namespace strom {

void WorkerNode::State::Deliver(std::vector<Replication::Accepted> accepted) {
  // Where the master publishes, what comes from below only passes through.
  if (relay.merges()) {
    std::erase_if(accepted, [this](const Replication::Accepted& update) {
      return !IsOfMaster(update.id.origin) && update.id.origin != origin;
    });
  }
  for (const Replication::Accepted& one : accepted) {
    if (!IsOfMaster(one.id.origin)) {
      generation->Add({one.id, one.update});
      continue;
    }
    std::vector<ReceivedUpdate> received;
    const std::string fault = Unmerge(one.id, one.update, &received);
    if (!fault.empty()) return Fail(Code::kCorrupt, fault);
    const UpdateRanges contents = ContentsOf(one.update);
    for (const UpdateRange& range : contents) {
      if (range.origin == origin && range.from != relay.replication().published()) {
        return Fail(Code::kCorrupt, "the master has published updates of this worker twice");
      }
    }
    VersionVector ends = EndsOf(contents);
    ends[one.id.origin] = one.id.counter;
    relay.Learn(now_ns, ends);
    for (ReceivedUpdate& update : received) generation->Add(std::move(update));
  }
}

std::string WorkerNode::State::Unmerge(const UpdateId& id, const Buffer& update,
                                       std::vector<ReceivedUpdate>* received) const {
  const auto own = [this](uint64_t own_counter) {
    return relay.replication().Find({origin, own_counter});
  };
  std::vector<ReceivedUpdate> parts = WithoutOwn(update, origin, own, *options.codec);
  if (parts.empty()) {
    return "the master's publication " + std::to_string(id.counter) +
           " names updates of this worker that are not here";
  }
  received->insert(received->end(), std::move_iterator(parts.begin()),
                   std::move_iterator(parts.end()));
  return "";
}

void WorkerNode::State::Handle(const SayAgain& again) {
  if (again.generation != relay.layout().generation || !relay.merges()) return;
  // The master asks until it is there, and a slow line takes longer for it than that waits.
  if (links->QueuedBytes(link) <= kBusyLinkBytes) on_its_way = 0;
  const uint64_t last = std::min(again.to, counter);
  for (uint64_t next = std::max(again.from, on_its_way); next < last;) {
    const Buffer own_update = relay.replication().Find({origin, ++next});
    if (own_update == nullptr) continue;
    links->Send(now_ns, link, Channel::kUpdate, own_update);
    on_its_way = next;
  }
}

// What went up with others' updates and was lost with a node is missed by the master only once a
// later one comes.
void WorkerNode::State::SayOldAgain() {
  if (!relay.merges() || now_ns - said_again_ns < options.failure_timeout_ns) return;
  if (links->QueuedBytes(link) > kBusyLinkBytes) return;  // what the master lacks may be on its way
  const int64_t before_ns = now_ns - options.failure_timeout_ns;
  for (const Buffer& update : relay.replication().Uncovered(origin, before_ns)) {
    links->Send(now_ns, link, Channel::kUpdate, update);
    said_again_ns = now_ns;
  }
}

}  // namespace strom
