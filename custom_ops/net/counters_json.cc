#include "net/counters_json.h"

#include "core/base/json.h"

namespace strom {
namespace {

constexpr int64_t kIpv4UdpHeaderBytes = 28;

void AddCounters(LinkCounters counters, const LinkCounters& shared, JsonObject* json) {
  counters += shared;
  counters.bytes_sent += counters.datagrams_sent * kIpv4UdpHeaderBytes;
  counters.bytes_received += counters.datagrams_received * kIpv4UdpHeaderBytes;
  for (const auto& field : kLinkCounterFields) json->Add(field.name, counters.*field.value);
  json->Add("shared_memory_bytes_sent", shared.bytes_sent)
      .Add("shared_memory_bytes_received", shared.bytes_received);
}

std::string ReportJson(const LinkReport& report, const SameHostLinks& same_host) {
  JsonObject json;
  json.Add("link", report.link)
      .Add("peer", ToString(report.peer))
      .Add("transport", std::string(same_host.IsShared(report.link) ? "shared memory" : "udp"))
      .Add("smoothed_round_trip_ns", report.smoothed_round_trip_ns)
      .Add("least_round_trip_ns", report.least_round_trip_ns)
      .Add("queued_bytes", same_host.QueuedBytes(report.link))
      .Add("in_flight_packets", report.in_flight_packets)
      .Add("congestion_window_packets", report.congestion_window_packets)
      .Add("grant_packets", report.grant_packets)
      .Add("datagram_bytes", report.datagram_bytes)
      .Add("key_phase", report.key_phase);
  AddCounters(report.counters, same_host.counters(report.link), &json);
  return json.Text();
}

// How far each has got: "heard" hears none of our RETRYs as far as we know.
std::string JoinerJson(const Address& address, const Joiner& joiner) {
  static constexpr const char* kProgress[] = {"heard", "wrong secret", "asked", "joined"};
  JsonObject json;
  json.Add("address", ToString(address))
      .Add("progress", std::string(kProgress[static_cast<size_t>(joiner.progress)]))
      .Add("hellos", joiner.hellos);
  return json.Text();
}

}  // namespace

std::string CountersJson(const Endpoint& endpoint, const SameHostLinks& same_host,
                         const UdpSocket& socket) {
  const EndpointCounters counters = endpoint.counters();
  JsonObject json;
  AddCounters(counters, same_host.counters(), &json);
  for (const auto& field : kEndpointCounterFields) json.Add(field.name, counters.*field.value);
  json.Add("shared_memory_links", same_host.shared_links());
  json.Add("send_errors", socket.send_errors());
  json.Add("drop_port_0", socket.unanswerable());
  json.Add("segments_sends", socket.segments_sends());
  json.Add("receive_buffer_wanted_bytes", socket.receive_buffer_wanted_bytes());
  json.Add("receive_buffer_bytes", socket.receive_buffer_bytes());
  std::string links;
  for (const LinkReport& report : endpoint.Links()) {
    links += (links.empty() ? "" : ", ") + ReportJson(report, same_host);
  }
  std::string joiners;
  for (const auto& [address, joiner] : endpoint.joiners().all()) {
    joiners += (joiners.empty() ? "" : ", ") + JoinerJson(address, joiner);
  }
  return json.AddRaw("links", "[" + links + "]").AddRaw("joiners", "[" + joiners + "]").Text();
}

}  // namespace strom
