// How core spreads work over threads that belong to somebody else: TensorFlow's pool inside an op,
// a test's own threads, or nobody, and then the caller does all of it.
#ifndef KERAS_STROM_CORE_BASE_PARALLEL_H_
#define KERAS_STROM_CORE_BASE_PARALLEL_H_

#include <atomic>
#include <cstdint>
#include <exception>

namespace strom {

struct Parallel {
  using Task = void (*)(void* context, int64_t task);

  int threads = 1;  // how many tasks can run at once, the caller's own thread included
  // Calls task(context, i) once for every i in [0, tasks), on any threads, and returns when all are
  // done. Null = one after another on the caller's thread.
  void (*run)(void* pool, int64_t tasks, Task task, void* context) = nullptr;
  void* pool = nullptr;

  // work(i) once for every i in [0, tasks). What it throws, such as std::bad_alloc, comes out of
  // here when all tasks are done (one exception where several threw), never into a thread that is
  // somebody else's.
  template <typename Work>
  void For(int64_t tasks, Work work) const {
    if (run == nullptr || threads <= 1 || tasks <= 1) {
      for (int64_t i = 0; i < tasks; ++i) work(i);
      return;
    }
    Call<Work> call{work, {}, {}};
    run(pool, tasks, [](void* of, int64_t i) { static_cast<Call<Work>*>(of)->Run(i); }, &call);
    if (call.thrown) std::rethrow_exception(call.thrown);
  }

 private:
  template <typename Work>
  struct Call {
    Work& work;
    std::atomic_flag failed;
    std::exception_ptr thrown;  // of the task that set the flag

    void Run(int64_t i) noexcept {
      try {
        work(i);
      } catch (...) {
        if (!failed.test_and_set()) thrown = std::current_exception();
      }
    }
  };
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_PARALLEL_H_
