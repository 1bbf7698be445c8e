// What a WorkerNode holds, for the files that it is written in: core/worker/worker_node.cc,
// core/worker/worker_resumption.cc for what follows on the loss of its master, and
// core/worker/worker_merging.cc for merged updates.
#ifndef KERAS_STROM_CORE_WORKER_WORKER_NODE_STATE_H_
#define KERAS_STROM_CORE_WORKER_WORKER_NODE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/formatting.h"
#include "core/replication/node_status.h"
#include "core/replication/relay.h"
#include "core/worker/donor.h"
#include "core/worker/peer_links.h"
#include "core/worker/snapshot_request.h"
#include "core/worker/tree_links.h"
#include "core/worker/worker_node.h"

namespace strom {

struct WorkerNode::State final : WorkerGenerationHost {
  enum class Life { kJoining, kJoined, kOver };  // never welcomed so far; a member; failed or left

  State(const WorkerNodeOptions& o, LinkLayer* l)
      : options(o),
        links(l),
        relay(RelayOptionsOf(o, /*is_root=*/false), l, &drops),
        tree(o.instance, o.failure_timeout_ns, l, &relay, &drops),
        peers(o.instance, o.rank, o.failure_timeout_ns, l) {
    MakeGeneration(0);
  }
  void MakeGeneration(uint64_t own_origin) {
    generation.emplace(options.max_staleness >= 0, options.rank == kChiefRank, own_origin, this,
                       &drops);
  }

  // --- WorkerGenerationHost
  void Send(const ControlMessage& message) override {
    links->Send(now_ns, link, Channel::kControl, EncodeControl(message));
  }
  void SendBlob(const std::vector<Buffer>& chunks) override {
    for (const Buffer& chunk : chunks) links->Send(now_ns, link, Channel::kState, chunk);
  }
  int64_t QueuedBytes() const override { return links->QueuedBytes(link); }
  void SendToPeer(int32_t rank, const Buffer& chunk) override {
    links->Send(now_ns, peers.LinkTo(rank), Channel::kState, chunk);
  }
  int64_t QueuedToPeer(int32_t rank) const override {
    return links->QueuedBytes(peers.LinkTo(rank));
  }
  void Raise(WorkerEvent event) override {
    if (life != Life::kOver) events.push_back(std::move(event));
  }
  void Fail(Code code, const std::string& message) override;
  // Whether they are as many as the layout's, if any; else this worker has failed.
  bool Fit(const std::shared_ptr<std::vector<float>>& values, int64_t elements);
  const VersionVector& received() const override { return relay.received(); }
  uint64_t last_own_counter() const override { return counter; }

  void Note(const std::string& text) {
    WorkerEvent notice;
    notice.text = text;
    Raise(std::move(notice));
  }
  std::string Master() const { return "the master at " + AddressText(options.master); }

  // --- the link to the master
  void Connect();
  void HandleMasterEvent(const LinkEvent& event);
  void HandleUp(const LinkEvent& event);
  void HandleDown(const LinkEvent& event);
  void LoseLink(const std::string& why);  // the master is silent: come back or fail
  void GiveUp();
  int64_t Patience() const { return std::max(options.failure_timeout_ns, options.master_wait_ns); }
  void Handle(const Attach& attach);
  void Handle(const StartGeneration& start);
  void Handle(const Beacon& beacon);
  void Handle(const Failure& failure);
  void Handle(const Notice& notice) { Note(notice.text); }
  void Handle(const TreePlace& place) { tree.HandlePlace(now_ns, place); }
  void Handle(const AttachAnew& anew) { tree.HandleAttachAnew(now_ns, link, anew); }
  void Handle(const Ended& ended) { generation->Handle(ended); }
  void Handle(const TooFarBehind& behind) {
    if (behind.generation == relay.layout().generation) HandleTooFarBehind();
  }
  void Handle(const SnapshotCut& named);
  void Handle(const AskState& ask);
  void SendDonations();
  void Handle(const AskPieces& ask) { generation->Handle(ask); }
  void Handle(const Step& step) { generation->Handle(step); }
  void Handle(const Final& final) { generation->Handle(final); }
  void Handle(const End& end) { generation->Handle(end); }
  void Handle(const Stop& stop) { generation->Handle(stop); }
  void Handle(const Tick& tick) { generation->Handle(tick); }
  void Handle(const Peers& named);
  void Handle(const Rounds& rounds);
  void Handle(const SayAgain& again);
  void SayOldAgain();
  template <typename Other>
  void Handle(const Other&) {
    ++drops["control message that only a worker sends"];
  }
  void HandleChunk(Bytes chunk);
  void HandlePending(const Blob& blob);

  // --- another master
  void FollowAnotherMaster();
  void ForgetOthers();
  void SendResume();
  void GoOn(const StartGeneration& start);
  void Handle(const AskReplica& ask);

  // --- a snapshot in the middle of a generation
  void HandleTooFarBehind();
  void AskForSnapshot();
  void HandleSnapshot(Blob blob);
  void InstallSnapshot(Snapshot whole);

  // --- the links of the tree
  void HandleTreeEvent(const LinkEvent& event);
  // False: not of a link to another worker of the rounds.
  // As something happens to it; null where there is none, or all is over.
  ShardAgent* JointAt(int64_t at_ns);
  bool HandlePeerEvent(const LinkEvent& event);
  void HandlePeerChunk(const LinkEvent& event, int32_t from);
  void HandleUpdate(LinkId from, const Buffer& update);
  void RejectNeighbour(LinkId from, uint64_t sender, const std::string& fault);
  // What has been accepted, for the application; a fault of the master's fails this worker.
  void Deliver(std::vector<Replication::Accepted> accepted);
  // A published update as the application is to apply it; "" or what is wrong with it.
  std::string Unmerge(const UpdateId& id, const Buffer& update,
                      std::vector<ReceivedUpdate>* received) const;
  void ActOnNotices();

  // After every event and request: what has become possible.
  void Advance();

  const WorkerNodeOptions options;
  LinkLayer* const links;
  DropCounters drops;
  Relay relay;
  TreeLinks tree;
  PeerLinks peers;
  std::optional<WorkerGeneration> generation;
  Life life = Life::kJoining;
  uint64_t origin = 0;
  uint64_t epoch = 0;    // of the latest master
  uint64_t counter = 0;  // of the last own update
  int64_t last_iteration = -1;
  VersionVector applied;
  VersionVector cut;        // of the latest START
  VersionVector beginning;  // the START's that `applied` counts from; {} since a snapshot

  std::vector<Buffer> early;     // updates that came before the new master's START
  bool resuming = false;         // another master has not yet said how the generation goes on
  bool lost_parameters = false;  // `received` counts on a snapshot of a lost master
  std::optional<uint64_t> replica_wanted;  // the question's number

  LinkId link = 0;  // to the master
  bool up = false;
  std::optional<int64_t> give_up_ns;  // set while the worker looks for a silent master
  std::string way_lost;               // why, where the master was heard but not reached
  int64_t retry_ns = kNever;
  int64_t said_again_ns = 0;   // own updates that the master has lacked for long
  uint64_t on_its_way = 0;     // the last own update that was said again, while the link is busy
  int64_t last_beacon_ns = 0;  // over the link to the master
  uint32_t missing = 0;        // as that said
  int64_t now_ns = 0;

  BlobAssembler assembler;
  BlobAssembler donation_assembler;  // the master passes a donation on as it comes
  Donor donor;
  SnapshotRequest request;
  Received fast_forwarded;          // a whole snapshot and what follows, not yet taken
  bool hands_out_own = false;       // until the application has installed it
  std::vector<ReceivedUpdate> own;  // own updates since the snapshot, not yet taken
  std::deque<WorkerEvent> events;
  int64_t updates_received = 0;
  int64_t update_bytes_received = 0;
  int64_t update_bytes_sent = 0;
  int64_t reconnects = 0;
  int64_t snapshots = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_WORKER_NODE_STATE_H_
