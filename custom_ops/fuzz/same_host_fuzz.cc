// Links within one machine against a process that holds the shared memory and keeps no rule. It
// writes anything into the rings at any moment: positions, headers, contents, wishes to be woken.
// It offers, proposes and switches what and when it likes, rings the bell and hangs up. This side
// must neither crash nor read or write outside of the rings, must go to sleep once the peer is
// quiet, and keeps the order of a link's events.
//
// The first byte says what is under test. Either it is one SameHostLink over rings of plain memory,
// of which a sanitizer sees the ends; there the peer also writes between two messages of one call.
// Or it is SameHostLinks with the kernel's sockets and memory files over links that the input
// drives.
//
// The input is read as a list of steps, each a byte that says what happens and the numbers that it
// needs. Positions and fields are mostly near what the rings hold.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/fuzz_input.h"
#include "net/same_host_links.h"

namespace strom {
namespace {

constexpr int kMostSteps = 500;
constexpr int kMostTurns = 64;  // until there is nothing left to do
constexpr int64_t kTurnBytes = int64_t{64} << 10;

class Input : public FuzzInput {
 public:
  using FuzzInput::FuzzInput;
  size_t Below(size_t end) { return Take() % end; }
  Channel AnyChannel() { return static_cast<Channel>(Below(kChannels)); }
  Buffer Message() {
    const size_t bytes = Below(32) == 0 ? size_t{1} << Below(20) : 1 + Take<uint16_t>() % 5000;
    return MakeBuffer(std::vector<uint8_t>(bytes, 1));
  }
};

// The other end of two rings, which follows no rule in what it stores there.
class RingVandal {
 public:
  RingVandal(const Ring& to_victim, const Ring& from_victim)
      : out_(to_victim), in_(from_victim), wrote_(out_.bytes.size()) {
    std::copy(out_.bytes.begin(), out_.bytes.end(), wrote_.begin());
  }

  void Step(Input* input) {
    switch (input->Below(8)) {
      case 0:
      case 1:
      case 2:
        return WriteFrame(input);
      case 3:
        out_.positions->written = written_ = Position(input, written_);
        return;
      case 4:
        in_.positions->read = read_ = Position(input, in_.positions->written);
        return;
      case 5:
        in_.positions->read = read_ = in_.positions->written;  // it has taken everything
        return;
      case 6:
        out_.positions->writer_waits = input->Take<uint32_t>();
        in_.positions->reader_sleeps = input->Take<uint32_t>();
        return;
      default:
        return WriteAnywhere(input);
    }
  }

  // The victim has written nothing that is the vandal's alone.
  void CheckUntouched() const {
    STROM_CHECK(std::equal(wrote_.begin(), wrote_.end(), out_.bytes.begin()));
    STROM_CHECK(out_.positions->written == written_ && in_.positions->read == read_);
  }

 private:
  // Mostly a multiple of what frames begin at, and not further away than a ring.
  uint64_t Position(Input* input, uint64_t base) {
    const size_t kind = input->Below(16);
    if (kind == 0) return input->Take<uint64_t>();
    if (kind == 1) return base + input->Take();
    if (kind == 2) return base - 16 * input->Take<uint16_t>();
    return base + 16 * input->Take<uint16_t>() % (out_.bytes.size() + 32);
  }

  void WriteFrame(Input* input) {
    RingFrame frame;
    const size_t bent = input->Below(16);
    frame.bytes = bent == 1   ? input->Take<uint32_t>()
                  : bent == 2 ? static_cast<uint32_t>(out_.bytes.size() / 4 + input->Take() - 128)
                              : input->Take<uint16_t>() % (out_.bytes.size() / 4 + 1);
    frame.message_bytes = bent == 3   ? input->Take<uint32_t>()
                          : bent == 4 ? static_cast<uint32_t>(kMaxMessageBytes) - 2 + input->Take()
                          : bent < 10 ? frame.bytes
                                      : message_bytes_;
    frame.channel = static_cast<Channel>(bent == 5 ? input->Take() : input->Below(kChannels));
    frame.kind = static_cast<RingFrame::Kind>(bent == 6 ? input->Take() : input->Below(3));
    if (frame.kind == RingFrame::Kind::kFirst && bent >= 10) {
      frame.message_bytes = message_bytes_ = 1 + input->Take<uint16_t>();
    }
    const size_t mask = out_.bytes.size() - 1;
    for (size_t i = 0; i < sizeof(frame); ++i) {
      Put((written_ + i) & mask, reinterpret_cast<const uint8_t*>(&frame)[i]);
    }
    const uint64_t payload = bent == 7 ? input->Take<uint16_t>() : (frame.bytes + 15) / 16 * 16;
    out_.positions->written = written_ += sizeof(frame) + payload;
  }

  void WriteAnywhere(Input* input) {
    const size_t at = input->Take<uint16_t>();
    for (size_t i = input->Below(64); i > 0; --i) {
      Put((at + i) & (out_.bytes.size() - 1), input->Take());
      in_.bytes[(at + i) & (in_.bytes.size() - 1)] = input->Take();
    }
  }

  void Put(size_t at, uint8_t value) { out_.bytes[at] = wrote_[at] = value; }

  const Ring out_, in_;
  std::vector<uint8_t> wrote_;
  uint64_t written_ = 0, read_ = 0;
  uint32_t message_bytes_ = 1;
};

// ---------------------------------------------------------------- one link, plain memory

class PlainRing {
 public:
  explicit PlainRing(size_t bytes) : bytes_(bytes) {}
  Ring ring() { return {&positions_, bytes_}; }

 private:
  RingPositions positions_;
  std::vector<uint8_t> bytes_;
};

void RunOneLink(Input* input) {
  const size_t bytes = kLeastRingBytes << input->Below(3);
  PlainRing out(bytes), in(bytes);
  SameHostLink link(out.ring(), in.ring());
  RingVandal peer(in.ring(), out.ring());
  const auto deliver = [&](Channel channel, const Buffer& message) {
    STROM_CHECK(static_cast<int>(channel) < kChannels);
    STROM_CHECK(!message->empty() && std::ssize(*message) <= kMaxMessageBytes);
    if (!input->empty() && input->Below(4) == 0) peer.Step(input);
  };
  for (int step = 0; step < kMostSteps && !input->empty() && !link.broken(); ++step) {
    switch (input->Below(8)) {
      case 0:
        link.Queue(input->AnyChannel(), input->Message());
        break;
      case 1:
        link.Void(input->AnyChannel());
        break;
      case 2:
        link.Transmit(kTurnBytes);
        break;
      case 3:
        link.Receive(kTurnBytes, deliver);
        break;
      case 4:
        link.PrepareToSleep(input->Below(2) == 0);
        link.Awake();
        break;
      default:
        peer.Step(input);
    }
    peer.CheckUntouched();
    STROM_CHECK(link.queued_bytes() >= 0);
  }
  for (int turn = 0; !link.broken() && !link.PrepareToSleep(true); ++turn) {
    STROM_CHECK(turn < kMostTurns);
    link.Awake();
    link.Receive(int64_t{4} << 20, deliver);
    link.Transmit(int64_t{4} << 20);
  }
}

// ---------------------------------------------------------------- links of a process

class Counting final : public RandomSource {
 public:
  void Fill(std::span<uint8_t> out) override {
    // Unlike those of other processes that run this: names of sockets are made of it.
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<uint8_t>(getpid() >> (8 * (i % 4)));
    out.front() = ++next_;
  }

 private:
  uint8_t next_ = 0;
};

// The links below, which go nowhere; what is said to the other end stays here for the peer.
class Below final : public LinkLayer {
 public:
  LinkId Connect(int64_t, const Address&, const PublicKeyBytes&, Buffer) override { return 0; }
  void Accept(int64_t, LinkId, Buffer) override {}
  void Refuse(int64_t, LinkId, const std::string&) override {}
  bool Send(int64_t, LinkId link, Channel, Buffer message) override {
    STROM_CHECK(!message->empty());
    said[link] = message;
    return there.contains(link);
  }
  int64_t QueuedBytes(LinkId) const override { return queued; }
  std::optional<Address> PeerAddress(LinkId link) const override {
    return there.contains(link) ? std::optional(Address{}) : std::nullopt;
  }
  void Void(int64_t, LinkId, Channel) override {}
  void HoldBack(int64_t, LinkId, bool) override {}
  void Close(int64_t, LinkId link, const std::string&) override { closing.insert(link); }

  std::map<LinkId, Buffer> said;  // the last message of each link
  std::set<LinkId> there, closing;
  int64_t queued = 0;
};

class Process {
 public:
  explicit Process(Input* input)
      : input_(*input), links_(&below_, &random_, {.ring_bytes = kLeastRingBytes}) {
    random_.Fill(name_);
    name_.back() = 77;
    listener_ = ListenOnHost(name_);
    Join(true);
    Join(false);
  }

  void Run() {
    for (int step = 0; step < kMostSteps && !input_.empty(); ++step) {
      const size_t what = input_.Take();
      Step(what % 16, Choose(what / 16));
      if (what >= 128) Turn();
    }
    // A peer that is held back, or says no more, is nobody's work.
    int turn = 0;
    while (Turn()) STROM_CHECK(++turn < kMostTurns);
  }

 private:
  struct Peer {
    LinkId link = 0;
    bool joined = false;  // the victim's side was joined by it
    bool over = false;
    Descriptor socket;
    std::optional<SharedMemory> memory;
    std::optional<RingVandal> rings;
  };

  Peer* Choose(size_t which) { return &peers_[which % peers_.size()]; }

  void Join(bool joined) {
    const LinkId link = next_++;
    below_.there.insert(link);
    if (joined) links_.Accept(now_ns_, link, MakeBuffer({1}));
    Peer& peer = peers_.emplace_back();
    peer.link = link;
    peer.joined = joined;
    Give(link, LinkEvent::Type::kUp, Channel::kControl, MakeBuffer({}));
  }

  void Step(size_t what, Peer* peer) {
    switch (what) {
      case 0:
        return Say(peer, SomeOffer());
      case 1:
        return Say(peer, SomeSwitch(peer));
      case 2:
        return Say(peer, Anything());
      case 3:
        return peer->joined ? Propose(peer) : Answer(peer);
      case 4:
      case 5:
      case 6:
      case 7:
        if (peer->rings) peer->rings->Step(&input_);
        return;
      case 8:
        for (size_t i = input_.Below(8); i > 0; --i) RingBell(peer->socket);
        return;
      case 9:
        peer->socket.Close();
        return;
      case 10:
        (void)links_.Send(now_ns_, peer->link, input_.AnyChannel(), input_.Message());
        return;
      case 11:
        below_.queued = static_cast<int64_t>(input_.Below(2));
        return links_.Void(now_ns_, peer->link, input_.AnyChannel());
      case 12:
        return links_.HoldBack(now_ns_, peer->link, input_.Below(2) == 0);
      case 13:
        return End(peer);
      case 14:
        if (next_ < 16) Join(input_.Below(2) == 0);
        return;
      default:
        (void)Turn();
    }
  }

  // --- what the peer says over the authenticated link

  std::vector<uint8_t> SomeOffer() {
    std::vector<uint8_t> text = {255, 1};
    Append(BootId(), &text);
    Append(name_, &text);
    Append(Token{}, &text);
    return Bent(std::move(text));
  }

  std::vector<uint8_t> SomeSwitch(Peer* peer) {
    std::vector<uint8_t> text = {255, 2};
    Append(peer->joined ? Nonce(peer->link) : Token{}, &text);
    return Bent(std::move(text));
  }

  std::vector<uint8_t> Anything() {
    std::vector<uint8_t> text = {255};
    for (size_t i = input_.Below(64); i > 0; --i) text.push_back(input_.Take());
    return text;
  }

  static void Append(const Token& token, std::vector<uint8_t>* text) {
    text->insert(text->end(), token.begin(), token.end());
  }

  // Mostly as it is.
  std::vector<uint8_t> Bent(std::vector<uint8_t> text) {
    const size_t kind = input_.Below(8);
    if (kind == 0) text[input_.Take() % text.size()] ^= input_.Take();
    if (kind == 1) text.resize(1 + input_.Below(80));
    return text;
  }

  // The nonce is at the end of what the victim says, in OFFER and SWITCH alike.
  Token Nonce(LinkId link) const {
    Token nonce{};
    const auto found = below_.said.find(link);
    if (found != below_.said.end() && found->second->size() >= nonce.size()) {
      std::copy(found->second->end() - nonce.size(), found->second->end(), nonce.begin());
    }
    return nonce;
  }

  void Say(Peer* peer, std::vector<uint8_t> text) {
    if (peer->over) return;
    Give(peer->link, LinkEvent::Type::kMessage, input_.AnyChannel(), MakeBuffer(std::move(text)));
  }

  void Give(LinkId link, LinkEvent::Type type, Channel channel, Buffer payload) {
    LinkEvent event;
    event.type = type;
    event.link = link;
    event.channel = channel;
    event.payload = std::move(payload);
    links_.HandleEvent(now_ns_, std::move(event));
  }

  // --- what it does beside that

  // It was offered a socket, and comes there with memory, or what it takes for memory.
  void Propose(Peer* peer) {
    const auto found = below_.said.find(peer->link);
    if (found == below_.said.end() || found->second->size() != 50 || (*found->second)[1] != 1)
      return;
    Token name;
    std::copy_n(found->second->begin() + 18, name.size(), name.begin());
    peer->socket = ConnectOnHost(name);
    if (!peer->socket.valid()) return;
    const size_t bent = input_.Below(16);
    auto memory = SharedMemory::Create(kLeastRingBytes << input_.Below(3));
    if (!memory) return;
    SharedMemoryOffer offer{.ring_bytes = static_cast<uint64_t>(memory->ring_bytes()),
                            .nonce = Nonce(peer->link)};
    if (bent == 0) offer.ring_bytes = input_.Take<uint64_t>();
    if (bent == 1) offer.ring_bytes = uint64_t{1} << input_.Below(64);
    if (bent == 2) offer.version = input_.Take<uint64_t>();
    if (bent == 3) offer.nonce[input_.Below(16)] ^= 1;
    if (bent == 4) return SendText(peer->socket, &offer, input_.Below(sizeof(offer) + 1));
    if (bent == 5) return (void)SendMemory(peer->socket, offer, listener_);
    if (bent == 6) {
      const Descriptor unsealed(memfd_create("keras-strom-fuzz", MFD_CLOEXEC));
      (void)!ftruncate(unsealed.get(), static_cast<off_t>(4096 + 2 * memory->ring_bytes()));
      return (void)SendMemory(peer->socket, offer, unsealed);
    }
    (void)SendMemory(peer->socket, offer, memory->file());
    Hold(peer, std::move(*memory), false);
    if (bent == 7) (void)SendMemory(peer->socket, offer, peer->memory->file());
  }

  static void SendText(const Descriptor& socket, const void* text, size_t bytes) {
    (void)!send(socket.get(), text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // It has offered a socket, and takes what comes there.
  void Answer(Peer* peer) {
    Descriptor socket = AcceptOnHost(listener_);
    if (!socket.valid()) return;
    auto proposal = ReceiveMemory(socket);
    peer->socket = std::move(socket);
    if (!proposal) return;
    auto memory = SharedMemory::Map(std::move(proposal->second), proposal->first.ring_bytes);
    STROM_CHECK(memory.has_value());
    Hold(peer, std::move(*memory), true);
  }

  void Hold(Peer* peer, SharedMemory memory, bool victim_made_it) {
    peer->rings.reset();
    peer->memory.reset();
    peer->memory.emplace(std::move(memory));
    const SharedMemory& held = *peer->memory;
    if (victim_made_it) {
      peer->rings.emplace(held.to_maker(), held.from_maker());
    } else {
      peer->rings.emplace(held.from_maker(), held.to_maker());
    }
  }

  // A link ends from one side or the other, or its goodbye is said.
  void End(Peer* peer) {
    const size_t how = input_.Below(3);
    if (how == 0) return links_.Close(now_ns_, peer->link, "enough");
    if (how == 1 && !below_.closing.contains(peer->link)) return;
    below_.there.erase(peer->link);
    if (!std::exchange(peer->over, true) && how == 2) {
      Give(peer->link, LinkEvent::Type::kDown, Channel::kControl, nullptr);
    }
  }

  // --- what the loop does. True: there is more to do.
  bool Turn() {
    now_ns_ += 1'000'000;
    const bool idle = links_.PrepareToSleep();
    pollfd descriptor = {links_.descriptor(), POLLIN, 0};
    const bool readable = poll(&descriptor, 1, 0) > 0;
    links_.Awake(now_ns_, readable);
    links_.Receive(now_ns_, true);
    links_.Transmit();
    while (const auto event = links_.PollEvent()) Check(*event);
    for (const Peer& peer : peers_) {
      if (peer.rings) peer.rings->CheckUntouched();
      STROM_CHECK(links_.QueuedBytes(peer.link) >= 0);
    }
    return !idle || readable;
  }

  void Check(const LinkEvent& event) {
    STROM_CHECK(!down_.contains(event.link));
    if (event.type == LinkEvent::Type::kDown) down_.insert(event.link);
    if (event.type != LinkEvent::Type::kMessage) return;
    STROM_CHECK(!event.payload->empty() && std::ssize(*event.payload) <= kMaxMessageBytes);
  }

  Input& input_;
  int64_t now_ns_ = 1'000'000'000;
  Counting random_;
  Below below_;
  SameHostLinks links_;
  Token name_{};         // of the peers' socket
  Descriptor listener_;  // that socket
  LinkId next_ = 1;
  std::deque<Peer> peers_;
  std::set<LinkId> down_;
};

}  // namespace
}  // namespace strom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  strom::Input input(bytes, size);
  if (input.Below(2) == 0) {
    strom::RunOneLink(&input);
  } else {
    strom::Process(&input).Run();
  }
  return 0;
}
