// A worker's links to the other workers of the rounds of gradients (PEERS): each has one to each
// other one, which the lower rank makes. Where a link cannot be made, or is lost, it is tried
// again, and the master is told; rounds are made at the master then.
#ifndef KERAS_STROM_CORE_WORKER_PEER_LINKS_H_
#define KERAS_STROM_CORE_WORKER_PEER_LINKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/replication/control.h"

namespace strom {

class PeerLinks {
 public:
  // `links` outlives this.
  PeerLinks(const Token& instance, int32_t rank, int64_t failure_timeout_ns, LinkLayer* links)
      : instance_(instance), rank_(rank), failure_timeout_ns_(failure_timeout_ns), links_(links) {}

  // Who they are from here on; links to those that stay are kept. `master` is the link to it.
  // kCorrupt where the ranks do not ascend, or this worker's is not among them.
  Status Handle(int64_t now_ns, const Peers& peers, LinkId master);
  // Links that do not stand, or end, are not tried any more until the next PEERS.
  void Rest();
  void CloseAll(int64_t now_ns, const std::string& reason);

  // Events of links that are not the master's. False: none of these links.
  bool HandleHello(int64_t now_ns, const LinkEvent& event);
  bool HandleUp(int64_t now_ns, LinkId link);
  bool HandleDown(int64_t now_ns, const LinkEvent& event);

  void HandleTimeout(int64_t now_ns);
  int64_t NextTimeout() const;

  // Of a link that stands; nullopt: none of these.
  std::optional<int32_t> RankOf(LinkId link) const;
  bool Has(LinkId link) const { return Find(link) != nullptr || welcomed_.contains(link); }
  // 0: it does not stand.
  LinkId LinkTo(int32_t rank) const;
  // All of the rounds, ascending, this worker among them.
  std::vector<int32_t> ranks() const;

  // What the master is to be told, when it has changed or after TellAgain.
  std::optional<Linked> PollLinked();
  void TellAgain() { told_ = false; }
  // For the user, once for each peer that cannot be reached.
  std::optional<std::string> PollNotice();

 private:
  struct Peer {
    Peers::Peer contact;
    LinkId link = 0;
    bool is_up = false;
    bool has_stood = false;
    int tries = 0;  // that have ended without an answer
    int64_t retry_ns = kNever;
  };

  void Connect(int64_t now_ns, Peer* peer);
  Peer* Find(LinkId link);
  const Peer* Find(LinkId link) const { return const_cast<PeerLinks*>(this)->Find(link); }
  bool AllUp() const;

  const Token instance_;
  const int32_t rank_;
  const int64_t failure_timeout_ns_;
  LinkLayer* const links_;
  LinkId master_ = 0;
  Peers latest_;
  uint64_t own_origin_ = 0;
  std::map<int32_t, Peer> peers_;       // the others, by rank
  std::map<LinkId, int32_t> welcomed_;  // links that do not stand yet, of ranks in peers_
  bool told_ = false;                   // that the links of the latest PEERS stand
  bool lost_ = false;                   // a link that stood, since told_
  bool rests_ = false;
  std::vector<std::string> notices_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_WORKER_PEER_LINKS_H_
