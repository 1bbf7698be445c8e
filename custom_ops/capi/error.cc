// Handles' numbers, the thread's last error, and the functions of capi/strom.h that need no object.
#include <atomic>

#include "capi/handles.h"
#include "core/base/hash.h"

namespace strom {
namespace {

thread_local std::string last_error;

}  // namespace

strom_handle NextHandle() {
  static std::atomic<strom_handle> last{0};
  return ++last;
}

int SetLastError(int code, std::string message) noexcept {
  last_error = std::move(message);
  return code;
}

int Report(Status status) noexcept {
  return status.ok() ? STROM_OK : SetLastError(status.code, std::move(status.message));
}

Status ClosedHandle(const char* function, const char* kind, strom_handle handle) {
  return {Code::kClosed, std::string(function) + ": " + kind + " handle " + std::to_string(handle) +
                             " is closed or was never one"};
}

}  // namespace strom

int32_t strom_abi_version(void) { return STROM_ABI_VERSION; }

const char* strom_last_error(void) { return strom::last_error.c_str(); }

uint64_t strom_hash(const void* bytes, int64_t size, uint64_t previous) {
  if (bytes == nullptr || size <= 0) return strom::Hash({}, previous);
  return strom::Hash({static_cast<const uint8_t*>(bytes), static_cast<size_t>(size)}, previous);
}
