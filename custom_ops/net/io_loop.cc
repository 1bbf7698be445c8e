#include "net/io_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <exception>
#include <future>
#include <new>

#include "net/counters_json.h"
#include "net/undumped_stack.h"

namespace strom {
namespace {

// A timer that is so late says that this thread did not run for a while. Then the socket is emptied
// before any timer runs, and only then: under load it may never be found empty.
constexpr int64_t kPauseNs = 100'000'000;

// What the smallest datagram takes of a receive buffer that holds twice its nominal bytes.
constexpr int64_t kLeastChargedBytes = 768;
// The rings of this host are read after so much at the latest, however busy the socket is.
constexpr int64_t kRingsAfterBytes = 1 << 20;
constexpr int kMaxTransmitBatches = 4;

// While the socket takes nothing, what is due to be sent stays due: without this the loop would
// spin until there is room.
constexpr int64_t kLeastWaitForRoomNs = 1'000'000;

constexpr int64_t kFarewellNs = 200'000'000;  // goodbyes take 90 ms where the socket takes them

// No sender is granted more than the socket holds while this process does not come to read it.
EndpointOptions WithinBuffer(EndpointOptions options, const UdpSocket& socket) {
  GrantOptions& grants = options.grants;
  grants.lone_bytes = std::min(grants.lone_bytes, socket.receive_buffer_bytes());
  grants.shared_bytes = std::min(grants.shared_bytes, grants.lone_bytes);
  return options;
}

// Makes the descriptor lead nowhere; who owns it still closes it.
void Disconnect(int descriptor) {
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0) return;
  dup3(nowhere, descriptor, O_CLOEXEC);
  close(nowhere);
}

}  // namespace

int64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void SystemRandom::Fill(std::span<uint8_t> out) {
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = getrandom(out.data() + filled, out.size() - filled, 0);
    STROM_CHECK(got > 0 || errno == EINTR);
    if (got > 0) filled += static_cast<size_t>(got);
  }
}

IoLoop::IoLoop(std::unique_ptr<UdpSocket> socket, const EndpointOptions& options,
               const SameHostOptions& same_host)
    : socket_(std::move(socket)),
      endpoint_(WithinBuffer(options, *socket_), &random_),
      links_(&endpoint_, &random_, same_host) {
  AddForkGuarded(this);
}

IoLoop::~IoLoop() {
  RemoveForkGuarded(this);
  Stop();
  if (wake_descriptor_ >= 0) close(wake_descriptor_);
}

Status IoLoop::Start(Protocol* protocol) {
  protocol_ = protocol;
  // Signals belong to the process's own threads (Python's main thread handles Ctrl+C).
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started = StartThread();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started.ok()) return started;
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;  // else Run and Stop would wait for a thread that never was
  return started;
}

Status IoLoop::StartThread() {
  wake_descriptor_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_descriptor_ < 0) {
    return {Code::kInternal, std::string("no descriptor to wake the network's thread by: ") +
                                 std::strerror(errno) +
                                 "; raise the limit of open files (ulimit -n)"};
  }
  try {
    thread_ = std::thread([this] { Main(); });
  } catch (const std::exception& error) {
    return {Code::kInternal, std::string("no thread for the network: ") + error.what() +
                                 "; raise the limit of processes (ulimit -u, or that of the "
                                 "container), or leave more memory free"};
  }
  return {};
}

void IoLoop::Post(std::function<void(int64_t)> work) {
  bool first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    first = posted_.empty();  // else somebody has woken the thread for what waits already
    posted_.push_back(std::move(work));
  }
  if (first) Wake();
}

void IoLoop::Run(const std::function<void(int64_t)>& work) {
  STROM_CHECK(!OnItsThread());
  std::promise<void> done;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!stopping_) {
      posted_.push_back([&](int64_t now_ns) {
        work(now_ns);
        done.set_value();
      });
      lock.unlock();
      Wake();
      done.get_future().wait();
      return;
    }
  }
  std::lock_guard<std::mutex> one(stop_mutex_);
  StopUnder(one);  // the thread may still be in its last round
  work(MonotonicNanoseconds());
}

void IoLoop::Stop() {
  std::lock_guard<std::mutex> one(stop_mutex_);
  StopUnder(one);
}

void IoLoop::StopUnder(const std::lock_guard<std::mutex>&) {
  STROM_CHECK(!OnItsThread());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void IoLoop::Main() {
  const UndumpedStack stack;  // keys pass over it
  thread_id_ = std::this_thread::get_id();
  pthread_setname_np(pthread_self(), "strom-io");
  prctl(PR_SET_TIMERSLACK, 1000);  // pacing wants microseconds, not the default 50
  int64_t farewell_ns = kNever;    // when the thread ends whatever is left to say
  std::unique_lock<std::mutex> awake(awake_mutex_);
  for (;;) {
    const bool drained = Receive();
    const int64_t now_ns = MonotonicNanoseconds();
    const bool stopping = RunPosted(now_ns);
    if (stopping && farewell_ns == kNever) farewell_ns = now_ns + kFarewellNs;
    // A goodbye over UDP comes before the rings' hang-up. What they hold need not wait for that.
    if (drained || read_bytes_ >= kRingsAfterBytes) {
      links_.Receive(now_ns, drained);
      read_bytes_ = 0;
    }
    if (drained || endpoint_.NextTimeout() >= now_ns - kPauseNs) RunTimers(now_ns);
    // What was read is answered before more is: senders wait for the answers.
    const Sent sent = Transmit(now_ns);
    links_.Transmit();
    DrainEvents(now_ns);
    protocol_->Publish(now_ns);
    if (stopping && (now_ns >= farewell_ns || !endpoint_.SaysGoodbye())) break;
    if (drained && sent != Sent::kMore) {
      Sleep(sent == Sent::kNoRoom, farewell_ns, &awake);
    } else if (fork_waits_) {
      awake.unlock();
      std::this_thread::yield();
      awake.lock();
    }
  }
  thread_id_ = std::thread::id();
}

void IoLoop::RunTimers(int64_t now_ns) {
  charged_bytes_ = 0;
  if (endpoint_.NextTimeout() <= now_ns) endpoint_.HandleTimeout(now_ns);
  DrainEvents(now_ns);
  if (protocol_->NextTimeout() <= now_ns) protocol_->HandleTimeout(now_ns);
}

// Reads one batch. True: what had arrived by the last time it was true has been read, so that after
// a pause no timer mistakes for silence what only waits in the socket.
bool IoLoop::Receive() {
  const auto received = socket_->Receive();
  int64_t bytes = socket_->ignored() * kLeastChargedBytes;
  if (!received.empty()) {
    const int64_t now_ns = MonotonicNanoseconds();
    for (const auto& [from, datagram] : received) {
      endpoint_.HandleDatagram(now_ns, from, datagram);
      bytes += std::max(static_cast<int64_t>(datagram.size()), kLeastChargedBytes);
    }
    DrainEvents(now_ns);
  }
  charged_bytes_ += bytes;
  read_bytes_ += bytes;
  return socket_->drained() || charged_bytes_ >= 2 * socket_->receive_buffer_bytes();
}

// True: the loop is to stop.
bool IoLoop::RunPosted(int64_t now_ns) {
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.swap(posted_);
    stopping = stopping_;
  }
  for (const auto& work : running_) work(now_ns);
  running_.clear();
  return stopping;
}

void IoLoop::DrainEvents(int64_t now_ns) {
  for (;;) {
    while (auto event = endpoint_.PollEvent()) links_.HandleEvent(now_ns, std::move(*event));
    auto event = links_.PollEvent();
    if (!event) return;
    protocol_->HandleLinkEvent(now_ns, std::move(*event));
  }
}

IoLoop::Sent IoLoop::Transmit(int64_t now_ns) {
  for (int batch = 0; batch < kMaxTransmitBatches; ++batch) {
    bool more = true;
    while (more && !socket_->full()) {
      Address to;
      const size_t bytes = endpoint_.PollTransmit(now_ns, socket_->Next(), &to);
      if (bytes > 0) socket_->Push(to, bytes);
      more = bytes > 0;
    }
    if (!socket_->Flush()) return Sent::kNoRoom;
    if (!more) return Sent::kAll;
  }
  return Sent::kMore;
}

void IoLoop::Sleep(bool wait_for_room, int64_t latest_ns, std::unique_lock<std::mutex>* awake) {
  const bool idle = links_.PrepareToSleep();
  const int64_t until =
      idle ? std::min({endpoint_.NextTimeout(), protocol_->NextTimeout(), latest_ns}) : 0;
  pollfd descriptors[3] = {
      {socket_->descriptor(), static_cast<short>(POLLIN | (wait_for_room ? POLLOUT : 0)), 0},
      {wake_descriptor_, POLLIN, 0},
      {links_.descriptor(), POLLIN, 0}};
  timespec timeout = {};
  if (until != kNever) {
    const int64_t least = wait_for_room && idle ? kLeastWaitForRoomNs : 0;
    const int64_t left = std::max(least, until - MonotonicNanoseconds());
    timeout = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  }
  awake->unlock();
  ppoll(descriptors, 3, until == kNever ? nullptr : &timeout, nullptr);
  awake->lock();
  links_.Awake(MonotonicNanoseconds(), descriptors[2].revents != 0);
  if (descriptors[1].revents == 0) return;
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(wake_descriptor_, &count, sizeof(count));
}

void IoLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_descriptor_, &one, sizeof(one));
}

void IoLoop::BeforeFork() {
  if (!OnItsThread()) {
    fork_waits_ = true;
    Wake();
    awake_mutex_.lock();
    fork_waits_ = false;
  }
  mutex_.lock();
}

void IoLoop::AfterForkInParent() {
  mutex_.unlock();
  if (!OnItsThread()) awake_mutex_.unlock();
}

void IoLoop::AfterForkInChild() {
  links_.Forget();
  endpoint_.Forget();
  Disconnect(socket_->descriptor());
  Disconnect(wake_descriptor_);
  stopping_ = true;
  posted_.clear();
  mutex_.unlock();
  if (OnItsThread()) return;
  new (&thread_) std::thread;  // the thread is the parent's; here there is none to wait for
  thread_id_ = std::thread::id();
  awake_mutex_.unlock();
}

std::string IoLoop::CountersJson() const {
  return strom::CountersJson(endpoint_, links_, *socket_);
}

}  // namespace strom
