// How core spreads work over threads that belong to somebody else: TensorFlow's pool inside an op,
// a test's own threads, or nobody, and then the caller does all of it.
#ifndef KERAS_STROM_CORE_PARALLEL_H_
#define KERAS_STROM_CORE_PARALLEL_H_

#include <cstdint>

namespace strom {

struct Parallel {
  using Task = void (*)(void* context, int64_t task);

  int threads = 1;  // how many tasks can run at once, the caller's own thread included
  // Calls task(context, i) once for every i in [0, tasks), on any threads, and returns when all are
  // done. Null = one after another on the caller's thread.
  void (*run)(void* pool, int64_t tasks, Task task, void* context) = nullptr;
  void* pool = nullptr;

  // work(i) once for every i in [0, tasks); must not throw.
  template <typename Work>
  void For(int64_t tasks, Work work) const {
    if (run == nullptr || threads <= 1 || tasks <= 1) {
      for (int64_t i = 0; i < tasks; ++i) work(i);
      return;
    }
    run(pool, tasks, [](void* context, int64_t i) { (*static_cast<Work*>(context))(i); }, &work);
  }
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_PARALLEL_H_
