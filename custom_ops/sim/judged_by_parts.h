// The truth of a joint model whose parts have nothing to do with each other: each is judged as a
// model of its own. Large models are not judged.
#ifndef KERAS_STROM_SIM_JUDGED_BY_PARTS_H_
#define KERAS_STROM_SIM_JUDGED_BY_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/joint/joint_plan.h"
#include "sim/combinations.h"
#include "sim/given_models.h"

namespace strom {

// `Model`: the truth of one part.
template <typename Model>
class JudgedByParts final : public GivenModels {
 public:
  JudgedByParts(const JointPlan& plan, const std::optional<std::vector<float>>& start,
                StruckRanks* struck, ModelTally* tally)
      : GivenModels(plan, struck, tally) {
    if (plan.size() > kMostJudged) return;
    for (const ElementRange& range : PartsOf(plan)) {
      std::optional<std::vector<float>> here;
      if (start) here = Copy(*start, range);
      parts_.push_back({range, std::make_unique<Model>(plan, std::move(here), struck, tally)});
    }
  }

  void Join(int32_t rank, bool late) override {
    for (const Part& part : parts_) part.model->Join(rank, late);
  }
  void Drain(int64_t now_ns, int32_t rank) override {
    for (const Part& part : parts_) part.model->Drain(now_ns, rank);
  }
  void Ask(int32_t rank) override {
    for (const Part& part : parts_) part.model->Ask(rank);
  }
  std::string Take(int32_t rank, std::span<const float> values) override {
    return First(values, [&](Model* model, std::span<const float> of_part) {
      return model->Take(rank, of_part);
    });
  }
  std::string End(std::span<const float> values) override {
    return First(values,
                 [](Model* model, std::span<const float> of_part) { return model->End(of_part); });
  }

 protected:
  void Note(Given given) override {
    for (const Part& part : parts_) {
      Given of_part = given;
      of_part.values = Copy(given.values, part.range);
      part.model->Give(std::move(of_part));
    }
  }

 private:
  struct Part {
    ElementRange range;
    std::unique_ptr<Model> model;
  };

  static std::vector<float> Copy(std::span<const float> values, const ElementRange& range) {
    const std::span<const float> here = Of(values, range);
    return {here.begin(), here.end()};
  }

  // What is wrong with the first part with which something is.
  template <typename Judge>
  std::string First(std::span<const float> values, Judge judge) {
    if (parts_.empty()) ++tally_->unchecked;
    std::string wrong;
    for (const Part& part : parts_) {
      std::string here = judge(part.model.get(), Of(values, part.range));
      if (wrong.empty() && !here.empty()) {
        wrong = std::move(here) + " (from element " + std::to_string(part.range.offset) + " on)";
      }
    }
    return wrong;
  }

  std::vector<Part> parts_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_JUDGED_BY_PARTS_H_
