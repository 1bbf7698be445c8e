// The threads that callers of the C interface lend it, as core takes them.
#ifndef KERAS_STROM_CAPI_LENT_THREADS_H_
#define KERAS_STROM_CAPI_LENT_THREADS_H_

#include <cstdint>

#include "capi/strom.h"
#include "core/base/parallel.h"
#include "core/base/subnormals.h"

namespace strom {

// For one call. Each thread keeps subnormal numbers during a task.
class LentThreads {
 public:
  // Null = the calling thread does all of the work.
  explicit LentThreads(const strom_thread_pool* lent) : lent_(lent) {}

  // Uses this object.
  Parallel parallel() {
    if (lent_ == nullptr || lent_->run == nullptr) return {};
    return {lent_->threads, &LentThreads::Run, this};
  }

 private:
  struct Call {
    Parallel::Task task;
    void* context;
  };

  static void Run(void* self, int64_t tasks, Parallel::Task task, void* context) {
    const strom_thread_pool* const lent = static_cast<LentThreads*>(self)->lent_;
    Call call{task, context};
    lent->run(
        lent->pool, tasks,
        [](void* of, int64_t i) {
          const KeepSubnormals keep;
          const auto* const found = static_cast<const Call*>(of);
          found->task(found->context, i);
        },
        &call);
  }

  const strom_thread_pool* const lent_;
};

}  // namespace strom

#endif  // KERAS_STROM_CAPI_LENT_THREADS_H_
