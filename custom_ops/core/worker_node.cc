#include "core/worker_node.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <utility>

#include "core/blob.h"
#include "core/control.h"
#include "core/node_status.h"
#include "core/replication.h"
#include "core/step_queue.h"
#include "core/version_vector.h"

namespace strom {

namespace {

// While it looks for a silent master, a worker tries again so often within the failure timeout.
constexpr int64_t kRetriesPerTimeout = 10;
constexpr int64_t kBlobBytes = int64_t{1} << 40;

std::string Text(const Address& address) {
  char text[64];
  const auto& ip = address.ip;
  const bool mapped = std::all_of(ip.begin(), ip.begin() + 10, [](uint8_t b) { return b == 0; }) &&
                      ip[10] == 0xff && ip[11] == 0xff;
  if (mapped) {
    std::snprintf(text, sizeof(text), "%u.%u.%u.%u:%u", ip[12], ip[13], ip[14], ip[15],
                  address.port);
    return text;
  }
  std::string groups;
  for (size_t i = 0; i < ip.size(); i += 2) {
    std::snprintf(text, sizeof(text), "%s%x", i == 0 ? "" : ":", ip[i] << 8 | ip[i + 1]);
    groups += text;
  }
  return "[" + groups + "]:" + std::to_string(address.port);
}

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace

struct WorkerNode::State {
  enum class Phase {
    kJoining,   // never welcomed so far
    kIdle,      // between generations
    kStarting,  // announced, waiting for START and the snapshot
    kTraining,
    kFinishing,  // DONE is said, waiting for FINAL and all it names
    kFinal,      // the application applies what is left
    kResult,     // STATE is sent, waiting for RESULT
    kVerify,     // the application compares, then waits for END
    kOver        // failed or left
  };

  State(const WorkerNodeOptions& o, LinkLayer* l)
      : options(o),
        links(l),
        replication({o.ring_bytes, o.ring_bytes, 3 * o.failure_timeout_ns}),
        queue(o.max_staleness >= 0, 0) {}

  // --- links
  void Connect();
  void HandleUp(const LinkEvent& event);
  void HandleDown(const LinkEvent& event);
  void HandleMessage(const LinkEvent& event);
  void LoseLink(const std::string& why);  // the master is silent: come back or fail
  bool MayReturn() const;
  void GiveUp();
  void Fail(Code code, const std::string& message);
  void SendControl(const ControlMessage& message) {
    links->Send(now_ns, link, Channel::kControl, EncodeControl(message));
  }
  void SendBlob(const std::vector<Buffer>& chunks) {
    for (const Buffer& chunk : chunks) links->Send(now_ns, link, Channel::kState, chunk);
  }

  // --- what the master says
  void Handle(const Attach& attach);
  void Handle(const StartGeneration& start);
  void Handle(const Step& step);
  void Handle(const Final& message);
  void Handle(const End& end);
  void Handle(const Stop& stop);
  void Handle(const Beacon& beacon);
  void Handle(const Notice& notice);
  void Handle(const Failure& failure);
  template <typename Other>
  void Handle(const Other&) {
    ++drops["control message that only a worker sends"];
  }
  void HandleChunk(Bytes chunk);
  void HandleUpdate(const Buffer& update);

  // --- requests
  void Announce();
  void AskAverage();
  void SayDone();
  void Queue(std::vector<Replication::Accepted> accepted);
  void Advance();  // raises the events whose conditions now hold
  void Raise(WorkerEvent event) { events.push_back(std::move(event)); }

  const WorkerNodeOptions options;
  LinkLayer* const links;
  Replication replication;
  StepQueue queue;
  Phase phase = Phase::kJoining;
  uint64_t origin = 0;
  uint64_t counter = 0;  // of the last own update
  VersionVector applied;

  LinkId link = 0;
  bool up = false;
  bool attached = false;              // the master takes and sends updates over this link
  std::optional<int64_t> give_up_ns;  // set while the worker looks for a silent master
  int64_t retry_ns = kNever;
  int64_t last_beacon_ns = 0;
  int64_t now_ns = 0;

  Generation generation;
  Layout layout;
  bool started = false;  // START is here, perhaps not yet the snapshot
  std::shared_ptr<const std::vector<float>> parameters;
  std::optional<std::pair<uint64_t, std::vector<double>>> asked;  // an average: key, values
  std::optional<Blob> mean;
  bool stop = false;
  std::optional<Final> final;
  std::optional<Blob> result;

  BlobAssembler assembler;
  std::deque<WorkerEvent> events;
  DropCounters drops;
  int64_t updates_received = 0;
  int64_t update_bytes_received = 0;
  int64_t update_bytes_sent = 0;
  int64_t reconnects = 0;
};

WorkerNode::WorkerNode(const WorkerNodeOptions& options, LinkLayer* links)
    : state_(std::make_unique<State>(options, links)) {}
WorkerNode::~WorkerNode() = default;

void WorkerNode::Start(int64_t now_ns) {
  state_->now_ns = now_ns;
  state_->Connect();
}

void WorkerNode::HandleLinkEvent(int64_t now_ns, LinkEvent event) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (event.link != s.link || s.phase == State::Phase::kOver) return;  // an old link's
  switch (event.type) {
    case LinkEvent::Type::kUp:
      s.HandleUp(event);
      break;
    case LinkEvent::Type::kMessage:
      s.HandleMessage(event);
      break;
    case LinkEvent::Type::kSuspect: {
      WorkerEvent notice;
      notice.text = "the master at " + Text(s.options.master) + " has been silent for a while";
      s.Raise(std::move(notice));
      break;
    }
    case LinkEvent::Type::kDown:
      s.HandleDown(event);
      break;
    case LinkEvent::Type::kHello:
      s.links->Refuse(now_ns, event.link, "workers take no members; join at the master");
      break;
  }
  s.Advance();
}

void WorkerNode::HandleTimeout(int64_t now_ns) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase == State::Phase::kOver) return;
  if (s.give_up_ns && now_ns >= *s.give_up_ns) return s.GiveUp();
  if (now_ns >= s.retry_ns) {
    s.retry_ns = kNever;
    s.Connect();
  }
  if (s.up && now_ns - s.last_beacon_ns >= s.options.failure_timeout_ns) {
    // The link answers but its master does not: an orphan looks for the master anew.
    s.links->Close(now_ns, s.link, "no beacon");
    s.LoseLink("");
  }
}

int64_t WorkerNode::NextTimeout() const {
  const State& s = *state_;
  if (s.phase == State::Phase::kOver) return kNever;
  int64_t next = s.retry_ns;
  if (s.give_up_ns) next = std::min(next, *s.give_up_ns);
  if (s.up) next = std::min(next, s.last_beacon_ns + s.options.failure_timeout_ns);
  return next;
}

std::optional<WorkerEvent> WorkerNode::PollEvent() {
  if (state_->events.empty()) return std::nullopt;
  WorkerEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

void WorkerNode::BeginGeneration(int64_t now_ns, Generation generation) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase == State::Phase::kOver) return;
  s.layout = {generation.number, static_cast<uint64_t>(generation.layout_size),
              generation.layout_hash};
  s.generation = std::move(generation);
  s.phase = State::Phase::kStarting;
  s.attached = false;
  s.started = false;
  s.parameters = s.generation.seed;
  s.asked.reset();
  s.mean.reset();
  s.final.reset();
  s.result.reset();
  s.stop = false;
  if (s.up) s.Announce();
}

void WorkerNode::Average(int64_t now_ns, uint64_t key, std::vector<double> values) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase == State::Phase::kOver) return;
  s.asked = {key, std::move(values)};
  s.mean.reset();
  if (s.attached) s.AskAverage();
}

void WorkerNode::Finish(int64_t now_ns, bool stop) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase != State::Phase::kTraining) return;
  s.phase = State::Phase::kFinishing;
  s.stop = stop;
  if (s.attached) s.SayDone();
}

void WorkerNode::SendState(int64_t now_ns, std::vector<double> state) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase != State::Phase::kFinal) return;
  s.phase = State::Phase::kResult;
  s.parameters = nullptr;
  s.SendBlob(EncodeBlob({BlobKind::kState, s.layout.generation, 0, 0, 0}, state));
}

void WorkerNode::Verify(int64_t now_ns, double difference, uint64_t hash) {
  State& s = *state_;
  s.now_ns = now_ns;
  if (s.phase != State::Phase::kVerify) return;
  s.SendControl(Verification{s.layout.generation, difference, hash});
}

void WorkerNode::Leave(int64_t now_ns, const std::string& reason) {
  State& s = *state_;
  if (s.phase == State::Phase::kOver) return;
  s.phase = State::Phase::kOver;
  s.up = s.attached = false;
  if (s.link != 0) s.links->Close(now_ns, s.link, reason);
}

UpdateId WorkerNode::Submit(int64_t now_ns, int64_t iteration, bool last_part,
                            std::vector<uint8_t> update) {
  State& s = *state_;
  s.now_ns = now_ns;
  const UpdateId id{s.origin, ++s.counter};
  if (s.phase == State::Phase::kOver) {
    ++s.drops["own update after the end"];
    return id;
  }
  STROM_CHECK(s.phase == State::Phase::kTraining);  // else START and FINAL would not count it
  WriteUpdateHeader({id, static_cast<uint64_t>(iteration), s.layout, last_part ? kLastPartFlag : 0},
                    update);
  std::vector<Replication::Accepted> accepted;
  const Buffer buffer = MakeBuffer(std::move(update));
  const auto verdict = s.replication.Receive(now_ns, 0, id, buffer, &accepted);
  STROM_CHECK(verdict == Replication::Verdict::kAccepted);  // own counters have no gap
  if (s.attached) s.links->Send(now_ns, s.link, Channel::kUpdate, buffer);
  s.update_bytes_sent += static_cast<int64_t>(buffer->size());
  s.Queue(std::move(accepted));
  s.Advance();
  return id;
}

int64_t WorkerNode::OutgoingBytes() const {
  const State& s = *state_;
  return s.attached ? s.links->QueuedBytes(s.link) : s.replication.UncoveredBytes(s.origin);
}

std::vector<ReceivedUpdate> WorkerNode::TakeReceived() { return state_->queue.Take(); }
int64_t WorkerNode::ReleasedSteps() const { return state_->queue.own_released_steps(); }
const VersionVector& WorkerNode::received() const { return state_->replication.received(); }
const Replication& WorkerNode::replication() const { return state_->replication; }
void WorkerNode::SetApplied(const VersionVector& applied) { state_->applied = applied; }

void WorkerNode::State::Connect() {
  link = links->Connect(now_ns, options.master, options.master_public_key,
                        EncodeHello({kProtocolVersion, options.rank, options.size, options.attempt,
                                     options.instance, options.max_staleness}));
}

void WorkerNode::State::HandleUp(const LinkEvent& event) {
  Welcome welcome;
  const Status parsed = ParseWelcome(*event.payload, &welcome);
  if (!parsed.ok()) return Fail(parsed.code, parsed.message);
  up = true;
  assembler = {};
  give_up_ns.reset();
  retry_ns = kNever;
  last_beacon_ns = now_ns;
  if (phase == Phase::kJoining) {
    origin = welcome.origin;
    queue = StepQueue(options.max_staleness >= 0, origin);
    phase = Phase::kIdle;
    WorkerEvent joined;
    joined.type = WorkerEvent::Type::kJoined;
    joined.origin = origin;
    return Raise(std::move(joined));
  }
  ++reconnects;
  if (welcome.origin != origin) {
    return Fail(Code::kMasterLost, "the master at " + Text(options.master) +
                                       " no longer knows this worker; start it anew");
  }
  const bool in_generation = phase == Phase::kTraining || phase == Phase::kFinishing;
  SendControl(Attach{in_generation ? layout.generation : 0, replication.received()});
  if (phase == Phase::kStarting) Announce();
}

void WorkerNode::State::HandleDown(const LinkEvent& event) {
  up = attached = false;
  link = 0;
  if (phase == Phase::kJoining || event.code == Code::kRefused) {
    return Fail(event.code, event.reason);
  }
  if (event.code == Code::kClosed) {
    return Fail(Code::kMasterLost, "the master at " + Text(options.master) +
                                       " closed the connection" +
                                       (event.reason.empty() ? "" : ": " + event.reason));
  }
  LoseLink(event.reason);
}

void WorkerNode::State::LoseLink(const std::string& why) {
  up = attached = false;
  link = 0;
  if (!MayReturn()) return GiveUp();
  if (!give_up_ns) {
    give_up_ns = now_ns + options.failure_timeout_ns;
    WorkerEvent notice;
    notice.text = "the master at " + Text(options.master) + " has been silent for " +
                  Seconds(options.failure_timeout_ns) + "; looking for it" +
                  (why.empty() ? "" : " (" + why + ")");
    Raise(std::move(notice));
    return Connect();
  }
  retry_ns = now_ns + options.failure_timeout_ns / kRetriesPerTimeout;
}

bool WorkerNode::State::MayReturn() const {
  switch (phase) {
    case Phase::kIdle:
    case Phase::kStarting:
      return true;
    case Phase::kTraining:
      return options.max_staleness < 0;
    case Phase::kFinishing:
      return options.max_staleness < 0 && !final;
    default:
      return false;
  }
}

void WorkerNode::State::GiveUp() {
  const int64_t silent_ns = options.failure_timeout_ns * (give_up_ns ? 2 : 1);
  Fail(Code::kMasterLost, "the master at " + Text(options.master) + " has been silent for " +
                              Seconds(silent_ns) + "; is the driver still running?");
}

void WorkerNode::State::Fail(Code code, const std::string& message) {
  if (phase == Phase::kOver) return;
  phase = Phase::kOver;
  up = attached = false;
  if (link != 0) links->Close(now_ns, link, message);
  link = 0;
  WorkerEvent failed;
  failed.type = WorkerEvent::Type::kFailed;
  failed.status = {code, message};
  Raise(std::move(failed));
}

void WorkerNode::State::HandleMessage(const LinkEvent& event) {
  switch (event.channel) {
    case Channel::kControl: {
      ControlMessage message;
      const Status parsed = ParseControl(*event.payload, &message);
      if (!parsed.ok()) return Fail(parsed.code, "the master sent " + parsed.message);
      return std::visit([&](const auto& value) { Handle(value); }, message);
    }
    case Channel::kState:
      return HandleChunk(*event.payload);
    case Channel::kUpdate:
      return HandleUpdate(event.payload);
  }
}

void WorkerNode::State::Handle(const Attach& attach) {
  if (attach.generation != layout.generation) return;
  attached = true;
  std::vector<Buffer> missing;
  if (!replication.Replay(attach.vector, &missing)) {
    // Own updates stay until the master holds them, and others' came from it.
    return Fail(Code::kInternal, "the master lost updates that it had confirmed");
  }
  for (const Buffer& update : missing) links->Send(now_ns, link, Channel::kUpdate, update);
  if (asked && !mean) AskAverage();
  if (phase == Phase::kFinishing) SayDone();
}

void WorkerNode::State::Handle(const StartGeneration& start) {
  if (start.generation != layout.generation || phase != Phase::kStarting) return;
  started = attached = true;
  queue.Restart(start.cut);
  std::vector<Replication::Accepted> accepted;
  replication.InstallCut(now_ns, start.cut, &accepted);
  Queue(std::move(accepted));
}

void WorkerNode::State::Handle(const Step& step) {
  if (step.generation != layout.generation || !started) return;
  const Status next = queue.AddStep(step.step, step.ids);
  if (!next.ok()) Fail(next.code, "the master sent " + next.message);
}

void WorkerNode::State::Handle(const Final& message) {
  if (message.generation == layout.generation && phase == Phase::kFinishing) final = message;
}

void WorkerNode::State::Handle(const End& end) {
  if (end.generation != layout.generation || phase != Phase::kVerify) return;
  phase = Phase::kIdle;
  attached = false;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kEnd;
  event.values = {end.worst_difference};
  Raise(std::move(event));
}

void WorkerNode::State::Handle(const Stop& stop) {
  if (stop.generation != layout.generation) return;
  WorkerEvent event;
  event.type = WorkerEvent::Type::kStop;
  Raise(std::move(event));
}

void WorkerNode::State::Handle(const Beacon& beacon) {
  last_beacon_ns = now_ns;
  replication.SetMasterVector(now_ns, beacon.vector);
}

void WorkerNode::State::Handle(const Notice& notice) {
  WorkerEvent event;
  event.text = notice.text;
  Raise(std::move(event));
}

void WorkerNode::State::Handle(const Failure& failure) {
  const bool known = failure.code < static_cast<int32_t>(Code::kOk) &&
                     failure.code >= static_cast<int32_t>(Code::kNotFinite);
  Fail(known ? static_cast<Code>(failure.code) : Code::kInternal, failure.reason);
}

void WorkerNode::State::HandleChunk(Bytes chunk) {
  std::optional<Blob> blob;
  const Status status = assembler.Add(chunk, kBlobBytes, &blob);
  if (!status.ok()) return Fail(status.code, "the master sent " + status.message);
  if (!blob) return;
  if (blob->name.generation != layout.generation) {
    ++drops["values of another generation"];
  } else if (blob->name.kind == BlobKind::kParameters) {
    auto values = std::make_shared<std::vector<float>>();
    const Status whole = blob->Values(values.get());
    if (!whole.ok() || values->size() != layout.size) {
      return Fail(Code::kCorrupt, "the master sent " + std::to_string(values->size()) +
                                      " parameters instead of " + std::to_string(layout.size));
    }
    parameters = std::move(values);
  } else if (blob->name.kind == BlobKind::kMean && asked && asked->first == blob->name.key) {
    mean = std::move(blob);
  } else if (blob->name.kind == BlobKind::kResult && phase == Phase::kResult) {
    result = std::move(blob);
  } else {
    ++drops["values that nobody asked for"];
  }
}

void WorkerNode::State::HandleUpdate(const Buffer& update) {
  UpdateHeader header;
  if (ParseUpdateHeader(*update, &header).ok() && header.layout.generation < layout.generation) {
    ++drops["update of an earlier generation"];  // the next START's snapshot contains it
    return;
  }
  const Status valid = ValidateUpdate(*update, layout, *options.codec, &header);
  if (!valid.ok()) {
    ++drops["invalid update"];
    links->Close(now_ns, link, valid.message);
    return LoseLink(valid.message);
  }
  updates_received += 1;
  update_bytes_received += static_cast<int64_t>(update->size());
  std::vector<Replication::Accepted> accepted;
  switch (replication.Receive(now_ns, link, header.id, update, &accepted)) {
    case Replication::Verdict::kAccepted:
    case Replication::Verdict::kHeld:
      break;
    case Replication::Verdict::kDuplicate:
      ++drops["duplicate update"];
      break;
    case Replication::Verdict::kClosed:
      ++drops["update of a closed origin"];
      break;
    case Replication::Verdict::kNoRoom:
      ++drops["update over the hold bound"];
      links->Close(now_ns, link, "too many updates out of order");
      return LoseLink("too many updates out of order");
  }
  Queue(std::move(accepted));
}

void WorkerNode::State::Announce() {
  SendControl(strom::Announce{layout, counter, generation.options_text});
  if (generation.seed == nullptr) return;
  SendBlob(EncodeBlob({BlobKind::kSeed, layout.generation, 0, 0, 0}, *generation.seed));
}

void WorkerNode::State::AskAverage() {
  SendBlob(
      EncodeBlob({BlobKind::kAverage, layout.generation, asked->first, counter, 0}, asked->second));
}

void WorkerNode::State::SayDone() {
  SendControl(Done{layout.generation, counter, static_cast<uint8_t>(stop ? 1 : 0)});
}

void WorkerNode::State::Queue(std::vector<Replication::Accepted> accepted) {
  for (Replication::Accepted& next : accepted) queue.Add({next.id, std::move(next.update)});
}

void WorkerNode::State::Advance() {
  if (phase == Phase::kStarting && started && parameters) {
    phase = Phase::kTraining;
    WorkerEvent event;
    event.type = WorkerEvent::Type::kStarted;
    event.parameters = std::exchange(parameters, nullptr);
    generation.seed = nullptr;
    Raise(std::move(event));
  }
  if (mean && queue.released_steps() >= mean->name.mark) {
    WorkerEvent event;
    event.type = WorkerEvent::Type::kAverage;
    event.key = mean->name.key;
    event.contributors = static_cast<int32_t>(mean->name.count);
    const Status whole = mean->Values(&event.values);
    mean.reset();
    asked.reset();
    if (!whole.ok()) return Fail(whole.code, "the master sent " + whole.message);
    Raise(std::move(event));
  }
  if (phase == Phase::kFinishing && final && Covers(replication.received(), final->vector) &&
      queue.released_steps() >= final->steps) {
    phase = Phase::kFinal;
    WorkerEvent event;
    event.type = WorkerEvent::Type::kFinal;
    Raise(std::move(event));
  }
  if (phase == Phase::kResult && result && parameters) {
    phase = Phase::kVerify;
    WorkerEvent event;
    event.type = WorkerEvent::Type::kResult;
    event.contributors = static_cast<int32_t>(result->name.count);
    const Status whole = result->Values(&event.values);
    event.parameters = std::exchange(parameters, nullptr);
    if (!whole.ok()) return Fail(whole.code, "the master sent " + whole.message);
    Raise(std::move(event));
  }
}

std::string WorkerNode::StatusJson() const {
  const State& s = *state_;
  static constexpr const char* kPhases[] = {
      "joining", "idle", "starting", "training", "finishing", "final", "result", "verify", "over"};
  JsonObject json;
  json.Add("role", std::string("worker"))
      .Add("rank", s.options.rank)
      .Add("origin", s.origin)
      .Add("counter", s.counter)
      .Add("generation", s.layout.generation)
      .Add("phase", std::string(kPhases[static_cast<size_t>(s.phase)]))
      .Add("up", s.up)
      .Add("attached", s.attached)
      .Add("reconnects", s.reconnects)
      .Add("released_steps", s.queue.released_steps())
      .Add("waiting_updates", s.queue.waiting())
      .Add("outgoing_bytes", OutgoingBytes())
      .Add("updates_received", s.updates_received)
      .Add("update_bytes_received", s.update_bytes_received)
      .Add("update_bytes_sent", s.update_bytes_sent)
      .AddRaw("applied", VectorJson(s.applied))
      .AddRaw("drops", DropsJson(s.drops));
  AddReplication(s.replication, &json);
  return json.Text();
}

}  // namespace strom
