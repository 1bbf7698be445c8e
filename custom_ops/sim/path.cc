#include "sim/path.h"

#include <algorithm>
#include <cstdio>

#include "sim/units.h"

namespace strom {
namespace {

// Flips one bit or cuts the end off.
void Corrupt(std::vector<uint8_t>* datagram, SimulatedRandom* random) {
  const int64_t size = static_cast<int64_t>(datagram->size());
  if (random->Chance(.2)) {
    datagram->resize(static_cast<size_t>(random->Below(size)));
    return;
  }
  const int64_t bit = random->Below(size * 8);
  (*datagram)[static_cast<size_t>(bit / 8)] ^= static_cast<uint8_t>(1 << bit % 8);
}

}  // namespace

std::string Describe(const PathOptions& options) {
  const PathOptions plain;
  std::string text;
  const auto add = [&text](const char* format, auto... values) {
    char part[96];
    std::snprintf(part, sizeof(part), format, values...);
    text += (text.empty() ? "" : ", ") + std::string(part);
  };
  if (options.blocked) add("blocked");
  if (options.loss > 0) add("loss %.1f %%", options.loss * 100);
  if (options.burst > 0) {
    add("bursts %.2f %% of %.1f ms", options.burst * 100,
        static_cast<double>(options.burst_ns) * 1e-6);
  }
  if (options.duplication > 0) add("duplication %.1f %%", options.duplication * 100);
  if (options.corruption > 0) add("corruption %.1f %%", options.corruption * 100);
  if (options.delay_ns != plain.delay_ns) {
    add("delay %.2f ms", static_cast<double>(options.delay_ns) * 1e-6);
  }
  if (options.jitter_ns > 0) add("jitter %.2f ms", static_cast<double>(options.jitter_ns) * 1e-6);
  if (options.mtu_bytes > 0) add("mtu %lld", static_cast<long long>(options.mtu_bytes));
  if (options.rate_bytes > 0) {
    add("%.1f MB/s behind %lld KiB", static_cast<double>(options.rate_bytes) * 1e-6,
        static_cast<long long>(options.buffer_bytes >> 10));
  }
  if (options.policed_bytes > 0) {
    add("policed to %.1f MB/s after %lld KiB", static_cast<double>(options.policed_bytes) * 1e-6,
        static_cast<long long>(options.bucket_bytes >> 10));
  }
  return text.empty() ? "plain" : text;
}

std::optional<int64_t> Bottleneck::Pass(int64_t now_ns, int64_t bytes) {
  if (rate_bytes_ == 0) return now_ns;
  const int64_t start_ns = std::max(now_ns, busy_until_ns_);
  const double waiting = static_cast<double>(start_ns - now_ns) * static_cast<double>(rate_bytes_) /
                         static_cast<double>(kSecond);
  if (waiting + static_cast<double>(bytes) > static_cast<double>(buffer_bytes_)) {
    return std::nullopt;
  }
  busy_until_ns_ = start_ns + bytes * kSecond / rate_bytes_;
  return busy_until_ns_;
}

bool Policer::Passes(int64_t now_ns, int64_t bytes) {
  if (rate_bytes_ == 0) return true;
  const double seconds = static_cast<double>(now_ns - filled_ns_) / static_cast<double>(kSecond);
  tokens_ = std::min(tokens_ + seconds * static_cast<double>(rate_bytes_),
                     static_cast<double>(bucket_bytes_));
  filled_ns_ = now_ns;
  if (tokens_ < static_cast<double>(bytes)) return false;
  tokens_ -= static_cast<double>(bytes);
  return true;
}

void Path::Set(const PathOptions& options) {
  options_ = options;
  bottleneck_.Set(options.rate_bytes, options.buffer_bytes);
  policer_.Set(options.policed_bytes, options.bucket_bytes);
}

std::vector<Path::Arrival> Path::Carry(int64_t now_ns, Bytes datagram, SimulatedRandom* random) {
  std::vector<Arrival> arrivals;
  if (options_.blocked) return arrivals;
  const int64_t bytes = static_cast<int64_t>(datagram.size()) + kIpAndUdpBytes;
  if (options_.mtu_bytes > 0 && bytes > options_.mtu_bytes) return arrivals;
  if (InBurst(now_ns, random)) return arrivals;
  const int copies = random->Chance(options_.duplication) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (random->Chance(options_.loss)) continue;
    if (!policer_.Passes(now_ns, bytes)) continue;
    const std::optional<int64_t> left_ns = bottleneck_.Pass(now_ns, bytes);
    if (!left_ns) continue;
    Arrival& arrival = arrivals.emplace_back();
    arrival.datagram.assign(datagram.begin(), datagram.end());
    if (random->Chance(options_.corruption)) Corrupt(&arrival.datagram, random);
    const int64_t jitter_ns = options_.jitter_ns > 0 ? random->Below(options_.jitter_ns) : 0;
    arrival.time_ns = *left_ns + options_.delay_ns + jitter_ns;
  }
  return arrivals;
}

bool Path::Loses(int64_t now_ns, SimulatedRandom* random) {
  return InBurst(now_ns, random) || random->Chance(options_.loss) ||
         random->Chance(options_.corruption);
}

bool Path::InBurst(int64_t now_ns, SimulatedRandom* random) {
  if (now_ns < burst_until_ns_) return true;
  if (!random->Chance(options_.burst)) return false;
  burst_until_ns_ = now_ns + random->Between(1, 2 * options_.burst_ns);
  return true;
}

}  // namespace strom
