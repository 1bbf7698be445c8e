#include "core/master/membership.h"

#include <utility>

#include "core/replication/formatting.h"

namespace strom {

namespace {

// Nobody starts a worker so often; one that says so would hold its rank against all that follow.
constexpr int32_t kMostAttempts = 1 << 20;

std::string Staleness(int32_t max_staleness) {
  return max_staleness < 0 ? "None" : std::to_string(max_staleness);
}

template <typename Other>
bool IsSameProcess(const Hello& hello, const Other& other) {
  return hello.instance == other.instance && hello.attempt == other.attempt;
}

}  // namespace

std::string Membership::Judge(int64_t now_ns, LinkId link, const Address& from, const Hello& hello,
                              uint64_t* origin) {
  std::string refusal = Refusal(now_ns, hello);
  if (!refusal.empty()) return refusal;
  *origin = OriginOf(hello);
  Address address = from;
  if (hello.port != 0) address.port = hello.port;
  pending_[link] = {hello, address, *origin};
  return "";
}

uint64_t Membership::OriginOf(const Hello& hello) {
  const Member* present = FindRank(hello.rank);
  if (present != nullptr && IsSameProcess(hello, *present)) return present->origin;
  for (const auto& [other, pending] : pending_) {
    // It says hello again before its link stands.
    if (IsSameProcess(hello, pending.hello) && pending.hello.rank == hello.rank) {
      return pending.origin;
    }
  }
  // A member of an earlier master keeps its origin, by which all know its updates.
  const bool was_member = hello.origin != 0 && hello.origin >> 32 < epoch_;
  if (was_member && FindOrigin(hello.origin) == nullptr) return hello.origin;
  return (epoch_ << 32) | ++last_sequence_;
}

std::string Membership::Joined::Words() const {
  const char* how = resumed ? " is back" : returns ? " has joined anew" : " has joined";
  return WorkerName(member->rank) + how;
}

Membership::Joined Membership::LinkUp(int64_t now_ns, LinkId link) {
  Joined joined;
  auto pending = pending_.find(link);
  if (pending == pending_.end()) {
    joined.refusal = "the master has no hello of this link";
    return joined;
  }
  const Hello hello = pending->second.hello;
  const Address address = pending->second.address;
  const uint64_t origin = pending->second.origin;
  pending_.erase(pending);
  // Two hellos that were both welcome may exclude each other: the first link that stands wins.
  joined.refusal = Refusal(now_ns, hello);
  if (!joined.refusal.empty()) return joined;
  auto [at, fresh] = members_.try_emplace(hello.rank);
  Member& member = at->second;
  joined.resumed = !fresh && member.origin == origin;
  joined.returns = !fresh && (member.link == 0 || !joined.resumed);
  if (!fresh && member.link != 0) {
    joined.superseded = member;
    member.gone_ns = now_ns;
  }
  if (!joined.resumed) {
    const int64_t gone_ns = member.gone_ns;
    member = Member{};
    member.gone_ns = gone_ns;
    member.rank = hello.rank;
    member.attempt = hello.attempt;
    member.instance = hello.instance;
    member.max_staleness = hello.max_staleness;
    member.origin = origin;
    if (origin >> 32 != epoch_) adopted_.insert(origin);
    member.public_key = hello.public_key;
    last_joined_ns_ = now_ns;
  }
  member.address = address;  // it may have come back from another
  member.host = hello.host;
  member.link = link;
  member.may_return = false;
  member.state = Member::State::kLive;
  joined.member = &member;
  return joined;
}

void Membership::ForgetReplaced() {
  kept_.clear();
  for (const auto& [rank, member] : members_) kept_.insert(member.origin);
  // Who is about to join may be replaced before the next generation, too.
  for (const auto& [link, pending] : pending_) kept_.insert(pending.origin);
  std::erase_if(adopted_, [this](uint64_t origin) { return !kept_.contains(origin); });
  forgotten_sequence_ = last_sequence_;
}

// "" = welcome.
std::string Membership::Refusal(int64_t now_ns, const Hello& hello) const {
  if (hello.version != kProtocolVersion) {
    return "this worker speaks protocol version " + std::to_string(hello.version) +
           ", the master " + std::to_string(kProtocolVersion) +
           "; install the same release of keras-strom on every machine";
  }
  if (hello.epoch > epoch_) {
    return WorkerName(hello.rank) + " names a master of epoch " + std::to_string(hello.epoch) +
           ", which no master has";
  }
  if (hello.size != workers_) {
    return WorkerName(hello.rank) + " was started for " + std::to_string(hello.size) +
           " workers, the master for " + std::to_string(workers_) +
           "; start all with the same number";
  }
  if (hello.rank < 0 || hello.rank >= workers_) {
    return "rank " + std::to_string(hello.rank) + " is out of range: the ranks of " +
           std::to_string(workers_) + " workers are 0 to " + std::to_string(workers_ - 1);
  }
  if (hello.attempt < 0 || hello.attempt > kMostAttempts) {
    return WorkerName(hello.rank) + "'s attempt " + std::to_string(hello.attempt) +
           " is none: they count from 0, and end at " + std::to_string(kMostAttempts);
  }
  for (const auto& [rank, other] : members_) {
    if (rank == hello.rank || other.state != Member::State::kLive) continue;
    if (other.max_staleness == hello.max_staleness) continue;
    return WorkerName(hello.rank) + " uses max_staleness=" + Staleness(hello.max_staleness) +
           " but " + WorkerName(rank) + " uses " + Staleness(other.max_staleness) +
           "; give every worker the same max_staleness";
  }
  if (const Member* present = FindRank(hello.rank)) {
    // A process that has never been a member may follow on any that is gone for good.
    const bool is_fresh = hello.origin == 0 && !IsSameProcess(hello, *present);
    const bool is_gone =
        present->state != Member::State::kLive && present->state != Member::State::kAway;
    if (hello.attempt < present->attempt && !(is_fresh && is_gone)) {
      return WorkerName(hello.rank) + "'s attempt " + std::to_string(hello.attempt) +
             " is superseded by attempt " + std::to_string(present->attempt) +
             "; this process has to end";
    }
    const bool holds_rank =
        present->state == Member::State::kLive ||
        (present->state == Member::State::kAway && now_ns < present->away_until_ns);
    if (hello.attempt == present->attempt && hello.instance != present->instance && holds_rank) {
      return "rank " + std::to_string(hello.rank) +
             " is already taken by another process; give every worker a rank of its own";
    }
    if (IsSameProcess(hello, *present) && !holds_rank && !present->may_return) {
      return WorkerName(hello.rank) + " is no member any more; start it anew";
    }
  }
  return "";
}

void Membership::Part(int64_t now_ns, Member* member, Member::State state, bool may_return) const {
  member->link = 0;
  member->state = state;
  member->may_return = may_return;
  member->away_until_ns = now_ns + away_ns_;
  member->gone_ns = now_ns;
}

std::vector<int32_t> Membership::GiveUp(int64_t now_ns) {
  std::vector<int32_t> expected;
  for (auto& [rank, member] : members_) {
    const bool is_expected = member.state == Member::State::kExpected;
    if (!is_expected && member.state != Member::State::kAway) continue;
    if (now_ns < member.away_until_ns) continue;
    if (is_expected) expected.push_back(rank);
    member.state = Member::State::kLost;
  }
  return expected;
}

Member* Membership::Find(LinkId link) {
  for (auto& [rank, member] : members_) {
    if (link != 0 && member.link == link) return &member;
  }
  return nullptr;
}

Member* Membership::FindRank(int32_t rank) {
  return const_cast<Member*>(std::as_const(*this).FindRank(rank));
}

const Member* Membership::FindRank(int32_t rank) const {
  auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

Member* Membership::FindOrigin(uint64_t origin) {
  return const_cast<Member*>(std::as_const(*this).FindOrigin(origin));
}

const Member* Membership::FindOrigin(uint64_t origin) const {
  for (const auto& [rank, member] : members_) {
    if (member.origin == origin) return &member;
  }
  return nullptr;
}

}  // namespace strom
