// A worker's interface to the network: the I/O thread with a WorkerNode on it, and blocking calls
// for the threads of the application. The training op uses it as an Exchange and never waits for
// the network in it, except for room (back-pressure).
#ifndef KERAS_STROM_NET_WORKER_AGENT_H_
#define KERAS_STROM_NET_WORKER_AGENT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/joint_exchange.h"
#include "core/replication/inbox.h"
#include "core/worker/worker_node.h"
#include "net/io_loop.h"

namespace strom {

struct WorkerAgentOptions {
  std::string bind_address;
  uint16_t port = 0;
  UdpSocketOptions socket;
  EndpointOptions endpoint;  // its private key is made here
  WorkerNodeOptions node;    // its key, port and host are filled in here
  bool same_host = true;     // permits shared memory with nodes of this machine
  // Half of the outgoing queue's cap: a producer waits while more than this is unacknowledged.
  int64_t outgoing_bytes = int64_t{16} << 20;
  // How long it waits before it gives up; at least three failure timeouts.
  int64_t submit_timeout_ns = 60'000'000'000;
  // Received updates that nobody has taken. In asynchronous mode what is over half of it is added
  // up (core/replication/inbox.h); elsewhere, or where that does not help, the worker fails beyond
  // it.
  int64_t inbox_bytes = int64_t{512} << 20;
  bool adds_up = true;  // false: the messages have no sum, so they wait one by one in any mode
};

class WorkerAgent final : public Exchange, public JointExchange, private IoLoop::Protocol {
 public:
  // Blocks until the master has welcomed this worker.
  static Status Join(WorkerAgentOptions options, int64_t timeout_ns,
                     std::shared_ptr<WorkerAgent>* out);
  ~WorkerAgent() override;

  // Each blocks for its answer; see WorkerNode. `timeout_ns` < 0 waits for ever (or for failure).
  Status Start(Generation generation, int64_t timeout_ns,
               std::shared_ptr<const std::vector<float>>* parameters);
  // How the generation at hand has begun; valid after Start.
  Beginning beginning() const;
  // Late joiners and who lacks the one state of all, see WorkerNode::AskDonation; *donation stays
  // null where there is none to be had. After a timeout it may be called again, to wait on.
  Status TakeDonation(int64_t timeout_ns, Buffer* donation);
  // Whether somebody waits for this worker's state; costs no lock.
  bool DonationWanted() const { return donation_wanted_.load(std::memory_order_relaxed); }
  void Donate(Bytes donation);
  // See WorkerNode; costs no lock.
  int32_t missing_workers() const { return missing_workers_.load(std::memory_order_relaxed); }
  uint64_t joint_cycles() const { return joint_cycles_.load(std::memory_order_relaxed); }
  // See WorkerNode; these two cost no lock.
  bool waits_for_master() const { return waits_for_master_.load(std::memory_order_relaxed); }
  bool replica_wanted() const { return replica_wanted_.load(std::memory_order_relaxed); }
  void HandOver(std::vector<float> parameters);
  // As Start, without the wait: training starts once everybody has begun.
  void Begin(Generation generation);
  // Waits until Submit is allowed and has room.
  Status AwaitRoom(int64_t timeout_ns);
  Status Average(uint64_t key, std::vector<double>* values, int32_t* contributors,
                 int64_t timeout_ns);
  Status Finish(bool stop, int64_t timeout_ns);
  // `own`: this worker's values, as in Generation.
  Status Result(std::vector<double>* state, std::shared_ptr<std::vector<float>> own,
                std::shared_ptr<const std::vector<float>>* parameters, int64_t timeout_ns);
  Status Verify(double difference, uint64_t hash, double* worst, int64_t timeout_ns);
  // The joint model as the master has it now.
  Status ReadJoint(JointValues* joint, int64_t timeout_ns);
  // Waits until TakeReceived has something to give, or the failure to tell.
  Status AwaitReceived(int64_t timeout_ns);
  // Waits until the master has acknowledged every update that was submitted before.
  Status AwaitAcknowledged(int64_t timeout_ns);
  // Waits until the master holds every update that was submitted before, and all that was given to
  // a joint model or in a round of gradients over links that stand has been acknowledged. Then it
  // leaves in order (kDrained) and ends as Close does. After a timeout it goes on as before.
  Status Drain(int64_t timeout_ns);
  // Says goodbye and ends the I/O thread; every later call fails with kClosed. Not for the I/O
  // thread itself, on which AwaitStep's callbacks run.
  void Close(const std::string& reason);

  std::string StatusJson();

  // Exchange, called from the training op's thread. Submit is refused outside of Start and Finish:
  // the master would wait for ever for what was counted and never sent.
  Status Submit(int64_t iteration, std::vector<std::vector<uint8_t>> parts,
                UpdateId* last) override;
  Status TakeReceived(Received* received) override;
  void SetApplied(const VersionVector& applied) override;
  void AwaitStep(int64_t step, int64_t timeout_ns, std::function<void(Status)> done) override;
  bool sequenced() const override { return options_.node.max_staleness >= 0; }
  bool merges() const override { return merges_.load(std::memory_order_relaxed); }

  // JointExchange, called from the training op's thread.
  JointOrders TakeOrders() override;
  void Give(uint64_t mark, int64_t iteration, int64_t steps, std::vector<float> values) override;
  void BeginGradient(int64_t iteration, GrowingGradient values) override;
  void GivePart(int64_t part) override;
  void EndGradient(int64_t iteration, GrowingGradient values) override;
  void AskJoint() override;
  void AwaitJoint(int64_t timeout_ns, std::function<void(Status)> done) override;
  JointValues TakeJoint() override;

 private:
  struct Waiter {  // of AwaitStep, or of AwaitJoint
    int64_t step;  // kForJoint: it waits for the joint model
    int64_t timeout_ns;
    int64_t deadline_ns;
    int64_t start_ns;
    std::function<void(Status)> done;
  };

  WorkerAgent(const WorkerAgentOptions& options, std::unique_ptr<UdpSocket> socket);

  // IoLoop::Protocol, on the I/O thread.
  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override;
  void HandleTimeout(int64_t now_ns) override;
  int64_t NextTimeout() const override;
  void Publish(int64_t now_ns) override;

  // Posts `request` and waits for an event of `type`, which is taken out.
  Status Ask(WorkerEvent::Type type, const char* what, int64_t timeout_ns,
             std::function<void(int64_t now_ns)> request, WorkerEvent* answer);
  Status WaitFor(std::unique_lock<std::mutex>& lock, WorkerEvent::Type type, const char* what,
                 int64_t timeout_ns, WorkerEvent* answer);
  // False: `holds` does not within `timeout_ns` (< 0: waits for ever).
  template <typename Condition>
  bool WaitUntil(std::unique_lock<std::mutex>& lock, int64_t timeout_ns, Condition holds);
  std::string RanOut(int64_t timeout_ns, const char* what) const;
  void TakeFromNode();
  void TakeEvents();
  void FireWaiters(int64_t now_ns);
  void Await(int64_t step, int64_t timeout_ns, std::function<void(Status)> done);
  bool HasCome(const Waiter& waiter) const;
  bool IsVoid(const Waiter& waiter) const;
  void TakeJointFromNode();

  static constexpr int64_t kForJoint = -1;
  const WorkerAgentOptions options_;
  IoLoop loop_;
  WorkerNode node_;  // the I/O thread's alone

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  Status failure_;  // once not ok, for ever
  uint64_t origin_ = 0;
  uint64_t counter_ = 0;
  bool training_ = false;  // between Start and Finish
  bool closed_ = false;
  bool stop_requested_ = false;
  Beginning beginning_;
  bool donation_asked_ = false;  // in this generation
  bool has_one_state_ = false;   // of its method: who has another than the chief may ask
  int64_t outgoing_bytes_ = 0;
  uint64_t held_ = 0;        // the last own update that the master is known to hold
  int64_t given_bytes_ = 0;  // to a joint model, that are not acknowledged
  int64_t released_ = 0;
  Inbox inbox_;
  std::vector<WorkerEvent> answers_;
  std::vector<std::string> notices_;
  std::list<Waiter> waiters_;
  JointOrders orders_;
  bool steps_ = false;               // in this generation
  bool joint_for_training_ = false;  // whose the answer to AskJoint is
  JointValues joint_;                // for the training thread
  int64_t updates_submitted_ = 0, updates_taken_ = 0, updates_folded_ = 0;
  int64_t submit_wait_ns_ = 0;  // how long producers have waited for room
  int64_t step_wait_ns_ = 0;    // and how long for the STEPs that have been released

  std::atomic<bool> donation_wanted_ = false;
  std::atomic<int32_t> missing_workers_ = 0;
  std::atomic<uint64_t> joint_cycles_ = 0;
  std::atomic<bool> waits_for_master_ = false;
  std::atomic<bool> replica_wanted_ = false;
  std::atomic<bool> merges_ = false;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_WORKER_AGENT_H_
