// A master or a worker of a job as a process by itself, without Python and TensorFlow, or a
// stranger: what benchmarks/relay.py stalls and floods and benchmarks/soak.py (`make soak`)
// torments.
//
//   relay_node master ADDRESS PORT [KEY=VALUE...]
//       prints {"port", "key"}, then for every line on standard input {"status", "memory_bytes",
//       "time_ns"}, and at the end of the input ends, with one more
//   relay_node worker ADDRESS PORT KEY=VALUE...
//       joins the master there and prints its results at the end
//   relay_node stranger ADDRESS PORT KEY=VALUE...
//       floods the master there, from the line that it prints on
//
// Keys of a master: workers, max_children (of a tree; 0 = none), merging (0 = auto, 1 = off, 2 =
// on), queue_bytes (a link's cap), failure_timeout. Keys of a worker: those of RelayWorkerOptions
// (relay_worker.h); of a stranger: of RelayStrangerOptions (relay_stranger.h).
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/relay_stranger.h"
#include "bench/relay_traffic.h"
#include "bench/relay_worker.h"
#include "core/base/json.h"
#include "net/io_loop.h"
#include "net/master_agent.h"

namespace strom::bench {
namespace {

// The arguments after the port; what nobody takes is refused.
class Keys {
 public:
  explicit Keys(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments) {
      const size_t equals = argument.find('=');
      if (equals == std::string::npos) throw std::invalid_argument("not KEY=VALUE: " + argument);
      values_[argument.substr(0, equals)] = argument.substr(equals + 1);
    }
  }

  std::string Take(const std::string& key, const std::string& otherwise) {
    const auto found = values_.extract(key);
    return found ? found.mapped() : otherwise;
  }
  double Number(const std::string& key, double otherwise) {
    const std::string text = Take(key, "");
    return text.empty() ? otherwise : std::stod(text);
  }
  int64_t Count(const std::string& key, int64_t otherwise) {
    const std::string text = Take(key, "");
    return text.empty() ? otherwise : std::stoll(text);
  }
  void RefuseOthers() const {
    if (!values_.empty()) throw std::invalid_argument("unknown key: " + values_.begin()->first);
  }

 private:
  std::map<std::string, std::string> values_;
};

std::string Hex(const PublicKeyBytes& key) {
  std::string text;
  char digits[3];
  for (const uint8_t byte : key) {
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

PublicKeyBytes ParseHex(const std::string& text) {
  PublicKeyBytes key{};
  if (text.size() != 2 * key.size()) throw std::invalid_argument("key: 64 hexadecimal digits");
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

void PrintMaster(MasterAgent* master) {
  PrintLine(JsonObject()
                .AddRaw("status", master->StatusJson())
                .Add("memory_bytes", MemoryBytes())
                .Add("peak_memory_bytes", PeakMemoryBytes())
                .AddRaw("cpu_seconds", std::to_string(ProcessorSeconds()))
                .Add("time_ns", MonotonicNanoseconds())
                .Text());
}

void RunMaster(const std::string& address, uint16_t port, Keys keys) {
  MasterAgentOptions options;
  options.bind_address = address;
  options.port = port;
  options.node.workers = static_cast<int32_t>(keys.Count("workers", 1));
  const auto max_children = static_cast<int32_t>(keys.Count("max_children", 0));
  options.node.topology = max_children > 0 ? Topology::kMesh : Topology::kPlain;
  if (max_children > 0) options.node.max_children = max_children;
  options.node.merging = static_cast<Merging>(keys.Count("merging", 0));
  options.node.link_queue_bytes = keys.Count("queue_bytes", options.node.link_queue_bytes);
  options.same_host = false;  // what is tested is the network
  const auto timeout_ns = static_cast<int64_t>(1e9 * keys.Number("failure_timeout", 5));
  options.endpoint.failure_timeout_ns = timeout_ns;
  options.node.failure_timeout_ns = timeout_ns;
  keys.RefuseOthers();
  std::shared_ptr<MasterAgent> master;
  const Status status = MasterAgent::Create(options, &master);
  if (!status.ok()) throw std::runtime_error(status.message);
  PrintLine(JsonObject().Add("port", master->port()).Add("key", Hex(master->public_key())).Text());
  for (std::string line; std::getline(std::cin, line);) PrintMaster(master.get());
  PrintMaster(master.get());
  master->Close("the master's work is done");
}

void RunWorker(const std::string& address, uint16_t port, Keys keys) {
  RelayWorkerOptions options;
  options.address = address;
  options.port = port;
  options.key = ParseHex(keys.Take("key", ""));
  options.rank = static_cast<int32_t>(keys.Count("rank", 0));
  options.size = static_cast<int32_t>(keys.Count("size", 1));
  options.elements = keys.Count("elements", options.elements);
  options.message_bytes = keys.Count("bytes", options.message_bytes);
  options.updates_per_second = keys.Number("rate", options.updates_per_second);
  options.seconds = keys.Number("seconds", options.seconds);
  options.together = keys.Count("together", 0) != 0;
  options.failure_timeout_seconds = keys.Number("failure_timeout", 5);
  keys.RefuseOthers();
  PrintLine(RunRelayWorker(options));
}

void RunStranger(const std::string& address, uint16_t port, Keys keys) {
  RelayStrangerOptions options;
  options.address = address;
  options.port = port;
  options.key = ParseHex(keys.Take("key", ""));
  options.hellos = keys.Count("hellos", options.hellos);
  options.per_second = keys.Number("rate", options.per_second);
  options.seconds = keys.Number("seconds", options.seconds);
  keys.RefuseOthers();
  PrintLine(RunRelayStranger(options));
}

const std::map<std::string, void (*)(const std::string&, uint16_t, Keys)> kRoles = {
    {"master", RunMaster}, {"worker", RunWorker}, {"stranger", RunStranger}};

}  // namespace
}  // namespace strom::bench

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() < 3 || !strom::bench::kRoles.contains(arguments[0])) {
      throw std::invalid_argument("relay_node master|worker|stranger ADDRESS PORT [KEY=VALUE...]");
    }
    const auto port = static_cast<uint16_t>(std::stoi(arguments[2]));
    strom::bench::Keys keys({arguments.begin() + 3, arguments.end()});
    strom::bench::kRoles.at(arguments[0])(arguments[1], port, std::move(keys));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "relay_node: %s\n", error.what());
    return 1;
  }
}
