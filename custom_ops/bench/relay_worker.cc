#include "bench/relay_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "bench/relay_ages.h"
#include "bench/relay_traffic.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/replication/node_status.h"
#include "core/replication/update.h"
#include "net/io_loop.h"
#include "net/worker_agent.h"

namespace strom::bench {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kTenth = 100 * kMillisecond;
constexpr int64_t kSecond = 1000 * kMillisecond;

// Joining, starting and ending take so long at most, behind whatever else is to be sent.
constexpr int64_t kPatienceNs = 60 * kSecond;

// While workers start one after another, first parameters travel; ages count from then on.
constexpr int64_t kSettleNs = kSecond;

constexpr float kValue = 1.0f / 4096;  // a power of two: sums of it are exact
constexpr uint64_t kLayoutHash = 4711;
constexpr int kDifferentUpdates = 4;
constexpr double kBitsAnEntry = 6.5;  // at the density chosen below, sign included

// One update of about `message_bytes`, with room for its header.
std::vector<uint8_t> MakeUpdate(const RelayWorkerOptions& options, uint64_t seed) {
  const double entries = 8.0 * static_cast<double>(options.message_bytes) / kBitsAnEntry;
  const double density = std::min(0.9, entries / static_cast<double>(options.elements));
  std::mt19937_64 random(seed);
  EntryList list;
  for (int64_t first = 0; first < options.elements; first += kChunk) {
    const int64_t elements = std::min(kChunk, options.elements - first);
    std::bernoulli_distribution is_sent(density);
    std::vector<uint32_t> codes;
    for (int64_t i = 0; i < elements; ++i) {
      if (is_sent(random)) codes.push_back(static_cast<uint32_t>(2 * i) | (random() & 1));
    }
    std::copy(codes.begin(), codes.end(), list.Reserve(static_cast<int64_t>(codes.size())));
    list.Append(first / kChunk, static_cast<int64_t>(codes.size()));
  }
  const MessageFields fields{kValue, kValue, options.elements, 0};
  auto parts =
      WriteEntries(fields, list, kMaxMessageBytes - kUpdateHeaderBytes, kUpdateHeaderBytes);
  STROM_CHECK(parts.size() == 1);
  return std::move(parts[0]);
}

WorkerAgentOptions AgentOptions(const RelayWorkerOptions& options) {
  WorkerAgentOptions agent;
  const auto timeout_ns = static_cast<int64_t>(1e9 * options.failure_timeout_seconds);
  agent.endpoint.failure_timeout_ns = timeout_ns;
  agent.node.failure_timeout_ns = timeout_ns;
  agent.node.master_public_key = options.key;
  agent.same_host = false;  // what is tested is the network
  agent.node.rank = options.rank;
  agent.node.size = options.size;
  SystemRandom().Fill(agent.node.instance);
  return agent;
}

class RelayWorker {
 public:
  explicit RelayWorker(const RelayWorkerOptions& options) : options_(options) {
    for (int i = 0; i < kDifferentUpdates; ++i) {
      updates_.push_back(MakeUpdate(options, static_cast<uint64_t>(options.rank * 100 + i)));
    }
  }

  std::string Run() {
    const Status status = RunToTheEnd();
    JsonObject json = Results(status);
    if (agent_ != nullptr) {
      json.AddRaw("status", agent_->StatusJson());
      agent_->Close("");
    }
    return json.Text();
  }

 private:
  Status RunToTheEnd() {
    Status status = Join();
    if (status.ok()) status = Train();
    if (status.ok()) status = End();
    return status;
  }

  Status Join() {
    WorkerAgentOptions agent = AgentOptions(options_);
    Status status = ParseAddress(options_.address, options_.port, &agent.node.master);
    if (status.ok()) status = WorkerAgent::Join(agent, kPatienceNs, &agent_);
    if (!status.ok()) return status;
    Generation generation{1, options_.elements, kLayoutHash, "soak", nullptr};
    if (options_.rank == 0) {
      const auto size = static_cast<size_t>(options_.elements);
      generation.values = std::make_shared<std::vector<float>>(size, 0.0f);
    }
    std::shared_ptr<const std::vector<float>> start;
    status = agent_->Start(generation, kPatienceNs, &start);
    if (status.ok()) parameters_ = *start;
    return status;
  }

  // Submits on time and polls in between.
  Status Train() {
    const auto period_ns = static_cast<int64_t>(1e9 / options_.updates_per_second);
    const int64_t phase_ns = options_.together ? 0 : period_ns * options_.rank / options_.size;
    const int64_t begin_ns = MonotonicNanoseconds();
    const int64_t end_ns = begin_ns + static_cast<int64_t>(1e9 * options_.seconds);
    ages_.CountFrom(begin_ns + std::min(kSettleNs, (end_ns - begin_ns) / 4));
    int64_t submit_ns = (begin_ns / period_ns + 1) * period_ns + phase_ns;
    for (int64_t now_ns = begin_ns; now_ns < end_ns; now_ns = MonotonicNanoseconds()) {
      if (now_ns >= submit_ns) {
        const Status status = Submit(now_ns);
        if (!status.ok()) return status;
        // What a pause made it miss is not made up for.
        submit_ns += period_ns * ((now_ns - submit_ns) / period_ns + 1);
      }
      const Status status = Poll();
      if (!status.ok()) return status;
      const int64_t wait_ns = std::min(submit_ns, end_ns) - MonotonicNanoseconds();
      const Status received = agent_->AwaitReceived(std::max<int64_t>(0, wait_ns));
      if (!received.ok() && received.code != Code::kTimeout) return received;
    }
    return {};
  }

  Status End() {
    Status status = agent_->Finish(false, kPatienceNs);
    if (status.ok()) status = Poll();
    if (!status.ok()) return status;
    std::vector<double> state = {1.0};
    std::shared_ptr<const std::vector<float>> final_parameters;
    status = agent_->Result(&state, nullptr, &final_parameters, kPatienceNs);
    if (!status.ok()) return status;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const double apart = std::abs(parameters_[i] - (*final_parameters)[i]);
      difference_ = std::max(difference_, apart);
    }
    hash_ = Hash(AsBytes(parameters_));
    double worst;
    return agent_->Verify(difference_, hash_, &worst, kPatienceNs);
  }

  Status Submit(int64_t now_ns) {
    std::vector<std::vector<uint8_t>> parts = {updates_[submitted_ % updates_.size()]};
    Apply(Bytes(parts[0]).subspan(kUpdateHeaderBytes));
    UpdateId id;
    // The time stands where training has its iteration, so that who polls it knows its age.
    const Status status = agent_->Submit(now_ns, std::move(parts), &id);
    blocked_ns_ += MonotonicNanoseconds() - now_ns;
    if (!status.ok()) return status;
    ++submitted_;
    origin_ = id.origin;
    received_[id.origin] = id.counter;
    return {};
  }

  Status Poll() {
    Received received;
    const Status status = agent_->TakeReceived(&received);
    if (!status.ok()) return status;
    ApplyFolded(received.folded);
    if (received.folded.empty() && received.updates.empty()) return {};
    const int64_t now_ns = MonotonicNanoseconds();
    int64_t updates = received.folded.updates;
    for (const ReceivedUpdate& update : received.updates) updates += UpdatesIn(update);
    CountTenth(now_ns, updates);
    for (const ReceivedUpdate& update : received.updates) {
      UpdateHeader header;
      const Status parsed = ParseUpdateHeader(*update.update, &header);
      if (!parsed.ok()) return parsed;
      if (update.id != header.id) ++out_of_order_;
      ForEachApplied(update, [this](uint64_t origin, uint64_t first, uint64_t last) {
        uint64_t& counter = received_[origin];
        if (first != counter + 1) ++out_of_order_;
        counter = last;
      });
      ForEachIteration(update, header.iteration, [&](int64_t, uint64_t made_ns) {
        ages_.Add(static_cast<int64_t>(made_ns), now_ns);
      });
      bytes_received_ += static_cast<int64_t>(update.update->size());
      Apply(update.message());
    }
    agent_->SetApplied(received_);
    return {};
  }

  // What a long pause let pile up comes as one sum; it holds each origin's updates without a gap.
  void ApplyFolded(const FoldedUpdates& folded) {
    for (const auto& [origin, first] : folded.first) {
      if (first != received_[origin] + 1) ++out_of_order_;
      received_[origin] = folded.last.at(origin);
    }
    for (size_t i = 0; i < folded.sum.size(); ++i) parameters_[i] += folded.sum[i];
    folded_ += folded.updates;
  }

  void Apply(Bytes message) { ApplyMessage(OpenValidatedMessage(message), 0, parameters_); }

  void CountTenth(int64_t now_ns, int64_t updates) {
    const int64_t tenth = now_ns / kTenth;
    if (by_tenth_.empty()) first_tenth_ = tenth;
    by_tenth_.resize(static_cast<size_t>(tenth - first_tenth_ + 1));
    by_tenth_.back() += updates;
  }

  JsonObject Results(const Status& status) {
    std::string tenths;
    for (const int64_t updates : by_tenth_) {
      tenths += (tenths.empty() ? "" : ", ") + std::to_string(updates);
    }
    return JsonObject()
        .Add("failure", status.message)
        .Add("rank", options_.rank)
        .Add("origin", origin_)
        .Add("submitted", submitted_)
        .AddRaw("received", VectorJson(received_))
        .Add("out_of_order", out_of_order_)
        .Add("folded", folded_)
        .AddRaw("difference", std::to_string(difference_))
        .Add("hash", hash_)
        .AddRaw("latency_us", ages_.Json())
        .Add("first_tenth", first_tenth_)
        .AddRaw("received_by_tenth", "[" + tenths + "]")
        .Add("bytes_received", bytes_received_)
        .AddRaw("cpu_seconds", std::to_string(ProcessorSeconds()))
        .Add("peak_memory_bytes", PeakMemoryBytes())
        .AddRaw("blocked_seconds", std::to_string(static_cast<double>(blocked_ns_) / 1e9));
  }

  const RelayWorkerOptions options_;
  std::vector<std::vector<uint8_t>> updates_;
  std::shared_ptr<WorkerAgent> agent_;
  std::vector<float> parameters_;

  uint64_t origin_ = 0;
  size_t submitted_ = 0;
  VersionVector received_;
  int64_t out_of_order_ = 0;
  int64_t folded_ = 0;
  double difference_ = 0;
  uint64_t hash_ = 0;
  UpdateAges ages_;
  int64_t first_tenth_ = 0;
  std::vector<int64_t> by_tenth_;
  int64_t bytes_received_ = 0;
  int64_t blocked_ns_ = 0;
};

}  // namespace

std::string RunRelayWorker(const RelayWorkerOptions& options) { return RelayWorker(options).Run(); }

int64_t MemoryBytes() {
  long long pages = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lld %lld", &pages, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t PeakMemoryBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

}  // namespace strom::bench
