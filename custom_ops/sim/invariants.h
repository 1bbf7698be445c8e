// The promises of the relay as plain functions, law by law (docs/internals/index.md, "Laws").
// Each gives the words of what is broken, or "" where it holds. They see what nodes show and what
// was submitted, nothing else; sim/simulation.h asks them after every tick.
#ifndef KERAS_STROM_SIM_INVARIANTS_H_
#define KERAS_STROM_SIM_INVARIANTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/replication/replication.h"
#include "sim/ledger.h"

namespace strom {

// --- exactly once, in order (law 3)

// An update that a node hands to its application: the next of its origin, byte for byte what was
// submitted.
std::string ComesNextAndUnharmed(const ReceivedUpdate& update, const VersionVector& applied,
                                 uint64_t generation, const Ledger& ledger);
// Within a generation a vector never takes anything back.
std::string OnlyGrows(const VersionVector& before, const VersionVector& now);
// At a start it may retire origins, but none of a process that lives.
std::string KeepsTheLiving(const VersionVector& before, const VersionVector& now,
                           const std::set<uint64_t>& living);
// What a generation starts with names no more processes than there are ranks.
std::string StartsWithFewOrigins(const VersionVector& cut, int32_t workers);
// Nothing is held that nobody submitted.
std::string HoldsOnlySubmitted(const VersionVector& vector, const Ledger& ledger);
// In synchronous and bounded modes: everybody's n-th update is the same. `reference` has what
// anybody has taken.
std::string ComesInOneOrder(const UpdateId& id, size_t position,
                            std::map<size_t, UpdateId>* reference);

// --- replicas are sums (law 2)

// parameters = initial + exactly the updates that `applied` says.
std::string AddsUp(const std::vector<float>& parameters, uint64_t generation,
                   const VersionVector& applied, const Ledger& ledger);
// What a node has applied it has received.
std::string AppliesOnlyReceived(const VersionVector& applied, const VersionVector& received);

// --- training on a joint model

// No more steps count in it than lie behind what workers have given.
std::string CountsOnlyGiven(int64_t counted, int64_t given);
// What nobody trains keeps its bits.
std::string KeepsUntrained(const std::vector<float>& parameters, uint64_t generation,
                           const JointPlan& plan, const Ledger& ledger);
// Rounds of gradients: what a generation ends with is the start, or what workers have had after
// some round.
std::string IsAState(const std::vector<float>& parameters, uint64_t generation,
                     const JointPlan& plan, const Ledger& ledger);

// --- nothing is lost (law 1), and progress

// A node holds all that it has submitted itself.
std::string HoldsItsOwn(uint64_t origin, const VersionVector& received, const Ledger& ledger);
// What workers have made that have drained in this generation is part of its result.
std::string HoldsTheDrained(uint64_t generation, const VersionVector& received,
                            const Ledger& ledger);
// What live nodes submitted a while ago is here.
std::string HasArrived(const VersionVector& submitted_then, const VersionVector& received);
// Likewise of nodes that nothing strikes, while something strikes others.
std::string IsAsFastAsEver(const VersionVector& submitted_then, const VersionVector& received);
// At the end all hold the same set, bit for bit the same parameters.
std::string SameVector(const VersionVector& own, const VersionVector& masters);
std::string SameBits(const std::vector<float>& own, const std::vector<float>& others);

// A process that failed was one that some fault may end, or lacks what is no longer kept because
// faults together have lasted longer than the ring's age limit; and no promise was broken to it.
std::string FailsForAReason(const Status& failure, bool excused, bool outran_ring);

// --- memory stays under its bounds (law 4)

// Beyond what the master is not known to hold, which stays whatever it costs, the ring keeps to
// its bound; what waits for a gap keeps to its own.
std::string RingAndHoldAreBounded(const Replication& replication, int64_t ring_bytes,
                                  int64_t hold_bytes);
std::string QueueIsBounded(int64_t queued_bytes, int64_t cap_bytes);

// --- the I/O thread never spins

// After a node's HandleTimeout at `now_ns` its next timeout is later, but for some times in a row,
// in which it does what it has cut into pieces. `*in_a_row` counts them.
std::string SleepsUntilLater(int64_t now_ns, int64_t next_timeout_ns, int32_t* in_a_row);

// --- the tree

// node -> its parent; the master is kTreeRoot and has none. Every node reaches the master in at
// most `max_depth` hops, and no node has more than `max_children`.
inline constexpr int32_t kTreeRoot = -1;
std::string TreeIsSound(const std::map<int32_t, int32_t>& parents, int32_t max_children,
                        int32_t max_depth);

}  // namespace strom

#endif  // KERAS_STROM_SIM_INVARIANTS_H_
