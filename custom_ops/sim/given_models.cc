#include "sim/given_models.h"

#include "sim/cycles_of_shards.h"
#include "sim/elastic_exchanges.h"
#include "sim/judged_by_parts.h"
#include "sim/rounds_of_models.h"

namespace strom {

std::unique_ptr<GivenModels> GivenModels::Make(const JointPlan& plan,
                                               std::optional<std::vector<float>> start,
                                               StruckRanks* struck, ModelTally* tally) {
  if (plan.HasRounds())
    return std::make_unique<RoundsOfModels>(plan, std::move(start), struck, tally);
  if (plan.method.kind == STROM_EASGD) {
    return std::make_unique<JudgedByParts<ElasticExchanges>>(plan, start, struck, tally);
  }
  return std::make_unique<CyclesOfShards>(plan, std::move(start), struck, tally);
}

}  // namespace strom
