// What must not go on in the child of a fork: threads that are not there, sockets and keys that are
// the parent's. Whoever has them is told before and after; on the parent's side nothing changes.
#ifndef KERAS_STROM_NET_FORK_GUARD_H_
#define KERAS_STROM_NET_FORK_GUARD_H_

namespace strom {

class ForkGuarded {
 public:
  virtual ~ForkGuarded() = default;
  // On the thread that forks: comes to rest, so that the child finds everything whole.
  virtual void BeforeFork() = 0;
  virtual void AfterForkInParent() = 0;
  // The calling thread is the only one in the process.
  virtual void AfterForkInChild() = 0;
};

// From now on, and no longer, `guarded` is told. Not to be called from the functions above.
void AddForkGuarded(ForkGuarded* guarded);
void RemoveForkGuarded(ForkGuarded* guarded);

}  // namespace strom

#endif  // KERAS_STROM_NET_FORK_GUARD_H_
