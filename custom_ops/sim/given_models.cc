#include "sim/given_models.h"

#include "sim/cycles_of_shards.h"
#include "sim/elastic_exchanges.h"
#include "sim/rounds_of_models.h"

namespace strom {

std::unique_ptr<GivenModels> GivenModels::Make(const JointPlan& plan,
                                               std::optional<std::vector<float>> start,
                                               StruckRanks* struck) {
  if (!plan.IsJoint() || plan.IsOfGradients()) return nullptr;
  if (plan.HasRounds()) return std::make_unique<RoundsOfModels>(plan, std::move(start), struck);
  if (plan.method.kind == STROM_EASGD) {
    return std::make_unique<ElasticExchanges>(plan, std::move(start), struck);
  }
  return std::make_unique<CyclesOfShards>(plan, std::move(start), struck);
}

}  // namespace strom
