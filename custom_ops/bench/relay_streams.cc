#include "bench/relay_streams.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/little_endian.h"

namespace strom::bench {
namespace {

[[noreturn]] void Fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class TcpStream final : public Stream {
 public:
  explicit TcpStream(int descriptor) : descriptor_(descriptor), read_ahead_(kReadAhead) {}
  ~TcpStream() override { close(descriptor_); }

  bool Write(Bytes bytes) override {
    while (!bytes.empty()) {
      const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
  }

  bool Read(std::span<uint8_t> out) override {
    while (!out.empty()) {
      if (first_ == last_) {
        const ssize_t got = Receive(out);
        if (got <= 0) return false;
        const size_t direct = std::min(out.size(), static_cast<size_t>(got));
        out = out.subspan(direct);
        first_ = 0;
        last_ = static_cast<size_t>(got) - direct;
      }
      const size_t copied = std::min(out.size(), last_ - first_);
      std::memcpy(out.data(), read_ahead_.data() + first_, copied);
      first_ += copied;
      out = out.subspan(copied);
    }
    return true;
  }

  void StopReading() override { shutdown(descriptor_, SHUT_RD); }

  std::string CountersJson() const override {
    tcp_info info = {};
    socklen_t size = sizeof(info);
    getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &size);
    return JsonObject()
        .Add("retransmits", info.tcpi_total_retrans)
        .Add("segments", info.tcpi_data_segs_out)
        .Text();
  }

 private:
  // Enough for many small messages a call, little enough to copy of a large one.
  static constexpr size_t kReadAhead = size_t{32} << 10;

  // Into `out` first, and what is beyond it into the read-ahead.
  ssize_t Receive(std::span<uint8_t> out) {
    iovec parts[2] = {{out.data(), out.size()}, {read_ahead_.data(), read_ahead_.size()}};
    return readv(descriptor_, parts, 2);
  }

  int descriptor_;
  std::vector<uint8_t> read_ahead_;
  size_t first_ = 0;
  size_t last_ = 0;
};

class TcpFactory final : public StreamFactory {
 public:
  std::unique_ptr<Stream> Make(int descriptor, bool) override {
    return std::make_unique<TcpStream>(descriptor);
  }
};

sockaddr_in SocketAddress(const PeerOptions& options) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  if (inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1) {
    throw std::invalid_argument("not an IPv4 address: " + options.address);
  }
  return address;
}

// A reset at the end: a peer that is still writing must hear of it at once, however full its
// window.
void Prepare(int descriptor) {
  const int yes = 1;
  const linger reset = {1, 0};
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

int OpenSocket(const PeerOptions& options) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) Fail("socket");
  Prepare(descriptor);
  const std::string& name = options.congestion;
  if (!name.empty() && setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                                  static_cast<socklen_t>(name.size())) != 0) {
    Fail(("TCP_CONGESTION " + name).c_str());
  }
  return descriptor;
}

std::unique_ptr<StreamFactory> MakeFactory(const PeerOptions& options) {
  return options.transport == "tls" ? MakeTlsFactory() : MakeTcpFactory();
}

std::unique_ptr<Stream> Connect(const PeerOptions& options, StreamFactory* factory) {
  const int descriptor = OpenSocket(options);
  const sockaddr_in address = SocketAddress(options);
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Fail("connect");
  }
  return factory->Make(descriptor, false);
}

// Listens, says where, and takes `count` connections.
std::vector<std::unique_ptr<Stream>> Accept(const PeerOptions& options, int count,
                                            StreamFactory* factory) {
  const int listening = OpenSocket(options);
  sockaddr_in address = SocketAddress(options);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(listening, plain, size) != 0) Fail("bind");
  if (listen(listening, kMaxSenders) != 0) Fail("listen");
  getsockname(listening, plain, &size);
  PrintReady(ntohs(address.sin_port));
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < count; ++i) {
    const int descriptor = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) Fail("accept");
    Prepare(descriptor);
    streams.push_back(factory->Make(descriptor, true));
  }
  close(listening);
  return streams;
}

// A message as it stands on a stream: its length, then its bytes.
std::vector<uint8_t> Frame(Bytes message) {
  std::vector<uint8_t> frame(4 + message.size());
  StoreLittleEndian<uint32_t>(frame.data(), static_cast<uint32_t>(message.size()));
  std::copy(message.begin(), message.end(), frame.begin() + 4);
  return frame;
}

std::vector<std::vector<uint8_t>> Frames(int64_t message_bytes) {
  Messages messages(message_bytes);
  std::vector<std::vector<uint8_t>> frames;
  for (int i = 0; i < 8; ++i) frames.push_back(Frame(*messages.Next()));
  return frames;
}

bool ReadMessage(Stream* stream, std::vector<uint8_t>* message) {
  uint8_t length[4];
  if (!stream->Read(length)) return false;
  message->resize(LoadLittleEndian<uint32_t>(length));
  if (!stream->Read(*message)) return false;
  CheckMessage(*message);
  return true;
}

void Receive(const PeerOptions& options, StreamFactory* factory) {
  const auto streams = Accept(options, options.senders, factory);
  Arrivals arrivals;
  // Before there are readers: TLS is used by one thread at a time.
  const uint8_t go = 1;
  for (const auto& stream : streams) stream->Write({&go, 1});
  std::atomic<bool> enough = false;
  std::vector<std::thread> readers;
  for (size_t i = 0; i < streams.size(); ++i) {
    readers.emplace_back([&enough, stream = streams[i].get(), &count = arrivals.messages[i]] {
      std::vector<uint8_t> message;
      // A shut down socket still gives what keeps arriving, which may be for ever.
      while (!enough && ReadMessage(stream, &message))
        count.fetch_add(1, std::memory_order_relaxed);
    });
  }
  const std::string measured = MeasureArrivals(options, arrivals);
  enough = true;
  for (const auto& stream : streams) stream->StopReading();
  for (std::thread& reader : readers) reader.join();
  PrintLine(JsonObject().AddRaw("arrivals", measured).Text());
}

void Send(const PeerOptions& options, StreamFactory* factory) {
  const auto frames = Frames(options.message_bytes);
  const auto stream = Connect(options, factory);
  uint8_t go;
  if (!stream->Read({&go, 1})) throw std::runtime_error("the receiver never said go");
  const double cpu_before = ProcessorSeconds();
  std::vector<uint8_t> gathered;
  for (size_t i = 0;; ++i) {
    const std::vector<uint8_t>& frame = frames[i % frames.size()];
    if (options.gather_bytes == 0) {
      if (!stream->Write(frame)) break;
      continue;
    }
    gathered.insert(gathered.end(), frame.begin(), frame.end());
    if (std::ssize(gathered) < options.gather_bytes) continue;
    if (!stream->Write(gathered)) break;
    gathered.clear();
  }
  PrintLine(JsonObject()
                .AddRaw("cpu_seconds", std::to_string(ProcessorSeconds() - cpu_before))
                .AddRaw("counters", stream->CountersJson())
                .Text());
}

void EchoAll(const PeerOptions& options, StreamFactory* factory) {
  const auto streams = Accept(options, 1, factory);
  std::vector<uint8_t> message;
  while (ReadMessage(streams[0].get(), &message) && streams[0]->Write(Frame(message))) {
  }
}

void Ask(const PeerOptions& options, StreamFactory* factory) {
  const auto frames = Frames(options.message_bytes);
  const auto stream = Connect(options, factory);
  std::vector<uint8_t> message;
  std::vector<double> round_trips;
  const double first = NowSeconds();
  for (size_t i = 0; i < static_cast<size_t>(options.round_trips); ++i) {
    const double asked = NowSeconds();
    if (!stream->Write(frames[i % frames.size()]) || !ReadMessage(stream.get(), &message)) {
      throw std::runtime_error("the stream ended");
    }
    const double answered = NowSeconds();
    round_trips.push_back(answered - asked);
    if (answered - first > options.seconds) break;
  }
  const std::string counters = stream->CountersJson();
  PrintLine(JsonObject()
                .AddRaw("round_trips_us", MicrosecondsJson(round_trips))
                .AddRaw("counters", counters)
                .Text());
}

}  // namespace

std::unique_ptr<StreamFactory> MakeTcpFactory() { return std::make_unique<TcpFactory>(); }

void RunOverStreams(const PeerOptions& options) {
  const auto factory = MakeFactory(options);
  if (options.role == "receive") {
    Receive(options, factory.get());
  } else if (options.role == "send") {
    Send(options, factory.get());
  } else if (options.role == "echo") {
    EchoAll(options, factory.get());
  } else {
    Ask(options, factory.get());
  }
}

}  // namespace strom::bench
