#include "cuda/emulation.h"

#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/base/subnormals.h"
#include "core/base/types.h"
#include "cuda/device.h"

namespace strom::cuda::emulation {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr size_t kSharedAlignment = 128;
constexpr uint8_t kGarbage = 0xa5;

enum class State { kReady, kAtBlockBarrier, kInCollective, kDone };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  State state = State::kDone;
  int collectives = 0;  // that this thread has entered
};

// One block at a time; the program's thread is the scheduler.
class Machine {
 public:
  void SetOrder(Order order) { order_ = order; }

  void Run(int64_t blocks, size_t shared_bytes, void (*body)(const void*, void*),
           const void* kernel) {
    const auto memory = std::make_unique<std::byte[]>(shared_bytes + kSharedAlignment);
    size_t space = shared_bytes + kSharedAlignment;
    void* start = memory.get();
    shared_ = std::align(kSharedAlignment, shared_bytes, start, space);
    body_ = body;
    kernel_ = kernel;
    for (block_ = 0; block_ < blocks; ++block_) {
      std::memset(shared_, kGarbage, shared_bytes);
      RunBlock();
    }
  }

  int thread() const { return current_; }
  int64_t block() const { return block_; }

  void Wait(State state) {
    fibers_[Index(current_)].state = state;
    swapcontext(&fibers_[Index(current_)].context, &scheduler_);
  }

  uint64_t Exchange(uint64_t bits, int lane) {
    // Nobody enters the collective after the next before all have left this one, so two rows do.
    const int row = fibers_[Index(current_)].collectives++ % 2;
    const int warp = current_ / kWarpLanes;
    posted_[Index(row)][Index(current_)] = bits;
    Wait(State::kInCollective);
    return posted_[Index(row)][Index(warp * kWarpLanes + lane)];
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  static void Enter();

  void RunBlock() {
    for (Fiber& fiber : fibers_) {
      if (fiber.stack == nullptr) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      fiber.state = State::kReady;
      fiber.collectives = 0;
      makecontext(&fiber.context, &Machine::Enter, 0);
    }
    for (;;) {
      for (int i = 0; i < kBlockWarps; ++i) {
        RunWarp(order_ == Order::kForward ? i : kBlockWarps - 1 - i);
      }
      if (All(0, kBlockThreads, State::kDone)) return;
      // Some threads have ended and others wait for them: undefined on a device.
      STROM_CHECK(All(0, kBlockThreads, State::kAtBlockBarrier));
      Release(0, kBlockThreads);
    }
  }

  // Until all of its lanes wait for other warps or have ended.
  void RunWarp(int warp) {
    const int first = warp * kWarpLanes;
    for (;;) {
      for (int i = 0; i < kWarpLanes; ++i) {
        RunThread(first + (order_ == Order::kForward ? i : kWarpLanes - 1 - i));
      }
      if (!Any(first, kWarpLanes, State::kInCollective)) return;
      // A collective that not all lanes have entered.
      STROM_CHECK(All(first, kWarpLanes, State::kInCollective));
      Release(first, kWarpLanes);
    }
  }

  void RunThread(int thread) {
    if (fibers_[Index(thread)].state != State::kReady) return;
    current_ = thread;
    swapcontext(&scheduler_, &fibers_[Index(thread)].context);
  }

  bool All(int first, int count, State state) const {
    return std::all_of(fibers_.begin() + first, fibers_.begin() + first + count,
                       [&](const Fiber& fiber) { return fiber.state == state; });
  }
  bool Any(int first, int count, State state) const {
    return std::any_of(fibers_.begin() + first, fibers_.begin() + first + count,
                       [&](const Fiber& fiber) { return fiber.state == state; });
  }
  void Release(int first, int count) {
    std::for_each(fibers_.begin() + first, fibers_.begin() + first + count,
                  [](Fiber& fiber) { fiber.state = State::kReady; });
  }

  Order order_ = Order::kForward;
  ucontext_t scheduler_;
  std::array<Fiber, kBlockThreads> fibers_;
  std::array<std::array<uint64_t, kBlockThreads>, 2> posted_;
  int current_ = 0;
  int64_t block_ = 0;
  void* shared_ = nullptr;
  void (*body_)(const void*, void*) = nullptr;
  const void* kernel_ = nullptr;
};

Machine& TheMachine() {
  static thread_local Machine machine;
  return machine;
}

void Machine::Enter() {
  Machine& machine = TheMachine();
  machine.body_(machine.kernel_, machine.shared_);
  machine.fibers_[Index(machine.current_)].state = State::kDone;
}

template <typename Function>
void Find(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// That of the process, where it has one.
Gpu& TheGpu() {
  static Gpu gpu = [] {
    Gpu found;
    Find("strom_emulated_gpu_launch", &found.launch);
    Find("strom_emulated_gpu_wait", &found.wait);
    Find("strom_emulated_gpu_host_address", &found.host_address);
    return found;
  }();
  return gpu;
}

}  // namespace

bool Launch(void* stream, std::function<void()> work) {
  STROM_CHECK(TheGpu().launch != nullptr);
  auto queued = std::make_unique<std::function<void()>>(std::move(work));
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> mine(
        static_cast<std::function<void()>*>(argument));
    (*mine)();
  };
  if (TheGpu().launch(stream, run, queued.get()) == 0) return false;
  static_cast<void>(queued.release());
  return true;
}

bool Await(void* stream) { return stream == nullptr || TheGpu().wait(stream) != 0; }

void* HostAddress(const void* address) {
  void* const found = TheGpu().host_address == nullptr ? nullptr : TheGpu().host_address(address);
  return found == nullptr ? const_cast<void*>(address) : found;
}

void UseGpu(const Gpu& gpu) { TheGpu() = gpu; }

void SetOrder(Order order) { TheMachine().SetOrder(order); }

void Run(int64_t blocks, size_t shared_bytes, void (*body)(const void* kernel, void* shared),
         const void* kernel) {
  const KeepSubnormals keep;  // A device does, on whichever thread its work was queued.
  TheMachine().Run(blocks, shared_bytes, body, kernel);
}

int ThreadIndex() { return TheMachine().thread(); }
int64_t BlockIndex() { return TheMachine().block(); }
void SyncBlock() { TheMachine().Wait(State::kAtBlockBarrier); }
uint64_t BitsFromLane(uint64_t bits, int lane) { return TheMachine().Exchange(bits, lane); }

}  // namespace strom::cuda::emulation
