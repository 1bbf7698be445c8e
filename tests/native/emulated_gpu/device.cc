// The device: memory that is mapped twice, and streams that are threads.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "emulated_gpu.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr int kGarbage = 0xff;  // as float, double or half: NaN

struct Settings {
  int devices = 1;
  uint64_t bytes = uint64_t{1} << 30;
  int delay = 0;
};

Settings& settings() {
  static Settings instance;
  return instance;
}

struct Counts {
  std::atomic<int64_t> to_device{0}, from_device{0}, within{0}, launches{0}, waits{0}, pinned{0};
};

Counts& counts() {
  static Counts instance;
  return instance;
}

// ------------------------------------------------------------------ memory

// A device's memory: its pages at `sealed_`, where nobody may touch them, and at `open_`.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : bytes_(bytes) {
    const int file = memfd_create("strom_emulated_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) abort();
    sealed_ = Map(PROT_NONE, file);
    open_ = Map(PROT_READ | PROT_WRITE, file);
    close(file);
    free_[0] = bytes;
  }

  void* Allocate(uint64_t size) {
    size = std::max(kPage, (size + kPage - 1) / kPage * kPage);
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [start, length] : free_) {
      if (length < size) continue;
      const uint64_t at = start + length - size;
      length -= size;
      if (length == 0) free_.erase(start);
      taken_[at] = size;
      used_ += size;
      std::memset(open_ + at, kGarbage, size);
      return sealed_ + at;
    }
    return nullptr;
  }

  void Free(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t at = static_cast<uint64_t>(static_cast<char*>(address) - sealed_);
    const auto found = taken_.find(at);
    if (found == taken_.end()) abort();  // freed twice, or never given out
    uint64_t start = at, length = found->second;
    used_ -= length;
    madvise(open_ + start, length, MADV_REMOVE);
    taken_.erase(found);
    auto after = free_.lower_bound(start);
    if (after != free_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == start) {
        start = before->first;
        length += before->second;
        free_.erase(before);
      }
    }
    if (after != free_.end() && after->first == at + (length - (at - start))) {
      length += after->second;
      free_.erase(after);
    }
    free_[start] = length;
  }

  // Where the host finds what is at `address`; nullptr where that is not in this memory.
  char* Open(const void* address) const {
    const char* at = static_cast<const char*>(address);
    return at < sealed_ || at >= sealed_ + bytes_ ? nullptr : open_ + (at - sealed_);
  }

  uint64_t bytes() const { return bytes_; }
  uint64_t used() {
    std::lock_guard<std::mutex> lock(mutex_);
    return used_;
  }

 private:
  char* Map(int rights, int file) const {
    void* address = mmap(nullptr, bytes_, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (address == MAP_FAILED) abort();
    return static_cast<char*>(address);
  }

  const uint64_t bytes_;
  char* sealed_ = nullptr;
  char* open_ = nullptr;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;   // start: length
  std::map<uint64_t, uint64_t> taken_;  // start: length
  uint64_t used_ = 0;
};

// ------------------------------------------------------------------ streams

// Whether something that was queued is done; others wait for it.
class Mark {
 public:
  void Set() {
    std::lock_guard<std::mutex> lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool is_set() {
    std::lock_guard<std::mutex> lock(mutex_);
    return set_;
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

struct Device;

}  // namespace

struct SP_Stream_st {
  explicit SP_Stream_st(Device* of) : device(of), thread([this] { Run(); }) {}

  ~SP_Stream_st() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      closing = true;
      changed.notify_all();
    }
    thread.join();
  }

  void Queue(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }

  // Set when all that is queued by now is done.
  std::shared_ptr<Mark> End() {
    auto mark = std::make_shared<Mark>();
    Queue([mark] { mark->Set(); });
    return mark;
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      if (queue.empty()) {
        changed.wait(lock, [this] { return closing || !queue.empty(); });
        if (queue.empty()) return;
        if (settings().delay > 0) {
          changed.wait_for(lock, std::chrono::microseconds(settings().delay),
                           [this] { return closing; });
        }
      }
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  Device* const device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool closing = false;
  std::thread thread;  // last: it uses the others
};

struct SP_Event_st {
  std::mutex mutex;
  std::shared_ptr<Mark> mark;  // of the latest record; null: never recorded

  std::shared_ptr<Mark> Latest() {
    std::lock_guard<std::mutex> lock(mutex);
    return mark;
  }
};

struct SP_Timer_st {
  std::chrono::steady_clock::time_point start, stop;
};

namespace {

struct Device {
  explicit Device(uint64_t bytes) : memory(bytes) {}
  Memory memory;
  std::mutex mutex;
  std::vector<SP_Stream> streams;
  std::atomic<bool> lost{false};
};

// Never destroyed: TensorFlow's threads may outlive the process's static variables.
std::vector<std::unique_ptr<Device>>& devices() {
  static auto* const all = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int i = 0; i < settings().devices; ++i) {
      made->push_back(std::make_unique<Device>(settings().bytes));
    }
    return made;
  }();
  return *all;
}

Device& DeviceOf(const SP_Device* device) { return *devices()[device->ordinal]; }

char* HostAddress(const void* address) {
  for (const auto& device : devices()) {
    if (char* open = device->memory.Open(address)) return open;
  }
  return nullptr;
}

void SetOk(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

// Whether the device is there; otherwise `status` says that it is lost.
bool IsThere(const SP_Device* device, TF_Status* status) {
  if (!DeviceOf(device).lost) {
    SetOk(status);
    return true;
  }
  TF_SetStatus(status, TF_INTERNAL, "EMULATED_ERROR_DEVICE_LOST: the GPU has fallen off the bus");
  return false;
}

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  Device& on = DeviceOf(device);
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = on.lost ? nullptr : on.memory.Allocate(size);
  memory->size = memory->opaque == nullptr ? 0 : size;
}

void WaitForAll(Device& device) {
  std::vector<std::shared_ptr<Mark>> ends;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    for (SP_Stream stream : device.streams) ends.push_back(stream->End());
  }
  for (const auto& end : ends) end->Wait();
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  if (memory->opaque == nullptr) return;
  WaitForAll(DeviceOf(device));  // as cudaFree does
  DeviceOf(device).memory.Free(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

// A page before what is given out says how much it is.
void* AllocateHost(const SP_Device*, uint64_t size) {
  char* address = static_cast<char*>(aligned_alloc(kPage, (size / kPage + 2) * kPage));
  if (address == nullptr) return nullptr;
  std::memcpy(address, &size, sizeof(size));
  counts().pinned += static_cast<int64_t>(size);
  return address + kPage;
}

void DeallocateHost(const SP_Device*, void* address) {
  if (address == nullptr) return;
  char* start = static_cast<char*>(address) - kPage;
  uint64_t size = 0;
  std::memcpy(&size, start, sizeof(size));
  counts().pinned -= static_cast<int64_t>(size);
  free(start);
}

TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return 0; }

TF_Bool MemoryUsage(const SP_Device* device, int64_t* available, int64_t* total) {
  Memory& memory = DeviceOf(device).memory;
  *total = static_cast<int64_t>(memory.bytes());
  *available = static_cast<int64_t>(memory.bytes() - memory.used());
  return 1;
}

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  if (!IsThere(device, status)) return;
  Device& on = DeviceOf(device);
  *stream = new SP_Stream_st(&on);
  std::lock_guard<std::mutex> lock(on.mutex);
  on.streams.push_back(*stream);
}

void DestroyStream(const SP_Device* device, SP_Stream stream) {
  Device& on = DeviceOf(device);
  {
    std::lock_guard<std::mutex> lock(on.mutex);
    on.streams.erase(std::remove(on.streams.begin(), on.streams.end(), stream), on.streams.end());
  }
  delete stream;
}

void CreateStreamDependency(const SP_Device* device, SP_Stream dependent, SP_Stream other,
                            TF_Status* status) {
  if (!IsThere(device, status)) return;
  dependent->Queue([end = other->End()] { end->Wait(); });
}

void StreamStatus(const SP_Device* device, SP_Stream, TF_Status* status) {
  IsThere(device, status);
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  SetOk(status);
}

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus EventStatus(const SP_Device* device, SP_Event event) {
  if (DeviceOf(device).lost) return SE_EVENT_ERROR;
  const auto mark = event->Latest();
  if (mark == nullptr) return SE_EVENT_UNKNOWN;
  return mark->is_set() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void RecordEvent(const SP_Device* device, SP_Stream stream, SP_Event event, TF_Status* status) {
  if (!IsThere(device, status)) return;
  std::lock_guard<std::mutex> lock(event->mutex);
  event->mark = stream->End();
}

void WaitForEvent(const SP_Device* const device, SP_Stream stream, SP_Event event,
                  TF_Status* const status) {
  if (!IsThere(device, status)) return;
  if (const auto mark = event->Latest()) stream->Queue([mark] { mark->Wait(); });
}

void BlockForEvent(const SP_Device* device, SP_Event event, TF_Status* status) {
  if (!IsThere(device, status)) return;
  if (const auto mark = event->Latest()) mark->Wait();
}

void BlockUntilDone(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  stream->End()->Wait();
  IsThere(device, status);
}

void Synchronize(const SP_Device* device, TF_Status* status) {
  ++counts().waits;
  WaitForAll(DeviceOf(device));
  IsThere(device, status);
}

// ------------------------------------------------------------------ timers

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  SetOk(status);
}
void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }
void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->Queue([timer] { timer->start = std::chrono::steady_clock::now(); });
  SetOk(status);
}
void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->Queue([timer] { timer->stop = std::chrono::steady_clock::now(); });
  SetOk(status);
}
uint64_t Nanoseconds(SP_Timer timer) {
  const auto passed = timer->stop - timer->start;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

// ------------------------------------------------------------------ copies

// Addresses are looked up at once: what lies outside of a device stops the process here.
char* OnDevice(const SP_DeviceMemoryBase* memory) {
  char* open = HostAddress(memory->opaque);
  if (open == nullptr) abort();
  return open;
}

void CopyToHost(const SP_Device* device, SP_Stream stream, void* to,
                const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().from_device += static_cast<int64_t>(size);
  stream->Queue([to, source = OnDevice(from), size] { std::memcpy(to, source, size); });
}

void CopyToDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                  const void* from, uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().to_device += static_cast<int64_t>(size);
  stream->Queue([target = OnDevice(to), from, size] { std::memcpy(target, from, size); });
}

void CopyWithin(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().within += static_cast<int64_t>(size);
  stream->Queue([target = OnDevice(to), source = OnDevice(from), size] {
    std::memmove(target, source, size);
  });
}

// The synchronous ones are in order with no stream, as a cudaMemcpy beside streams that do not
// block.
void CopyToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from,
                   uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().from_device += static_cast<int64_t>(size);
  std::memcpy(to, OnDevice(from), size);
}

void CopyToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from,
                     uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().to_device += static_cast<int64_t>(size);
  std::memcpy(OnDevice(to), from, size);
}

void CopyWithinNow(const SP_Device* device, SP_DeviceMemoryBase* to,
                   const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  counts().within += static_cast<int64_t>(size);
  std::memmove(OnDevice(to), OnDevice(from), size);
}

void Fill(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* location, uint8_t pattern,
          uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  stream->Queue(
      [target = OnDevice(location), pattern, size] { std::memset(target, pattern, size); });
}

void Zero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* location, uint64_t size,
          TF_Status* status) {
  Fill(device, stream, location, 0, size, status);
}

void Fill32(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* location,
            uint32_t pattern, uint64_t size, TF_Status* status) {
  if (!IsThere(device, status)) return;
  stream->Queue([target = OnDevice(location), pattern, size] {
    for (uint64_t at = 0; at + 4 <= size; at += 4) std::memcpy(target + at, &pattern, 4);
  });
}

TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback,
                     void* argument) {
  stream->Queue([callback, argument] {
    TF_Status* status = TF_NewStatus();
    callback(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

// ------------------------------------------------------------------ what TensorFlow asks for

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* parameters,
                    TF_Status* status) {
  SP_StreamExecutor* executor = parameters->stream_executor;
  executor->allocate = Allocate;
  executor->deallocate = Deallocate;
  executor->host_memory_allocate = AllocateHost;
  executor->host_memory_deallocate = DeallocateHost;
  executor->get_allocator_stats = AllocatorStats;
  executor->device_memory_usage = MemoryUsage;
  executor->create_stream = CreateStream;
  executor->destroy_stream = DestroyStream;
  executor->create_stream_dependency = CreateStreamDependency;
  executor->get_stream_status = StreamStatus;
  executor->create_event = CreateEvent;
  executor->destroy_event = DestroyEvent;
  executor->get_event_status = EventStatus;
  executor->record_event = RecordEvent;
  executor->wait_for_event = WaitForEvent;
  executor->create_timer = CreateTimer;
  executor->destroy_timer = DestroyTimer;
  executor->start_timer = StartTimer;
  executor->stop_timer = StopTimer;
  executor->memcpy_dtoh = CopyToHost;
  executor->memcpy_htod = CopyToDevice;
  executor->memcpy_dtod = CopyWithin;
  executor->sync_memcpy_dtoh = CopyToHostNow;
  executor->sync_memcpy_htod = CopyToDeviceNow;
  executor->sync_memcpy_dtod = CopyWithinNow;
  executor->block_host_for_event = BlockForEvent;
  executor->block_host_until_done = BlockUntilDone;
  executor->synchronize_all_activity = Synchronize;
  executor->mem_zero = Zero;
  executor->memset = Fill;
  executor->memset32 = Fill32;
  executor->host_callback = HostCallback;
  SetOk(status);
}

void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}

void CountDevices(const SP_Platform*, int* count, TF_Status* status) {
  *count = settings().devices;
  SetOk(status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* parameters, TF_Status* status) {
  parameters->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  parameters->device->ordinal = parameters->ordinal;
  parameters->device->device_handle = devices()[parameters->ordinal].get();
  parameters->device->hardware_name = "host memory";
  parameters->device->device_vendor = "keras-strom's tests";
  parameters->device->pci_bus_id = "<undefined>";
  SetOk(status);
}

void DestroyDevice(const SP_Platform*, SP_Device*) {}

void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* parameters, TF_Status* status) {
  parameters->device_fns->get_numa_node = [](const SP_Device*) { return int32_t{0}; };
  parameters->device_fns->get_memory_bandwidth = [](const SP_Device*) { return int64_t{-1}; };
  parameters->device_fns->get_gflops = [](const SP_Device*) { return -1.0; };
  SetOk(status);
}

void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}

void CreateTimerFns(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  functions->nanoseconds = Nanoseconds;
  SetOk(status);
}

void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}

}  // namespace

extern "C" {

void SE_InitPlugin(SE_PlatformRegistrationParams* parameters, TF_Status* status) {
  SP_Platform* platform = parameters->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "EMULATED";
  platform->type = "GPU";
  platform->supports_unified_memory = 0;
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = 1;
  SP_PlatformFns* functions = parameters->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = CountDevices;
  functions->create_device = CreateDevice;
  functions->destroy_device = DestroyDevice;
  functions->create_device_fns = CreateDeviceFns;
  functions->destroy_device_fns = DestroyDeviceFns;
  functions->create_stream_executor = CreateExecutor;
  functions->destroy_stream_executor = DestroyExecutor;
  functions->create_timer_fns = CreateTimerFns;
  functions->destroy_timer_fns = DestroyTimerFns;
  parameters->destroy_platform = [](SP_Platform*) {};
  parameters->destroy_platform_fns = [](SP_PlatformFns*) {};
  SetOk(status);
}

void strom_emulated_gpu_configure(int32_t devices, int64_t bytes, int32_t delay) {
  settings() = {devices, static_cast<uint64_t>(bytes) / kPage * kPage, delay};
}

void* strom_emulated_gpu_host_address(const void* device_address) {
  return HostAddress(device_address);
}

int32_t strom_emulated_gpu_launch(void* stream, void (*function)(void*), void* argument) {
  auto* const on = static_cast<SP_Stream>(stream);
  if (on->device->lost) return 0;
  ++counts().launches;
  on->Queue([function, argument] { function(argument); });
  return 1;
}

int32_t strom_emulated_gpu_wait(void* stream) {
  auto* const on = static_cast<SP_Stream>(stream);
  on->End()->Wait();
  return on->device->lost ? 0 : 1;
}

void strom_emulated_gpu_lose(int32_t device) { devices().at(device)->lost = true; }

void strom_emulated_gpu_count(strom_emulated_gpu_counts* result) {
  const Counts& all = counts();
  *result = {all.to_device, all.from_device, all.within, all.launches, all.waits, all.pinned};
}

}  // extern "C"
