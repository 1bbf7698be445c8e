// Masters and workers behind handles.
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "capi/handles.h"
#include "net/bytes_agent.h"
#include "net/master_agent.h"
#include "net/worker_agent.h"

namespace strom {
namespace {

HandleTable<MasterAgent>& Masters() {
  static HandleTable<MasterAgent> table(HandleTable<MasterAgent>::Scope::kOneProcess);
  return table;
}

HandleTable<WorkerAgent>& Workers() {
  static HandleTable<WorkerAgent> table(HandleTable<WorkerAgent>::Scope::kOneProcess);
  return table;
}

HandleTable<BytesAgent>& BytesWorkers() {
  static HandleTable<BytesAgent> table(HandleTable<BytesAgent>::Scope::kOneProcess);
  return table;
}

void Copy(const uint8_t* from, std::span<uint8_t> to) { std::memcpy(to.data(), from, to.size()); }

Status CheckPort(int32_t port) {
  if (port >= 0 && port <= 65535) return {};
  return {Code::kInvalidArgument, "port " + std::to_string(port) + " is not within 0 to 65535"};
}

// Beacons come ten times within it; without a least value they would keep the thread busy.
Status CheckFailureTimeout(int64_t timeout_ns) {
  if (timeout_ns >= 100'000'000 && timeout_ns <= 3600'000'000'000) return {};
  return {Code::kInvalidArgument, "a failure timeout of " + std::to_string(timeout_ns) +
                                      " ns is not within 0.1 s to 3600 s"};
}

Status CheckTree(const strom_master_options& options) {
  if (options.topology < STROM_TOPOLOGY_AUTO || options.topology > STROM_TOPOLOGY_MESH) {
    return {Code::kInvalidArgument, "there is no topology " + std::to_string(options.topology)};
  }
  if (options.max_children < 0 || options.max_children == 1 || options.max_depth < 0) {
    return {Code::kInvalidArgument, "a tree needs max_children >= 2 and max_depth >= 1, not " +
                                        std::to_string(options.max_children) + " and " +
                                        std::to_string(options.max_depth)};
  }
  return {};
}

Status CheckMerging(const strom_master_options& options) {
  if (options.merging >= STROM_MERGING_AUTO && options.merging <= STROM_MERGING_ON) return {};
  return {Code::kInvalidArgument, "there is no merging " + std::to_string(options.merging)};
}

// Runs `call(agent)` for an open worker handle.
template <typename Call>
int WithWorker(const char* function, strom_handle handle, Call&& call) {
  return Guard([&]() -> Status {
    const std::shared_ptr<WorkerAgent> worker = Workers().Find(handle);
    if (!worker) return ClosedHandle(function, "worker", handle);
    return call(*worker);
  });
}

// The same for the handle of a worker of any bytes.
template <typename Call>
int WithBytes(const char* function, strom_handle handle, Call&& call) {
  return Guard([&]() -> Status {
    const std::shared_ptr<BytesAgent> worker = BytesWorkers().Find(handle);
    if (!worker) return ClosedHandle(function, "worker of any bytes", handle);
    return call(*worker);
  });
}

Status ReadOptions(const strom_worker_options& from, WorkerAgentOptions* to) {
  for (const int32_t port : {from.port, from.master_port}) {
    Status checked = CheckPort(port);
    if (!checked.ok()) return checked;
  }
  Status timeout = CheckFailureTimeout(from.failure_timeout_ns);
  if (!timeout.ok()) return timeout;
  Status parsed =
      ParseAddress(from.master_host, static_cast<uint16_t>(from.master_port), &to->node.master);
  if (!parsed.ok()) return parsed;
  to->bind_address = from.bind_address;
  to->port = static_cast<uint16_t>(from.port);
  Copy(from.secret, to->endpoint.secret.bytes());
  Copy(from.job_id, to->endpoint.job_id);
  Copy(from.master_public_key, to->node.master_public_key);
  to->endpoint.failure_timeout_ns = to->node.failure_timeout_ns = from.failure_timeout_ns;
  to->node.rank = from.rank;
  to->node.size = from.size;
  to->node.attempt = from.attempt;
  to->node.max_staleness = from.max_staleness;
  SystemRandom().Fill(to->node.instance);
  to->same_host = from.same_host != 0;
  if (from.master_wait_ns < 0 || (from.master_wait_ns > 0 && from.max_staleness >= 0)) {
    return {Code::kInvalidArgument,
            "master_wait_ns=" + std::to_string(from.master_wait_ns) +
                ": only a worker of asynchronous mode can wait for a lost master"};
  }
  to->node.master_wait_ns = from.master_wait_ns;
  return {};
}

Status CopyParameters(const std::shared_ptr<const std::vector<float>>& from, float* to,
                      int64_t size) {
  if (!from || static_cast<int64_t>(from->size()) != size) {
    return {Code::kInternal, "the master sent " + std::to_string(from ? from->size() : 0) +
                                 " parameters where " + std::to_string(size) + " were expected"};
  }
  std::copy(from->begin(), from->end(), to);
  return {};
}

// At a generation's start and end: of so many values, the messages that brought them leave much
// memory free in glibc's arenas, which do not shrink by themselves.
constexpr int64_t kManyValues = int64_t{1} << 22;

void GiveMemoryBack(int64_t values) {
#ifdef __GLIBC__
  if (values >= kManyValues) malloc_trim(0);
#endif
}

}  // namespace

static_assert(STROM_MAX_BYTES == BytesAgent::kMaxBytes);

std::shared_ptr<Exchange> FindExchange(strom_handle worker) { return Workers().Find(worker); }
std::shared_ptr<JointExchange> FindJointExchange(strom_handle worker) {
  return Workers().Find(worker);
}

}  // namespace strom

using namespace strom;  // the functions below are declared outside any namespace

int strom_master_create(const strom_master_options* options, strom_handle* master) {
  return Guard([&]() -> Status {
    Status port = CheckPort(options->port);
    if (!port.ok()) return port;
    Status timeout = CheckFailureTimeout(options->failure_timeout_ns);
    if (!timeout.ok()) return timeout;
    Status tree = CheckTree(*options);
    if (!tree.ok()) return tree;
    Status merging = CheckMerging(*options);
    if (!merging.ok()) return merging;
    if (options->workers < 1) return {Code::kInvalidArgument, "a master needs at least one worker"};
    if (options->min_workers < 0 || options->min_workers > options->workers) {
      return {Code::kInvalidArgument, "min_workers=" + std::to_string(options->min_workers) +
                                          " is not within 0 to " +
                                          std::to_string(options->workers) + " workers"};
    }
    MasterAgentOptions o;
    o.bind_address = options->bind_address;
    o.port = static_cast<uint16_t>(options->port);
    Copy(options->secret, o.endpoint.secret.bytes());
    Copy(options->job_id, o.endpoint.job_id);
    o.endpoint.failure_timeout_ns = o.node.failure_timeout_ns = options->failure_timeout_ns;
    o.node.workers = options->workers;
    o.node.min_workers = options->min_workers;
    o.node.epoch = options->epoch;
    o.node.topology = static_cast<Topology>(options->topology);
    if (options->max_children > 0) o.node.max_children = options->max_children;
    if (options->max_depth > 0) o.node.max_depth = options->max_depth;
    o.node.merging = static_cast<Merging>(options->merging);
    o.same_host = options->same_host != 0;
    if (options->private_key != nullptr) {
      Copy(options->private_key, o.endpoint.private_key.bytes());
      o.has_private_key = true;
    }
    if (options->any_bytes != 0) o.node.codec = &BytesCodec();
    std::shared_ptr<MasterAgent> created;
    Status status = MasterAgent::Create(o, &created);
    if (status.ok()) *master = Masters().Add(std::move(created));
    return status;
  });
}

int strom_master_port(strom_handle master, int32_t* port) {
  return Guard([&]() -> Status {
    const auto found = Masters().Find(master);
    if (!found) return ClosedHandle("strom_master_port", "master", master);
    *port = found->port();
    return {};
  });
}

int strom_master_public_key(strom_handle master, uint8_t out[STROM_KEY_BYTES]) {
  return Guard([&]() -> Status {
    const auto found = Masters().Find(master);
    if (!found) return ClosedHandle("strom_master_public_key", "master", master);
    std::copy(found->public_key().begin(), found->public_key().end(), out);
    return {};
  });
}

int strom_master_worker_has_ended(strom_handle master, int32_t rank) {
  return Guard([&]() -> Status {
    const auto found = Masters().Find(master);
    if (!found) return ClosedHandle("strom_master_worker_has_ended", "master", master);
    found->WorkerHasEnded(rank);
    return {};
  });
}

int strom_master_close(strom_handle master, const char* reason) {
  return Guard([&]() -> Status {
    if (const auto found = Masters().Remove(master)) found->Close(reason);
    return {};
  });
}

int strom_worker_join(const strom_worker_options* options, strom_handle* worker) {
  return Guard([&]() -> Status {
    WorkerAgentOptions o;
    Status read = ReadOptions(*options, &o);
    if (!read.ok()) return read;
    std::shared_ptr<WorkerAgent> joined;
    Status status = WorkerAgent::Join(o, options->join_timeout_ns, &joined);
    if (status.ok()) *worker = Workers().Add(std::move(joined));
    return status;
  });
}

int strom_worker_close(strom_handle worker, const char* reason) {
  return Guard([&]() -> Status {
    if (const auto found = Workers().Remove(worker)) found->Close(reason);
    return {};
  });
}

int strom_worker_drain(strom_handle worker, int64_t timeout_ns) {
  return WithWorker("strom_worker_drain", worker,
                    [&](WorkerAgent& agent) { return agent.Drain(timeout_ns); });
}

int strom_worker_start(strom_handle worker, uint64_t generation, int64_t size, uint64_t layout_hash,
                       const char* options_text, const strom_method* method,
                       const strom_range* ranges, int64_t range_count, int64_t cycles,
                       const float* own, float* parameters, int64_t timeout_ns) {
  return WithWorker("strom_worker_start", worker, [&](WorkerAgent& agent) -> Status {
    Generation g{generation, size, layout_hash, options_text, nullptr, {}, 0};
    if (method != nullptr) {
      if (cycles < 0)
        return {Code::kInvalidArgument, "a joint model has finished 0 cycles or more"};
      g.cycles = static_cast<uint64_t>(cycles);
      g.plan.method = *method;
    }
    for (int64_t i = 0; i < range_count; ++i) {
      g.plan.ranges.push_back({ranges[i].offset, ranges[i].size});
    }
    Status valid = CheckPlan(g.plan, size);
    if (!valid.ok()) return valid;
    if (own) g.values = std::make_shared<std::vector<float>>(own, own + size);
    std::shared_ptr<const std::vector<float>> values;
    Status status = agent.Start(std::move(g), timeout_ns, &values);
    if (status.ok()) status = CopyParameters(values, parameters, size);
    GiveMemoryBack(size);
    return status;
  });
}

int strom_worker_started(strom_handle worker, strom_start_info* started) {
  return WithWorker("strom_worker_started", worker, [&](WorkerAgent& agent) -> Status {
    const Beginning beginning = agent.beginning();
    *started = {beginning.late ? 1 : 0, beginning.ended ? 1 : 0, beginning.resume_iteration};
    return {};
  });
}

int32_t strom_worker_donation_wanted(strom_handle worker) {
  const std::shared_ptr<WorkerAgent> agent = Workers().Find(worker);
  return agent && agent->DonationWanted() ? 1 : 0;
}

int32_t strom_worker_missing(strom_handle worker) {
  const std::shared_ptr<WorkerAgent> agent = Workers().Find(worker);
  return agent ? agent->missing_workers() : 0;
}

int32_t strom_worker_waits_for_master(strom_handle worker) {
  const std::shared_ptr<WorkerAgent> agent = Workers().Find(worker);
  return agent && agent->waits_for_master() ? 1 : 0;
}

int32_t strom_worker_replica_wanted(strom_handle worker) {
  const std::shared_ptr<WorkerAgent> agent = Workers().Find(worker);
  return agent && agent->replica_wanted() ? 1 : 0;
}

int strom_worker_hand_over(strom_handle worker, const float* parameters, int64_t size) {
  return WithWorker("strom_worker_hand_over", worker, [&](WorkerAgent& agent) -> Status {
    agent.HandOver({parameters, parameters + size});
    return {};
  });
}

int strom_worker_donate(strom_handle worker, const void* bytes, int64_t size) {
  return WithWorker("strom_worker_donate", worker, [&](WorkerAgent& agent) -> Status {
    agent.Donate({static_cast<const uint8_t*>(bytes), static_cast<size_t>(size)});
    return {};
  });
}

int strom_worker_take_donation(strom_handle worker, int64_t timeout_ns, strom_allocate allocate,
                               void* context, int64_t* size) {
  return WithWorker("strom_worker_take_donation", worker, [&](WorkerAgent& agent) -> Status {
    Buffer donation;
    *size = -1;
    Status status = agent.TakeDonation(timeout_ns, &donation);
    if (!status.ok() || !donation) return status;
    const int64_t bytes = static_cast<int64_t>(donation->size());
    uint8_t* const memory = allocate(context, bytes);
    if (memory == nullptr) {
      return {Code::kInternal,
              "no memory for a donated state of " + std::to_string(bytes) + " bytes"};
    }
    std::copy(donation->begin(), donation->end(), memory);
    *size = bytes;
    return {};
  });
}

int strom_worker_average(strom_handle worker, uint64_t key, double* values, int64_t count,
                         int32_t* contributors, int64_t timeout_ns) {
  return WithWorker("strom_worker_average", worker, [&](WorkerAgent& agent) -> Status {
    std::vector<double> v(values, values + count);
    Status status = agent.Average(key, &v, contributors, timeout_ns);
    if (!status.ok()) return status;
    if (static_cast<int64_t>(v.size()) != count) {
      return {Code::kInternal, "the average has " + std::to_string(v.size()) + " values, not " +
                                   std::to_string(count)};
    }
    std::copy(v.begin(), v.end(), values);
    return status;
  });
}

int strom_worker_joint_model(strom_handle worker, float* out, int64_t size, int64_t timeout_ns) {
  return WithWorker("strom_worker_joint_model", worker, [&](WorkerAgent& agent) -> Status {
    JointValues joint;
    Status status = agent.ReadJoint(&joint, timeout_ns);
    return status.ok() ? CopyParameters(joint, out, size) : status;
  });
}

int strom_worker_joint_cycles(strom_handle worker, int64_t* cycles) {
  return WithWorker("strom_worker_joint_cycles", worker, [&](WorkerAgent& agent) -> Status {
    *cycles = static_cast<int64_t>(agent.joint_cycles());
    return {};
  });
}

int strom_worker_finish(strom_handle worker, int32_t stop, int64_t timeout_ns) {
  return WithWorker("strom_worker_finish", worker,
                    [&](WorkerAgent& agent) { return agent.Finish(stop != 0, timeout_ns); });
}

int strom_worker_result(strom_handle worker, double* state, int64_t state_count, float* parameters,
                        int64_t size, int64_t timeout_ns) {
  return WithWorker("strom_worker_result", worker, [&](WorkerAgent& agent) -> Status {
    std::vector<double> s(state, state + state_count);
    std::shared_ptr<const std::vector<float>> values;
    auto own = std::make_shared<std::vector<float>>(parameters, parameters + size);
    Status status = agent.Result(&s, std::move(own), &values, timeout_ns);
    if (!status.ok()) return status;
    if (static_cast<int64_t>(s.size()) != state_count) {
      return {Code::kInternal, "the averaged state has " + std::to_string(s.size()) +
                                   " values, not " + std::to_string(state_count)};
    }
    std::copy(s.begin(), s.end(), state);
    status = CopyParameters(values, parameters, size);
    GiveMemoryBack(size);
    return status;
  });
}

int strom_worker_verify(strom_handle worker, double difference, uint64_t hash, double* worst,
                        int64_t timeout_ns) {
  return WithWorker("strom_worker_verify", worker, [&](WorkerAgent& agent) {
    return agent.Verify(difference, hash, worst, timeout_ns);
  });
}

int strom_bytes_join(const strom_worker_options* options, strom_handle* worker) {
  return Guard([&]() -> Status {
    WorkerAgentOptions o;
    Status read = ReadOptions(*options, &o);
    if (!read.ok()) return read;
    o.node.max_staleness = -1;
    std::shared_ptr<BytesAgent> joined;
    Status status = BytesAgent::Join(std::move(o), options->join_timeout_ns, &joined);
    if (status.ok()) *worker = BytesWorkers().Add(std::move(joined));
    return status;
  });
}

int strom_bytes_submit(strom_handle worker, const uint8_t* bytes, int64_t size, int64_t timeout_ns,
                       uint64_t* counter) {
  return WithBytes("strom_bytes_submit", worker, [&](BytesAgent& agent) {
    UpdateId id;
    Status status = agent.Submit({bytes, static_cast<size_t>(size)}, timeout_ns, &id);
    *counter = id.counter;
    return status;
  });
}

int strom_bytes_poll(strom_handle worker, int64_t timeout_ns, uint64_t* origin, uint64_t* counter,
                     uint8_t* out, int64_t* size) {
  return WithBytes("strom_bytes_poll", worker, [&](BytesAgent& agent) {
    std::optional<ReceivedUpdate> next;
    Status status = agent.Poll(timeout_ns, &next);
    *size = -1;
    if (!next) return status;
    const Bytes bytes = next->message();
    *origin = next->id.origin;
    *counter = next->id.counter;
    *size = static_cast<int64_t>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), out);
    return status;
  });
}

int strom_bytes_flush(strom_handle worker, int64_t timeout_ns) {
  return WithBytes("strom_bytes_flush", worker,
                   [&](BytesAgent& agent) { return agent.Flush(timeout_ns); });
}

int strom_bytes_close(strom_handle worker, const char* reason) {
  return Guard([&]() -> Status {
    if (const auto found = BytesWorkers().Remove(worker)) found->Close(reason);
    return {};
  });
}

int strom_node_status(strom_handle node, char* out, int64_t capacity, int64_t* size) {
  return Guard([&]() -> Status {
    std::string json;
    if (const auto worker = Workers().Find(node)) {
      json = worker->StatusJson();
    } else if (const auto bytes = BytesWorkers().Find(node)) {
      json = bytes->StatusJson();
    } else if (const auto master = Masters().Find(node)) {
      json = master->StatusJson();
    } else {
      return ClosedHandle("strom_node_status", "master or worker", node);
    }
    *size = static_cast<int64_t>(json.size());
    if (out) std::memcpy(out, json.data(), static_cast<size_t>(std::min(capacity, *size)));
    return {};
  });
}
