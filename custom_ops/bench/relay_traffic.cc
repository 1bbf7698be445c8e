#include "bench/relay_traffic.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "core/base/json.h"
#include "core/base/little_endian.h"

namespace strom::bench {
namespace {

constexpr size_t kDifferentMessages = 8;
constexpr uint64_t kTailMark = 0x5354524f4d53545aULL;

std::vector<int64_t> Sample(const Arrivals& arrivals, int senders) {
  std::vector<int64_t> messages;
  for (int i = 0; i < senders; ++i) {
    messages.push_back(arrivals.messages[static_cast<size_t>(i)].load(std::memory_order_relaxed));
  }
  return messages;
}

void Wait(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

}  // namespace

Messages::Messages(int64_t message_bytes) {
  if (message_bytes < 16 || message_bytes > kMaxMessageBytes) {
    throw std::invalid_argument("a message has 16 bytes to 4 MiB");
  }
  for (size_t i = 0; i < kDifferentMessages; ++i) {
    std::vector<uint8_t> bytes(static_cast<size_t>(message_bytes));
    for (size_t b = 0; b < bytes.size(); ++b) bytes[b] = static_cast<uint8_t>(b * 31 + i);
    StoreLittleEndian<uint64_t>(bytes.data(), i);
    StoreLittleEndian<uint64_t>(bytes.data() + bytes.size() - 8, i ^ kTailMark);
    messages_.push_back(MakeBuffer(std::move(bytes)));
  }
}

void CheckMessage(Bytes message) {
  if (message.size() < 16 || (LoadLittleEndian<uint64_t>(message.data()) ^ kTailMark) !=
                                 LoadLittleEndian<uint64_t>(message.data() + message.size() - 8)) {
    throw std::runtime_error("a message arrived with the wrong content");
  }
}

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double NowSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string MeasureArrivals(const PeerOptions& options, const Arrivals& arrivals) {
  const double cpu_seconds = ProcessorSeconds();
  Wait(options.warm_up_seconds);
  const std::vector<int64_t> before = Sample(arrivals, options.senders);
  const double begin = NowSeconds();
  Wait(options.seconds);
  const std::vector<int64_t> after = Sample(arrivals, options.senders);
  const double end = NowSeconds();
  std::string messages;
  int64_t total = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    messages += (i == 0 ? "" : ", ") + std::to_string(after[i] - before[i]);
    total += after[i];
  }
  return JsonObject()
      .AddRaw("seconds", Number(end - begin))
      .AddRaw("messages", "[" + messages + "]")
      .Add("total_messages", total)
      .AddRaw("cpu_seconds", Number(ProcessorSeconds() - cpu_seconds))
      .Text();
}

std::string MicrosecondsJson(const std::vector<double>& seconds) {
  std::string text;
  for (const double one : seconds) text += (text.empty() ? "" : ", ") + Number(1e6 * one);
  return "[" + text + "]";
}

void PrintReady(uint16_t port) { PrintLine(JsonObject().Add("port", port).Text()); }

void PrintLine(const std::string& json) {
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

}  // namespace strom::bench
