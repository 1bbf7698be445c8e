// Threads for core/base/parallel.h that a test starts itself, anew for every call.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_OWN_THREADS_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_OWN_THREADS_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "capi/strom.h"
#include "core/base/parallel.h"

namespace strom {

// `pool` is their number; each takes whichever task comes next.
inline void RunOnOwnThreads(void* pool, int64_t tasks, Parallel::Task task, void* context) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> running;
  for (intptr_t i = 0; i < reinterpret_cast<intptr_t>(pool); ++i) {
    running.emplace_back([&] {
      for (int64_t mine = next++; mine < tasks; mine = next++) task(context, mine);
    });
  }
  for (std::thread& thread : running) thread.join();
}

inline Parallel OwnThreads(int threads) {
  return {threads, RunOnOwnThreads, reinterpret_cast<void*>(static_cast<intptr_t>(threads))};
}

// The same for the C interface.
inline strom_thread_pool OwnThreadPool(int threads) {
  const Parallel parallel = OwnThreads(threads);
  return {parallel.threads, parallel.run, parallel.pool};
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_OWN_THREADS_H_
