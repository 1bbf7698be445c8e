#include "bench/relay_stranger.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/relay_traffic.h"
#include "core/base/json.h"
#include "core/transport/handshake.h"
#include "net/io_loop.h"

namespace strom::bench {
namespace {

constexpr int kTries = 50;  // for one cookie; the master answers few strangers at a time

[[noreturn]] void Fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// A socket that sends to the master only, and waits a while for an answer.
class Socket {
 public:
  explicit Socket(const RelayStrangerOptions& options) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(options.port);
    if (inet_pton(AF_INET, options.address.c_str(), &to.sin_addr) != 1) {
      throw std::invalid_argument("not an IPv4 address: " + options.address);
    }
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    if (file_ < 0 || connect(file_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0 ||
        setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0) {
      Fail("a socket to the master");
    }
  }
  ~Socket() { close(file_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void Send(Bytes datagram) {
    if (send(file_, datagram.data(), datagram.size(), 0) < 0) Fail("send");
  }
  // Empty when nothing has come.
  Bytes Receive() {
    const ssize_t size = recv(file_, received_.data(), received_.size(), 0);
    return {received_.data(), size < 0 ? 0 : static_cast<size_t>(size)};
  }

 private:
  int file_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::array<uint8_t, kHelloBytes> received_{};
};

SecretKey RandomKey() {
  SecretKey key;
  SystemRandom().Fill(key.bytes());
  return key;
}

// A HELLO with a cookie of its own, under a secret that nobody has.
std::array<uint8_t, kHelloBytes> HelloWithCookie(const PublicKeyBytes& master, Socket* socket) {
  Initiator initiator(master, RandomKey(), RandomKey(), 1, {});
  for (int i = 0; i < kTries; ++i) {
    socket->Send(initiator.hello());
    if (initiator.HandleRetry(socket->Receive())) return initiator.hello();
  }
  throw std::runtime_error("the master gives no cookie");
}

}  // namespace

std::string RunRelayStranger(const RelayStrangerOptions& options) {
  Socket socket(options);
  std::vector<std::array<uint8_t, kHelloBytes>> hellos;
  for (int64_t i = 0; i < options.hellos; ++i) {
    hellos.push_back(HelloWithCookie(options.key, &socket));
  }
  PrintReady(options.port);
  const double start = NowSeconds();
  int64_t sent = 0;
  for (double now = start; now < start + options.seconds; now = NowSeconds()) {
    for (; static_cast<double>(sent) < (now - start) * options.per_second; ++sent) {
      socket.Send(hellos[static_cast<size_t>(sent) % hellos.size()]);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return JsonObject()
      .Add("sent", sent)
      .AddRaw("seconds", std::to_string(NowSeconds() - start))
      .Text();
}

}  // namespace strom::bench
