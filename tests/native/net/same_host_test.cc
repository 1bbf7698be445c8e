// Links that move to shared memory: how they get there under traffic and loss, that they behave as
// the endpoint's do, and what happens when the other process lies, goes or dies. The datagrams are
// simulated, the sockets and the memory are the kernel's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/transport/crypto.h"
#include "few_descriptors.h"
#include "net/same_host_links.h"
#include "sim/network.h"

namespace {
int watches_left = -1;  // before one that the kernel refuses; negative = it refuses none
}  // namespace

// In the place of the C library's.
extern "C" int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && watches_left >= 0 && watches_left-- == 0) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, descriptor, event));
}

namespace strom {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr std::array<Channel, kChannels> kEveryChannel = {Channel::kControl, Channel::kState,
                                                          Channel::kUpdate};

Buffer Text(const std::string& text) { return MakeBuffer({text.begin(), text.end()}); }
std::string Text(const Buffer& buffer) { return {buffer->begin(), buffer->end()}; }

size_t OpenDescriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

struct PairOptions {
  SameHostOptions worker = {}, master = {};
  PathOptions path = {};
  int worker_namespace = -1;  // a network namespace of the worker's own
};

// A worker joined to a master that welcomes everybody, served as the I/O loop serves its links.
class Pair {
 public:
  struct Side {
    Host host = 0;
    std::unique_ptr<SameHostLinks> links;
    LinkId link = 0;
    bool served = true;
    bool socket_is_read = true;
    std::vector<LinkEvent> events;

    const LinkEvent* Find(LinkEvent::Type type) const {
      const auto found = std::find_if(events.begin(), events.end(),
                                      [&](const LinkEvent& e) { return e.type == type; });
      return found == events.end() ? nullptr : &*found;
    }
    std::vector<std::string> Texts(Channel channel) const {
      std::vector<std::string> texts;
      for (const LinkEvent& e : events) {
        if (e.type == LinkEvent::Type::kMessage && e.channel == channel) {
          texts.push_back(Text(e.payload));
        }
      }
      return texts;
    }
    const LinkEvent* down() const { return Find(LinkEvent::Type::kDown); }
  };

  explicit Pair(uint64_t seed, const PairOptions& options = {})
      : network(seed), namespace_(options.worker_namespace) {
    network.SetPaths(options.path);
    EndpointOptions endpoint;
    endpoint.secret.fill(7);
    endpoint.job_id.fill(9);
    endpoint.private_key.fill(3);
    const PublicKeyBytes key = DerivePublicKey(endpoint.private_key);
    endpoint.accepts = true;
    Add(&master, endpoint, options.master);
    endpoint.accepts = false;
    endpoint.private_key = {};
    Add(&worker, endpoint, options.worker);
    worker.link = worker.links->Connect(now_ns(), network.address(master.host), key, Text("hello"));
  }

  // False: `done` did not become true within `duration_ns` of virtual time.
  bool RunUntil(int64_t duration_ns, const std::function<bool()>& done) {
    const int64_t end_ns = now_ns() + duration_ns;
    Serve();
    while (!done() && now_ns() < end_ns) {
      network.RunFor(kMillisecond / 5);
      Serve();
    }
    return done();
  }
  bool Join() {
    return RunUntil(20 * kSecond, [&] {
      return master.link != 0 && worker.Find(LinkEvent::Type::kUp) != nullptr;
    });
  }
  bool JoinAndShare() {
    return Join() && RunUntil(20 * kSecond, [&] {
             return worker.links->IsShared(worker.link) && master.links->IsShared(master.link);
           });
  }
  bool Send(Side& from, Channel channel, const std::string& text) {
    return from.links->Send(now_ns(), from.link, channel, Text(text));
  }
  int64_t now_ns() const { return network.now_ns(); }

  Network network;
  Side master, worker;

 private:
  void Add(Side* side, const EndpointOptions& endpoint, const SameHostOptions& options) {
    side->host = network.Add(endpoint);
    side->links =
        std::make_unique<SameHostLinks>(&network.endpoint(side->host), &network.random(), options);
    network.hooks(side->host).on_event = [this, side](int64_t now_ns, LinkEvent event) {
      if (side->links == nullptr) return;
      Enter(*side);
      side->links->HandleEvent(now_ns, std::move(event));
      Drain(side);
    };
  }
  void Drain(Side* side) {
    while (auto event = side->links->PollEvent()) {
      if (event->type == LinkEvent::Type::kHello) {
        side->links->Accept(now_ns(), event->link, Text("welcome"));
      }
      if (event->type == LinkEvent::Type::kUp) side->link = event->link;
      side->events.push_back(std::move(*event));
    }
  }
  void Serve() {
    for (Side* side : {&master, &worker}) {
      if (side->links == nullptr || !side->served) continue;
      Enter(*side);
      side->links->Receive(now_ns(), side->socket_is_read);
      Drain(side);
      side->links->Transmit();
      side->links->PrepareToSleep();
      side->links->Awake(now_ns(), true);
    }
  }
  void Enter(const Side& side) const {
    if (namespace_ < 0) return;
    ASSERT_EQ(setns(&side == &worker ? namespace_ : own_namespace_.get(), CLONE_NEWNET), 0);
  }

  const int namespace_;
  const Descriptor own_namespace_ =
      Descriptor(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
};

// ---------------------------------------------------------------- how a link gets there

TEST(SameHost, ALinkMovesToSharedMemoryByItself) {
  Pair pair(1);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.network.RunFor(kSecond);
  const int64_t messages = pair.network.endpoint(pair.worker.host).counters().messages_sent;
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kControl, "up"));
  ASSERT_TRUE(pair.Send(pair.master, Channel::kUpdate, std::string(100'000, 'd')));
  ASSERT_TRUE(pair.RunUntil(kSecond, [&] {
    return pair.master.Texts(Channel::kControl).size() == 1 &&
           pair.worker.Texts(Channel::kUpdate).size() == 1;
  }));
  EXPECT_EQ(pair.master.Texts(Channel::kControl)[0], "up");
  EXPECT_EQ(pair.worker.Texts(Channel::kUpdate)[0], std::string(100'000, 'd'));
  EXPECT_EQ(pair.network.endpoint(pair.worker.host).counters().messages_sent, messages);
  EXPECT_EQ(pair.worker.links->counters().bytes_sent, 2);
  EXPECT_EQ(pair.worker.links->counters().bytes_received, 100'000);
  EXPECT_EQ(pair.worker.links->QueuedBytes(pair.worker.link), 0);
  // What the two ends say to each other is not for the nodes.
  EXPECT_TRUE(pair.worker.Texts(Channel::kControl).empty());
  EXPECT_TRUE(pair.worker.Texts(Channel::kState).empty());
  EXPECT_TRUE(pair.master.Texts(Channel::kState).empty());
}

TEST(SameHost, SwitchedOffOnOneSideTheLinkStaysAsItIs) {
  for (const bool at_worker : {false, true}) {
    PairOptions options;
    (at_worker ? options.worker : options.master).enabled = false;
    Pair pair(2, options);
    ASSERT_TRUE(pair.Join());
    pair.RunUntil(kSecond, [] { return false; });
    EXPECT_FALSE(pair.worker.links->IsShared(pair.worker.link));
    EXPECT_FALSE(pair.master.links->IsShared(pair.master.link));
    pair.Send(pair.worker, Channel::kControl, "up");
    pair.Send(pair.master, Channel::kControl, "down");
    ASSERT_TRUE(pair.RunUntil(kSecond, [&] {
      return pair.master.Texts(Channel::kControl).size() == 1 &&
             pair.worker.Texts(Channel::kControl).size() == 1;
    }));
    EXPECT_EQ(pair.worker.Texts(Channel::kControl)[0], "down");
  }
}

TEST(SameHost, InANetworkNamespaceOfItsOwnTheLinkStaysAsItIs) {
  const Descriptor before(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  // In a sandbox there may be a way out of the present namespace and none back.
  if (setns(before.get(), CLONE_NEWNET) != 0 || unshare(CLONE_NEWNET) != 0) {
    GTEST_SKIP() << "no network namespaces here: " << std::strerror(errno);
  }
  const Descriptor apart(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(setns(before.get(), CLONE_NEWNET), 0);
  {
    PairOptions options;
    options.worker_namespace = apart.get();
    Pair pair(3, options);
    ASSERT_TRUE(pair.Join());
    pair.RunUntil(kSecond, [] { return false; });
    EXPECT_FALSE(pair.worker.links->IsShared(pair.worker.link));
    pair.Send(pair.worker, Channel::kControl, "up");
    EXPECT_TRUE(
        pair.RunUntil(kSecond, [&] { return pair.master.Texts(Channel::kControl).size() == 1; }));
  }
  ASSERT_EQ(setns(before.get(), CLONE_NEWNET), 0);
}

// /proc/sys/fs/epoll/max_user_watches is for all of a user's processes together.
TEST(SameHost, WhereTheKernelWatchesNoMoreTheLinkStaysAsItIs) {
  const size_t before = OpenDescriptors();
  int watches = 0;
  for (bool shared = false; !shared; ++watches) {
    ASSERT_LT(watches, 10);
    Pair pair(13);
    watches_left = watches;
    ASSERT_TRUE(pair.Join());
    pair.RunUntil(kSecond, [] { return false; });
    const bool refused = watches_left < 0;
    watches_left = -1;
    shared = pair.worker.links->IsShared(pair.worker.link);
    EXPECT_EQ(shared, !refused) << watches;
    EXPECT_EQ(pair.master.links->IsShared(pair.master.link), shared) << watches;
    pair.Send(pair.worker, Channel::kControl, "up");
    pair.Send(pair.master, Channel::kControl, "down");
    EXPECT_TRUE(pair.RunUntil(kSecond, [&] {
      return pair.master.Texts(Channel::kControl).size() == 1 &&
             pair.worker.Texts(Channel::kControl).size() == 1;
    })) << watches;
    EXPECT_EQ(pair.worker.down(), nullptr) << watches;
    EXPECT_EQ(pair.master.down(), nullptr) << watches;
  }
  EXPECT_GT(watches, 4);  // the listener, and on either side the socket and the process
  EXPECT_EQ(OpenDescriptors(), before);
}

// Numbered messages on all channels, both ways, from the first moment on, while datagrams are lost,
// doubled and reordered.
TEST(SameHost, UnderTrafficAndLossNothingIsLostDoubledOrOutOfOrder) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    PairOptions options;
    options.path = {.loss = .2, .duplication = .1, .jitter_ns = kMillisecond};
    options.worker.ring_bytes = seed % 2 == 0 ? 16384 : kLeastRingBytes;
    Pair pair(seed, options);
    ASSERT_TRUE(pair.Join());
    std::mt19937_64 random(seed);
    std::array<std::array<int, kChannels>, 2> sent{};
    Pair::Side* const sides[2] = {&pair.worker, &pair.master};
    for (int turn = 0; turn < 300; ++turn) {
      for (int s = 0; s < 2; ++s) {
        if (random() % 2 == 0) continue;
        const size_t channel = random() % kChannels;
        const int number = sent[s][channel]++;
        const size_t size = random() % 50 == 0 ? 300'000 : random() % 3000;
        ASSERT_TRUE(pair.Send(*sides[s], static_cast<Channel>(channel),
                              std::to_string(number) + " " + std::string(size, 'x')));
      }
      pair.RunUntil(kMillisecond / 2, [] { return false; });
    }
    const auto numbers = [&](int from, size_t channel) {
      std::vector<int> received;
      for (const std::string& text : sides[1 - from]->Texts(static_cast<Channel>(channel))) {
        received.push_back(std::stoi(text));
      }
      return received;
    };
    ASSERT_TRUE(pair.RunUntil(20 * kSecond,
                              [&] {
                                return pair.worker.links->QueuedBytes(pair.worker.link) == 0 &&
                                       pair.master.links->QueuedBytes(pair.master.link) == 0 &&
                                       pair.worker.links->IsShared(pair.worker.link) &&
                                       pair.master.links->IsShared(pair.master.link);
                              }))
        << "seed " << seed;
    for (int s = 0; s < 2; ++s) {
      EXPECT_TRUE(sides[s]->links->IsShared(sides[s]->link)) << "seed " << seed;
      EXPECT_GT(sides[s]->links->counters().messages_sent, 0) << "seed " << seed;
      for (size_t channel = 0; channel < kChannels; ++channel) {
        std::vector<int> received = numbers(s, channel);
        if (static_cast<Channel>(channel) == Channel::kUpdate) {
          std::sort(received.begin(), received.end());
        }
        std::vector<int> all(sent[s][channel]);
        for (int i = 0; i < sent[s][channel]; ++i) all[i] = i;
        EXPECT_EQ(received, all) << "seed " << seed << ", channel " << channel;
      }
    }
  }
}

TEST(SameHost, WhatIsGivenUpDuringTheSwitchDoesNotStopIt) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    PairOptions options;
    options.path = {.loss = .3, .jitter_ns = kMillisecond};
    options.worker.ring_bytes = kLeastRingBytes;
    Pair pair(seed, options);
    ASSERT_TRUE(pair.Join());
    std::mt19937_64 random(seed);
    int number = 0;
    for (int turn = 0; turn < 200; ++turn) {
      const Channel channel = static_cast<Channel>(random() % kChannels);
      for (Pair::Side* side : {&pair.worker, &pair.master}) {
        if (random() % 10 == 0) side->links->Void(pair.now_ns(), side->link, channel);
        ASSERT_TRUE(pair.Send(*side, channel,
                              std::to_string(number++) + std::string(random() % 9000, ' ')));
      }
      pair.RunUntil(kMillisecond / 5, [] { return false; });
    }
    for (Pair::Side* side : {&pair.worker, &pair.master}) {
      for (const Channel c : kEveryChannel) ASSERT_TRUE(pair.Send(*side, c, "1000000"));
    }
    const auto ended = [&](const Pair::Side& side) {
      return std::all_of(kEveryChannel.begin(), kEveryChannel.end(), [&](Channel c) {
        const auto texts = side.Texts(c);
        return std::find(texts.begin(), texts.end(), "1000000") != texts.end();
      });
    };
    ASSERT_TRUE(
        pair.RunUntil(30 * kSecond, [&] { return ended(pair.worker) && ended(pair.master); }))
        << "seed " << seed;
    EXPECT_TRUE(
        pair.RunUntil(30 * kSecond, [&] { return pair.worker.links->IsShared(pair.worker.link); }))
        << "seed " << seed;
    for (const Pair::Side* side : {&pair.worker, &pair.master}) {
      for (const Channel channel : {Channel::kControl, Channel::kState}) {
        int before = -1;
        for (const std::string& text : side->Texts(channel)) {
          EXPECT_GT(std::stoi(text), before) << "seed " << seed;
          before = std::stoi(text);
        }
      }
    }
  }
}

// ---------------------------------------------------------------- the same as the endpoint's links

TEST(SameHost, AHeldBackPeerFillsTheRingAndThenItsOwnQueue) {
  Pair pair(4);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  pair.master.links->HoldBack(pair.now_ns(), pair.master.link, true);
  const std::string update(1 << 20, 'u');
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pair.Send(pair.worker, Channel::kUpdate, update));
  pair.RunUntil(kSecond, [] { return false; });
  EXPECT_TRUE(pair.master.Texts(Channel::kUpdate).empty());
  EXPECT_GE(pair.worker.links->QueuedBytes(pair.worker.link), 5 << 20);

  pair.master.links->HoldBack(pair.now_ns(), pair.master.link, false);
  EXPECT_TRUE(
      pair.RunUntil(kSecond, [&] { return pair.master.Texts(Channel::kUpdate).size() == 5; }));
  EXPECT_EQ(pair.worker.links->QueuedBytes(pair.worker.link), 0);
}

TEST(SameHost, SmallerChannelsGoFirstAndInterruptALongMessage) {
  Pair pair(5, {.worker = {.ring_bytes = 16384}});
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kUpdate, std::string(200'000, 'u')));
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kUpdate, std::string(200'000, 'v')));
  pair.RunUntil(kMillisecond, [] { return false; });
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kState, "state"));
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kControl, "control"));
  ASSERT_TRUE(
      pair.RunUntil(kSecond, [&] { return pair.master.Texts(Channel::kUpdate).size() == 2; }));
  std::vector<Channel> order;
  for (const LinkEvent& event : pair.master.events) {
    if (event.type == LinkEvent::Type::kMessage) order.push_back(event.channel);
  }
  EXPECT_EQ(order, (std::vector<Channel>{Channel::kControl, Channel::kState, Channel::kUpdate,
                                         Channel::kUpdate}));
}

TEST(SameHost, WhatIsGivenUpInTheMiddleIsForgottenByThePeer) {
  Pair pair(6, {.worker = {.ring_bytes = kLeastRingBytes}});
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kState, std::string(100'000, 's')));
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kState, "never"));
  pair.worker.links->Transmit();
  pair.worker.links->Void(pair.now_ns(), pair.worker.link, Channel::kState);
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kState, "after"));
  ASSERT_TRUE(pair.RunUntil(kSecond, [&] { return !pair.master.Texts(Channel::kState).empty(); }));
  EXPECT_EQ(pair.master.Texts(Channel::kState), std::vector<std::string>{"after"});
  EXPECT_EQ(pair.worker.links->counters().messages_voided, 2);
  EXPECT_EQ(pair.master.links->counters().messages_voided_by_peer, 1);
  EXPECT_EQ(pair.worker.links->QueuedBytes(pair.worker.link), 0);
}

TEST(SameHost, AGoodbyeComesAfterWhatWasSentAndWithItsWords) {
  Pair pair(7);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  pair.master.served = false;  // it is busy while the worker sends and leaves
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kControl, "done"));
  pair.worker.links->Transmit();
  pair.worker.links->Close(pair.now_ns(), pair.worker.link, "finished");
  EXPECT_FALSE(pair.Send(pair.worker, Channel::kControl, "too late"));
  ASSERT_TRUE(pair.RunUntil(kSecond, [&] { return pair.master.down() != nullptr; }));
  EXPECT_EQ(pair.master.Texts(Channel::kControl), std::vector<std::string>{"done"});
  EXPECT_EQ(pair.master.down()->code, Code::kClosed);
  EXPECT_EQ(pair.master.down()->reason, "finished");
  EXPECT_EQ(pair.master.events.back().type, LinkEvent::Type::kDown);
  EXPECT_EQ(pair.worker.down(), nullptr) << "who closes is told nothing";
}

TEST(SameHost, APeerThatIsGoneIsNoticedAtOnceAndAfterWhatItHadSent) {
  Pair pair(8);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kControl, "last words"));
  pair.worker.links->Transmit();
  pair.network.Kill(pair.worker.host);
  pair.worker.links.reset();  // as the kernel does it when a process ends
  ASSERT_TRUE(pair.RunUntil(kMillisecond, [&] { return pair.master.down() != nullptr; }));
  EXPECT_EQ(pair.master.Texts(Channel::kControl), std::vector<std::string>{"last words"});
  EXPECT_EQ(pair.master.down()->code, Code::kMasterLost);
  EXPECT_EQ(pair.master.down()->reason, "the process on this host has ended");
  EXPECT_FALSE(pair.Send(pair.master, Channel::kControl, "nobody is there"));
  pair.RunUntil(10 * kSecond, [] { return false; });
  EXPECT_EQ(std::count_if(pair.master.events.begin(), pair.master.events.end(),
                          [](const auto& e) { return e.type == LinkEvent::Type::kDown; }),
            1);
}

TEST(SameHost, BehindABusySocketRingsAreReadAndAHangUpWaits) {
  Pair pair(11);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  pair.master.socket_is_read = false;
  ASSERT_TRUE(pair.Send(pair.worker, Channel::kControl, "last words"));
  pair.worker.links->Transmit();
  pair.network.Kill(pair.worker.host);
  pair.worker.links.reset();
  pair.RunUntil(kMillisecond, [] { return false; });
  EXPECT_EQ(pair.master.Texts(Channel::kControl), std::vector<std::string>{"last words"});
  EXPECT_EQ(pair.master.down(), nullptr);
  pair.master.socket_is_read = true;
  ASSERT_TRUE(pair.RunUntil(kMillisecond, [&] { return pair.master.down() != nullptr; }));
}

TEST(SameHost, SilenceOfThePeerEndsTheLinkAsAnyOther) {
  Pair pair(9);
  ASSERT_TRUE(pair.JoinAndShare());
  pair.RunUntil(kSecond, [] { return false; });
  pair.network.SetPaused(pair.worker.host, true);  // SIGSTOP: its socket stays open
  pair.worker.served = false;
  ASSERT_TRUE(pair.Send(pair.master, Channel::kUpdate, std::string(3 << 20, 'u')));
  ASSERT_TRUE(pair.RunUntil(6 * kSecond, [&] { return pair.master.down() != nullptr; }));
  EXPECT_NE(pair.master.Find(LinkEvent::Type::kSuspect), nullptr);
  EXPECT_EQ(pair.master.down()->code, Code::kMasterLost);
}

TEST(SameHost, LeavesNoDescriptorAndNoMemoryBehind) {
  {
    Pair warm(10);
  }
  const size_t before = OpenDescriptors();
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::stringstream text;
    text << maps.rdbuf();
    return text.str().find("keras-strom") != std::string::npos;
  };
  {
    Pair pair(10);
    ASSERT_TRUE(pair.JoinAndShare());
    EXPECT_TRUE(mapped());
    const size_t shared = OpenDescriptors();
    pair.worker.links->Close(pair.now_ns(), pair.worker.link, "");
    pair.RunUntil(kSecond, [] { return false; });
    EXPECT_FALSE(mapped());
    EXPECT_EQ(OpenDescriptors(), shared - 4);  // a socket and a watched process on either side
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

// ---------------------------------------------------------------- peers that do not keep the rules

TEST(SameHost, GarbageInTheRingsEndsTheLink) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair pair(seed);
    ASSERT_TRUE(pair.JoinAndShare());
    pair.RunUntil(kSecond, [] { return false; });
    std::mt19937_64 random(seed);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("keras-strom") == std::string::npos) continue;
      auto* const place = reinterpret_cast<uint8_t*>(std::stoull(line, nullptr, 16));
      std::generate_n(place + 4096, 1 << 16, [&] { return static_cast<uint8_t>(random()); });
      auto* const positions = reinterpret_cast<RingPositions*>(place);
      for (int i = 0; i < 2; ++i) positions[i].written += 16 * (1 + random() % 1000);
      break;
    }
    pair.Send(pair.worker, Channel::kUpdate, std::string(5000, 'x'));
    ASSERT_TRUE(pair.RunUntil(
        kSecond, [&] { return pair.master.down() != nullptr || pair.worker.down() != nullptr; }));
    const LinkEvent& down = pair.master.down() ? *pair.master.down() : *pair.worker.down();
    EXPECT_EQ(down.code, Code::kCorrupt) << down.reason;
    EXPECT_TRUE(pair.RunUntil(
        kSecond, [&] { return pair.master.down() != nullptr && pair.worker.down() != nullptr; }));
  }
}

TEST(SameHost, MemoryThatCouldShrinkIsTooLargeOrIsNoneIsRefused) {
  const size_t bytes = 4096 + 2 * kLeastRingBytes;
  const auto memory_file = [&](size_t size, int seals) {
    Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  };
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_TRUE(SharedMemory::Map(memory_file(bytes, seals), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes, 0), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes, F_SEAL_GROW | F_SEAL_SEAL), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes, F_SEAL_SHRINK), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes - 1, seals), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes, seals), 2 * kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(memory_file(bytes, seals), kLeastRingBytes - 16));
  EXPECT_FALSE(SharedMemory::Map(memory_file(4096, seals), 0));
  const size_t most = size_t{4} << 20;
  EXPECT_TRUE(SharedMemory::Map(memory_file(4096 + 2 * most, seals), most));
  EXPECT_FALSE(SharedMemory::Map(memory_file(4096 + 4 * most, seals), 2 * most));
  EXPECT_FALSE(
      SharedMemory::Map(Descriptor(open("/dev/zero", O_RDWR | O_CLOEXEC)), kLeastRingBytes));
  EXPECT_FALSE(SharedMemory::Map(Descriptor(), kLeastRingBytes));
}

// A connection to the abstract socket of this process's only listener.
Descriptor ConnectAsAStranger() {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@keras-strom-");
    if (at == std::string::npos) continue;
    const std::string digits = line.substr(at + std::strlen("@keras-strom-"), 32);
    Token name;
    for (size_t i = 0; i < name.size(); ++i) {
      name[i] = static_cast<uint8_t>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    }
    Descriptor socket = ConnectOnHost(name);
    ucred peer = {};
    socklen_t length = sizeof(peer);
    getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
    if (peer.pid == getpid()) return socket;  // other tests run at the same time
  }
  return Descriptor();
}

// The loop sleeps until that descriptor is readable, so it would burn a core.
TEST(SameHost, WithoutADescriptorForWhoConnectsNothingIsLeftToWakeFor) {
  Pair pair(12, {.worker = {.enabled = false}});
  ASSERT_TRUE(pair.Join());
  pair.RunUntil(kSecond, [] { return false; });
  const Descriptor stranger = ConnectAsAStranger();
  ASSERT_TRUE(stranger.valid());
  pollfd wakes = {pair.master.links->descriptor(), POLLIN, 0};
  ASSERT_EQ(poll(&wakes, 1, 0), 1);
  {
    const FewDescriptors few(0);
    ASSERT_EQ(dup(0), -1);
    pair.master.links->Awake(pair.now_ns(), true);
    EXPECT_EQ(poll(&wakes, 1, 0), 0);
    pollfd hung_up = {stranger.get(), POLLIN, 0};
    EXPECT_EQ(poll(&hung_up, 1, 0), 1) << "who waits there goes on by UDP";
    EXPECT_TRUE(hung_up.revents & POLLHUP);
    pair.Send(pair.worker, Channel::kControl, "still here");
    EXPECT_TRUE(
        pair.RunUntil(kSecond, [&] { return pair.master.Texts(Channel::kControl).size() == 1; }));
  }
}

TEST(SameHost, StrangersAtTheSocketGetNothingAndDisturbNobody) {
  Pair pair(11, {.worker = {.enabled = false}});  // its nonce stays unused
  ASSERT_TRUE(pair.Join());
  pair.RunUntil(kSecond, [] { return false; });
  const size_t before = OpenDescriptors();
  {
    auto memory = SharedMemory::Create(kLeastRingBytes);
    ASSERT_TRUE(memory);
    std::vector<Descriptor> strangers;
    for (int i = 0; i < 200; ++i) {
      strangers.push_back(ConnectAsAStranger());
      ASSERT_TRUE(strangers.back().valid());
      if (i % 4 == 1) {  // a nonce that nobody was told
        EXPECT_TRUE(SendMemory(strangers.back(), {.ring_bytes = kLeastRingBytes}, memory->file()));
      }
      if (i % 4 == 2) RingBell(strangers.back());
      if (i % 4 == 3) strangers.back().Close();
      pair.RunUntil(kMillisecond / 5, [] { return false; });
    }
    EXPECT_LT(OpenDescriptors(), before + 300) << "silent strangers are bounded";
  }
  pair.RunUntil(kMillisecond, [] { return false; });
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_FALSE(pair.master.links->IsShared(pair.master.link));
  pair.Send(pair.worker, Channel::kControl, "still here");
  EXPECT_TRUE(
      pair.RunUntil(kSecond, [&] { return pair.master.Texts(Channel::kControl).size() == 1; }));
}

}  // namespace
}  // namespace strom
