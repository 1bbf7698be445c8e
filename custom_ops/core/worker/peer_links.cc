#include "core/worker/peer_links.h"

#include <algorithm>
#include <utility>

#include "core/replication/formatting.h"

namespace strom {

namespace {

// Within the failure timeout: how often a worker knocks at one that has not heard of it yet.
constexpr int64_t kPeerKnocksPerTimeout = 50;
// The user hears of one that cannot be reached when this try has ended. By then the master has
// noticed if that worker has died, and named others.
constexpr int kTryOfNotice = 2;
// Why a link is closed whose other end may hear a later word, and then tries again.
constexpr char kOthersNamed[] = "the master has named others";
// A link speaks of the master here.
constexpr char kRejected[] =
    "something answers at its address but does not accept the job's secret";

}  // namespace

Status PeerLinks::Handle(int64_t now_ns, const Peers& peers, LinkId master) {
  const auto& named = peers.peers;
  const auto does_not_ascend = [](const auto& a, const auto& b) { return a.rank >= b.rank; };
  const bool ascend =
      std::adjacent_find(named.begin(), named.end(), does_not_ascend) == named.end();
  const bool has_own =
      std::any_of(named.begin(), named.end(), [&](const auto& peer) { return peer.rank == rank_; });
  if (!ascend || !has_own) return {Code::kCorrupt, "workers of the rounds that cannot be"};
  master_ = master;
  latest_ = peers;
  told_ = false;
  lost_ = false;
  rests_ = false;
  std::map<int32_t, Peer> before = std::exchange(peers_, {});
  for (const Peers::Peer& contact : peers.peers) {
    if (contact.rank == rank_) {
      own_origin_ = contact.origin;
      continue;
    }
    const auto same = before.find(contact.rank);
    if (same != before.end() && same->second.contact == contact) {
      Peer& kept = peers_.insert(before.extract(same)).position->second;
      if (kept.link == 0 && kept.retry_ns == kNever && rank_ < contact.rank) Connect(now_ns, &kept);
      continue;
    }
    Peer& peer = peers_[contact.rank];
    peer.contact = contact;
    // One process at another address: what was said of it is not said again.
    const bool has_moved =
        same != before.end() && same->second.contact.instance == contact.instance;
    if (has_moved) peer.tries = same->second.tries;
    if (rank_ < contact.rank) Connect(now_ns, &peer);
  }
  for (const auto& [rank, peer] : before) {
    if (peer.link != 0) links_->Close(now_ns, peer.link, kOthersNamed);
  }
  // A link that does not stand yet leads to the process that makes it, and ends with it.
  std::erase_if(welcomed_, [&](const auto& entry) {
    const auto& [link, rank] = entry;
    if (!before.contains(rank)) return false;
    links_->Close(now_ns, link, kOthersNamed);
    return true;
  });
  return {};
}

void PeerLinks::Rest() {
  rests_ = true;
  for (auto& [rank, peer] : peers_) peer.retry_ns = kNever;
}

void PeerLinks::Connect(int64_t now_ns, Peer* peer) {
  peer->retry_ns = kNever;
  const Address to = FromHere(peer->contact.address, *links_, master_);
  peer->link = links_->Connect(now_ns, to, peer->contact.key,
                               EncodePeerHello({own_origin_, instance_, latest_.version}));
}

void PeerLinks::CloseAll(int64_t now_ns, const std::string& reason) {
  for (const auto& [rank, peer] : std::exchange(peers_, {})) {
    if (peer.link != 0) links_->Close(now_ns, peer.link, reason);
  }
  for (const auto& [link, rank] : std::exchange(welcomed_, {})) {
    links_->Close(now_ns, link, reason);
  }
}

bool PeerLinks::HandleHello(int64_t now_ns, const LinkEvent& event) {
  PeerHello hello;
  if (!ParsePeerHello(*event.payload, &hello).ok()) return false;
  const auto known = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const Peers::Peer& contact = entry.second.contact;
    return contact.origin == hello.origin && contact.instance == hello.instance &&
           contact.rank < rank_;
  });
  if (known == peers_.end()) {
    links_->Refuse(now_ns, event.link, "the master has not named this worker");
    return true;
  }
  welcomed_[event.link] = known->first;
  links_->Accept(now_ns, event.link, EncodeWelcome({own_origin_, latest_.version, 0}));
  return true;
}

bool PeerLinks::HandleUp(int64_t now_ns, LinkId link) {
  if (Peer* const own = Find(link)) {
    own->is_up = own->has_stood = true;
    return true;
  }
  const auto welcomed = welcomed_.extract(link);
  if (welcomed.empty()) return false;
  Peer& peer = peers_.at(welcomed.mapped());  // Handle leaves no link of one that is not named
  if (peer.link != 0) {
    links_->Close(now_ns, peer.link, "this worker has come back over a new link");
    lost_ = true;  // and with it what was under way
  }
  peer.link = link;
  peer.is_up = true;
  return true;
}

bool PeerLinks::HandleDown(int64_t now_ns, const LinkEvent& event) {
  if (welcomed_.erase(event.link) != 0) return true;
  Peer* const peer = Find(event.link);
  if (peer == nullptr) return false;
  if (std::exchange(peer->is_up, false)) lost_ = true;
  peer->link = 0;
  if (rank_ > peer->contact.rank) return true;                           // that one makes it
  if (event.code == Code::kClosed && event.reason.empty()) return true;  // it has left
  const bool may_not_know = event.code == Code::kRefused || event.code == Code::kClosed;
  const int64_t pause_ns =
      may_not_know ? failure_timeout_ns_ / kPeerKnocksPerTimeout : failure_timeout_ns_;
  if (!rests_) peer->retry_ns = now_ns + pause_ns;
  const bool is_out_of_reach =
      event.code == Code::kUnreachable || event.code == Code::kRejectedSecret;
  if (!is_out_of_reach || peer->has_stood || ++peer->tries != kTryOfNotice) return true;
  const std::string reason = event.code == Code::kRejectedSecret ? kRejected : event.reason;
  notices_.push_back(WorkerName(peer->contact.rank) + " cannot be reached from " +
                     WorkerName(rank_) + " (" + reason +
                     "), so the gradients of all go by way of the master; UDP between the workers' "
                     "machines makes steps faster");
  return true;
}

void PeerLinks::HandleTimeout(int64_t now_ns) {
  for (auto& [rank, peer] : peers_) {
    if (now_ns >= peer.retry_ns) Connect(now_ns, &peer);
  }
}

int64_t PeerLinks::NextTimeout() const {
  int64_t next = kNever;
  for (const auto& [rank, peer] : peers_) next = std::min(next, peer.retry_ns);
  return next;
}

PeerLinks::Peer* PeerLinks::Find(LinkId link) {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return link != 0 && entry.second.link == link;
  });
  return found == peers_.end() ? nullptr : &found->second;
}

std::optional<int32_t> PeerLinks::RankOf(LinkId link) const {
  for (const auto& [rank, peer] : peers_) {
    if (peer.is_up && peer.link == link) return rank;
  }
  return std::nullopt;
}

LinkId PeerLinks::LinkTo(int32_t rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() || !found->second.is_up ? 0 : found->second.link;
}

std::vector<int32_t> PeerLinks::ranks() const {
  std::vector<int32_t> ranks;
  for (const Peers::Peer& peer : latest_.peers) ranks.push_back(peer.rank);
  return ranks;
}

bool PeerLinks::AllUp() const {
  return !latest_.peers.empty() &&
         std::all_of(peers_.begin(), peers_.end(), [](const auto& e) { return e.second.is_up; });
}

std::optional<Linked> PeerLinks::PollLinked() {
  // Of a link that was lost and stands again the master hears both, for what was on it is lost.
  const bool lost = std::exchange(lost_, false);
  const bool now = AllUp() && !(lost && told_);
  if (told_ == now) return std::nullopt;
  told_ = now;
  return Linked{latest_.generation, latest_.version, static_cast<uint8_t>(now ? 1 : 0)};
}

std::optional<std::string> PeerLinks::PollNotice() {
  if (notices_.empty()) return std::nullopt;
  std::string notice = std::move(notices_.back());
  notices_.pop_back();
  return notice;
}

}  // namespace strom
