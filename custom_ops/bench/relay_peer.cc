// One end of the relay's benchmark; benchmarks/relay.py (`make bench-relay`) starts the two ends,
// in network namespaces of their own where a line is wanted, and reads their results.
//
//   relay_peer ROLE TRANSPORT ADDRESS PORT [KEY=VALUE...]
//
// receive and echo listen at ADDRESS and print {"port": ...} when they can be reached (PORT 0 =
// any); send and ask go there. Each prints its results as a line of JSON. The keys are bytes,
// senders, warm_up, seconds, round_trips, congestion and gather_bytes (relay_traffic.h).
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/relay_links.h"
#include "bench/relay_streams.h"
#include "bench/relay_traffic.h"
#include "core/base/json.h"

namespace strom::bench {
namespace {

void Set(const std::string& argument, PeerOptions* options) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) throw std::invalid_argument("not KEY=VALUE: " + argument);
  const std::string key = argument.substr(0, equals), value = argument.substr(equals + 1);
  if (key == "bytes") {
    options->message_bytes = std::stoll(value);
  } else if (key == "senders") {
    options->senders = std::stoi(value);
    if (options->senders < 1 || options->senders > kMaxSenders) {
      throw std::invalid_argument("senders: 1 to " + std::to_string(kMaxSenders));
    }
  } else if (key == "warm_up") {
    options->warm_up_seconds = std::stod(value);
  } else if (key == "seconds") {
    options->seconds = std::stod(value);
  } else if (key == "round_trips") {
    options->round_trips = std::stoll(value);
  } else if (key == "congestion") {
    options->congestion = value;
  } else if (key == "gather_bytes") {
    options->gather_bytes = std::stoll(value);
  } else {
    throw std::invalid_argument("unknown key: " + key);
  }
}

PeerOptions Parse(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) {
    throw std::invalid_argument("relay_peer ROLE TRANSPORT ADDRESS PORT [KEY=VALUE...]");
  }
  PeerOptions options;
  options.role = arguments[0];
  options.transport = arguments[1];
  options.address = arguments[2];
  options.port = static_cast<uint16_t>(std::stoi(arguments[3]));
  const auto is_one_of = [](const std::string& word, std::initializer_list<const char*> words) {
    for (const char* other : words) {
      if (word == other) return true;
    }
    return false;
  };
  if (!is_one_of(options.role, {"receive", "send", "echo", "ask"})) {
    throw std::invalid_argument("unknown role: " + options.role);
  }
  if (!is_one_of(options.transport, {"relay", "shared_memory", "tcp", "tls"})) {
    throw std::invalid_argument("unknown transport: " + options.transport);
  }
  for (size_t i = 4; i < arguments.size(); ++i) Set(arguments[i], &options);
  return options;
}

std::string Description() {
  const std::string openssl = TlsLibrary();
  return JsonObject()
      .Add("compiler", std::string(STROM_BENCH_COMPILER))
      .Add("flags", std::string(STROM_BENCH_FLAGS))
      .Add("tls", !openssl.empty())
      .Add("openssl", openssl)
      .Text();
}

}  // namespace
}  // namespace strom::bench

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() == 1 && arguments[0] == "describe") {
      strom::bench::PrintLine(strom::bench::Description());
      return 0;
    }
    const auto options = strom::bench::Parse(arguments);
    if (options.transport == "relay" || options.transport == "shared_memory") {
      strom::bench::RunOverLinks(options);
    } else {
      strom::bench::RunOverStreams(options);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "relay_peer: %s\n", error.what());
    return 1;
  }
}
