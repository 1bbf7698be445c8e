// Forks of a process that has links: the child has no keys, no socket and nothing to wait for; the
// parent's links go on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "capi/strom.h"
#include "core/transport/crypto.h"
#include "core_dump.h"
#include "net/io_loop.h"

namespace strom {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// One end of a link on an I/O thread of its own; accepts whoever joins.
class End : private IoLoop::Protocol {
 public:
  explicit End(bool accepts) : loop_(Socket(), Options(accepts)) {
    EXPECT_TRUE(loop_.Start(this).ok());
  }
  ~End() override { loop_.Stop(); }

  uint16_t port() const { return loop_.socket().port(); }
  IoLoop& loop() { return loop_; }

  void Join(uint16_t port) {
    Address to;
    ASSERT_TRUE(ParseAddress("127.0.0.1", port, &to).ok());
    loop_.Run([&](int64_t now_ns) {
      loop_.links()->Connect(now_ns, to, DerivePublicKey(Options(true).private_key), nullptr);
    });
  }

  void Send() {
    loop_.Run([this](int64_t now_ns) {
      EXPECT_TRUE(loop_.links()->Send(now_ns, link_, Channel::kUpdate, MakeBuffer({1})));
    });
  }

  [[nodiscard]] bool Await(const std::function<bool(const End&)>& done) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return done(*this); });
  }

  LinkId link_ = 0;
  int messages_ = 0;

 private:
  static std::unique_ptr<UdpSocket> Socket() {
    std::unique_ptr<UdpSocket> socket;
    EXPECT_TRUE(UdpSocket::Open("127.0.0.1", 0, &socket).ok());
    return socket;
  }

  static EndpointOptions Options(bool accepts) {
    EndpointOptions options{.accepts = accepts};
    options.secret.fill(5);
    if (accepts) options.private_key.fill(6);
    return options;
  }

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override {
    if (event.type == LinkEvent::Type::kHello) loop_.links()->Accept(now_ns, event.link, nullptr);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event.type == LinkEvent::Type::kUp) link_ = event.link;
    if (event.type == LinkEvent::Type::kDown) link_ = 0;
    messages_ += event.type == LinkEvent::Type::kMessage;
    changed_.notify_all();
  }
  void HandleTimeout(int64_t) override {}
  int64_t NextTimeout() const override { return kNever; }
  void Publish(int64_t) override {}

  std::mutex mutex_;
  std::condition_variable changed_;
  IoLoop loop_;
};

// Runs `body` in a child and returns its exit status; 100 = it was ended by a signal or hung.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

TEST(Fork, TheChildHasNoLinksAndTheParentKeepsThem) {
  End master(true), worker(false);
  worker.Join(master.port());
  ASSERT_TRUE(worker.Await([](const End& end) { return end.link_ != 0; }));
  ASSERT_TRUE(master.Await([](const End& end) { return end.link_ != 0; }));
  // While messages flow, so that a fork meets the threads at work.
  for (int round = 1; round <= 10; ++round) {
    worker.Send();
    const int failed = InChild([&] {
      std::string counters;
      bool sent = true;
      worker.loop().Run([&](int64_t now_ns) {
        counters = worker.loop().CountersJson();
        sent = worker.loop().links()->Send(now_ns, worker.link_, Channel::kUpdate, MakeBuffer({2}));
      });
      if (counters.find("\"links\": []") == std::string::npos) return 1;
      if (sent) return 2;
      worker.loop().Stop();
      return write(worker.loop().socket().descriptor(), "x", 1) == 1 ? 0 : 3;  // into /dev/null
    });
    EXPECT_EQ(failed, 0);
    EXPECT_TRUE(master.Await([&](const End& end) { return end.messages_ == round; }));
  }
}

TEST(Fork, TheStackOfTheThreadThatHandlesKeysIsInNoCoreDump) {
  if (!KernelTakesAdvice()) GTEST_SKIP() << "an emulation ignores MADV_DONTDUMP";
  End end(true);
  end.loop().Run([](int64_t) {
    const int local = 0;
    EXPECT_FALSE(IsDumped(&local));
  });
}

TEST(Fork, HandlesOfTheParentAreClosedInTheChild) {
  strom_master_options options{};
  options.any_bytes = 1;
  options.epoch = 1;
  options.bind_address = "127.0.0.1";
  options.workers = 1;
  options.failure_timeout_ns = kSecond;
  uint8_t secret[STROM_KEY_BYTES] = {1};
  options.secret = secret;
  uint8_t job_id[16] = {2};
  options.job_id = job_id;
  strom_handle master = 0;
  ASSERT_EQ(strom_master_create(&options, &master), 0) << strom_last_error();
  int32_t port = 0;
  EXPECT_EQ(strom_master_port(master, &port), 0);
  uint8_t key[STROM_KEY_BYTES] = {};
  ASSERT_EQ(strom_master_public_key(master, key), 0);
  strom_worker_options joins{};
  joins.bind_address = joins.master_host = "127.0.0.1";
  joins.master_port = port;
  joins.secret = secret;
  joins.job_id = job_id;
  joins.master_public_key = key;
  joins.size = 1;
  joins.failure_timeout_ns = kSecond;
  joins.join_timeout_ns = 20 * kSecond;
  strom_handle worker = 0;
  ASSERT_EQ(strom_bytes_join(&joins, &worker), 0) << strom_last_error();
  const uint8_t bytes[1] = {};
  uint64_t counter = 0;
  EXPECT_EQ(InChild([&] {
              if (strom_master_port(master, &port) != STROM_CLOSED) return 1;
              if (strom_bytes_submit(worker, bytes, 1, kSecond, &counter) != STROM_CLOSED) return 2;
              return strom_bytes_flush(worker, kSecond) == STROM_CLOSED ? 0 : 3;
            }),
            0);
  EXPECT_EQ(strom_master_port(master, &port), 0);
  EXPECT_EQ(strom_bytes_submit(worker, bytes, 1, kSecond, &counter), 0);
  EXPECT_EQ(strom_bytes_flush(worker, 20 * kSecond), 0);
  EXPECT_EQ(strom_bytes_close(worker, "done"), 0);
  EXPECT_EQ(strom_master_close(master, "done"), 0);
}

}  // namespace
}  // namespace strom
