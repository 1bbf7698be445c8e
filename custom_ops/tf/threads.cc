#include "tf/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace keras_strom {

namespace {

using tensorflow::thread::ThreadPool;

// One call's tasks. Whoever has time takes the next one; a thread of the pool that comes when none
// is left finds only this counter, which lives as long as any of them.
class TaskList {
 public:
  TaskList(int64_t tasks, strom_task task, void* context)
      : tasks_(tasks), task_(task), context_(context), left_(tasks) {}

  void RunSome() {
    int64_t done = 0;
    for (int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1), ++done) {
      task_(context_, i);
    }
    if (done == 0 || left_.fetch_sub(done) != done) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    all_done_.notify_one();
  }

  void AwaitAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return finished_; });
  }

 private:
  const int64_t tasks_;
  const strom_task task_;
  void* const context_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> left_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  bool finished_ = false;  // guarded by mutex_
};

void Run(void* pool, int64_t tasks, strom_task task, void* context) {
  if (tasks <= 0) return;
  auto* const workers = static_cast<ThreadPool*>(pool);
  auto list = std::make_shared<TaskList>(tasks, task, context);
  const int64_t helpers = std::min<int64_t>(workers->NumThreads(), tasks) - 1;
  for (int64_t i = 0; i < helpers; ++i) workers->Schedule([list] { list->RunSome(); });
  list->RunSome();
  list->AwaitAll();
}

}  // namespace

strom_thread_pool LendThreads(tensorflow::OpKernelContext* context) {
  const auto* const workers = context->device()->tensorflow_cpu_worker_threads();
  if (workers == nullptr || workers->workers == nullptr) return {1, nullptr, nullptr};
  return {workers->num_threads, &Run, workers->workers};
}

}  // namespace keras_strom
