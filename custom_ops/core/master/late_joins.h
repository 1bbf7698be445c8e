// The master's answer to members that announce a generation which has started without them. If it
// is training they are taken in; if it is over they get ENDED and its parameters.
//
// A late joiner gets the master's parameters as a snapshot that is frozen at a cut; what is beyond
// the cut comes to it as to any neighbour that attaches. Joiners that come shortly after each other
// share one encoded snapshot. In sequenced modes the snapshot is at a STEP, and what the cut covers
// beyond that comes beside it, with the STEPs since: no ring may hold it any more.
#ifndef KERAS_STROM_CORE_MASTER_LATE_JOINS_H_
#define KERAS_STROM_CORE_MASTER_LATE_JOINS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/master/master_generation.h"
#include "core/master/master_tree.h"
#include "core/master/membership.h"
#include "core/replication/control.h"
#include "core/replication/relay.h"

namespace strom {

class LateJoins {
 public:
  // The pointers outlive this; `share_ns` is how long a snapshot is kept for another joiner.
  LateJoins(int64_t share_ns, Relay* relay, MasterTree* tree, const std::vector<float>* parameters,
            GenerationHost* host)
      : share_ns_(share_ns), relay_(relay), tree_(tree), parameters_(parameters), host_(host) {}

  // A generation has started; `options_text` is what its members agree on, and the plan.
  void Started(const Layout& layout, const std::string& options_text, const JointPlan& plan);
  // A generation that an earlier master led has ended; the parameters here are its result.
  void KnowEnd(const Layout& layout) { layouts_[layout.size] = layout.hash; }
  // Of the largest layout so far. A later one has as many values at least, and those of the earlier
  // ones stand first in it.
  uint64_t most_values() const { return layouts_.empty() ? 0 : layouts_.rbegin()->first; }
  // Whether there is an end to tell of, or will be.
  bool KnowsAny() const { return !layouts_.empty(); }
  // The member announces `generation`'s number or an earlier one.
  void HandleAnnounce(int64_t now_ns, const Member& member, const Announce& announce,
                      MasterGeneration* generation);
  // Live members that lack what nobody keeps any more get a snapshot, too. False in modes, and in
  // generations without parameters, that have no such way.
  static bool MayCatchUp(const MasterGeneration& generation) {
    return !generation.sequenced() && generation.layout().size > 0;
  }
  void CatchUp(int64_t now_ns, const Member& member, const AskSnapshot& ask,
               const MasterGeneration& generation);
  // A member of an earlier master's time, in the middle of this generation: it goes on from the
  // parameters here, and sends again what of its own they lack.
  void TakeBack(int64_t now_ns, const Member& member, const AskResume& resume,
                MasterGeneration* generation);
  // The generation that it has announced is over, or the others never begin it.
  void TellEnd(int64_t now_ns, int32_t rank, const Layout& layout);
  // A generation has ended here; the mean of its members' state at the end.
  void KeepFinalState(uint64_t generation, std::vector<double> state) {
    final_state_ = {generation, std::move(state)};
  }
  // Whether `rank` was sent ENDED for `generation` and has not asked for the final state yet.
  bool MayAskFinalState(int32_t rank, uint64_t generation) const {
    const auto told = end_notified_.find(rank);
    return told != end_notified_.end() && told->second == generation;
  }
  // The answer: that of the generation that has ended last, which its first 8 bytes name.
  void GiveFinalState(int32_t rank);
  // The member's link is gone.
  void Withdraw(int32_t rank) {
    waiting_.erase(rank);
    end_notified_.erase(rank);
  }
  // `generation` may be over by now: whoever waits for that is told. Snapshots grow old.
  void Settle(int64_t now_ns, MasterGeneration* generation);

 private:
  struct Frozen {
    uint64_t number = 0;
    uint64_t generation = 0;
    VersionVector cut;
    uint64_t step = 0;
    int64_t made_ns = 0;
    std::vector<Buffer> chunks;
  };

  // The parameters for those who have come after the end of a generation.
  struct Over {
    uint64_t number = 0;
    uint64_t generation = 0;
    uint64_t size = 0;
    int64_t made_ns = 0;
    std::vector<Buffer> chunks;
  };

  void Join(int64_t now_ns, const Member& member, MasterGeneration* generation);
  // "" or why the member cannot take part.
  std::string Misfit(const Member& member, const Announce& announce,
                     const MasterGeneration& generation) const;
  void SendSince(int32_t rank, const Frozen& snapshot, const MasterGeneration& generation);
  // One that covers `least`.
  const Frozen& Freeze(int64_t now_ns, const VersionVector& least,
                       const MasterGeneration& generation);
  const Over& FreezeEnd(int64_t now_ns, const Layout& layout);
  int64_t ParametersBytes() const {
    return static_cast<int64_t>(parameters_->size() * sizeof(float));
  }

  const int64_t share_ns_;
  Relay* const relay_;
  MasterTree* const tree_;
  const std::vector<float>* const parameters_;
  GenerationHost* const host_;
  std::map<uint64_t, uint64_t> layouts_;  // size -> hash of every one so far: each extends the last
  std::string options_text_;
  JointPlan plan_;
  std::map<int32_t, Layout> waiting_;         // announced while the generation at hand was ending
  std::map<int32_t, uint64_t> end_notified_;  // whom ENDED was sent last, and of which generation
  std::pair<uint64_t, std::vector<double>> final_state_;
  uint64_t last_number_ = 0;  // of a snapshot
  std::optional<Frozen> snapshot_;
  std::optional<Over> over_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_LATE_JOINS_H_
