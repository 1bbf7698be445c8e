// A worker of a relay of any bytes, for tools and tests: what one submits all others get, in the
// order it was submitted, once.
//
// To the protocol it is training without parameters: one generation of an empty layout, which every
// worker begins when it joins, which starts when all have joined and which never ends. The bytes
// are the updates' messages, under a codec that takes all of them (core/replication/update.h,
// BytesCodec).
#ifndef KERAS_STROM_NET_BYTES_AGENT_H_
#define KERAS_STROM_NET_BYTES_AGENT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/base/types.h"
#include "net/worker_agent.h"

namespace strom {

class BytesAgent {
 public:
  static constexpr int64_t kMaxBytes = kMaxMessageBytes - kUpdateHeaderBytes;

  // Blocks until the master has welcomed this worker, not until the others have come.
  static Status Join(WorkerAgentOptions options, int64_t timeout_ns,
                     std::shared_ptr<BytesAgent>* out);

  // Sends a copy of `bytes` (0 to kMaxBytes) to all others; *id names it. Waits until all workers
  // have joined and, under back-pressure, for room, at most `timeout_ns`.
  Status Submit(Bytes bytes, int64_t timeout_ns, UpdateId* id);
  // The next message of another worker; none within `timeout_ns` is kOk and an empty *next. It
  // fails once the connection has and everything that had come before is taken.
  Status Poll(int64_t timeout_ns, std::optional<ReceivedUpdate>* next);
  // Waits until the master has everything that was submitted.
  Status Flush(int64_t timeout_ns) { return worker_->AwaitAcknowledged(timeout_ns); }
  // Says goodbye; every later call fails with kClosed.
  void Close(const std::string& reason) { worker_->Close(reason); }

  std::string StatusJson() { return worker_->StatusJson(); }

 private:
  explicit BytesAgent(std::shared_ptr<WorkerAgent> worker) : worker_(std::move(worker)) {}
  std::optional<ReceivedUpdate> TakeOne();

  const std::shared_ptr<WorkerAgent> worker_;
  std::mutex mutex_;                  // guards taken_
  std::deque<ReceivedUpdate> taken_;  // out of the inbox, not yet polled
};

}  // namespace strom

#endif  // KERAS_STROM_NET_BYTES_AGENT_H_
