// One generation (`fit`) after another at the master: gathers what the members announce, starts the
// next when all have, and routes what they say to the one at hand
// (core/master/master_generation.h). It owns the master's copy of the parameters.
#ifndef KERAS_STROM_CORE_MASTER_MASTER_FITS_H_
#define KERAS_STROM_CORE_MASTER_MASTER_FITS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/master/donations.h"
#include "core/master/late_joins.h"
#include "core/master/master_generation.h"
#include "core/master/master_resumption.h"
#include "core/master/master_tree.h"
#include "core/master/membership.h"
#include "core/master/publisher.h"
#include "core/master/start_rendezvous.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/node_status.h"
#include "core/replication/relay.h"
#include "core/replication/update.h"

namespace strom {

// Where updates are merged before they are passed on.
struct MergingRules {
  bool is_on = false;  // where the workers' mode allows it
  uint64_t origin = 0;
  int64_t interval_ns = 0;
};

class MasterFits {
 public:
  // The pointers outlive this. `min_workers` as in MasterNodeOptions.
  MasterFits(const UpdateCodec& codec, int32_t min_workers, int64_t failure_timeout_ns,
             int64_t donation_window_bytes, const MergingRules& merging, Membership* membership,
             Relay* relay, MasterTree* tree, GenerationHost* host, DropCounters* drops)
      : codec_(codec),
        merging_(merging),
        min_workers_(min_workers),
        latecomers_ns_(failure_timeout_ns),
        membership_(membership),
        relay_(relay),
        tree_(tree),
        host_(host),
        drops_(drops),
        late_joins_(failure_timeout_ns, relay, tree, &parameters_, host),
        donations_(failure_timeout_ns, donation_window_bytes, host, drops),
        resumption_(membership->workers(), failure_timeout_ns),
        last_end_(membership->workers(), failure_timeout_ns) {}

  // A member takes part in `attach.generation` again, or under another parent. False: training went
  // on without it, and FAIL was sent.
  bool HandleAttach(int64_t now_ns, const Member& member, const Attach& attach);
  void HandleAnnounce(int64_t now_ns, const Member& member, const Announce& announce);
  void Handle(const Member& member, const Done& done);
  void Handle(const Member& member, const Verification& verification);
  void Handle(int64_t now_ns, const Member& member, const Have& have);
  void Handle(const Member& member, const AskJoint& ask);
  void Handle(const Member& member, const Stepping& stepping);
  void Handle(const Member& member, const Linked& linked);
  void Handle(const Member& member, const AtRound& at);
  // A piece of what a member gives to the joint model. "" or why it has to be expelled.
  std::string HandleShard(int64_t now_ns, const Member& member, const BlobChunk& chunk);
  void HandleAsk(int64_t now_ns, const Member& member, const AskState& ask);
  // A live member lacks what is kept no longer. False: it cannot go on.
  bool HandleTooFarBehind(int32_t rank);
  void HandleAsk(int64_t now_ns, const Member& member, const AskSnapshot& ask);
  // A member of an earlier master's time, in the middle of a generation.
  void HandleResume(int64_t now_ns, const Member& member, const AskResume& resume);
  void Handle(const Member& member, const ReplicaCut& replica);
  void HandleDonation(int64_t now_ns, const Member& member, const BlobChunk& chunk,
                      const Buffer& whole);
  // How many bytes of the run `name` may be here; nullopt = nobody waits for it.
  std::optional<int64_t> MostBytes(const Member& member, const BlobName& name) const;
  int64_t ValuesBytes(int32_t rank) const {
    return generation_ ? generation_->ValuesBytes(rank) : 0;
  }
  // These return "" or why the member has to be expelled.
  std::string HandleBlob(const Member& member, Blob blob);
  std::string CheckUpdate(const Member& member, const UpdateId& id);
  // Updates that the relay has accepted.
  void HandleAccepted(int64_t now_ns, const std::vector<Replication::Accepted>& accepted);
  // Where updates are merged: see GenerationHost. PublishIfDue is for every event, and when
  // NextTimeout is over; whether anything was due.
  void PublishAll(int64_t now_ns);
  bool PublishIfDue(int64_t now_ns);

  // The member's link is gone, or another process has its rank. `returning`: see MasterGeneration.
  void Lose(int32_t rank, uint64_t returning = 0);
  void NoteEnded(int32_t rank);  // see MasterNode::WorkerHasEnded
  // A training cannot start with this worker, which has left to join anew, as `text` says. All that
  // are here now hear it at once; until the next start whoever announces itself is told of it too.
  void NoteCannotStart(int32_t rank, const std::string& text);
  // GenerationHost::Settled may be true by now.
  void Resume();
  // After every event, and when NextTimeout is over: tells those who wait for the end of the
  // generation at hand, and sees to donations.
  void Settle(int64_t now_ns);
  int64_t NextTimeout() const {
    return std::min({donations_.NextTimeout(), resumption_.NextTimeout(), last_end_.NextTimeout(),
                     publisher_ ? std::max(publisher_->due_ns(), publish_ns_) : kNever,
                     generation_ ? generation_->NextTimeout() : kNever});
  }
  // Starts the next generation where all members have announced it. The text is for the log.
  std::optional<std::string> StartIfReady(int64_t now_ns);
  // How many workers are missing to `min_workers` while a generation trains (those that are there
  // then wait); 0 = none. TakeMissingChange: a text for the log, once after each change between
  // none and some.
  int32_t missing() const;
  std::optional<std::string> TakeMissingChange();
  // Once for each generation of an earlier master that goes on, in words.
  std::optional<std::string> TakeResumed() { return std::exchange(resumed_, std::nullopt); }
  // Once for each generation that has ended: its number.
  std::optional<uint64_t> TakeEnded();

  // While it is true only its members have places in the tree: others could not relay in it.
  bool is_running() const {
    return generation_ && generation_->phase() != MasterGeneration::Phase::kEnded;
  }
  bool has_started() const { return generation_.has_value(); }
  // Who is to be expelled for what it has queued.
  std::optional<MasterGeneration::Excess> FindExcess() {
    return generation_ ? generation_->FindExcess() : std::nullopt;
  }
  const std::vector<float>& parameters() const { return parameters_; }
  int64_t steps_counted() const {
    const ShardExchange* const exchange = generation_ ? generation_->exchange() : nullptr;
    return exchange == nullptr ? 0 : exchange->steps_counted();
  }
  void AddStatus(JsonObject* json) const;

 private:
  void FailForgotten(int32_t rank);
  bool IsTheLatest(int32_t rank, const Announce& announce);
  bool KnowsWhoIsLost() const;
  void TellOvertaken(int64_t now_ns);
  void TellAllWhoLeft();
  void FailWhoWaitsInVain();
  void RefuseAll(const std::string& reason);
  void TellWhoLeft(const Member& waiting);
  bool EveryoneAccountedFor(int64_t now_ns) const;
  int32_t LeastMembers() const;
  void PlaceAll(int64_t now_ns);
  void GoOnFrom(int64_t now_ns, Resumption::Whole whole);
  void LearnLastEnd(int64_t now_ns);
  void AskForChiefsValues();
  void TellWhoCannotStart(const Member& waiting);
  bool IsAtHand(uint64_t generation) const {
    return generation_ && generation_->layout().generation == generation;
  }

  // Passes on from here on, for a generation that begins at `cut`.
  void OpenRelay(int64_t now_ns, const Layout& layout, VersionVector cut, bool may_merge);

  struct CannotStart {
    int32_t rank;
    std::string text;
    std::set<uint64_t> told;  // origins
  };

  const UpdateCodec& codec_;
  const MergingRules merging_;
  const int32_t min_workers_;
  // Where not all are needed: so long after a worker has joined others may still join the start.
  const int64_t latecomers_ns_;
  Membership* const membership_;
  Relay* const relay_;
  MasterTree* const tree_;
  GenerationHost* const host_;
  DropCounters* const drops_;
  StartRendezvous rendezvous_;
  std::set<int32_t> ended_;                               // whose processes have, in order
  std::set<std::pair<uint64_t, int32_t>> told_who_left_;  // by origin, of which ranks
  std::deque<CannotStart> cannot_start_;                  // the latest since the last start
  std::map<int32_t, Layout> overtaken_;                   // who begins what is over for the others
  LateJoins late_joins_;
  Donations donations_;
  Resumption resumption_;
  Resumption last_end_;  // from whom to learn how the generation before the one at hand has ended
  std::optional<MasterGeneration> generation_;
  std::optional<Publisher> publisher_;  // where updates are merged
  int64_t publish_ns_ = 0;              // not earlier, for no child was idle
  bool end_reported_ = true;
  std::optional<std::string> resumed_;
  bool waits_ = false;  // as TakeMissingChange has said
  std::vector<float> parameters_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MASTER_FITS_H_
