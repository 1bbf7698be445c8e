#include "net/fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <vector>

#include "core/base/types.h"

namespace strom {
namespace {

// Never destroyed: a process may fork while it ends.
struct Registry {
  std::mutex mutex;  // held from before a fork to after it
  std::vector<ForkGuarded*> guarded;
};

Registry& TheRegistry() {
  static Registry& registry = *new Registry;
  return registry;
}

void BeforeFork() {
  TheRegistry().mutex.lock();
  for (ForkGuarded* guarded : TheRegistry().guarded) guarded->BeforeFork();
}

void AfterForkInParent() {
  for (ForkGuarded* guarded : TheRegistry().guarded) guarded->AfterForkInParent();
  TheRegistry().mutex.unlock();
}

void AfterForkInChild() {
  for (ForkGuarded* guarded : TheRegistry().guarded) guarded->AfterForkInChild();
  TheRegistry().mutex.unlock();
}

}  // namespace

void AddForkGuarded(ForkGuarded* guarded) {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  STROM_CHECK(registered == 0);
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  TheRegistry().guarded.push_back(guarded);
}

void RemoveForkGuarded(ForkGuarded* guarded) {
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  std::erase(TheRegistry().guarded, guarded);
}

}  // namespace strom
