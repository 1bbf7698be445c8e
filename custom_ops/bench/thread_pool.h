// Threads for core/base/parallel.h that wait between tasks by spinning for a while: waking a thread
// that sleeps would take a noticeable part of a pass.
#ifndef KERAS_STROM_BENCH_THREAD_POOL_H_
#define KERAS_STROM_BENCH_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/base/parallel.h"

namespace strom::bench {

class ThreadPool {
 public:
  // `threads` includes the caller's own.
  explicit ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  }

  ~ThreadPool() {
    stopping_ = true;
    Announce();
    for (std::thread& thread : threads_) thread.join();
  }

  Parallel parallel() {
    return {static_cast<int>(threads_.size()) + 1,
            [](void* pool, int64_t tasks, Parallel::Task task, void* context) {
              static_cast<ThreadPool*>(pool)->Run(tasks, task, context);
            },
            this};
  }

 private:
  void Run(int64_t tasks, Parallel::Task task, void* context) {
    task_ = task;
    context_ = context;
    tasks_ = tasks;
    next_ = 0;
    busy_ = static_cast<int>(threads_.size());
    Announce();
    WorkOff();
    while (busy_ > 0) std::this_thread::yield();
  }

  void Announce() {
    ++round_;
    round_.notify_all();
  }

  void Serve() {
    for (uint64_t seen = 0;;) {
      AwaitRoundAfter(seen);
      ++seen;
      if (stopping_) return;
      WorkOff();
      --busy_;
    }
  }

  void AwaitRoundAfter(uint64_t seen) {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (round_ == seen && std::chrono::steady_clock::now() < patience) {
    }
    round_.wait(seen);
  }

  void WorkOff() {
    for (int64_t i = next_++; i < tasks_; i = next_++) task_(context_, i);
  }

  std::vector<std::thread> threads_;
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};
  int64_t tasks_ = 0;
  Parallel::Task task_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_THREAD_POOL_H_
