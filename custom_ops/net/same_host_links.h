// Links between processes of one host go through shared memory; all others, and the beginning of
// every link, through the endpoint below. For the node above it is one LinkLayer.
//
// Every connection starts as an authenticated one over UDP, and its handshake, probes, failure
// timeout and goodbye stay there. Once it stands, the side that was joined offers the name of a
// Unix socket and a nonce over it; the other connects there and passes the nonce with a sealed
// memory file. Both then say SWITCH as their last message on each ordered channel over UDP and go
// on in the rings, which nobody reads before the peer's SWITCHes have come: so control and state
// stay in order, nothing is lost and nothing comes twice. Where the socket cannot be reached or
// watched, or one side does not want it, or has no descriptor left, the link stays as it is.
//
// The I/O thread alone calls this.
#ifndef KERAS_STROM_NET_SAME_HOST_LINKS_H_
#define KERAS_STROM_NET_SAME_HOST_LINKS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/link_layer.h"
#include "core/base/random_source.h"
#include "core/transport/counters.h"
#include "net/same_host_link.h"
#include "net/same_host_socket.h"

namespace strom {

struct SameHostOptions {
  bool enabled = true;
  // Each way of each link, a power of two; this memory is taken when the link moves there. The side
  // that joins decides. A message may be longer.
  size_t ring_bytes = size_t{1} << 20;
};

class SameHostLinks final : public LinkLayer {
 public:
  // Both outlive this.
  SameHostLinks(LinkLayer* below, RandomSource* random, const SameHostOptions& options);
  ~SameHostLinks() override;

  // --- the loop's side
  // Takes what the endpoint below has raised; what is for the node comes out of PollEvent.
  void HandleEvent(int64_t now_ns, LinkEvent event);
  std::optional<LinkEvent> PollEvent();
  // Reads the rings. What follows from a hang-up waits until the socket below has been read: a
  // goodbye may be there.
  void Receive(int64_t now_ns, bool below_is_read);
  // Writes the rings and wakes who waits for it.
  void Transmit();
  // Readable when somebody wants something; -1 = nothing to wait for.
  int descriptor() const { return readiness_.get(); }
  // Before blocking. False: there is work already.
  bool PrepareToSleep();
  // After blocking; `readable` says whether descriptor() is.
  void Awake(int64_t now_ns, bool readable);
  // For the child of a fork: lets go of memory and sockets without a word in them.
  void Forget();

  // --- the relay's side
  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override;
  void Accept(int64_t now_ns, LinkId link, Buffer welcome) override;
  void Refuse(int64_t now_ns, LinkId link, const std::string& reason) override;
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override;
  int64_t QueuedBytes(LinkId link) const override;
  std::optional<Address> PeerAddress(LinkId link) const override {
    return below_->PeerAddress(link);
  }
  void Void(int64_t now_ns, LinkId link, Channel channel) override;
  void HoldBack(int64_t now_ns, LinkId link, bool hold) override;
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override;

  // Whether what this side sends goes through shared memory.
  bool IsShared(LinkId link) const;
  // What has gone through the rings, of all links so far or of one.
  LinkCounters counters() const;
  LinkCounters counters(LinkId link) const;
  int64_t shared_links() const;

 private:
  enum class Watch : uint64_t { kListener, kStranger, kBell, kProcess };  // what a descriptor is
  static constexpr uint64_t kWatches = 4;
  struct Offer;   // what the joined side says over the link
  struct Switch;  // the last message of an ordered channel over UDP
  struct Peer;    // one link

  // How a link becomes shared, in this order: the joined side offers, the joining one proposes
  // memory, the joined one takes it, both switch.
  void SendOffer(int64_t now_ns, LinkId link, Peer* peer);
  void HandleOwn(int64_t now_ns, LinkId link, Peer* peer, Channel channel, Bytes message);
  void Propose(LinkId link, Peer* peer, const Offer& offer);
  void AcceptStrangers();
  void StopListeningUnlessIdle(int error);
  void HandleStranger(int64_t now_ns, int descriptor);
  bool Take(int64_t now_ns, const SharedMemoryOffer& offer, Descriptor file, Descriptor* socket);
  bool WatchPeer(LinkId link, Peer* peer, Descriptor socket);
  void Share(Peer* peer, SharedMemory memory);
  void StartSending(int64_t now_ns, LinkId link, Peer* peer);
  void SendSwitch(int64_t now_ns, LinkId link, const Peer& peer, Channel channel);

  void ReceiveFrom(LinkId link, Peer* peer, int64_t most_bytes);
  void HangUp(Peer* peer);
  void End(int64_t now_ns, LinkId link, Peer* peer, Code code, const std::string& reason);
  void LeaveRings(Peer* peer);
  void Unshare(Peer* peer);

  Peer* Find(LinkId link) const;
  bool OpenListener();
  // False where the kernel does not watch it: it bounds how much one user has watched.
  bool StartWatching(Watch what, uint64_t id, const Descriptor& descriptor);
  void StopWatching(Descriptor* descriptor);

  LinkLayer* const below_;
  RandomSource* const random_;
  const SameHostOptions options_;
  const Token boot_id_;
  Token name_{};
  Descriptor readiness_;              // an epoll of the other descriptors here
  Descriptor listener_;               // opened for an offer
  std::deque<Descriptor> strangers_;  // connected, and silent so far
  std::map<LinkId, std::unique_ptr<Peer>> peers_;
  std::deque<LinkEvent> events_;
  LinkCounters gone_;  // of links that are no more
};

}  // namespace strom

#endif  // KERAS_STROM_NET_SAME_HOST_LINKS_H_
