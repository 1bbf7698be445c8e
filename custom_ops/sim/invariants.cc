#include "sim/invariants.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/replication/version_vector.h"

namespace strom {
namespace {

// "update 7 of origin 3"; origins without the master's epoch, which only makes them long.
std::string Name(const UpdateId& id) {
  return "update " + std::to_string(id.counter) + " of origin " +
         std::to_string(id.origin & 0xffffffff);
}

// The first entry of `vector` that `other` does not cover; "" = none.
std::string NotCovered(const VersionVector& vector, const VersionVector& other) {
  for (const auto& [origin, counter] : vector) {
    if (CounterOf(other, origin) < counter) {
      return Name({origin, counter}) + " where there is " +
             std::to_string(CounterOf(other, origin));
    }
  }
  return "";
}

// What a publication contains follows on what was applied; that its bytes add up is a law of its
// own.
std::string ContentsComeNext(const ReceivedUpdate& update, const VersionVector& applied,
                             uint64_t generation, const Ledger& ledger) {
  const uint64_t last = CounterOf(applied, update.id.origin);
  if (update.id.counter != last + 1) {
    return "takes publication " + std::to_string(update.id.counter) + " after " +
           std::to_string(last);
  }
  if (update.contents == nullptr) return "";  // more of it comes
  for (const UpdateRange& range : *update.contents) {
    const uint64_t base = ledger.Base(generation, range.origin);
    const uint64_t before = std::max(CounterOf(applied, range.origin), base);
    if (range.from != before) {
      return "takes a publication with " + Name({range.origin, range.from + 1}) + " after " +
             std::to_string(before);
    }
    if (ledger.Find({range.origin, range.to}) == nullptr) {
      return "takes a publication with " + Name({range.origin, range.to}) +
             ", which nobody submitted";
    }
  }
  return "";
}

// Without what masters have published, which nobody has submitted.
VersionVector OfWorkers(VersionVector vector) {
  erase_if(vector, [](const auto& entry) { return IsOfMaster(entry.first); });
  return vector;
}

std::string Prefixed(const char* what, const std::string& detail) {
  return detail.empty() ? "" : what + detail;
}

}  // namespace

std::string ComesNextAndUnharmed(const ReceivedUpdate& update, const VersionVector& applied,
                                 uint64_t generation, const Ledger& ledger) {
  if (IsOfMaster(update.id.origin)) return ContentsComeNext(update, applied, generation, ledger);
  const uint64_t generation_base = ledger.Base(generation, update.id.origin);
  const uint64_t last = std::max(CounterOf(applied, update.id.origin), generation_base);
  if (update.id.counter != last + 1) {
    return "takes " + Name(update.id) + " after " + std::to_string(last);
  }
  const std::vector<uint8_t>* submitted = ledger.Find(update.id);
  if (submitted == nullptr) return "takes " + Name(update.id) + ", which nobody submitted";
  const Bytes message = update.message();
  if (!std::equal(message.begin(), message.end(), submitted->begin(), submitted->end())) {
    return "takes " + Name(update.id) + " with other bytes than were submitted";
  }
  return "";
}

std::string OnlyGrows(const VersionVector& before, const VersionVector& now) {
  return Prefixed("no longer holds ", NotCovered(before, now));
}

std::string KeepsTheLiving(const VersionVector& before, const VersionVector& now,
                           const std::set<uint64_t>& living) {
  VersionVector of_living;
  for (const auto& [origin, counter] : before) {
    if (living.contains(origin)) of_living[origin] = counter;
  }
  return OnlyGrows(of_living, now);
}

std::string StartsWithFewOrigins(const VersionVector& cut, int32_t workers) {
  if (std::ssize(OfWorkers(cut)) <= workers) return "";
  return "starts with updates of " + std::to_string(cut.size()) + " processes, where there are " +
         std::to_string(workers) + " ranks";
}

std::string HoldsOnlySubmitted(const VersionVector& vector, const Ledger& ledger) {
  return Prefixed("holds what nobody submitted: ",
                  NotCovered(OfWorkers(vector), ledger.submitted()));
}

std::string ComesInOneOrder(const UpdateId& id, size_t position,
                            std::map<size_t, UpdateId>* reference) {
  if (reference->try_emplace(position, id).first->second == id) return "";
  return "takes " + Name(id) + " as number " + std::to_string(position) +
         ", where another took another";
}

std::string AddsUp(const std::vector<float>& parameters, uint64_t generation,
                   const VersionVector& applied, const Ledger& ledger) {
  return parameters == ledger.Replica(generation, applied)
             ? ""
             : "is not the sum of the updates that it has applied";
}

std::string CountsOnlyGiven(int64_t counted, int64_t given) {
  if (counted <= given) return "";
  return "counts " + std::to_string(counted) + " steps, of which " + std::to_string(given) +
         " were given";
}

std::string KeepsUntrained(const std::vector<float>& parameters, uint64_t generation,
                           const JointPlan& plan, const Ledger& ledger) {
  std::vector<float> expected = ledger.Replica(generation, {}), trained;
  Gather(plan, parameters, &trained);
  Scatter(plan, trained, &expected);
  return parameters == expected ? "" : "changes values that nobody trains";
}

std::string IsAState(const std::vector<float>& parameters, uint64_t generation,
                     const JointPlan& plan, const Ledger& ledger) {
  const bool is_one = !plan.IsOfGradients() || parameters == ledger.Replica(generation, {}) ||
                      ledger.HasReached(generation, Hash(AsBytes(parameters)));
  return is_one ? "" : "is what no worker has had after any round";
}

std::string AppliesOnlyReceived(const VersionVector& applied, const VersionVector& received) {
  return Prefixed("has applied what it has not received: ", NotCovered(applied, received));
}

std::string HoldsItsOwn(uint64_t origin, const VersionVector& received, const Ledger& ledger) {
  if (CounterOf(received, origin) == CounterOf(ledger.submitted(), origin)) return "";
  return "does not hold " + Name({origin, CounterOf(ledger.submitted(), origin)}) + ", its own";
}

std::string HoldsTheDrained(uint64_t generation, const VersionVector& received,
                            const Ledger& ledger) {
  for (const uint64_t origin : ledger.drained(generation)) {
    if (std::string lacks = HoldsItsOwn(origin, received, ledger); !lacks.empty()) return lacks;
  }
  return "";
}

std::string HasArrived(const VersionVector& submitted_then, const VersionVector& received) {
  return Prefixed("still lacks ", NotCovered(submitted_then, received));
}

std::string IsAsFastAsEver(const VersionVector& submitted_then, const VersionVector& received) {
  return Prefixed("is held up by what has happened to others: it lacks ",
                  NotCovered(submitted_then, received));
}

std::string SameVector(const VersionVector& own, const VersionVector& masters) {
  return own == masters ? "" : "ends with another vector than the master";
}

std::string SameBits(const std::vector<float>& own, const std::vector<float>& others) {
  return own == others ? "" : "ends with other parameters";
}

std::string FailsForAReason(const Status& failure, bool excused, bool outran_ring) {
  const bool is_outrun = failure.message.find("more updates than are kept") != std::string::npos;
  // Whoever hangs below those that were silent lacks what the others no longer keep.
  if (is_outrun && outran_ring) return "";
  if (is_outrun) return "finds that what it lacks was not kept: " + failure.message;
  if (!excused) return "fails without a reason: " + failure.message;
  if (failure.code == Code::kInternal) return "fails by a broken promise: " + failure.message;
  return "";
}

std::string RingAndHoldAreBounded(const Replication& replication, int64_t ring_bytes,
                                  int64_t hold_bytes) {
  const int64_t pinned_bytes = replication.PinnedBytes();
  if (replication.ring_bytes() - pinned_bytes > ring_bytes) {
    return "keeps " + std::to_string(replication.ring_bytes()) + " bytes in a ring of " +
           std::to_string(ring_bytes) + ", only " + std::to_string(pinned_bytes) +
           " of them for want of a beacon or a snapshot";
  }
  if (replication.hold_bytes() > hold_bytes) {
    return "holds " + std::to_string(replication.hold_bytes()) + " bytes out of order";
  }
  return "";
}

std::string QueueIsBounded(int64_t queued_bytes, int64_t cap_bytes) {
  if (queued_bytes <= cap_bytes) return "";
  return "has " + std::to_string(queued_bytes) + " bytes queued for one neighbour; its cap is " +
         std::to_string(cap_bytes);
}

std::string SleepsUntilLater(int64_t now_ns, int64_t next_timeout_ns, int32_t* in_a_row) {
  constexpr int32_t kMostPieces = 100;  // of the joint model's work on a job's small models
  *in_a_row = next_timeout_ns > now_ns ? 0 : *in_a_row + 1;
  if (*in_a_row <= kMostPieces) return "";
  return "wakes again and again, for what was due stays due";
}

std::string TreeIsSound(const std::map<int32_t, int32_t>& parents, int32_t max_children,
                        int32_t max_depth) {
  std::map<int32_t, int32_t> children;
  for (const auto& [node, parent] : parents) {
    if (++children[parent] > max_children) {
      return std::to_string(parent) + " has more than " + std::to_string(max_children) +
             " children";
    }
    int32_t at = node;
    for (int32_t depth = 1; parents.contains(at); ++depth) {
      if (depth > max_depth) {
        return std::to_string(node) + " is more than " + std::to_string(max_depth) +
               " hops below the master";
      }
      at = parents.at(at);
    }
    if (at != kTreeRoot) return std::to_string(node) + " does not reach the master";
  }
  return "";
}

}  // namespace strom
