// An agent whose I/O thread the system does not give: it says so, and nobody waits for that thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "few_descriptors.h"
#include "net/master_agent.h"
#include "net/worker_agent.h"

namespace strom {
namespace {

using testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

Status Create(std::shared_ptr<MasterAgent>* master) {
  MasterAgentOptions options;
  options.bind_address = "127.0.0.1";
  options.endpoint.secret.fill(5);
  return MasterAgent::Create(options, master);
}

Status Join(const Address& at, std::shared_ptr<WorkerAgent>* worker) {
  WorkerAgentOptions options;
  options.bind_address = "127.0.0.1";
  options.endpoint.secret.fill(5);
  options.node.master = at;
  return WorkerAgent::Join(options, kSecond, worker);
}

void ExpectRefused(const Status& status, const char* remedy) {
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message, HasSubstr(remedy));
}

bool BlocksInterrupts() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGINT) == 1;
}

#ifdef __GLIBC__
// While it lives no thread can be started, for no address space has room for its stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_getattr_default_np(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 60);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(IoLoopTest, WhereNoThreadCanBeStartedAnAgentSaysSoAndSignalsStay) {
  const NoThreads none;
  std::shared_ptr<MasterAgent> master;
  ExpectRefused(Create(&master), "ulimit -u");
  std::shared_ptr<WorkerAgent> worker;
  ExpectRefused(Join({}, &worker), "ulimit -u");
  EXPECT_EQ(master, nullptr);
  EXPECT_EQ(worker, nullptr);
  EXPECT_FALSE(BlocksInterrupts());
}
#endif

#ifndef __SANITIZE_ADDRESS__  // The checks that are made beside it need descriptors of their own.
TEST(IoLoopTest, WhereDescriptorsRunOutAnAgentSaysSo) {
  int refused = 0;
  for (bool is_refused = true; is_refused; ++refused) {
    const FewDescriptors few(refused);
    std::shared_ptr<MasterAgent> master;
    const Status status = Create(&master);
    is_refused = !status.ok();
    if (is_refused) ExpectRefused(status, "ulimit -n");
  }
  EXPECT_GE(refused, 3);  // neither a socket, nor what its thread is woken by
}
#endif

}  // namespace
}  // namespace strom
