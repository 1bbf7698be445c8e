// What a job of very many workers has shown, as JSON.
#include <sys/resource.h>

#include <cstdio>

#include "core/base/json.h"
#include "sim/scale_job.h"

namespace strom {
namespace {

std::string NumberJson(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

int64_t PeakMemoryBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

}  // namespace

std::string Lateness::Json() const {
  return JsonObject()
      .AddRaw("mean_ms", NumberJson(count_ == 0 ? 0 : 1e-6 * sum_ns_ / static_cast<double>(count_)))
      .Add("p50_ms", Percentile(0.5))
      .Add("p99_ms", Percentile(0.99))
      .AddRaw("max_ms", NumberJson(1e-6 * static_cast<double>(max_ns_)))
      .Text();
}

int64_t Lateness::Percentile(double part) const {
  int64_t left = static_cast<int64_t>(part * static_cast<double>(count_));
  size_t ms = 0;
  while (ms + 1 < by_ms_.size() && left >= by_ms_[ms]) left -= by_ms_[ms++];
  return static_cast<int64_t>(ms);
}

// ----------------------------------------------------------------------------------- results

std::string ScaleJob::TrafficJson(const Traffic& traffic, double links) const {
  const double rounds = full_rounds() * std::max(links, 1e-9);
  return JsonObject()
      .AddRaw("bytes", NumberJson(static_cast<double>(traffic.bytes) / rounds))
      .AddRaw("messages", NumberJson(static_cast<double>(traffic.messages) / rounds))
      .Text();
}

// For how long of the time in which updates are made a link has carried some down.
double ScaleJob::PartOfTime(const CountedLinks::Counted& link) const {
  const auto all_ns = static_cast<double>(options_.rounds * step_ns());
  return std::min(1.0, static_cast<double>(link.last_sent_ns - link.first_sent_ns) / all_ns);
}

// A round and a link: of the tree's below the master and below workers, and of a leaf's only one.
// Over the other links of the master go what it has to be told again.
std::string ScaleJob::LinksJson() const {
  const auto kind = [&](const LinkSums& sums) {
    return JsonObject()
        .AddRaw("down", TrafficJson(sums.down, sums.links))
        .AddRaw("up", TrafficJson(sums.up, sums.links))
        .AddRaw("links", NumberJson(sums.links))
        .Text();
  };
  LinkSums master, inner, leaf, direct;
  const auto add = [&](const CountedLinks::Counted& link, double part, LinkSums* sums) {
    sums->down += link.sent_on(Channel::kUpdate);
    sums->up += link.received_on(Channel::kUpdate);
    sums->links += part;
  };
  for (const auto& [id, link] : master_links_->counted()) {
    const bool is_of_tree = link.sent_on(Channel::kUpdate).messages > 0;
    add(link, is_of_tree ? PartOfTime(link) : 1, is_of_tree ? &master : &direct);
  }
  direct.links = 1;
  for (const auto& worker : workers_) {
    if (worker->state != Worker::State::kTraining) continue;
    const bool is_inner = IsInner(*worker);
    leaf.links += is_inner ? 0 : 1;
    for (const auto& [id, link] : worker->links->counted()) {
      if (link.initiated && !is_inner) {
        leaf.down += link.received_on(Channel::kUpdate);
        leaf.up += link.sent_on(Channel::kUpdate);
      } else if (!link.initiated && link.sent_on(Channel::kUpdate).messages > 0) {
        add(link, PartOfTime(link), &inner);
      }
    }
  }
  return JsonObject()
      .AddRaw("master", kind(master))
      .AddRaw("inner", kind(inner))
      .AddRaw("leaf", kind(leaf))
      .AddRaw("direct", kind(direct))
      .Text();
}

// Control and state of all links together, a second of virtual time.
std::string ScaleJob::ControlJson() const {
  int64_t master_bytes = 0, leaf_bytes = 0, leaves = 0, inner_bytes = 0, inners = 0;
  const auto bytes_of = [](const CountedLinks::Counted& link) {
    int64_t bytes = 0;
    for (const Channel channel : {Channel::kControl, Channel::kState}) {
      bytes += link.sent_on(channel).bytes + link.received_on(channel).bytes;
    }
    return bytes;
  };
  for (const auto& [id, link] : master_links_->counted()) master_bytes += bytes_of(link);
  for (const auto& worker : workers_) {
    if (worker->state != Worker::State::kTraining) continue;
    const bool is_inner = IsInner(*worker);
    ++(is_inner ? inners : leaves);
    for (const auto& [id, link] : worker->links->counted()) {
      (is_inner ? inner_bytes : leaf_bytes) += bytes_of(link);
    }
  }
  const double seconds = 1e-9 * static_cast<double>(network_.now_ns() - begin_ns_);
  const auto mean = [&](int64_t bytes, int64_t nodes) {
    return NumberJson(static_cast<double>(bytes) /
                      (seconds * static_cast<double>(std::max<int64_t>(1, nodes))));
  };
  return JsonObject()
      .AddRaw("master_bytes_per_s", mean(master_bytes, 1))
      .AddRaw("inner_bytes_per_s", mean(inner_bytes, inners))
      .AddRaw("leaf_bytes_per_s", mean(leaf_bytes, leaves))
      .Text();
}

std::string ScaleJob::ResultsJson() const {
  const double rounds = full_rounds();
  return JsonObject()
      .Add("workers", options_.workers)
      .Add("merging", options_.merging != 0)
      .Add("rounds", options_.rounds)
      .Add("elements", options_.elements)
      .Add("values", options_.values)
      .Add("deaths", killed_)
      .AddRaw("full_rounds", NumberJson(rounds))
      .Add("entries", options_.entries)
      .AddRaw("links", LinksJson())
      .AddRaw("published", TrafficJson(published_, 1))
      .AddRaw("published_contents_bytes",
              NumberJson(static_cast<double>(published_contents_bytes_) / rounds))
      .AddRaw("published_entries", NumberJson(static_cast<double>(published_entries_) / rounds))
      .AddRaw("control", ControlJson())
      .AddRaw("at_one", at_one_.Json())
      .AddRaw("at_all", at_all_.Json())
      .Add("snapshots", snapshots_)
      .AddRaw("virtual_seconds",
              NumberJson(1e-9 * static_cast<double>(network_.now_ns() - begin_ns_)))
      .AddRaw("start_cpu_seconds", NumberJson(start_cpu_s_))
      .AddRaw("cpu_seconds", NumberJson(cpu_s_))
      .Add("peak_memory_bytes", PeakMemoryBytes())
      .Add("violations", violations_)
      .Text();
}

}  // namespace strom
