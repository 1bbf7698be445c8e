// The truth that EASGD's exchanges are judged by, for one part of a model, as parts are sent one
// after the other, each as it is then. x~ is where the generation began, plus
// differences that workers have given, and moved towards the last snapshots of those who have
// ended, by each once, all within the rounding of these sums.
//
// - What a worker gets contains all that it has itself given before.
// - It contains all that anybody had got by the time at which it asked.
// - Any two that workers have got are one after the other: one contains all that the other does.
// - The generation ends with all differences and all last snapshots of those whom no fault has
//   struck or who have drained, and with any of the others'.
//
// What is in an x~ is what solves the sum by least squares: of many elements and few things given
// there is one solution, and a difference that counts twice has a 2 in it. After m snapshots that
// x~ has moved towards by alpha, what was there before them is there (1 - alpha)^m times; where
// that is next to nothing x~ is not judged any more.
#ifndef KERAS_STROM_SIM_ELASTIC_EXCHANGES_H_
#define KERAS_STROM_SIM_ELASTIC_EXCHANGES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/given_models.h"

namespace strom {

class ElasticExchanges final : public GivenModels {
 public:
  ElasticExchanges(const JointPlan& plan, std::optional<std::vector<float>> start,
                   StruckRanks* struck, ModelTally* tally);

  void Join(int32_t rank, bool late) override;
  void Drain(int64_t now_ns, int32_t rank) override;
  void Ask(int32_t rank) override;
  std::string Take(int32_t rank, std::span<const float> values) override;
  std::string End(std::span<const float> values) override;

 protected:
  void Note(Given given) override;

 private:
  using Numbers = std::vector<size_t>;  // of things given, ascending
  struct Thing {
    int32_t rank = 0;
    int32_t attempt = 0;   // processes of this rank so far
    bool is_last = false;  // a last snapshot, else a difference
    bool moves = false;    // x~
    bool is_held = false;  // its worker has left once the master had it
    std::vector<float> values;
    bool is_settled = false;
  };
  struct Answer {
    Numbers contains;
    std::vector<float> values;
  };
  struct Question {
    Answer before;  // what anybody had got
    size_t given = 0;
  };

  void Settle();
  std::string Name(size_t number) const;
  bool CanRead() const;
  Numbers Candidates(const Answer& before) const;
  std::optional<std::string> Read(const Answer& before, std::span<const float> values,
                                  Answer* answer) const;
  std::string ReadCoefficients(const Numbers& candidates, std::span<const double> coefficients,
                               double of_before, Answer* answer) const;

  bool is_known_;  // x~ has some answer to begin with
  std::map<int32_t, int32_t> attempts_;
  std::vector<Thing> given_;
  size_t first_open_ =
      0;  // all before are settled: in all answers, which do not name them any more
  size_t given_lasts_ = 0;
  size_t first_certain_ = 0;  // what was given before may be in the first answer, or come later
  std::map<int32_t, Question> questions_;
  std::deque<Answer> answers_;  // the latest, in the order in which they contain each other
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_ELASTIC_EXCHANGES_H_
