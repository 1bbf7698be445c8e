// Times the codec on request: reads one request a line from standard input and answers each with a
// line of JSON. benchmarks/codec.py (`make bench-codec`) asks, and interleaves the answers with
// what it times itself.
//
//   codec_bench [ELEMENTS [PASSES]]     a request: MEASUREMENT DENSITY THREADS [KERNEL]
//   codec_bench --smoke                 every measurement once, on few elements
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "bench/codec_measurements.h"

namespace strom::bench {
namespace {

std::string Quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : ", \"") + name + '"';
  return text;
}

void Answer(const Sample& sample) {
  std::printf("{\"seconds\": %.9g, \"elements\": %lld, \"entries\": %lld, \"bytes\": %lld}\n",
              sample.seconds, static_cast<long long>(sample.elements),
              static_cast<long long>(sample.entries), static_cast<long long>(sample.bytes));
  std::fflush(stdout);
}

void Serve(int64_t elements, int passes) {
  CodecMeasurements measurements(elements, passes);
  std::printf("{\"measurements\": [%s], \"kernels\": [%s]}\n",
              Quoted(CodecMeasurements::Names()).c_str(),
              Quoted(CodecMeasurements::Kernels()).c_str());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    std::istringstream words(line);
    words >> request.name >> request.density >> request.threads >> request.kernel;
    Answer(measurements.Measure(request));
  }
}

void Smoke() {
  constexpr int64_t kElements = (int64_t{1} << 21) + 12345;  // two chunks, a last one that is odd
  CodecMeasurements measurements(kElements, 1);
  for (const std::string& name : CodecMeasurements::Names()) {
    for (const double density : {0.0, 0.01}) {
      std::printf("%s %g ", name.c_str(), density);
      Answer(measurements.Measure({name, density, 2, ""}));
    }
  }
}

}  // namespace
}  // namespace strom::bench

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!arguments.empty() && arguments[0] == "--smoke") {
      strom::bench::Smoke();
      return 0;
    }
    const int64_t elements = arguments.empty() ? int64_t{1} << 24 : std::stoll(arguments[0]);
    strom::bench::Serve(elements, arguments.size() < 2 ? 3 : std::stoi(arguments[1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codec_bench: %s\n", error.what());
    return 1;
  }
}
