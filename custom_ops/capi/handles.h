// What every file of the C ABI shares: objects behind handles, the thread's last error, and the
// guard that keeps exceptions inside.
//
// A function of capi/strom.h reads
//   int strom_thing_do(strom_handle handle, int64_t argument) {
//     return Guard([&] {
//       const std::shared_ptr<Thing> thing = Things().Find(handle);
//       if (!thing) return ClosedHandle("strom_thing_do", "thing", handle);
//       return thing->Do(argument);
//     });
//   }
#ifndef KERAS_STROM_CAPI_HANDLES_H_
#define KERAS_STROM_CAPI_HANDLES_H_

#include <unistd.h>

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capi/strom.h"
#include "core/base/exchange.h"
#include "core/base/joint_exchange.h"
#include "core/base/types.h"

namespace strom {

// A number that no object of any kind has had or will have in this process; > 0.
strom_handle NextHandle();

// The objects of one kind. Find shares ownership, so an object lives on while a call still uses it
// after another thread has removed it. Thread-safe.
template <typename T>
class HandleTable {
 public:
  // What has a thread or a connection has them in the process that made it: `kOneProcess` handles
  // are closed in the child of a fork, where the objects are left alone.
  enum class Scope { kAnyProcess, kOneProcess };

  explicit HandleTable(Scope scope = Scope::kAnyProcess) : scope_(scope) {}
  ~HandleTable() {
    if (IsForked()) new Objects(std::move(objects_));  // destroying them would wait for threads
  }

  strom_handle Add(std::shared_ptr<T> object) {
    const strom_handle handle = NextHandle();
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // Null when no object has this handle (any more).
  std::shared_ptr<T> Find(strom_handle handle) const {
    if (IsForked()) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Takes the object out: exactly one of several concurrent calls gets it, the others null.
  std::shared_ptr<T> Remove(strom_handle handle) {
    if (IsForked()) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  using Objects = std::unordered_map<strom_handle, std::shared_ptr<T>>;

  bool IsForked() const { return scope_ == Scope::kOneProcess && getpid() != process_; }

  const Scope scope_;
  const pid_t process_ = getpid();
  mutable std::mutex mutex_;
  Objects objects_;
};

// Keeps `message` for strom_last_error on this thread and returns `code`.
int SetLastError(int code, std::string message) noexcept;
inline int SetLastError(Code code, std::string message) noexcept {
  return SetLastError(static_cast<int>(code), std::move(message));
}

// STROM_OK, or the status' code with its words kept for strom_last_error.
int Report(Status status) noexcept;

// The status of a call on a handle that is closed or never was one.
Status ClosedHandle(const char* function, const char* kind, strom_handle handle);

// Runs `body`, which returns a Status, and gives its code. Exceptions become STROM_INTERNAL.
template <typename Body>
int Guard(Body&& body) noexcept {
  try {
    return Report(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return SetLastError(STROM_INTERNAL, "out of memory");
  } catch (const std::exception& error) {
    return SetLastError(STROM_INTERNAL, error.what());
  } catch (...) {
    return SetLastError(STROM_INTERNAL, "unknown exception");
  }
}

// The network side of a worker handle; null when it is closed. Defined in capi/node.cc.
std::shared_ptr<Exchange> FindExchange(strom_handle worker);
std::shared_ptr<JointExchange> FindJointExchange(strom_handle worker);

}  // namespace strom

#endif  // KERAS_STROM_CAPI_HANDLES_H_
