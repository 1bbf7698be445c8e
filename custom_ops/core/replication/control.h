// The relay's control messages as values: what master and workers say beside the updates.
// docs/internals/control_messages.md has the field tables. Bytes are parsed once, here, into a
// valid value.
#ifndef KERAS_STROM_CORE_REPLICATION_CONTROL_H_
#define KERAS_STROM_CORE_REPLICATION_CONTROL_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/types.h"
#include "core/joint/joint_plan.h"
#include "core/replication/update.h"

namespace strom {

// Bumped whenever a field below, the update header, the codec's format or what a message makes of
// its receiver's vectors changes.
inline constexpr uint32_t kProtocolVersion = 18;

// The words of a worker's CLOSE that leaves in the middle of its work, once the master holds all
// that it has made. With no words its work is done, with any others it is lost.
inline constexpr std::string_view kDrained = "drained";
// With these, and why, it has left to join anew over another connection: no start is without it.
inline constexpr std::string_view kJoinsAnew = "joins anew: ";
// The beginning of that why where a training cannot start for it with the others: whoever comes to
// the start later is told of it, too.
inline constexpr std::string_view kCannotStart = "cannot start: ";

// The rank from whose values a generation starts.
inline constexpr int32_t kChiefRank = 0;

// Texts are no longer than this. What two members say may stand in one answer, so words for people
// have room for two options texts; longer ones are cut where they are sent. A peer that sends more
// breaks the protocol.
inline constexpr size_t kMaxOptionsBytes = 8192;
inline constexpr size_t kMaxWordsBytes = 2 * kMaxOptionsBytes + 2048;
inline constexpr size_t kMaxOrphanBytes = 512;

// 16 random bytes: of a process (its instance), or of a host.
using Token = std::array<uint8_t, 16>;

// Payloads of the handshake. Each struct lists its fields once, in wire order, for both directions.
struct Hello {
  uint32_t version = kProtocolVersion;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t attempt = 0;
  Token instance{};
  int32_t max_staleness = -1;
  PublicKeyBytes public_key{};  // for those whom the master puts under this worker
  uint16_t port = 0;            // where they reach it; 0 = where the hello came from
  Token host{};                 // equal for the workers of one machine
  // A worker that has been a member before: the highest master epoch that it has seen, and what its
  // updates are named by. Else both 0.
  uint64_t epoch = 0;
  uint64_t origin = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(version, rank, size, attempt, instance, max_staleness, public_key, port, host, epoch,
            origin);
  }
};

// A worker's to the worker that the master has put it under. The instance shows that it is the one
// that the parent was told to expect.
struct ChildHello {
  uint64_t origin = 0;
  Token instance{};
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(origin, instance);
  }
};

// A worker's to another worker with which it exchanges parts of gradients (PEERS). The instance
// shows that it is the one that the master has named; `version` is that of the PEERS it follows.
struct PeerHello {
  uint64_t origin = 0;
  Token instance{};
  uint64_t version = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(origin, instance, version);
  }
};

// The answer to any of them.
struct Welcome {
  uint64_t origin = 0;
  uint64_t topology = 0;
  uint64_t epoch = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(origin, topology, epoch);
  }
};

// ATTACH. Both ways: "this is my vector, send what I lack". generation 0 = in none, nothing to
// catch up on.
struct Attach {
  static constexpr uint8_t kType = 1;
  uint64_t generation = 0;
  VersionVector vector;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, vector);
  }
};

// LAYOUT. Worker: what it will train in `layout.generation`; all must agree. `counter` numbers the
// last update that it has made.
struct Announce {
  static constexpr uint8_t kType = 2;
  Layout layout;
  uint64_t counter = 0;
  std::string options_text;
  JointPlan plan = {};
  uint64_t cycles = 0;  // that the joint model has finished, in a fit before or in a checkpoint
  // Of the pieces of the sender's values (replication/pieces.h); empty = it has none. The chief
  // always has.
  std::vector<uint64_t> hashes = {};
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(layout.generation, layout.size, layout.hash, counter, options_text);
    plan.Fields(archive);
    archive(cycles, hashes);
  }
};

// START. Master: all agree. The worker is attached from here on; a snapshot at `cut` comes beside
// it.
struct StartGeneration {
  static constexpr uint8_t kType = 3;
  uint64_t generation = 0;
  VersionVector cut;
  // 0: all start together. Else the others train already, and the PARAMETERS with this mark are at
  // `cut`, in sequenced modes after the STEPs before `step`.
  uint64_t snapshot = 0;
  uint64_t step = 0;
  int64_t resume_iteration = -1;  // the last of this rank's earlier process; -1 = none
  // Updates are merged on their way, and so much time is between two messages of a link at most.
  int64_t merging_ns = kNotMerging;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, cut, snapshot, step, resume_iteration, merging_ns);
  }
};

// STEP. Master, sequenced modes: step number `step` (0, 1, ...) is exactly these updates in this
// order.
struct Step {
  static constexpr uint8_t kType = 4;
  uint64_t generation = 0;
  uint64_t step = 0;
  std::vector<UpdateId> ids;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, step, ids);
  }
};

// DONE. Worker: no update beyond `counter` will come.
struct Done {
  static constexpr uint8_t kType = 5;
  uint64_t generation = 0;
  uint64_t counter = 0;
  uint8_t stop = 0;
  // Of gradients, of which the sender's last parameters are made.
  static constexpr uint64_t kNone = UINT64_MAX;  // it has none to give
  uint64_t rounds = kNone;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, counter, stop, rounds);
  }
};

// FINAL. Master: every member is done; this is all there is.
struct Final {
  static constexpr uint8_t kType = 6;
  uint64_t generation = 0;
  VersionVector vector;
  uint64_t steps = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, vector, steps);
  }
};

// VERIFY. Worker: how far its parameters were off before RESULT, and their hash after it (0 =
// none).
struct Verification {
  static constexpr uint8_t kType = 7;
  uint64_t generation = 0;
  double difference = 0;
  uint64_t hash = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, difference, hash);
  }
};

// END. Master: the generation is over.
struct End {
  static constexpr uint8_t kType = 8;
  uint64_t generation = 0;
  double worst_difference = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, worst_difference);
  }
};

// STOP. Master: a worker has ended training for all: the chief, or one that failed or met a NaN.
struct Stop {
  static constexpr uint8_t kType = 9;
  uint64_t generation = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation);
  }
};

// BEACON. Master, regularly: it lives, and holds `vector`; what that covers need not be kept for
// it.
struct Beacon {
  static constexpr uint8_t kType = 10;
  uint64_t epoch = 0;
  uint64_t topology = 0;
  VersionVector vector;
  // How many workers are missing to `min_workers`; only the master's own word counts.
  uint32_t missing = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(epoch, topology, vector, missing);
  }
};

// NOTICE. Master: something a user should read.
struct Notice {
  static constexpr uint8_t kType = 11;
  std::string text;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(text);
  }
};

// FAIL. Master or parent: this worker cannot go on. The sender closes the link.
struct Failure {
  static constexpr uint8_t kType = 12;
  int32_t code = 0;
  std::string reason;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(code, reason);
  }
};

// ATTACH_ANEW. Parent: the child lagged, what waited for it was given up; it attaches anew.
struct AttachAnew {
  static constexpr uint8_t kType = 13;
  uint64_t generation = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation);
  }
};

// TOPOLOGY. Master: the receiver's place in the tree. One that is not newer than the last changes
// nothing.
struct TreePlace {
  static constexpr uint8_t kType = 14;
  struct Child {
    uint64_t origin = 0;
    int32_t rank = 0;
    Token instance{};
    template <typename Archive>
    void Fields(Archive& archive) {
      archive(origin, rank, instance);
    }
    friend bool operator==(const Child&, const Child&) = default;
  };
  uint64_t version = 0;
  uint32_t depth = 1;
  uint64_t parent = 0;  // its origin; 0 = the master, and then nothing more is said of it
  int32_t parent_rank = -1;
  Address parent_address;
  PublicKeyBytes parent_key{};
  std::vector<Child> children;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(version, depth, parent, parent_rank, parent_address.ip, parent_address.port, parent_key,
            children);
  }
};

// PLACED. Worker: it has taken its place of this version, and holds no link of an earlier one.
// Nothing of a lost neighbour will reach it any more beyond `vector`, which it has received in
// `generation`.
struct Placed {
  static constexpr uint8_t kType = 15;
  uint64_t version = 0;
  uint64_t generation = 0;
  VersionVector vector;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(version, generation, vector);
  }
};

// ORPHAN. Worker: in its place of this version it has lost its parent, and waits for another.
struct Orphan {
  static constexpr uint8_t kType = 16;
  uint64_t version = 0;
  uint8_t too_far_behind = 0;  // the parent keeps no longer what it lacks; the master may
  std::string reason;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(version, too_far_behind, reason);
  }
};

// ENDED. Master: the generation that the worker has announced is over; the PARAMETERS with this
// mark are what became of it.
struct Ended {
  static constexpr uint8_t kType = 17;
  uint64_t generation = 0;
  uint64_t snapshot = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, snapshot);
  }
};

// ASK_STATE. A worker that has joined late: another's state, please. The master passes it on to one
// that trains, and raises `until` as what that sends gets through.
struct AskState {
  static constexpr uint8_t kType = 18;
  uint64_t generation = 0;
  int32_t rank = 0;    // who asks
  uint64_t until = 0;  // send no chunk that begins here or later; 0 = it is not wanted any more
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, rank, until);
  }
};

// TOO_FAR_BEHIND. Parent: what the child lacks is kept here no longer. It asks the master for a
// snapshot or, where there is none, for a place under it.
struct TooFarBehind {
  static constexpr uint8_t kType = 19;
  uint64_t generation = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation);
  }
};

// ASK_SNAPSHOT. Worker: a snapshot, please, that holds at least `vector`.
struct AskSnapshot {
  static constexpr uint8_t kType = 20;
  uint64_t generation = 0;
  VersionVector vector;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, vector);
  }
};

// SNAPSHOT. Master: the PARAMETERS with this mark are at `cut`. From here on the worker has
// received that.
struct SnapshotCut {
  static constexpr uint8_t kType = 21;
  uint64_t generation = 0;
  VersionVector cut;
  uint64_t snapshot = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, cut, snapshot);
  }
};

// RESUME. Worker, to a master of a higher epoch: it is in the middle of a generation that this one
// knows nothing of. Its variables contain `applied`.
struct AskResume {
  static constexpr uint8_t kType = 22;
  Layout layout;
  uint64_t origin = 0;
  VersionVector applied;
  uint64_t kept_after = 0;  // its own updates beyond this one are kept, and can be sent again
  int64_t iteration = -1;   // of its last own update; -1 = none
  uint8_t lacks_state = 0;  // it has joined late, and no other's state has come yet
  std::string options_text;
  JointPlan plan = {};
  uint64_t cycles = 0;  // that the joint model had finished, as it was last told
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(layout.generation, layout.size, layout.hash, origin, applied, kept_after, iteration,
            lacks_state, options_text);
    plan.Fields(archive);
    archive(cycles);
  }
};

// ASK_REPLICA. Master: the receiver's replica, please; training goes on from there.
struct AskReplica {
  static constexpr uint8_t kType = 23;
  uint64_t generation = 0;
  uint64_t number = 0;  // of the question
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, number);
  }
};

// REPLICA. Worker: the SEED with this mark is its replica, at `cut`.
struct ReplicaCut {
  static constexpr uint8_t kType = 24;
  uint64_t generation = 0;
  uint64_t number = 0;  // of the question
  VersionVector cut;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, number, cut);
  }
};

// TICK. Master, training on a joint model: MPCA's tick `number` begins, or a round.
struct Tick {
  static constexpr uint8_t kType = 25;
  uint64_t generation = 0;
  uint64_t number = 0;
  uint8_t asks = 0;      // MPCA: a snapshot of shard `number` mod phases, please
  uint8_t installs = 0;  // MPCA: the target that came in tick `number` - 1 is to be installed
  double alpha = 0;      // MPCA: of the pull
  uint64_t steps = 0;    // rounds: own steps to the snapshot
  uint64_t cycles = 0;   // that the joint model has finished
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, number, asks, installs, alpha, steps, cycles);
  }
};

// HAVE. Worker: the target of tick or round `number` is here whole.
struct Have {
  static constexpr uint8_t kType = 26;
  uint64_t generation = 0;
  uint64_t number = 0;
  int64_t iteration = -1;  // of the step whose values it gave for that; -1 = it is not told
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, number, iteration);
  }
};

// ASK_JOINT. Worker: the joint model as it is now, please; `mark` names the answer.
struct AskJoint {
  static constexpr uint8_t kType = 27;
  uint64_t generation = 0;
  uint64_t mark = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, mark);
  }
};

// STEPPING. Worker: it makes steps from here on, so it can be asked for snapshots.
struct Stepping {
  static constexpr uint8_t kType = 28;
  uint64_t generation = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation);
  }
};

// SAY_AGAIN. Master, where updates are merged: the worker's own updates (from, to] have not come
// with what they were merged with, and are to come by themselves.
struct SayAgain {
  static constexpr uint8_t kType = 29;
  uint64_t generation = 0;
  uint64_t from = 0;
  uint64_t to = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, from, to);
  }
};

// Rounds of gradients among more workers would have too many links, of which each has memory of its
// own.
inline constexpr size_t kMostPeers = 64;

// PEERS. Master, rounds of gradients: the workers of the rounds, in the order of ranks, the
// receiver among them. Each is to have a link to each other one, the lower rank makes it.
struct Peers {
  static constexpr uint8_t kType = 30;
  struct Peer {
    int32_t rank = -1;
    uint64_t origin = 0;
    Token instance{};
    Address address;
    PublicKeyBytes key{};
    template <typename Archive>
    void Fields(Archive& archive) {
      archive(rank, origin, instance, address.ip, address.port, key);
    }
    friend bool operator==(const Peer&, const Peer&) = default;
  };
  uint64_t generation = 0;
  uint64_t version = 0;
  std::vector<Peer> peers;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, version, peers);
  }
};

// LINKED. Worker: it has links to all that PEERS of this version has named, or not any more.
struct Linked {
  static constexpr uint8_t kType = 31;
  uint64_t generation = 0;
  uint64_t version = 0;
  uint8_t linked = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, version, linked);
  }
};

// ROUNDS. Master: where rounds of gradients are made from here on. What is said to all has a higher
// version each time.
struct Rounds {
  static constexpr uint8_t kType = 32;
  enum : uint8_t {
    kStopped = 0,     // nowhere: give nothing and say AT_ROUND
    kAtMaster = 1,    // `round` is the next one: what belongs to it or an earlier one is said again
    kAmongPeers = 2,  // from `round` on among those of PEERS
    kGiveMean = 3,    // the receiver's mean of `round`, please: others lack it
    // Among the workers: one waits in an average. Until the receiver asks for one itself, it says
    // AT_ROUND as soon as it has given for a round whose mean is not there.
    kSayGiven = 4,
    kGiveLast = 5,  // the receiver's last parameters, please: it has said DONE
  };
  uint64_t generation = 0;
  uint64_t version = 0;
  uint8_t where = kAtMaster;
  uint64_t round = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, version, where, round);
  }
};

// AT_ROUND. Worker, in answer to ROUNDS that has stopped it: it has the means of all rounds before
// `round`. In answer to kSayGiven it has given for that one, too.
struct AtRound {
  static constexpr uint8_t kType = 33;
  uint64_t generation = 0;
  uint64_t version = 0;
  uint64_t round = 0;
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, version, round);
  }
};

// From the master to the chief: these pieces of its values, please, which the master does not have.
// They come as PIECES.
struct AskPieces {
  static constexpr uint8_t kType = 34;
  uint64_t generation = 0;
  uint64_t number = 0;            // of the announcement
  std::vector<uint32_t> indices;  // ascending
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(generation, number, indices);
  }
};

using ControlMessage =
    std::variant<Attach, Announce, StartGeneration, Step, Done, Final, Verification, End, Stop,
                 Beacon, Notice, Failure, AttachAnew, TreePlace, Placed, Orphan, Ended, AskState,
                 TooFarBehind, AskSnapshot, SnapshotCut, AskResume, AskReplica, ReplicaCut, Tick,
                 Have, AskJoint, Stepping, SayAgain, Peers, Linked, Rounds, AtRound, AskPieces>;

Buffer EncodeHello(const Hello& hello);
Buffer EncodeChildHello(const ChildHello& hello);
Buffer EncodePeerHello(const PeerHello& hello);
Buffer EncodeWelcome(const Welcome& welcome);
Buffer EncodeControl(const ControlMessage& message);

// kCorrupt unless the bytes are exactly one value.
Status ParseHello(Bytes bytes, Hello* hello);
Status ParseChildHello(Bytes bytes, ChildHello* hello);
Status ParsePeerHello(Bytes bytes, PeerHello* hello);
Status ParseWelcome(Bytes bytes, Welcome* welcome);
Status ParseControl(Bytes bytes, ControlMessage* message);

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_CONTROL_H_
