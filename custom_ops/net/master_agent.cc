#include "net/master_agent.h"

#include "core/base/json.h"
#include "core/transport/crypto.h"
#include "net/host.h"

namespace strom {
namespace {

constexpr size_t kMaxEvents = 1000;

const char* Name(MasterEvent::Type type) {
  switch (type) {
    case MasterEvent::Type::kJoined:
      return "joined";
    case MasterEvent::Type::kLeft:
      return "left";
    case MasterEvent::Type::kLost:
      return "lost";
    case MasterEvent::Type::kDrained:
      return "drained";
    case MasterEvent::Type::kRejoined:
      return "rejoined";
    case MasterEvent::Type::kRefused:
      return "refused";
    case MasterEvent::Type::kStarted:
      return "started";
    case MasterEvent::Type::kEnded:
      return "ended";
    case MasterEvent::Type::kDonation:
      return "donation";
    case MasterEvent::Type::kSnapshot:
      return "snapshot";
    case MasterEvent::Type::kResumed:
      return "resumed";
    case MasterEvent::Type::kSuperseded:
      return "superseded";
    case MasterEvent::Type::kNotice:
      return "notice";
  }
  return "notice";
}

}  // namespace

Status MasterAgent::Create(MasterAgentOptions options, std::shared_ptr<MasterAgent>* out) {
  std::unique_ptr<UdpSocket> socket;
  Status opened = UdpSocket::Open(options.bind_address, options.port, &socket, options.socket);
  if (!opened.ok()) return opened;
  if (!options.has_private_key) SystemRandom().Fill(options.endpoint.private_key.bytes());
  options.endpoint.accepts = true;
  options.node.host = HostOfThisProcess();
  const std::shared_ptr<MasterAgent> agent(new MasterAgent(options, std::move(socket)));
  Status started = agent->loop_.Start(agent.get());
  if (started.ok()) *out = agent;
  return started;
}

MasterAgent::MasterAgent(const MasterAgentOptions& options, std::unique_ptr<UdpSocket> socket)
    : public_key_(DerivePublicKey(options.endpoint.private_key)),
      loop_(std::move(socket), options.endpoint, {.enabled = options.same_host}),
      node_(options.node, loop_.links()) {}

MasterAgent::~MasterAgent() { Close("the master ended"); }

void MasterAgent::WorkerHasEnded(int32_t rank) {
  loop_.Run([&](int64_t now_ns) { node_.WorkerHasEnded(now_ns, rank); });
}

void MasterAgent::Close(const std::string& reason) {
  loop_.Run([&](int64_t now_ns) { node_.Shutdown(now_ns, reason); });
  loop_.Stop();
}

std::string MasterAgent::StatusJson() {
  JsonObject json;
  loop_.Run([&](int64_t) {
    std::string events;
    for (const std::string& event : events_) events += (events.empty() ? "" : ", ") + event;
    json.Add("port", port())
        .AddRaw("events", "[" + events + "]")
        .Add("events_total", events_total_)
        .AddRaw("counters", loop_.CountersJson())
        .AddRaw("node", node_.StatusJson());
  });
  return json.Text();
}

void MasterAgent::HandleLinkEvent(int64_t now_ns, LinkEvent event) {
  node_.HandleLinkEvent(now_ns, std::move(event));
}

void MasterAgent::Publish(int64_t now_ns) {
  while (auto event = node_.PollEvent()) {
    if (events_.size() == kMaxEvents) events_.pop_front();
    ++events_total_;
    JsonObject json;
    json.Add("time_ns", now_ns)
        .Add("type", std::string(Name(event->type)))
        .Add("rank", event->rank)
        .Add("text", event->text);
    events_.push_back(json.Text());
  }
}

}  // namespace strom
