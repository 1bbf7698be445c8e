// The truth that rounds of models are judged by (SparkNet, synchronous EASGD). x~ is a chain: each
// round's follows from the one before and from what workers have given for the round, to the bit.
//
// - A part of it is made of one snapshot each, given for this very round, of all whom no fault has
//   struck, and of any of the others, who may be counted part by part.
// - A round is over for nobody before all who train and were not struck have given for it.
// - Whoever was in a round has the same bits of it. Whoever was struck may get a later x~ instead,
//   whole, which others get, too.
// - The generation ends with what the last snapshots make of x~: of all who were in the last round,
//   and of nobody who has ended before it.
//
// What another master begins with is taken as it is, and so is what a generation under it ends
// with.
#ifndef KERAS_STROM_SIM_ROUNDS_OF_MODELS_H_
#define KERAS_STROM_SIM_ROUNDS_OF_MODELS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sim/given_models.h"

namespace strom {

class RoundsOfModels final : public GivenModels {
 public:
  RoundsOfModels(const JointPlan& plan, std::optional<std::vector<float>> start,
                 StruckRanks* struck, ModelTally* tally);

  void Join(int32_t rank, bool late) override;
  std::string Take(int32_t rank, std::span<const float> values) override;
  std::string End(std::span<const float> values) override;

 protected:
  void Note(Given given) override;

 private:
  using Snapshot = std::shared_ptr<const std::vector<float>>;
  struct Trainer {
    bool trains = true;
    bool is_late = false;
    bool has_given = false;
    // Of what it has given last: its round, unless it has not heard of any by then.
    std::optional<uint64_t> round;
    std::optional<int64_t> calm_since;
    std::optional<int64_t> well_since;  // the same of what it has got last
    uint64_t next_round = 0;            // the first that it has not got
  };
  struct Round {
    std::map<int32_t, std::vector<Snapshot>> by_rank;
    std::optional<std::set<int32_t>> may_lack;  // as somebody had it first
  };
  struct Last {
    uint64_t round = 0;  // at hand when it was given
    Snapshot values;
  };
  // Of one worker: snapshots, null where it is left out.
  using Choice = std::vector<Snapshot>;

  bool IsSparkNet() const { return plan_.method.kind == STROM_SPARKNET; }
  std::string Close(uint64_t round);
  std::vector<Choice> ChoicesOf(uint64_t round) const;
  void AddLoose(int32_t rank, uint64_t round, Choice* choice) const;
  std::string Match(uint64_t number, std::span<const float> values);
  std::string TakeLate(int32_t rank, uint64_t from, std::span<const float> values);
  void Keep(uint64_t number, std::span<const float> values);
  std::string Explain(uint64_t number, const std::vector<Choice>& choices,
                      std::span<const float> values) const;
  bool ExplainsPart(const std::vector<Choice>& choices, const ElementRange& part,
                    std::span<const float> before, std::span<const double> betas,
                    std::span<const float> values) const;
  std::vector<std::vector<float>> WorldsOf(const std::vector<Choice>& choices,
                                           const ElementRange& part,
                                           std::span<const float> before) const;
  std::vector<Choice> LastChoices(uint64_t round) const;
  float Made(const Choice& chosen, size_t element, float before, double beta) const;

  const bool knows_start_;
  std::map<int32_t, Trainer> trainers_;
  std::map<uint64_t, Round> rounds_;
  std::map<int32_t, std::vector<Last>> last_snapshots_;
  // Of workers that have given before they have heard of any round: it is one of these.
  struct Loose {
    Snapshot values;
    uint64_t from = 0, to = 0;
  };
  std::map<int32_t, std::vector<Loose>> loose_;
  std::map<uint64_t, uint64_t> hashes_;           // of every x~
  std::map<uint64_t, std::vector<float>> joint_;  // x~, by the first round that is not in it
  // What those who were struck have got and nobody else yet, with the number known at that time.
  struct Late {
    int32_t rank = 0;
    uint64_t known = 0;
    std::vector<float> values;
  };
  std::vector<Late> late_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_ROUNDS_OF_MODELS_H_
