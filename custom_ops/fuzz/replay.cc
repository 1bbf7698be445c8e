// Runs a fuzz target over its saved inputs, as an ordinary test with any compiler. Built once for
// each target; STROM_CORPUS is the folder of its inputs.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size);

namespace {

TEST(Fuzz, EverySavedInputIsHandled) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(STROM_CORPUS)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
    ++inputs;
  }
  EXPECT_GT(inputs, 0);
}

}  // namespace
