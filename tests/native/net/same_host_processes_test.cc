// Links through shared memory between real processes: one is killed, one stopped, one told not to.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "net/master_agent.h"
#include "net/same_host_links.h"
#include "net/worker_agent.h"

namespace strom {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

EndpointOptions JobOptions(int64_t failure_timeout_ns) {
  EndpointOptions options;
  options.secret.fill(7);
  options.job_id.fill(9);
  options.failure_timeout_ns = failure_timeout_ns;
  return options;
}

std::shared_ptr<MasterAgent> StartMaster(int64_t failure_timeout_ns) {
  MasterAgentOptions options;
  options.bind_address = "127.0.0.1";
  options.endpoint = JobOptions(failure_timeout_ns);
  options.node.failure_timeout_ns = failure_timeout_ns;
  options.node.workers = 1;
  std::shared_ptr<MasterAgent> master;
  EXPECT_TRUE(MasterAgent::Create(options, &master).ok());
  return master;
}

WorkerAgentOptions OptionsOfWorker(uint16_t port, const PublicKeyBytes& key,
                                   int64_t failure_timeout_ns) {
  WorkerAgentOptions options;
  options.endpoint = JobOptions(failure_timeout_ns);
  options.node.master_public_key = key;
  EXPECT_TRUE(ParseAddress("127.0.0.1", port, &options.node.master).ok());
  options.node.failure_timeout_ns = failure_timeout_ns;
  return options;
}

// True once the agent's status has these words; gives up after 20 s.
template <typename Agent>
bool StatusSays(Agent* agent, const std::string& words) {
  const int64_t deadline_ns = MonotonicNanoseconds() + 20 * kSecond;
  while (agent->StatusJson().find(words) == std::string::npos) {
    if (MonotonicNanoseconds() > deadline_ns) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

constexpr char kReady[] = "the worker waits";

// What a child process runs: joins the master that its environment names and waits until its
// standard input ends. With STROM_TEST_FORKS it first forks a process that does nothing else.
TEST(SameHostChild, DISABLED_JoinsAndWaits) {
  const auto variable = [](const char* name) { return std::string(std::getenv(name)); };
  PublicKeyBytes key;
  const std::string digits = variable("STROM_TEST_KEY");
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  std::shared_ptr<WorkerAgent> agent;
  const int64_t timeout_ns = std::stoll(variable("STROM_TEST_TIMEOUT_NS"));
  const auto port = static_cast<uint16_t>(std::stoi(variable("STROM_TEST_PORT")));
  ASSERT_TRUE(WorkerAgent::Join(OptionsOfWorker(port, key, timeout_ns), 20 * kSecond, &agent).ok());
  ASSERT_TRUE(StatusSays(agent.get(), "\"transport\": \"shared memory\""));
  const bool is_fork = !variable("STROM_TEST_FORKS").empty() && fork() == 0;
  if (!is_fork) {
    std::puts(kReady);
    std::fflush(stdout);
  }
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  if (is_fork) _exit(0);
}

// A process with a worker on it, started anew from this program; it ends with its owner.
class WorkerProcess {
 public:
  WorkerProcess(const MasterAgent& master, int64_t failure_timeout_ns, bool forks) {
    int in[2], out[2];
    EXPECT_TRUE(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    input_ = Descriptor(in[1]);
    output_ = Descriptor(out[0]);
    const Descriptor its_input(in[0]), its_output(out[1]);
    std::string key = "STROM_TEST_KEY=";
    for (const uint8_t byte : master.public_key()) {
      key += "0123456789abcdef"[byte >> 4];
      key += "0123456789abcdef"[byte & 15];
    }
    std::vector<std::string> environment = {
        key, "STROM_TEST_PORT=" + std::to_string(master.port()),
        "STROM_TEST_TIMEOUT_NS=" + std::to_string(failure_timeout_ns),
        std::string("STROM_TEST_FORKS=") + (forks ? "yes" : "")};
    std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                                          "--gtest_filter=SameHostChild.*"};
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> out;
      for (std::string& text : texts) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, its_input.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, its_output.get(), STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                          pointers(environment).data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~WorkerProcess() {
    input_.Close();
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Waits until it has joined, and forked where it should; gives up after 20 s.
  bool IsReady() const {
    std::string said;
    pollfd output = {output_.get(), POLLIN, 0};
    std::array<char, 256> bytes;
    while (said.find(kReady) == std::string::npos) {
      if (poll(&output, 1, 20'000) <= 0) return false;
      const ssize_t got = read(output_.get(), bytes.data(), bytes.size());
      if (got <= 0) return false;
      said.append(bytes.data(), static_cast<size_t>(got));
    }
    return true;
  }

 private:
  Descriptor input_, output_;
  pid_t pid_ = -1;
};

TEST(SameHostProcesses, AKilledOneIsNoticedAtOnceEvenWhereAForkHoldsItsSocket) {
  const int64_t never_ns = 100 * kSecond;  // silence alone would not tell in time
  for (const bool forks : {false, true}) {
    const auto master = StartMaster(never_ns);
    const WorkerProcess worker(*master, never_ns, forks);
    ASSERT_TRUE(worker.IsReady());
    ASSERT_TRUE(StatusSays(master.get(), "\"transport\": \"shared memory\""));
    worker.Signal(SIGKILL);
    EXPECT_TRUE(StatusSays(master.get(), "the process on this host has ended")) << forks;
  }
}

TEST(SameHostProcesses, AStoppedOneIsLostByItsSilence) {
  const int64_t soon_ns = kSecond / 2;
  const auto master = StartMaster(soon_ns);
  const WorkerProcess worker(*master, soon_ns, false);
  ASSERT_TRUE(StatusSays(master.get(), "\"transport\": \"shared memory\""));
  worker.Signal(SIGSTOP);
  EXPECT_TRUE(StatusSays(master.get(), "no authentic packet"));
}

TEST(SameHostProcesses, AgentsShareMemoryUnlessTheyAreToldNotTo) {
  for (const bool same_host : {false, true}) {
    const auto master = StartMaster(2 * kSecond);
    auto options = OptionsOfWorker(master->port(), master->public_key(), 2 * kSecond);
    options.same_host = same_host;
    std::shared_ptr<WorkerAgent> agent;
    ASSERT_TRUE(WorkerAgent::Join(options, 20 * kSecond, &agent).ok());
    EXPECT_TRUE(StatusSays(
        master.get(), same_host ? "\"transport\": \"shared memory\"" : "\"transport\": \"udp\""));
    agent->Close("");
    EXPECT_TRUE(StatusSays(master.get(), "\"shared_memory_links\": 0"));
    EXPECT_TRUE(StatusSays(master.get(), "\"left\""));
  }
}

}  // namespace
}  // namespace strom
