// Who may join: the master's table of members by rank, and every reason to refuse a hello.
#ifndef KERAS_STROM_CORE_MASTER_MEMBERSHIP_H_
#define KERAS_STROM_CORE_MASTER_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/replication/control.h"

namespace strom {

struct Member {
  enum class State {
    kLive,
    kAway,  // lost without a goodbye; until `away_until_ns` its rank is kept for the same process
    kLost,  // nobody waits for it any more
    kLeft,  // said goodbye
    // It joins anew as another process does. Until `away_until_ns` no start is without it, and then
    // it is lost.
    kExpected
  };
  int32_t rank = -1;
  int32_t attempt = 0;
  std::array<uint8_t, 16> instance{};
  int32_t max_staleness = -1;
  uint64_t origin = 0;
  LinkId link = 0;
  State state = State::kLive;
  int64_t away_until_ns = 0;
  bool may_return = false;   // kLost: it got no FAIL, so it may join again until it is replaced
  int64_t gone_ns = kNever;  // when a link of this rank was last lost; kNever = none was
  // Where the workers below it reach it, and what they know it by.
  PublicKeyBytes public_key{};
  Address address;
  Token host{};
  int64_t updates_accepted = 0;
  int64_t update_bytes = 0;
};

class Membership {
 public:
  // Whoever is away, or expected, is for so long.
  Membership(int32_t workers, uint64_t epoch, int64_t away_ns)
      : workers_(workers), epoch_(epoch), away_ns_(away_ns) {}

  // Judges a hello. "" = welcome, and *origin gets the joiner's; else the words to refuse it with.
  // Nothing changes yet: only a link that comes up is a member (a replayed hello supersedes
  // nobody).
  std::string Judge(int64_t now_ns, LinkId link, const Address& from, const Hello& hello,
                    uint64_t* origin);

  struct Joined {
    Member* member = nullptr;  // null: not welcome any more
    std::string refusal;       // why: others have joined since the hello was judged
    bool resumed = false;      // the same process as before
    bool returns = false;      // a process of this rank was lost before, or has left
    std::optional<Member> superseded;

    std::string Words() const;  // of a member: "worker 1 is back"
  };
  Joined LinkUp(int64_t now_ns, LinkId link);
  void LinkDown(LinkId link) { pending_.erase(link); }

  // Whether updates may bear this origin: it is a member's, or of a process that another has
  // replaced since ForgetReplaced.
  bool IsKnown(uint64_t origin) const {
    const uint64_t sequence = origin & 0xffffffff;
    return kept_.contains(origin) || adopted_.contains(origin) ||
           (origin >> 32 == epoch_ && sequence > forgotten_sequence_ && sequence <= last_sequence_);
  }
  // Whether the process of this origin has a rank, or may still come back to one: of an earlier
  // master's members this one has heard of only some.
  bool MayReturn(uint64_t origin) const {
    const bool all_here = members_.size() == static_cast<size_t>(workers_);
    return FindOrigin(origin) != nullptr || (origin >> 32 != epoch_ && !all_here);
  }
  // A generation starts, in which only members have a part.
  void ForgetReplaced();
  // It was a member of an earlier master, and may be in the middle of a generation.
  bool IsAdopted(const Member& member) const { return adopted_.contains(member.origin); }
  bool HasAdopted() const { return !adopted_.empty(); }

  // By link, among members that have one; null = none.
  Member* Find(LinkId link);
  Member* FindRank(int32_t rank);
  const Member* FindRank(int32_t rank) const;
  Member* FindOrigin(uint64_t origin);
  const Member* FindOrigin(uint64_t origin) const;
  std::map<int32_t, Member>& members() { return members_; }
  const std::map<int32_t, Member>& members() const { return members_; }
  int32_t workers() const { return workers_; }
  // A member has no link any more; `may_return` is Member's.
  void Part(int64_t now_ns, Member* member, Member::State state, bool may_return) const;
  // Those for whom nobody waits any more from now on, though they were to join anew.
  std::vector<int32_t> GiveUp(int64_t now_ns);
  // Whether it was lost without a goodbye, and its rank is still kept for it.
  bool IsAway(int32_t rank) const {
    const Member* member = FindRank(rank);
    return member != nullptr && member->state == Member::State::kAway;
  }
  // Whether another rank's process is here now.
  bool HasOthers(int32_t rank) const {
    return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
      return entry.first != rank && entry.second.link != 0;
    });
  }
  // When the latest process has joined; 0 = none has.
  int64_t last_joined_ns() const { return last_joined_ns_; }

 private:
  std::string Refusal(int64_t now_ns, const Hello& hello) const;
  uint64_t OriginOf(const Hello& hello);

  struct Pending {
    Hello hello;
    Address address;
    uint64_t origin;
  };

  const int32_t workers_;
  const uint64_t epoch_;
  const int64_t away_ns_;
  uint64_t last_sequence_ = 0;
  uint64_t forgotten_sequence_ = 0;  // origins up to this one are known only where `kept_` has them
  std::set<uint64_t> kept_;
  int64_t last_joined_ns_ = 0;
  std::map<int32_t, Member> members_;  // by rank
  std::set<uint64_t> adopted_;         // origins that an earlier master has given
  std::map<LinkId, Pending> pending_;  // bounded by the links' half-open entries
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MEMBERSHIP_H_
