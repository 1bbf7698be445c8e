// What the members have announced for the next generation, until all have and it can start.
#ifndef KERAS_STROM_CORE_GATHERING_H_
#define KERAS_STROM_CORE_GATHERING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/control.h"
#include "core/update.h"

namespace strom {

// The rank whose values seed a generation.
inline constexpr int32_t kChiefRank = 0;

class Gathering {
 public:
  // "" or, where it differs from what the others announced, words that name both.
  std::string Add(int32_t rank, const Announce& announce);
  void AddSeed(int32_t rank, uint64_t generation, std::vector<float> values);
  void Withdraw(int32_t rank);
  void Clear();

  bool empty() const { return announced_.empty(); }
  // The member has announced, and the chief's seed is here.
  bool IsReady(int32_t rank) const;
  // The last update that a ready member has made so far.
  uint64_t counter(int32_t rank) const { return announced_.at(rank).counter; }
  const Layout& layout() const { return announced_.begin()->second.layout; }
  const std::string& options_text() const { return announced_.begin()->second.options_text; }
  std::vector<float>* seed() { return seed_ ? &seed_->second : nullptr; }

 private:
  std::map<int32_t, Announce> announced_;
  std::optional<std::pair<uint64_t, std::vector<float>>> seed_;  // generation, the chief's values
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_GATHERING_H_
