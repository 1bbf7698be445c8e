// A long line between two network namespaces, where the kernel has no netem: a TUN device in each,
// and this process between them, which gives both directions a delay, jitter, loss, a rate and the
// queue before it. benchmarks/wan_line.py starts it.
//
//   wan_line NAMESPACE_A NAMESPACE_B ADDRESS_A ADDRESS_B
//
// It prints {"ready": true} and then answers each line of its standard input with one of JSON:
//   set KEY=VALUE...   delay_ms, jitter_ms, loss, rate_bytes (a second; 0 = no limit), queue_bytes
//   take               what has passed from A to B since the last take
// and ends with its input.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <queue>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace strom::bench {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kLongestPacket = 65536;
constexpr int kRunOfReads = 64;

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

[[noreturn]] void Fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

void Run(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

// A TUN device in a namespace, which this thread enters.
int OpenTun(const std::string& name, const std::string& address, const std::string& peer) {
  const int space = open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) Fail("the namespace " + name);
  close(space);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  std::strcpy(request.ifr_name, "line");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (tun < 0 || ioctl(tun, TUNSETIFF, &request) != 0) Fail("a TUN device");
  // Nothing waits before this process but for its next turn.
  Run("ip link set dev lo up && ip addr add " + address + " peer " + peer +
      " dev line && ip link set dev line up mtu 1500 txqueuelen 10000");
  return tun;
}

struct Options {
  double delay_ms = 0, jitter_ms = 0, loss = 0, rate_bytes = 0, queue_bytes = 1 << 20;

  void Set(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    double* const value = key == "delay_ms"      ? &delay_ms
                          : key == "jitter_ms"   ? &jitter_ms
                          : key == "loss"        ? &loss
                          : key == "rate_bytes"  ? &rate_bytes
                          : key == "queue_bytes" ? &queue_bytes
                                                 : nullptr;
    if (equals == std::string::npos || value == nullptr) {
      throw std::invalid_argument("unknown: " + word);
    }
    *value = std::stod(word.substr(equals + 1));
  }
};

// One direction.
class Direction {
 public:
  Direction(int from, int to) : from_(from), to_(to) {}

  int from() const { return from_; }

  void Read(const Options& options, std::mt19937_64* random) {
    std::uniform_real_distribution<double> uniform(0, 1);
    for (int i = 0; i < kRunOfReads; ++i) {
      const ssize_t size = read(from_, buffer_.data(), buffer_.size());
      if (size <= 0) return;
      const int64_t now_ns = NowNs();
      free_ns_ = std::max(free_ns_, now_ns);
      const double waits_ns = static_cast<double>(free_ns_ - now_ns);
      const bool is_full =
          options.rate_bytes > 0 && waits_ns * options.rate_bytes / kSecond > options.queue_bytes;
      if (is_full) ++dropped_;
      if (is_full || uniform(*random) < options.loss) continue;
      if (options.rate_bytes > 0) {
        free_ns_ += static_cast<int64_t>(static_cast<double>(size) * kSecond / options.rate_bytes);
      }
      waits_us_.push_back(static_cast<int32_t>(waits_ns / 1000));
      bytes_ += size;
      const double way_ms = options.delay_ms + options.jitter_ms * uniform(*random);
      packets_.push({free_ns_ + static_cast<int64_t>(way_ms * 1e6),
                     order_++,
                     {buffer_.data(), buffer_.data() + size}});
    }
  }

  void Write() {
    const int64_t now_ns = NowNs();
    for (; !packets_.empty() && packets_.top().due_ns <= now_ns; packets_.pop()) {
      late_us_ = std::max(late_us_, (now_ns - packets_.top().due_ns) / 1000);
      const std::vector<char>& bytes = packets_.top().bytes;
      if (write(to_, bytes.data(), bytes.size()) < 0) ++dropped_;
    }
  }

  int64_t NextNs() const { return packets_.empty() ? INT64_MAX : packets_.top().due_ns; }

  // How long packets have waited in the queue, and what did not find room there.
  std::string Take() {
    std::sort(waits_us_.begin(), waits_us_.end());
    const auto at = [&](double part) {
      if (waits_us_.empty()) return int64_t{0};
      return int64_t{
          waits_us_[static_cast<size_t>(part * static_cast<double>(waits_us_.size() - 1))]};
    };
    const std::string text = JsonObject()
                                 .Add("packets", static_cast<int64_t>(waits_us_.size()))
                                 .Add("bytes", bytes_)
                                 .Add("dropped", dropped_)
                                 .Add("queue_p50_us", at(.5))
                                 .Add("queue_p99_us", at(.99))
                                 .Add("late_us", late_us_)
                                 .Text();
    waits_us_.clear();
    bytes_ = dropped_ = 0;
    late_us_ = 0;
    return text;
  }

 private:
  struct Packet {
    int64_t due_ns;
    int64_t order;
    std::vector<char> bytes;
    bool operator>(const Packet& other) const {
      return due_ns != other.due_ns ? due_ns > other.due_ns : order > other.order;
    }
  };

  const int from_, to_;
  std::array<char, kLongestPacket> buffer_;
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> packets_;
  int64_t free_ns_ = 0;  // when the line has sent what waits
  int64_t order_ = 0, bytes_ = 0, dropped_ = 0;
  int64_t late_us_ = 0;  // the most that a packet left after its time: the machine's fault
  std::vector<int32_t> waits_us_;
};

void Answer(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

// One line of the input.
void Obey(const std::string& line, Options* options, Direction* there) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (word == "take") return Answer(there->Take());
  if (word != "set") throw std::invalid_argument("unknown: " + line);
  while (words >> word) options->Set(word);
  Answer(JsonObject().Add("set", true).Text());
}

void Serve(int a, int b) {
  Options options;
  Direction there(a, b), back(b, a);
  std::mt19937_64 random(1);
  std::string input;
  Answer(JsonObject().Add("ready", true).Text());
  for (;;) {
    const int64_t wait_ns =
        std::clamp<int64_t>(std::min(there.NextNs(), back.NextNs()) - NowNs(), 0, kSecond);
    const timespec wait{wait_ns / kSecond, wait_ns % kSecond};
    std::array<pollfd, 3> files{{{a, POLLIN, 0}, {b, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
    if (ppoll(files.data(), files.size(), &wait, nullptr) < 0 && errno != EINTR) Fail("ppoll");
    there.Read(options, &random);
    back.Read(options, &random);
    there.Write();
    back.Write();
    if (files[2].revents == 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t size = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (size <= 0) return;
    input.append(bytes.data(), static_cast<size_t>(size));
    for (size_t end; (end = input.find('\n')) != std::string::npos; input.erase(0, end + 1)) {
      Obey(input.substr(0, end), &options, &there);
    }
  }
}

}  // namespace
}  // namespace strom::bench

int main(int argc, char** argv) {
  try {
    if (argc != 5)
      throw std::invalid_argument("wan_line NAMESPACE_A NAMESPACE_B ADDRESS_A ADDRESS_B");
    const int a = strom::bench::OpenTun(argv[1], argv[3], argv[4]);
    const int b = strom::bench::OpenTun(argv[2], argv[4], argv[3]);
    strom::bench::Serve(a, b);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "wan_line: %s\n", error.what());
    return 1;
  }
}
