// The one I/O thread of a process: it alone touches the socket, the endpoint and the node above it.
// It blocks in poll and never spins, because TensorFlow owns the cores. Other threads speak to it
// by posting functions.
#ifndef KERAS_STROM_NET_IO_LOOP_H_
#define KERAS_STROM_NET_IO_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/transport/endpoint.h"
#include "net/fork_guard.h"
#include "net/same_host_links.h"
#include "net/udp_socket.h"

namespace strom {

int64_t MonotonicNanoseconds();

// The kernel's random numbers.
class SystemRandom final : public RandomSource {
 public:
  void Fill(std::span<uint8_t> out) override;
};

class IoLoop final : private ForkGuarded {
 public:
  // What runs above the links (a worker's or a master's node); called on the I/O thread only.
  class Protocol {
   public:
    virtual ~Protocol() = default;
    virtual void HandleLinkEvent(int64_t now_ns, LinkEvent event) = 0;
    virtual void HandleTimeout(int64_t now_ns) = 0;
    virtual int64_t NextTimeout() const = 0;
    // After every round of work: publish what other threads wait for.
    virtual void Publish(int64_t now_ns) = 0;
  };

  IoLoop(std::unique_ptr<UdpSocket> socket, const EndpointOptions& options,
         const SameHostOptions& same_host = {.enabled = false});
  ~IoLoop() override;  // stops

  LinkLayer* links() { return &links_; }
  const UdpSocket& socket() const { return *socket_; }

  // `protocol` outlives the loop's thread. Fails, and is as if stopped, where the system gives no
  // thread or no descriptor.
  Status Start(Protocol* protocol);
  // Runs `work` soon on the I/O thread; dropped once stopped.
  void Post(std::function<void(int64_t now_ns)> work);
  // Runs `work` on the I/O thread and waits for it; on the caller's, one at a time, when stopped.
  void Run(const std::function<void(int64_t now_ns)>& work);
  // Says the links' goodbyes as often as they are said (a tenth of a second: a peer that misses
  // them waits for its failure timeout), then ends the thread. Harmless when repeated.
  void Stop();
  // True on the I/O thread, which must not call Run or Stop.
  bool OnItsThread() const { return std::this_thread::get_id() == thread_id_; }

  // Counters of the endpoint and the socket as a JSON object; call on the I/O thread.
  std::string CountersJson() const;

 private:
  // kMore: there is more to send after a look at what has arrived. kNoRoom: the socket takes
  // nothing.
  enum class Sent { kAll, kMore, kNoRoom };

  // Waits until the thread sleeps. In the child the keys go, the socket too, and the loop is
  // stopped.
  void BeforeFork() override;
  void AfterForkInParent() override;
  void AfterForkInChild() override;

  Status StartThread();
  void Main();
  bool Receive();
  bool RunPosted(int64_t now_ns);
  void RunTimers(int64_t now_ns);
  void DrainEvents(int64_t now_ns);
  Sent Transmit(int64_t now_ns);
  void Sleep(bool wait_for_room, int64_t latest_ns, std::unique_lock<std::mutex>* awake);
  void Wake();
  void StopUnder(const std::lock_guard<std::mutex>& one);

  std::unique_ptr<UdpSocket> socket_;
  SystemRandom random_;
  Endpoint endpoint_;
  SameHostLinks links_;
  Protocol* protocol_ = nullptr;
  int64_t charged_bytes_ = 0;  // read since the timers ran
  int64_t read_bytes_ = 0;     // since the rings were read
  int wake_descriptor_ = -1;
  std::mutex mutex_;  // guards posted_ and stopping_
  std::vector<std::function<void(int64_t)>> posted_;
  std::vector<std::function<void(int64_t)>> running_;  // the I/O thread's, kept for its room
  bool stopping_ = false;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};  // while it runs
  std::mutex awake_mutex_;                    // held by the thread except while it sleeps
  std::atomic<bool> fork_waits_ = false;
  std::mutex stop_mutex_;  // one Stop at a time, and then one Run
};

}  // namespace strom

#endif  // KERAS_STROM_NET_IO_LOOP_H_
