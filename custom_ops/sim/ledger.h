// The truth that replicas are judged by: every update that any worker has submitted, and what each
// generation started from. It sees nothing of the network.
#ifndef KERAS_STROM_SIM_LEDGER_H_
#define KERAS_STROM_SIM_LEDGER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "sim/given_gradients.h"
#include "sim/given_models.h"

namespace strom {

class Ledger {
 public:
  // The values a replica starts a generation with; false where another started with others.
  bool Start(uint64_t generation, const std::vector<float>& parameters);
  // Nobody is left of those who had started it, and it starts with these.
  void StartAnew(uint64_t generation, const std::vector<float>& parameters) {
    initial_[generation] = parameters;
  }
  // Updates of one origin come in counter order; `message` is without its header.
  void Submit(const UpdateId& id, uint64_t generation, Bytes message);

  // A worker has given a snapshot with so many own steps behind it.
  void Give(uint64_t generation, int64_t steps) { given_[generation] += steps; }
  int64_t given(uint64_t generation) const {
    const auto found = given_.find(generation);
    return found == given_.end() ? 0 : found->second;
  }

  // A worker has handed over all that it had, in this generation, and leaves.
  void Drain(uint64_t generation, uint64_t origin) { drained_[generation].push_back(origin); }
  const std::vector<uint64_t>& drained(uint64_t generation) const {
    static const std::vector<uint64_t> kNone;
    const auto found = drained_.find(generation);
    return found == drained_.end() ? kNone : found->second;
  }

  // Rounds of gradients: after so many of them a worker has parameters of this hash. Whoever the
  // master has given up may have others, until it hears of that.
  void Reach(uint64_t generation, uint64_t rounds, uint64_t hash) {
    rounds_[generation][rounds].reached.insert(hash);
    reached_[generation].insert(hash);
  }
  // ... and goes on from there. False: another has gone on from others.
  bool GoOnFrom(uint64_t generation, uint64_t rounds, uint64_t hash) {
    std::optional<uint64_t>& gone_on = rounds_[generation][rounds].gone_on;
    if (!gone_on) gone_on = hash;
    return gone_on == hash;
  }
  // ... or is among those with whom the generation ends. False likewise, unless what it has is
  // void.
  bool EndWith(uint64_t generation, uint64_t rounds, uint64_t hash) {
    const bool is_void = !rounds_[generation][rounds].reached.contains(hash);
    return is_void || GoOnFrom(generation, rounds, hash);
  }
  // One begins after so many, and no round ends without it: later ones that were are void.
  void BeginAfter(uint64_t generation, uint64_t rounds) {
    auto& hashes = rounds_[generation];
    hashes.erase(hashes.upper_bound(rounds), hashes.end());
  }
  // One that is void may still be somebody's, who ends with it.
  bool HasReached(uint64_t generation, uint64_t hash) const {
    const auto found = reached_.find(generation);
    return found != reached_.end() && found->second.contains(hash);
  }

  GivenGradients& gradients() { return gradients_; }
  // What has been given to the joint model of a generation that has started, at the master of this
  // epoch; null where there is none. The last few are kept.
  GivenModels* Models(const JointPlan& plan, uint64_t generation, uint64_t epoch);
  StruckRanks& struck() { return struck_; }
  // So many values of joint models were looked at so far, and so many could not be.
  int64_t checked_models() const { return tally_.checked; }
  int64_t unchecked_models() const { return tally_.unchecked; }

  // The last counter of each origin so far.
  const VersionVector& submitted() const { return submitted_; }
  // The message that was submitted under this name; null = none was.
  const std::vector<uint8_t>* Find(const UpdateId& id) const;
  bool HasStarted(uint64_t generation) const { return initial_.contains(generation); }
  // The highest generation that has started anywhere; 0 = none.
  uint64_t generation() const { return initial_.empty() ? 0 : initial_.rbegin()->first; }

  // Drops what no replica of `generation` or a later one is judged by. Origins that are not in
  // `known` and have made nothing since are dropped whole.
  void ForgetBefore(uint64_t generation, const VersionVector& known);

  // The last counter of `origin` before the generation.
  uint64_t Base(uint64_t generation, uint64_t origin) const;
  // What a replica must hold that has applied `vector`: the generation's initial values plus its
  // updates up to there.
  std::vector<float> Replica(uint64_t generation, const VersionVector& vector) const;

 private:
  struct Origin {
    uint64_t forgotten = 0;                      // the first so many messages
    std::vector<std::vector<uint8_t>> messages;  // by counter - 1, less those
    std::map<uint64_t, uint64_t> before;  // generation -> last counter before its first update
    // Of the messages up to each counter, from 0 on, less the forgotten ones; up to the last
    // element that any of them has touched.
    std::vector<std::vector<float>> sums = {{}};
    uint64_t last() const { return forgotten + messages.size(); }
    const std::vector<float>& SumUpTo(uint64_t counter) const { return sums[counter - forgotten]; }
  };

  std::map<uint64_t, Origin> origins_;
  VersionVector submitted_;
  GivenGradients gradients_;
  StruckRanks struck_;
  ModelTally tally_;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<GivenModels>> models_;
  std::map<uint64_t, std::vector<float>> initial_;
  std::map<uint64_t, int64_t> given_;
  struct Rounds {  // so many
    std::set<uint64_t> reached;
    std::optional<uint64_t> gone_on;
  };
  std::map<uint64_t, std::map<uint64_t, Rounds>> rounds_;  // by generation
  std::map<uint64_t, std::set<uint64_t>> reached_;         // likewise, in any round
  std::map<uint64_t, std::vector<uint64_t>> drained_;      // origins, by generation
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_LEDGER_H_
