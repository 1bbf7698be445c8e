#include "net/bytes_agent.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace strom {

Status BytesAgent::Join(WorkerAgentOptions options, int64_t timeout_ns,
                        std::shared_ptr<BytesAgent>* out) {
  options.node.codec = &BytesCodec();
  options.adds_up = false;
  std::shared_ptr<WorkerAgent> worker;
  Status joined = WorkerAgent::Join(options, timeout_ns, &worker);
  if (!joined.ok()) return joined;
  Generation generation{1, 0, 0, "any bytes", nullptr, {}};
  worker->Begin(std::move(generation));
  out->reset(new BytesAgent(std::move(worker)));
  return {};
}

Status BytesAgent::Submit(Bytes bytes, int64_t timeout_ns, UpdateId* id) {
  if (static_cast<int64_t>(bytes.size()) > kMaxBytes) {
    return {Code::kInvalidArgument, "a message of " + std::to_string(bytes.size()) +
                                        " bytes is over the limit of " + std::to_string(kMaxBytes) +
                                        "; send it in parts"};
  }
  Status ready = worker_->AwaitRoom(timeout_ns);
  if (!ready.ok()) return ready;
  std::vector<std::vector<uint8_t>> parts(1);
  parts[0].resize(static_cast<size_t>(kUpdateHeaderBytes) + bytes.size());
  std::copy(bytes.begin(), bytes.end(), parts[0].begin() + kUpdateHeaderBytes);
  return worker_->Submit(0, std::move(parts), id);
}

Status BytesAgent::Poll(int64_t timeout_ns, std::optional<ReceivedUpdate>* next) {
  *next = TakeOne();
  if (*next) return {};
  const Status waited = worker_->AwaitReceived(timeout_ns);
  if (waited.code == Code::kTimeout) return {};
  Received received;
  Status taken = worker_->TakeReceived(&received);
  if (!taken.ok()) return taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::move(received.updates.begin(), received.updates.end(), std::back_inserter(taken_));
  }
  *next = TakeOne();
  return {};
}

std::optional<ReceivedUpdate> BytesAgent::TakeOne() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (taken_.empty()) return std::nullopt;
  ReceivedUpdate next = std::move(taken_.front());
  taken_.pop_front();
  return next;
}

}  // namespace strom
