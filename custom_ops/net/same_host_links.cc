#include "net/same_host_links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/base/archive.h"

namespace strom {
namespace {

// The first byte of what the two ends of a link say to each other on its ordered channels; no
// message of a node begins with it.
constexpr uint8_t kOwnMessage = 255;
constexpr size_t kMaxStrangers = 64;
constexpr std::array<Channel, 2> kOrderedChannels = {Channel::kControl, Channel::kState};
// What one link moves before the others and the socket get their turn.
constexpr int64_t kTurnBytes = int64_t{1} << 20;

enum class OwnType : uint8_t { kOffer = 1, kSwitch = 2 };

bool IsOrdered(Channel channel) { return channel != Channel::kUpdate; }
constexpr unsigned Bit(Channel channel) { return 1u << static_cast<unsigned>(channel); }
constexpr unsigned kBothSwitched = Bit(Channel::kControl) | Bit(Channel::kState);

template <typename Message>
Buffer Encode(OwnType type, Message message) {
  FieldWriter writer;
  writer(kOwnMessage, static_cast<uint8_t>(type));
  message.Fields(writer);
  return MakeBuffer(writer.Take());
}

template <typename Message>
std::optional<Message> Parse(Bytes body) {
  Message message;
  FieldReader reader(body);
  message.Fields(reader);
  if (!reader.ok() || !reader.left().empty()) return std::nullopt;
  return message;
}

}  // namespace

struct SameHostLinks::Offer {
  Token boot_id{};
  Token name{};
  Token nonce{};
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(boot_id, name, nonce);
  }
};

struct SameHostLinks::Switch {
  Token nonce{};
  template <typename Archive>
  void Fields(Archive& archive) {
    archive(nonce);
  }
};

struct SameHostLinks::Peer {
  bool was_joined = false;  // by the peer: this side offers
  bool offered = false;
  Token nonce{};
  Descriptor socket;
  Descriptor process;
  std::optional<SharedMemory> memory;
  std::unique_ptr<SameHostLink> rings;  // over `memory`
  bool sends = false;                   // through the rings
  unsigned switched = 0;                // ordered channels on which the peer has said SWITCH
  bool held = false;
  bool hung_up = false;
  bool over = false;  // the node was told so, or has said so: only the goodbye below is left

  bool reads() const { return rings != nullptr && switched == kBothSwitched; }
};

SameHostLinks::SameHostLinks(LinkLayer* below, RandomSource* random, const SameHostOptions& options)
    : below_(below), random_(random), options_(options), boot_id_(BootId()) {
  if (options.enabled) readiness_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
}

SameHostLinks::~SameHostLinks() = default;

void SameHostLinks::Forget() {
  peers_.clear();
  strangers_.clear();
  listener_.Close();
  readiness_.Close();
  events_.clear();
}

// ---------------------------------------------------------------- the loop's side

void SameHostLinks::HandleEvent(int64_t now_ns, LinkEvent event) {
  const LinkId link = event.link;
  Peer* peer = Find(link);
  if (event.type == LinkEvent::Type::kUp) {
    if (peer == nullptr) peer = (peers_[link] = std::make_unique<Peer>()).get();
    events_.push_back(std::move(event));
    if (peer->was_joined) SendOffer(now_ns, link, peer);
    return;
  }
  if (peer != nullptr && peer->over) return;
  if (event.type == LinkEvent::Type::kMessage && IsOrdered(event.channel) &&
      event.payload->front() == kOwnMessage) {
    if (peer != nullptr) HandleOwn(now_ns, link, peer, event.channel, *event.payload);
    return;
  }
  if (event.type == LinkEvent::Type::kDown && peer != nullptr) {
    // What the peer had put into the ring came before its goodbye.
    if (peer->reads()) ReceiveFrom(link, peer, peer->memory->ring_bytes());
    Unshare(peer);
    peers_.erase(link);
  }
  events_.push_back(std::move(event));
}

std::optional<LinkEvent> SameHostLinks::PollEvent() {
  if (events_.empty()) return std::nullopt;
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void SameHostLinks::Receive(int64_t now_ns, bool below_is_read) {
  for (auto next = peers_.begin(); next != peers_.end();) {
    const LinkId link = next->first;
    Peer* peer = next->second.get();
    if (peer->over && !below_->PeerAddress(link)) {  // the goodbye is said
      Unshare(peer);
      next = peers_.erase(next);
      continue;
    }
    ++next;
    if (peer->reads() && !peer->held && !peer->over) ReceiveFrom(link, peer, kTurnBytes);
    if (!below_is_read) continue;
    if (peer->hung_up && peer->sends) {
      End(now_ns, link, peer, Code::kMasterLost, "the process on this host has ended");
    } else if (peer->hung_up) {
      Unshare(peer);  // it could not take the memory; the link stays as it is
    } else if (peer->rings != nullptr && peer->rings->broken()) {
      End(now_ns, link, peer, Code::kCorrupt, "the peer broke the rules of the shared memory");
    }
  }
}

void SameHostLinks::Transmit() {
  for (const auto& [link, peer] : peers_) {
    if (peer->sends && peer->rings->Transmit(kTurnBytes)) RingBell(peer->socket);
  }
}

bool SameHostLinks::PrepareToSleep() {
  bool idle = events_.empty();
  for (const auto& [link, peer] : peers_) {
    if (peer->rings == nullptr) continue;
    if (!peer->rings->PrepareToSleep(peer->reads() && !peer->held) || peer->rings->broken() ||
        peer->hung_up) {
      idle = false;
    }
  }
  return idle;
}

void SameHostLinks::Awake(int64_t now_ns, bool readable) {
  for (const auto& [link, peer] : peers_) {
    if (peer->rings != nullptr) peer->rings->Awake();
  }
  if (!readable) return;
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(readiness_.get(), ready.data(), ready.size(), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t id = ready[i].data.u64 / kWatches;
    Peer* peer = Find(static_cast<LinkId>(id));
    switch (static_cast<Watch>(ready[i].data.u64 % kWatches)) {
      case Watch::kListener:
        AcceptStrangers();
        break;
      case Watch::kStranger:
        HandleStranger(now_ns, static_cast<int>(id));
        break;
      case Watch::kBell:
        if (peer != nullptr && !AnswerBell(peer->socket)) HangUp(peer);
        break;
      case Watch::kProcess:
        if (peer != nullptr) HangUp(peer);
        break;
    }
  }
}

// The rings are read once more, and the socket below, before anything follows from it: what the
// peer had said before it ended counts.
void SameHostLinks::HangUp(Peer* peer) {
  peer->hung_up = true;
  StopWatching(&peer->socket);
  StopWatching(&peer->process);
}

void SameHostLinks::ReceiveFrom(LinkId link, Peer* peer, int64_t most_bytes) {
  const bool wake = peer->rings->Receive(most_bytes, [this, link](Channel channel, Buffer message) {
    LinkEvent event;
    event.type = LinkEvent::Type::kMessage;
    event.link = link;
    event.channel = channel;
    event.payload = std::move(message);
    events_.push_back(std::move(event));
  });
  if (wake) RingBell(peer->socket);
}

void SameHostLinks::End(int64_t now_ns, LinkId link, Peer* peer, Code code,
                        const std::string& reason) {
  if (peer->reads()) ReceiveFrom(link, peer, peer->memory->ring_bytes());
  LinkEvent event;
  event.type = LinkEvent::Type::kDown;
  event.link = link;
  event.code = code;
  event.reason = reason;
  events_.push_back(std::move(event));
  Close(now_ns, link, reason);
}

// ---------------------------------------------------------------- the relay's side

LinkId SameHostLinks::Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                              Buffer hello) {
  return below_->Connect(now_ns, to, key, std::move(hello));
}

void SameHostLinks::Accept(int64_t now_ns, LinkId link, Buffer welcome) {
  below_->Accept(now_ns, link, std::move(welcome));
  if (!below_->PeerAddress(link)) return;
  auto& peer = peers_[link];
  if (peer == nullptr) peer = std::make_unique<Peer>();
  peer->was_joined = true;
}

void SameHostLinks::Refuse(int64_t now_ns, LinkId link, const std::string& reason) {
  below_->Refuse(now_ns, link, reason);
}

bool SameHostLinks::Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) {
  Peer* peer = Find(link);
  if (peer == nullptr || !peer->sends) {
    return below_->Send(now_ns, link, channel, std::move(message));
  }
  STROM_CHECK(!message->empty() && message->size() <= static_cast<size_t>(kMaxMessageBytes));
  peer->rings->Queue(channel, std::move(message));
  return true;
}

int64_t SameHostLinks::QueuedBytes(LinkId link) const {
  const Peer* peer = Find(link);
  return below_->QueuedBytes(link) +
         (peer == nullptr || !peer->sends ? 0 : peer->rings->queued_bytes());
}

void SameHostLinks::Void(int64_t now_ns, LinkId link, Channel channel) {
  const bool loses_own = below_->QueuedBytes(link) > 0;
  below_->Void(now_ns, link, channel);
  Peer* peer = Find(link);
  if (peer == nullptr) return;
  // What was given up may hold what the two ends say to each other; to hear it twice does no harm.
  if (loses_own && peer->sends && IsOrdered(channel)) {
    SendSwitch(now_ns, link, *peer, channel);
  } else if (loses_own && peer->offered && channel == Channel::kControl) {
    SendOffer(now_ns, link, peer);
  }
  if (peer->sends) peer->rings->Void(channel);
}

void SameHostLinks::HoldBack(int64_t now_ns, LinkId link, bool hold) {
  below_->HoldBack(now_ns, link, hold);
  Peer* peer = Find(link);
  if (peer != nullptr) peer->held = hold;
}

void SameHostLinks::Close(int64_t now_ns, LinkId link, const std::string& reason) {
  below_->Close(now_ns, link, reason);
  Peer* peer = Find(link);
  if (peer == nullptr) return;
  // The socket stays until the goodbye is said: its hang-up alone would look like a crash.
  peer->over = true;
  LeaveRings(peer);
}

// ---------------------------------------------------------------- becoming shared

void SameHostLinks::SendOffer(int64_t now_ns, LinkId link, Peer* peer) {
  if (!options_.enabled || !OpenListener()) return;
  if (!std::exchange(peer->offered, true)) random_->Fill(peer->nonce);
  below_->Send(now_ns, link, Channel::kControl,
               Encode(OwnType::kOffer, Offer{boot_id_, name_, peer->nonce}));
}

void SameHostLinks::HandleOwn(int64_t now_ns, LinkId link, Peer* peer, Channel channel,
                              Bytes message) {
  if (!options_.enabled || message.size() < 2) return;
  const auto type = static_cast<OwnType>(message[1]);
  const Bytes body = message.subspan(2);
  if (type == OwnType::kOffer && !peer->was_joined && peer->rings == nullptr) {
    const auto offer = Parse<Offer>(body);
    if (offer && offer->boot_id == boot_id_) Propose(link, peer, *offer);
  } else if (type == OwnType::kSwitch && peer->rings != nullptr) {
    const auto said = Parse<Switch>(body);
    if (!said || said->nonce != peer->nonce) return;
    peer->switched |= Bit(channel);
    if (!peer->sends) StartSending(now_ns, link, peer);
  }
}

// Another network namespace, another user or no memory: the link stays as it is. Who has been given
// the memory goes on there, so everything that may fail comes before.
void SameHostLinks::Propose(LinkId link, Peer* peer, const Offer& offer) {
  Descriptor socket = ConnectOnHost(offer.name);
  if (!socket.valid() || !IsOurUser(socket)) return;
  auto memory = SharedMemory::Create(options_.ring_bytes);
  if (!memory || !WatchPeer(link, peer, std::move(socket))) return;
  if (!SendMemory(peer->socket, {.ring_bytes = options_.ring_bytes, .nonce = offer.nonce},
                  memory->file())) {
    return Unshare(peer);
  }
  peer->nonce = offer.nonce;
  peer->rings = std::make_unique<SameHostLink>(memory->from_maker(), memory->to_maker());
  Share(peer, std::move(*memory));
}

void SameHostLinks::AcceptStrangers() {
  for (int turn = 0; turn < static_cast<int>(kMaxStrangers); ++turn) {
    Descriptor stranger = AcceptOnHost(listener_);
    if (!stranger.valid()) return StopListeningUnlessIdle(errno);
    if (!IsOurUser(stranger)) continue;
    if (strangers_.size() == kMaxStrangers) {
      StopWatching(&strangers_.front());
      strangers_.pop_front();
    }
    const auto id = static_cast<uint64_t>(stranger.get());
    if (!StartWatching(Watch::kStranger, id, stranger)) continue;
    strangers_.push_back(std::move(stranger));
  }
}

// Who waits at the listener would make it readable for as long as there is no descriptor for them.
// Closed, it hangs up on them, and their links stay as they are. The next link's offer opens
// another.
void SameHostLinks::StopListeningUnlessIdle(int error) {
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
  StopWatching(&listener_);
}

void SameHostLinks::HandleStranger(int64_t now_ns, int descriptor) {
  const auto found = std::find_if(strangers_.begin(), strangers_.end(),
                                  [&](const Descriptor& s) { return s.get() == descriptor; });
  if (found == strangers_.end()) return;
  auto proposal = ReceiveMemory(*found);
  if (!proposal || !Take(now_ns, proposal->first, std::move(proposal->second), &*found)) {
    StopWatching(&*found);
  }
  strangers_.erase(found);
}

// True: the proposal was for one of our links, which has the socket now.
bool SameHostLinks::Take(int64_t now_ns, const SharedMemoryOffer& offer, Descriptor file,
                         Descriptor* socket) {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.offered && peer.rings == nullptr && !peer.over && peer.nonce == offer.nonce;
  });
  if (found == peers_.end()) return false;
  auto memory = SharedMemory::Map(std::move(file), offer.ring_bytes);
  const auto& [link, peer] = *found;
  if (!memory || !WatchPeer(link, peer.get(), std::move(*socket))) return false;
  peer->rings = std::make_unique<SameHostLink>(memory->to_maker(), memory->from_maker());
  Share(peer.get(), std::move(*memory));
  StartSending(now_ns, link, peer.get());
  return true;
}

// False: the link would not hear its bell, or not of the other process's end; the socket is closed.
bool SameHostLinks::WatchPeer(LinkId link, Peer* peer, Descriptor socket) {
  peer->socket = std::move(socket);
  peer->process = WatchPeerProcess(peer->socket);
  if (StartWatching(Watch::kBell, link, peer->socket) &&
      (!peer->process.valid() || StartWatching(Watch::kProcess, link, peer->process))) {
    return true;
  }
  Unshare(peer);
  return false;
}

void SameHostLinks::Share(Peer* peer, SharedMemory memory) {
  memory.CloseFile();
  peer->memory.emplace(std::move(memory));
}

// From here on everything goes through the rings.
void SameHostLinks::StartSending(int64_t now_ns, LinkId link, Peer* peer) {
  peer->sends = true;
  for (const Channel channel : kOrderedChannels) SendSwitch(now_ns, link, *peer, channel);
}

void SameHostLinks::SendSwitch(int64_t now_ns, LinkId link, const Peer& peer, Channel channel) {
  below_->Send(now_ns, link, channel, Encode(OwnType::kSwitch, Switch{peer.nonce}));
}

void SameHostLinks::LeaveRings(Peer* peer) {
  if (peer->rings != nullptr) gone_ += peer->rings->counters();
  peer->sends = false;
  peer->rings.reset();
  peer->memory.reset();
}

void SameHostLinks::Unshare(Peer* peer) {
  LeaveRings(peer);
  StopWatching(&peer->socket);
  StopWatching(&peer->process);
  peer->hung_up = false;
}

// ---------------------------------------------------------------- descriptors

bool SameHostLinks::OpenListener() {
  if (listener_.valid()) return true;
  random_->Fill(name_);
  listener_ = ListenOnHost(name_);
  if (!StartWatching(Watch::kListener, 0, listener_)) listener_.Close();
  return listener_.valid();
}

bool SameHostLinks::StartWatching(Watch what, uint64_t id, const Descriptor& descriptor) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = id * kWatches + static_cast<uint64_t>(what);
  const bool known =
      epoll_ctl(readiness_.get(), EPOLL_CTL_MOD, descriptor.get(), &event) == 0;  // a stranger
  return known || epoll_ctl(readiness_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0;
}

// Closing alone would not end the watch where a forked child has the descriptor too.
void SameHostLinks::StopWatching(Descriptor* descriptor) {
  if (!descriptor->valid()) return;
  epoll_ctl(readiness_.get(), EPOLL_CTL_DEL, descriptor->get(), nullptr);
  descriptor->Close();
}

// ---------------------------------------------------------------- what is known

bool SameHostLinks::IsShared(LinkId link) const {
  const Peer* peer = Find(link);
  return peer != nullptr && peer->sends;
}

LinkCounters SameHostLinks::counters(LinkId link) const {
  const Peer* peer = Find(link);
  return peer == nullptr || peer->rings == nullptr ? LinkCounters{} : peer->rings->counters();
}

LinkCounters SameHostLinks::counters() const {
  LinkCounters sum = gone_;
  for (const auto& [link, peer] : peers_) sum += counters(link);
  return sum;
}

int64_t SameHostLinks::shared_links() const {
  return std::count_if(peers_.begin(), peers_.end(),
                       [](const auto& entry) { return entry.second->sends; });
}

SameHostLinks::Peer* SameHostLinks::Find(LinkId link) const {
  const auto found = peers_.find(link);
  return found == peers_.end() ? nullptr : found->second.get();
}

}  // namespace strom
