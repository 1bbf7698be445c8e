// Whole nodes against members that hold the secret and keep no rule: a master, or a worker in a
// tree, is brought to one of the phases of a job; then the input says what its peers send, what its
// links and its application do, and how time passes. No node may crash, stop at a check, send what
// no link takes, or hold more than its bounds.
//
// The input is read as a list of steps, each a byte that says what happens and the numbers that it
// needs. The fields of messages are mostly near what the job at hand uses; now and then they are
// anything, or the message is raw bytes.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/joint/joint_model.h"
#include "core/master/master_node.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/merged_update.h"
#include "core/replication/pieces.h"
#include "core/replication/update.h"
#include "core/worker/worker_node.h"
#include "fuzz/fuzzed_peer.h"
#include "fuzz/index_codec.h"

namespace strom {
namespace {

constexpr int kMostSteps = 600;
constexpr int64_t kTimeoutNs = 1'000'000'000;
constexpr int64_t kRingBytes = 2000;
constexpr int64_t kValuesBytes = 4096;

// Links that go nowhere; their queues are what the input says.
class Links final : public LinkLayer {
 public:
  LinkId Connect(int64_t, const Address&, const PublicKeyBytes&, Buffer hello) override {
    STROM_CHECK(hello->size() <= 1024);
    return next_++;
  }
  void Accept(int64_t, LinkId link, Buffer bytes) override {
    Welcome welcome;
    STROM_CHECK(ParseWelcome(*bytes, &welcome).ok());
    accepted[link] = welcome.origin;
  }
  void Refuse(int64_t, LinkId, const std::string&) override {}
  bool Send(int64_t, LinkId link, Channel channel, Buffer message) override {
    STROM_CHECK(!message->empty() && std::ssize(*message) <= kMaxMessageBytes);
    // What is sent is read, so that it is there.
    read_.assign(message->begin(), message->end());
    if (!up.contains(link)) return false;
    ControlMessage control;
    const bool asks = channel == Channel::kControl && message->front() == AskPieces::kType;
    if (asks && ParseControl(*message, &control).ok()) asked[link] = std::get<AskPieces>(control);
    if (keeps) queued[link] += std::ssize(*message);
    return true;
  }
  int64_t QueuedBytes(LinkId link) const override {
    const auto found = queued.find(link);
    return found == queued.end() ? 0 : found->second;
  }
  std::optional<Address> PeerAddress(LinkId) const override { return Address{}; }
  void Void(int64_t, LinkId link, Channel) override { queued[link] = 0; }
  void HoldBack(int64_t, LinkId, bool) override {}
  void Close(int64_t, LinkId link, const std::string&) override { up.erase(link); }

  LinkId last_connected() const { return next_ - 1; }

  std::set<LinkId> up;
  std::map<LinkId, uint64_t> accepted;  // the origins that were given
  std::map<LinkId, int64_t> queued;
  std::map<LinkId, AskPieces> asked;  // what was, last
  bool keeps = false;                 // what is sent waits in `queued`

 private:
  LinkId next_ = 1000;
  std::vector<uint8_t> read_;
};

// All values are zeros.
std::vector<uint64_t> ZeroHashes(uint64_t size) {
  return PieceGrid(size).Hashes(std::vector<float>(size));
}

// Every second session trains on a joint model.
JointPlan PlanOf(size_t pick, uint64_t size) {
  JointPlan plan;
  if (pick % 2 == 0 || size < 16) return plan;
  plan.method.kind = static_cast<int32_t>(1 + pick / 2 % 4);
  plan.method.phases = 1;
  if (plan.method.kind == STROM_MPCA && size >= 48) {
    plan.method.phases = static_cast<int32_t>(1 + pick / 8 % 3);
  }
  plan.method.alpha = plan.method.beta = .5;
  plan.method.steps = 1;
  plan.method.gradients = plan.method.kind == STROM_SPARKNET && pick / 8 % 2 == 1 ? 1 : 0;
  plan.ranges = {{0, static_cast<int64_t>(size)}};
  return plan;
}

LinkEvent Event(LinkEvent::Type type, LinkId link) {
  LinkEvent event;
  event.type = type;
  event.link = link;
  return event;
}

// What may happen in a step; which numbers of the input stand for what, each session says.
enum class Kind : uint8_t {
  kProceed,  // what is due
  kControl,
  kRawControl,
  kChunks,
  kAnyChunk,
  kUpdate,
  kRawUpdate,
  kDown,
  kPass,
  kQueue,
  kSubmit,
  kCome,      // somebody wants a link
  kAnnounce,  // of the master's members
  kMove,      // of a worker: its place in the tree, and what its application asks
  kAsk,
  kMerged,  // where updates are merged
};

// A node and those around it.
template <typename Node>
class Session {
 public:
  virtual ~Session() = default;

  // Brings the node to one of `phases` of a job, then does what the input says.
  void Run(size_t phases) {
    const size_t phase = input_.Below(phases);
    for (size_t done = 0; done < phase; ++done) Proceed();
    for (int step = 0; step < kMostSteps && !input_.empty(); ++step) {
      Step();
      Settle();
    }
  }

 protected:
  Session(Input* input, bool is_parent, bool merges)
      : input_(*input), peer_(input, is_parent, merges), merges_(merges) {}

  virtual void Proceed() = 0;
  virtual void Step() = 0;
  virtual void Submit(LinkId link) = 0;
  // What only this node's session knows to do.
  virtual void ActOwn(Kind kind, LinkId link) = 0;
  virtual void Settle() = 0;
  virtual void Give(LinkId link, Channel channel, const Buffer& message) {
    if (!links_.up.contains(link) || std::ssize(*message) > kMaxMessageBytes) return;
    LinkEvent event = Event(LinkEvent::Type::kMessage, link);
    event.channel = channel;
    event.payload = message;
    node_->HandleLinkEvent(now_ns_, std::move(event));
  }

  void Act(LinkId link, std::span<const Kind> kinds) {
    // Merged updates come as an extra, so that saved inputs mean what they did.
    if (merges_ && input_.Below(4) == 0) return ActOwn(Kind::kMerged, link);
    const size_t number = input_.Below(kinds.size());
    if ((kinds_ >> number & 1) == 0) return Proceed();
    switch (kinds[number]) {
      case Kind::kProceed:
        return Proceed();
      case Kind::kControl:
        return Give(link, Channel::kControl, peer_.Control());
      case Kind::kRawControl:
        return Give(link, Channel::kControl, peer_.Raw());
      case Kind::kChunks:
        for (const Buffer& chunk : peer_.Chunks()) Give(link, Channel::kState, chunk);
        return;
      case Kind::kAnyChunk:
        return Give(link, Channel::kState, peer_.AnyChunk());
      case Kind::kUpdate:
        return Give(link, Channel::kUpdate, peer_.Update());
      case Kind::kRawUpdate:
        return Give(link, Channel::kUpdate, peer_.Raw());
      case Kind::kDown:
        return GoDown(link);
      case Kind::kPass:
        now_ns_ += kTimeoutNs / 16 * static_cast<int64_t>(1 + input_.Below(64));
        return node_->HandleTimeout(now_ns_);
      case Kind::kQueue:
        links_.keeps = input_.Below(2) == 0;
        links_.queued[link] = static_cast<int64_t>(input_.Number() % (uint64_t{1} << 28));
        return;
      case Kind::kSubmit:
        return Submit(link);
      default:
        return ActOwn(kinds[number], link);
    }
  }

  void Say(LinkId link, const ControlMessage& message) {
    Give(link, Channel::kControl, EncodeControl(message));
  }
  void SayBlob(LinkId link, const BlobName& name, size_t bytes) {
    for (const Buffer& chunk : EncodeBlob(name, Bytes(std::vector<uint8_t>(bytes)))) {
      Give(link, Channel::kState, chunk);
    }
  }
  void Tell(LinkEvent::Type type, LinkId link, Buffer payload) {
    LinkEvent event = Event(type, link);
    event.payload = std::move(payload);
    node_->HandleLinkEvent(now_ns_, std::move(event));
  }
  void GoUp(LinkId link, Buffer payload) {
    if (links_.up.insert(link).second) Tell(LinkEvent::Type::kUp, link, std::move(payload));
  }
  void GoDown(LinkId link) {
    if (links_.up.erase(link) == 0) return;
    LinkEvent event = Event(LinkEvent::Type::kDown, link);
    event.code = input_.Below(2) == 0 ? Code::kMasterLost : Code::kClosed;
    node_->HandleLinkEvent(now_ns_, std::move(event));
  }
  void HandleTimeoutIfDue() {
    if (node_->NextTimeout() <= now_ns_) node_->HandleTimeout(now_ns_);
  }

  Input& input_;
  Peer peer_;
  const bool merges_;
  // Some kinds of trouble at a time, for many end the others' connections at once.
  const uint32_t kinds_ = input_.Take<uint32_t>() & input_.Take<uint32_t>();
  Links links_;
  std::unique_ptr<Node> node_;
  uint64_t generation_ = 0;
  size_t proceeded_ = 0;
  int64_t now_ns_ = 1'000'000'000;
};

// ------------------------------------------------------------------------------- the master

class MasterSession final : public Session<MasterNode> {
 public:
  MasterSession(Input* input, bool merges) : Session(input, /*is_parent=*/false, merges) {
    const size_t kind = input_.Below(8);
    staleness_ = kind % 2 == 0 ? -1 : static_cast<int32_t>(kind / 4);
    MasterNodeOptions options;
    workers_ = static_cast<int32_t>(1 + input_.Below(3));
    options.workers = workers_;
    options.min_workers = input_.Below(4) == 0 ? 1 : 0;
    options.epoch = 1 + input_.Below(2);
    options.topology = kind / 2 % 2 == 0 ? Topology::kPlain : Topology::kMesh;
    tree_ = options.topology == Topology::kMesh;
    options.max_children = 2;
    options.failure_timeout_ns = kTimeoutNs;
    options.ring_bytes = kRingBytes;
    options.link_queue_bytes = 4000;
    options.member_values_bytes = kValuesBytes;
    options.values_bytes = 2 * kValuesBytes;
    options.merging = merges ? Merging::kOn : Merging::kOff;
    if (merges)
      options.merging_interval_ns = kTimeoutNs / 100 * static_cast<int64_t>(input_.Below(3));
    options.codec = &kIndexCodec;
    node_ = std::make_unique<MasterNode>(options, &links_);
  }

 private:
  // What honest workers do next. The STEPs of sequenced modes, FINAL and what follows are answers.
  void Proceed() override {
    const auto all = [&](auto say) {
      for (int32_t rank = 0; rank < workers_; ++rank) say(LinkOf(rank));
    };
    switch (proceeded_++ % 7) {
      case 0:
        return all([](LinkId) {});
      case 1:
        ++generation_;
        if (input_.Below(2) == 0) sizes_.push_back(1 + input_.Below(3) * 2000);
        return all([&](LinkId link) {
          Say(link, Announce{Layout(), Made(link), "", Plan(), 0, ZeroHashes(sizes_.back())});
        });
      case 2:
        return GivePieces();
      case 3:
        if (Plan().IsJoint()) return all([&](LinkId link) { GiveShard(link); });
        return all([&](LinkId link) { Submit(link); });
      case 4:
        return all([&](LinkId link) { Say(link, Done{generation_, Made(link), 0}); });
      case 5:
        return all(
            [&](LinkId link) { SayBlob(link, {BlobKind::kState, generation_, 0, 0, 0}, 8); });
      case 6:
        return all([&](LinkId link) { Say(link, Verification{generation_, 0, 0}); });
    }
  }

  void Step() override {
    using enum Kind;
    static constexpr Kind kKinds[24] = {
        kControl, kControl,  kControl,  kControl, kProceed,   kProceed, kRawControl, kChunks,
        kChunks,  kAnyChunk, kUpdate,   kUpdate,  kRawUpdate, kCome,    kDown,       kPass,
        kQueue,   kSubmit,   kAnnounce, kProceed, kProceed,   kProceed, kProceed,    kProceed};
    rank_ = static_cast<int32_t>(input_.Below(static_cast<size_t>(workers_)));
    Act(LinkOf(rank_), kKinds);
  }

  void ActOwn(Kind kind, LinkId link) override {
    if (kind == Kind::kCome) return Join(rank_);
    if (kind == Kind::kAnnounce) return AnnounceAny(link);
    if (kind == Kind::kMerged) return GiveMerged(link);
  }
  // Of this worker's and the others' next updates, or such as have been or are to come.
  void GiveMerged(LinkId link) {
    VersionVector next;
    const int32_t spread = tree_ ? workers_ : 1;
    Give(link, Channel::kUpdate, peer_.Merged(generation_, [&] {
      const auto rank = static_cast<int32_t>(input_.Below(static_cast<size_t>(spread)));
      const auto member = members_.find((rank_ + rank) % workers_);
      const uint64_t origin = member == members_.end() ? Origin(link) : member->second.origin;
      uint64_t& counter = next[origin];
      if (counter == 0) {
        const auto made = node_->received().find(origin);
        counter = made == node_->received().end() ? 0 : made->second;
        const size_t off = input_.Below(8);
        if (off < 3) counter += off;
        if (off == 3 && counter > 0) --counter;
      }
      return UpdateId{std::max<uint64_t>(1, origin), ++counter};
    }));
  }

  // The rank's latest link; a new process comes in the place of one that is gone.
  LinkId LinkOf(int32_t rank) {
    Member& member = members_[rank];
    if (!links_.up.contains(member.link)) {
      ++member.attempt;
      Join(rank, {.rank = rank, .size = workers_, .attempt = member.attempt}, next_link_);
    }
    return member.link;
  }
  // Another process that wants the rank, or the same one back.
  void Join(int32_t rank) {
    Hello hello{.rank = rank, .size = workers_, .attempt = members_[rank].attempt};
    if (input_.Below(2) == 0) hello.attempt = static_cast<int32_t>(input_.Number());
    if (input_.Below(32) == 0) {
      hello.epoch = input_.Number();
      hello.origin = input_.Number();
    }
    const bool is_back = input_.Below(2) == 0;
    Join(rank, hello, is_back ? members_[rank].link : next_link_);
  }
  void Join(int32_t rank, Hello hello, LinkId instance) {
    hello.max_staleness = staleness_;
    hello.instance.fill(static_cast<uint8_t>(instance));
    const LinkId link = next_link_++;
    Tell(LinkEvent::Type::kHello, link, EncodeHello(hello));
    if (!links_.accepted.contains(link)) return;
    GoUp(link, MakeBuffer({}));
    if (links_.up.contains(link)) members_[rank] = {link, hello.attempt, links_.accepted[link]};
  }
  JointPlan Plan() const { return PlanOf(plan_, sizes_.back()); }
  strom::Layout Layout() const { return {generation_, sizes_.back(), 5 + sizes_.back()}; }
  // The chief's.
  void GivePieces() {
    const auto asked = links_.asked.find(LinkOf(0));
    if (asked == links_.asked.end()) return;
    const uint64_t size = sizes_.back();
    const auto& [generation, number, indices] = asked->second;
    const PieceGrid grid(size);
    if (!grid.Has(indices)) return;
    const std::vector<float> zeros(grid.ElementsOf(indices));
    for (const Buffer& chunk : EncodeBlob({BlobKind::kPieces, generation, 0, number, 0}, zeros)) {
      Give(LinkOf(0), Channel::kState, chunk);
    }
  }
  // Of any fit so far, or the next.
  void AnnounceAny(LinkId link) {
    const uint64_t size = sizes_[input_.Below(sizes_.size())];
    const uint64_t generation = 1 + input_.Below(generation_ + 1);
    Say(link, Announce{{generation, size, 5 + size},
                       Made(link),
                       "",
                       PlanOf(plan_, size),
                       0,
                       ZeroHashes(size)});
  }
  uint64_t Origin(LinkId link) { return links_.accepted[link]; }
  uint64_t Made(LinkId link) {
    const auto found = node_->received().find(Origin(link));
    return found == node_->received().end() ? 0 : found->second;
  }
  // A snapshot of the first shard, or of everything, for one of the first ticks.
  void GiveShard(LinkId link) {
    Say(link, Stepping{generation_});
    const JointPlan plan = Plan();
    const uint64_t mark = input_.Below(4);
    const int32_t shard = static_cast<int32_t>(mark % static_cast<uint64_t>(plan.method.phases));
    const ElementRange range = ShardOf(plan.size(), plan.method.phases, shard);
    SayBlob(link, {BlobKind::kShard, generation_, 1, mark, 3}, 4 * static_cast<size_t>(range.size));
    Say(link, Have{generation_, mark});
  }
  void Submit(LinkId link) override {
    UpdateHeader header{{Origin(link), Made(link) + 1}, 1, Layout(), 1};
    if (input_.Below(4) == 0) header.id.counter += input_.Below(3);
    Give(link, Channel::kUpdate, UpdateOf(header, {0, static_cast<uint32_t>(sizes_.back() - 1)}));
  }

  void Settle() override {
    while (node_->PollEvent()) continue;
    HandleTimeoutIfDue();
    STROM_CHECK(node_->replication().hold_bytes() <= kRingBytes);
    STROM_CHECK(node_->replication().ring_bytes() <= 2 * kRingBytes);
  }

  const size_t plan_ = input_.Below(24);
  int32_t staleness_ = -1;
  int32_t workers_ = 1;
  bool tree_ = false;
  int32_t rank_ = 0;  // whose step it is
  struct Member {
    LinkId link = 0;
    int32_t attempt = -1;
    uint64_t origin = 0;
  };
  std::map<int32_t, Member> members_;
  LinkId next_link_ = 1;
  std::vector<uint64_t> sizes_ = {16};  // of the layouts so far
};

// ------------------------------------------------------------------------------- a worker

class WorkerSession final : public Session<WorkerNode> {
 public:
  static constexpr LinkId kMaster = 1000;
  static constexpr uint64_t kOwn = (uint64_t{1} << 32) | 1;

  WorkerSession(Input* input, bool merges) : Session(input, /*is_parent=*/true, merges) {
    WorkerNodeOptions options;
    options.size = 3;
    const size_t kind = input_.Below(4);
    options.max_staleness = kind == 0 ? 0 : -1;
    options.master_wait_ns = kind == 1 ? 4 * kTimeoutNs : 0;
    options.failure_timeout_ns = kTimeoutNs;
    options.ring_bytes = kRingBytes;
    options.link_queue_bytes = 4000;
    options.codec = &kIndexCodec;
    node_ = std::make_unique<WorkerNode>(options, &links_);
    node_->Start(now_ns_);
    GoUp(kMaster, EncodeWelcome({kOwn, 0, 1}));
    place_.parent_address.port = 9;
  }

 private:
  void Proceed() override {
    switch (proceeded_++ % 7) {
      case 0:
        return Begin();
      case 1:
        Say(kMaster, StartGeneration{generation_, node_->received(), 0, 0, -1, Merging()});
        return SayPieces();
      case 2:
        return Submit(kMaster);
      case 3:
        node_->Finish(now_ns_, false);
        is_training_ = false;
        return Say(kMaster, Final{generation_, node_->received(), 0});
      case 4:
        node_->SendState(now_ns_, {1}, std::make_shared<std::vector<float>>(16));
        SayBlob(kMaster, {BlobKind::kResult, generation_, 0, 0, 1}, 8);
        return SayPieces();
      case 5:
        node_->Verify(now_ns_, 0, 0);
        return Say(kMaster, End{generation_, 0});
      case 6:
        return Take();
    }
  }

  // The master's values, zeros as this worker's are.
  void SayPieces() {
    for (const Buffer& chunk :
         EncodeBlob({BlobKind::kPieces, generation_, 0, 0, 0}, ZeroHashes(16))) {
      Give(kMaster, Channel::kState, chunk);
    }
  }

  void Step() override {
    using enum Kind;
    static constexpr Kind kKinds[20] = {kControl,   kControl,  kControl, kControl, kRawControl,
                                        kChunks,    kAnyChunk, kUpdate,  kUpdate,  kUpdate,
                                        kRawUpdate, kCome,     kDown,    kPass,    kQueue,
                                        kMove,      kSubmit,   kAsk,     kProceed, kProceed};
    // The master, its parent, or one of two children.
    const LinkId neighbour = static_cast<LinkId>(input_.Below(4));
    Act(neighbour == 0 ? kMaster : neighbour == 1 ? parent_ : neighbour, kKinds);
  }

  void ActOwn(Kind kind, LinkId link) override {
    if (kind == Kind::kCome) return Knock(link);
    if (kind == Kind::kMove) return Move();
    if (kind == Kind::kAsk) return Ask();
    if (kind == Kind::kMerged) return GiveMerged(link);
  }
  int64_t Merging() {
    const int64_t interval_ns = kTimeoutNs / 100 * (generation_ % 3);
    return merges_ && generation_ % 4 != 3 ? interval_ns : kNotMerging;
  }
  // Publications with own updates that are published next, or any; and what comes from below.
  void GiveMerged(LinkId link) {
    VersionVector next = node_->received();
    next[kOwn] = node_->replication().published();
    const Buffer merged = peer_.Merged(generation_, [&] {
      const uint64_t origin = kOwn + input_.Below(4);
      if (input_.Below(8) == 0) next[origin] += input_.Below(3);
      return UpdateId{origin, ++next[origin]};
    });
    UpdateHeader header;
    STROM_CHECK(ParseUpdateHeader(*merged, &header).ok());
    if (header.id.origin != MasterOrigin(1) || input_.Below(4) == 0) {
      return Give(link, Channel::kUpdate, merged);
    }
    // The next one.
    const auto last = node_->received().find(MasterOrigin(1));
    header.id.counter = 1 + (last == node_->received().end() ? 0 : last->second);
    std::vector<uint8_t> publication = *merged;
    WriteUpdateHeader(header, publication);
    Give(link, Channel::kUpdate, MakeBuffer(std::move(publication)));
  }

  void Begin() {
    is_training_ = false;
    const auto values = std::make_shared<std::vector<float>>(16);
    node_->BeginGeneration(now_ns_, {++generation_, 16, 5, "", values, PlanOf(plan_, 16)});
    if (input_.Below(4) == 0) Give(kMaster, Channel::kControl, peer_.Question());
  }
  void Submit(LinkId) override {
    if (!is_training_) return;
    if (PlanOf(plan_, 16).IsJoint()) {
      return node_->GiveToJoint(now_ns_, input_.Below(4), 1, 2, parameters_);
    }
    std::vector<uint8_t> update(static_cast<size_t>(kUpdateHeaderBytes) + 4);
    (void)node_->Submit(now_ns_, 1, input_.Below(4) != 0, std::move(update));
  }
  // What the step op does.
  void Take() {
    Received received = node_->TakeReceived();
    if (received.snapshot) {
      STROM_CHECK(received.snapshot->parameters->size() == parameters_.size());
      node_->SnapshotInstalled();
    }
    for (const ReceivedUpdate& update : received.updates) {
      kIndexCodec.Apply(update.message(), parameters_);
    }
    node_->SetApplied(node_->received());
  }
  void Ask() {
    switch (input_.Below(7)) {
      case 5:
        return node_->AskJoint(now_ns_);
      case 6:
        (void)node_->TakeJointOrders();
        (void)node_->TakeRound();
        return;
      case 0:
        return node_->Average(now_ns_, input_.Number(), {1, 2});
      case 1:
        return node_->AskDonation(now_ns_);
      case 2:
        return node_->Donate(now_ns_, MakeBuffer(std::vector<uint8_t>(input_.Below(100))));
      case 3:
        return node_->HandOver(now_ns_, parameters_);
      default:
        return Take();
    }
  }
  // Another place, as the master draws it.
  void Move() {
    ++place_.version;
    place_.parent = input_.Below(3) == 0 ? 0 : 77 + input_.Below(2);
    place_.children.clear();
    for (uint64_t child = 2; child <= 1 + input_.Below(3); ++child) {
      place_.children.push_back({child, static_cast<int32_t>(child), Token{}});
    }
    Say(kMaster, place_);
    parent_ = links_.last_connected();
    if (input_.Below(2) == 0) GoUp(parent_, EncodeWelcome({place_.parent, 0, 0}));
  }
  void Knock(LinkId link) {
    if (link >= kMaster || links_.up.contains(link)) return;
    Tell(LinkEvent::Type::kHello, link, EncodeChildHello({link, Token{}}));
    GoUp(link, MakeBuffer({}));
  }
  void Give(LinkId link, Channel channel, const Buffer& message) override {
    if (!links_.up.contains(link) || std::ssize(*message) > kMaxMessageBytes) return;
    Session::Give(link, channel, message);
    Settle();
  }

  void Settle() override {
    while (auto event = node_->PollEvent()) {
      if (event->type == WorkerEvent::Type::kStarted) {
        is_training_ = !event->beginning.ended;
        STROM_CHECK(event->parameters->size() == parameters_.size());
      } else if (event->type == WorkerEvent::Type::kFailed) {
        is_training_ = false;
      }
    }
    STROM_CHECK(node_->replication().hold_bytes() <= kRingBytes);
    HandleTimeoutIfDue();
  }

  const size_t plan_ = input_.Below(16);
  TreePlace place_;
  LinkId parent_ = 0;
  bool is_training_ = false;  // as the application knows
  std::vector<float> parameters_ = std::vector<float>(16);
};

}  // namespace
}  // namespace strom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  strom::Input input(bytes, size);
  const uint8_t kind = input.Take();
  const bool merges = kind >= 0xc0;
  if (kind % 2 == 0) {
    strom::MasterSession(&input, merges).Run(24);
  } else {
    strom::WorkerSession(&input, merges).Run(16);
  }
  return 0;
}
