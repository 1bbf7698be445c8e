#include "tf/step_warnings.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

namespace keras_strom {
namespace {

constexpr size_t kMost = 32;

struct Warnings {
  std::mutex mutex;
  std::vector<std::string> all;  // in their order
  size_t taken = 0;              // so many of them
};

Warnings& TheWarnings() {
  static Warnings* const warnings = new Warnings;  // A thread may outlive static variables.
  return *warnings;
}

}  // namespace

void WarnOnce(const std::string& words) {
  Warnings& warnings = TheWarnings();
  const std::lock_guard<std::mutex> lock(warnings.mutex);
  if (warnings.all.size() == kMost) return;
  if (std::find(warnings.all.begin(), warnings.all.end(), words) != warnings.all.end()) return;
  warnings.all.push_back(words);
}

}  // namespace keras_strom

// The next warning that nobody has taken, as text with a null byte at its end, cut where it does
// not fit into `capacity` bytes, which is at least 1. 0 where there is none, else 1.
extern "C" int32_t strom_take_step_warning(char* out, int64_t capacity) {
  keras_strom::Warnings& warnings = keras_strom::TheWarnings();
  const std::lock_guard<std::mutex> lock(warnings.mutex);
  if (warnings.taken == warnings.all.size()) return 0;
  const std::string& words = warnings.all[warnings.taken++];
  const size_t length = std::min(words.size(), static_cast<size_t>(capacity) - 1);
  std::memcpy(out, words.data(), length);
  out[length] = '\0';
  return 1;
}
