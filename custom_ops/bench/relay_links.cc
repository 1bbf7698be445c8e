#include "bench/relay_links.h"

#include <cstdlib>
#include <future>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/base/json.h"
#include "core/transport/crypto.h"
#include "net/io_loop.h"
#include "net/udp_socket.h"

namespace strom::bench {
namespace {

// A sender keeps so much queued or under way: what a link may have in flight.
constexpr int64_t kQueuedBytes = int64_t{4} << 20;

// The key of a benchmark is no secret: both sides have it in their code.
constexpr std::array<uint8_t, 32> kReceiverKey = {'b', 'e', 'n', 'c', 'h'};

void Check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

Address Parse(const PeerOptions& options) {
  Address address;
  Check(ParseAddress(options.address, options.port, &address));
  return address;
}

// One process's end: a socket, an endpoint and the thread that runs a role.
class Peer : public IoLoop::Protocol {
 public:
  Peer(const PeerOptions& options, bool listens)
      : options_(options),
        loop_(Open(options, listens), Options(listens),
              {.enabled = options.transport == "shared_memory"}) {}

  void HandleTimeout(int64_t) override {}
  int64_t NextTimeout() const override { return kNever; }
  void Publish(int64_t) override {}

  void Start() { Check(loop_.Start(this)); }
  uint16_t port() const { return loop_.socket().port(); }

 protected:
  LinkId Connect() {
    LinkId link = 0;
    loop_.Run([&](int64_t now_ns) {
      link = links_->Connect(now_ns, Parse(options_), DerivePublicKey(SecretKey(kReceiverKey)),
                             MakeBuffer({1}));
    });
    return link;
  }

  std::string Counters() {
    std::string counters;
    loop_.Run([&](int64_t) { counters = loop_.CountersJson(); });
    return counters;
  }

  const PeerOptions options_;
  IoLoop loop_;
  LinkLayer* const links_ = loop_.links();

 private:
  static std::unique_ptr<UdpSocket> Open(const PeerOptions& options, bool listens) {
    std::unique_ptr<UdpSocket> socket;
    Check(UdpSocket::Open(listens ? options.address : "", listens ? options.port : 0, &socket));
    return socket;
  }

  static EndpointOptions Options(bool listens) {
    EndpointOptions endpoint;
    endpoint.accepts = listens;
    if (listens) endpoint.private_key = SecretKey(kReceiverKey);
    return endpoint;
  }
};

// Counts what its senders send; they start together, once all are there.
class Receiver final : public Peer {
 public:
  explicit Receiver(const PeerOptions& options) : Peer(options, true) {}

  void Run() {
    Start();
    PrintReady(port());
    all_up_.get_future().wait();
    loop_.Run([&](int64_t now_ns) {
      for (const auto& [link, number] : senders_) {
        links_->Send(now_ns, link, Channel::kControl, MakeBuffer({1}));
      }
    });
    const std::string arrivals = MeasureArrivals(options_, arrivals_);
    const std::string counters = Counters();
    loop_.Run([&](int64_t now_ns) {
      for (const auto& [link, number] : senders_) links_->Close(now_ns, link, "enough");
    });
    loop_.Stop();
    PrintLine(JsonObject().AddRaw("arrivals", arrivals).AddRaw("counters", counters).Text());
  }

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override {
    switch (event.type) {
      case LinkEvent::Type::kHello:
        links_->Accept(now_ns, event.link, MakeBuffer({1}));
        break;
      case LinkEvent::Type::kUp:
        senders_.emplace(event.link, senders_.size());
        if (static_cast<int>(senders_.size()) == options_.senders) all_up_.set_value();
        break;
      case LinkEvent::Type::kMessage: {
        CheckMessage(*event.payload);
        auto& count = arrivals_.messages[senders_.at(event.link)];
        count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        break;
      }
      default:
        break;
    }
  }

 private:
  std::map<LinkId, size_t> senders_;
  Arrivals arrivals_;
  std::promise<void> all_up_;
};

// Sends from the receiver's word until it has had enough.
class Sender final : public Peer {
 public:
  explicit Sender(const PeerOptions& options)
      : Peer(options, false), messages_(options.message_bytes) {}

  void Run() {
    Start();
    const LinkId link = Connect();
    const LinkEvent end = over_.get_future().get();
    if (!started_) throw std::runtime_error("link " + std::to_string(link) + ": " + end.reason);
    const double cpu_seconds = ProcessorSeconds() - cpu_before_;
    const std::string counters = Counters();
    loop_.Stop();
    PrintLine(JsonObject()
                  .AddRaw("cpu_seconds", std::to_string(cpu_seconds))
                  .AddRaw("counters", counters)
                  .Text());
  }

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override {
    if (event.type == LinkEvent::Type::kMessage) {
      link_ = event.link;
      started_ = true;
      cpu_before_ = ProcessorSeconds();
      Fill(now_ns);
    } else if (event.type == LinkEvent::Type::kDown) {
      link_ = 0;
      over_.set_value(std::move(event));
    }
  }

  // Due at once while there is room in the queue.
  int64_t NextTimeout() const override { return HasRoom() ? 0 : kNever; }
  void HandleTimeout(int64_t now_ns) override { Fill(now_ns); }

 private:
  bool HasRoom() const { return link_ != 0 && links_->QueuedBytes(link_) < kQueuedBytes; }

  void Fill(int64_t now_ns) {
    while (HasRoom()) {
      if (!links_->Send(now_ns, link_, Channel::kUpdate, messages_.Next())) return;
    }
  }

  Messages messages_;
  LinkId link_ = 0;  // while there is something to do
  bool started_ = false;
  double cpu_before_ = 0;
  std::promise<LinkEvent> over_;
};

// Sends every message back.
class Echo final : public Peer {
 public:
  explicit Echo(const PeerOptions& options) : Peer(options, true) {}

  void Run() {
    Start();
    PrintReady(port());
    over_.get_future().wait();
    loop_.Stop();
  }

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override {
    if (event.type == LinkEvent::Type::kHello) {
      links_->Accept(now_ns, event.link, MakeBuffer({1}));
    } else if (event.type == LinkEvent::Type::kMessage) {
      CheckMessage(*event.payload);
      links_->Send(now_ns, event.link, Channel::kUpdate, std::move(event.payload));
    } else if (event.type == LinkEvent::Type::kDown) {
      over_.set_value();
    }
  }

 private:
  std::promise<void> over_;
};

// Sends the next message when the last one is back.
class Asker final : public Peer {
 public:
  explicit Asker(const PeerOptions& options)
      : Peer(options, false), messages_(options.message_bytes) {}

  void Run() {
    Start();
    const LinkId link = Connect();
    const std::string failure = over_.get_future().get();
    if (!failure.empty()) throw std::runtime_error(failure);
    const std::string counters = Counters();
    loop_.Run([&](int64_t now_ns) { links_->Close(now_ns, link, "done"); });
    loop_.Stop();
    PrintLine(JsonObject()
                  .AddRaw("round_trips_us", MicrosecondsJson(round_trips_))
                  .AddRaw("counters", counters)
                  .Text());
  }

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override {
    if (done_) return;
    if (event.type == LinkEvent::Type::kUp) {
      first_seconds_ = NowSeconds();
      Ask(now_ns, event.link);
    } else if (event.type == LinkEvent::Type::kMessage) {
      CheckMessage(*event.payload);
      const double now_seconds = NowSeconds();
      round_trips_.push_back(now_seconds - asked_seconds_);
      if (static_cast<int64_t>(round_trips_.size()) == options_.round_trips ||
          now_seconds - first_seconds_ > options_.seconds) {
        End("");
      } else {
        Ask(now_ns, event.link);
      }
    } else if (event.type == LinkEvent::Type::kDown) {
      End("the link went down: " + event.reason);
    }
  }

 private:
  void Ask(int64_t now_ns, LinkId link) {
    asked_seconds_ = NowSeconds();
    links_->Send(now_ns, link, Channel::kUpdate, messages_.Next());
  }

  void End(const std::string& failure) {
    done_ = true;
    over_.set_value(failure);
  }

  Messages messages_;
  std::vector<double> round_trips_;
  double asked_seconds_ = 0;
  double first_seconds_ = 0;
  bool done_ = false;
  std::promise<std::string> over_;
};

}  // namespace

void RunOverLinks(const PeerOptions& options) {
  if (options.role == "receive") {
    Receiver(options).Run();
  } else if (options.role == "send") {
    Sender(options).Run();
  } else if (options.role == "echo") {
    Echo(options).Run();
  } else {
    Asker(options).Run();
  }
}

}  // namespace strom::bench
