// What the members have announced for the next generation, until all have and it can start.
#ifndef KERAS_STROM_CORE_MASTER_START_RENDEZVOUS_H_
#define KERAS_STROM_CORE_MASTER_START_RENDEZVOUS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/master/chiefs_values.h"
#include "core/replication/control.h"
#include "core/replication/update.h"

namespace strom {

class StartRendezvous {
 public:
  // What two members have announced that does not go together, in words that name both. Where one
  // of them was not in step it is the `misfit`, which is not kept here; else nobody knows which.
  struct Difference {
    std::string text;
    std::optional<int32_t> misfit;
  };
  // Empty where the announcement agrees with the others'. A member that was not `in_step`, as it
  // has missed the end of the last generation, may announce a later generation than the others;
  // then it waits until they come to that.
  std::vector<Difference> Add(int32_t rank, const Announce& announce, bool in_step);
  // Those not in step that have announced a generation which the others have passed over; they are
  // removed.
  std::vector<std::pair<int32_t, Layout>> TakeOvertaken();
  void Withdraw(int32_t rank);
  // All whose generation is the one at hand, which has not started.
  std::map<int32_t, Announce> AtHand() const;
  // All that have announced, who are no longer gathered here.
  std::vector<std::pair<int32_t, Announce>> TakeAll();
  // The generation at hand has started, or cannot: those that are ahead of it stay.
  void Clear();

  bool empty() const { return announced_.empty(); }
  // The member has announced, and the chief's values are here, or it waits for a later generation.
  bool IsReady(int32_t rank) const;
  // It has announced the generation at hand, the lowest of all.
  bool TakesPart(int32_t rank) const;
  // The last update that a ready member has made so far.
  uint64_t counter(int32_t rank) const { return announced_.at(rank).counter; }
  const std::vector<uint64_t>& hashes(int32_t rank) const { return announced_.at(rank).hashes; }
  const Layout& layout() const { return First().layout; }
  const std::string& options_text() const { return First().options_text; }
  const JointPlan& plan() const { return First().plan; }
  uint64_t cycles() const;  // the most that one of those at hand knows of; see Announce
  // The chief's for the generation at hand; null where it has not announced that.
  ChiefsValues* chiefs_values() { return TakesPart(kChiefRank) ? &*chiefs_values_ : nullptr; }
  const ChiefsValues* chiefs_values() const {
    return TakesPart(kChiefRank) ? &*chiefs_values_ : nullptr;
  }
  bool HasChiefsValues() const { return chiefs_values() != nullptr && chiefs_values()->IsWhole(); }

 private:
  struct Entry : Announce {
    bool in_step = true;
  };
  static std::string Compare(int32_t rank, const Announce& announce, bool in_step, int32_t other,
                             const Entry& first);
  const Entry& First() const;

  std::map<int32_t, Entry> announced_;
  std::optional<ChiefsValues> chiefs_values_;
  uint64_t announcements_ = 0;  // the chief's
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_START_RENDEZVOUS_H_
