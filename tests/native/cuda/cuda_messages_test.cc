// The device's reader in the emulation, beside core's: whatever message core takes, from the saved
// inputs of the fuzzer and altered ones, the same bits and the same number of entries without a
// place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/base/little_endian.h"
#include "core/codec/message.h"
#include "core/codec/message_layout.h"
#include "cuda/codec.h"
#include "cuda/emulation.h"
#include "cuda_models.h"

namespace strom::cuda {
namespace {

// More parameters than this are not made; the rest of a message lies outside of them then.
constexpr int64_t kMostElements = 1 << 14;
constexpr int kAlterations = 10;  // of each message

std::vector<std::vector<uint8_t>> SavedMessages() {
  std::vector<std::filesystem::path> paths;
  for (const char* folder : {STROM_TEST_DATA, STROM_TEST_DATA "/fuzz/message"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_regular_file() && entry.path().extension() != ".json") {
        paths.push_back(entry.path());
      }
    }
  }
  std::sort(paths.begin(), paths.end());  // alterations are the same in every run
  std::vector<std::vector<uint8_t>> messages;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    messages.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return messages;
}

// Flat elements from `start` on, in two ranges with a hole of one between them.
struct Parameters {
  Parameters(int64_t start_element, int64_t size) : start(start_element) {
    for (int64_t i = 0; i < size; ++i) values.push_back(0.25f * static_cast<float>(i % 7 - 3));
  }

  size_t hole() const { return values.size() / 3; }
  std::span<float> low() { return std::span(values).first(hole()); }
  std::span<float> high() { return std::span(values).subspan(std::min(hole() + 1, values.size())); }
  int64_t high_start() const { return start + static_cast<int64_t>(hole()) + 1; }

  int64_t start;
  std::vector<float> values;
};

strom_cuda_segment Segment(int64_t offset, std::span<float> values) {
  const auto size = static_cast<int64_t>(values.size());
  return {offset, size, nullptr, nullptr, values.data(), nullptr, nullptr};
}

// Whether core takes the bytes; the device has to do the same with them then.
bool Check(Codec* codec, const std::vector<uint8_t>& bytes) {
  ParsedMessage message;
  if (!ParseMessage(bytes, &message).ok()) return false;
  const int64_t start = message.first_span() << message.log2_span();
  const int64_t size = std::clamp<int64_t>(message.elements() - start, 0, kMostElements);
  Parameters expected(start, size);
  Parameters found(start, size);
  const ParameterRange ranges[] = {{start, expected.low()},
                                   {expected.high_start(), expected.high()}};
  const int64_t skipped = ApplyMessages({&message, 1}, ranges);
  // A message without entries may begin behind the end, where no segment has a place.
  std::vector<strom_cuda_segment> segments;
  if (!found.low().empty()) segments.push_back(Segment(start, found.low()));
  if (!found.high().empty()) segments.push_back(Segment(found.high_start(), found.high()));
  for (const emulation::Order order : {emulation::Order::kForward, emulation::Order::kBackward}) {
    emulation::SetOrder(order);
    std::ranges::copy(Parameters(start, size).values, found.values.begin());
    int64_t found_skipped = -1;
    const Status status =
        codec->Apply(bytes, message.elements(), segments, nullptr, &found_skipped);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(found_skipped, skipped);
    EXPECT_TRUE(SameBits(found.values, expected.values));
  }
  emulation::SetOrder(emulation::Order::kForward);
  return true;
}

std::vector<uint8_t> WithChecksum(std::vector<uint8_t> bytes) {
  StoreLittleEndian<uint32_t>(bytes.data() + kChecksumOffset, MessageChecksum(bytes));
  return bytes;
}

TEST(CudaMessages, WhatCoreTakesIsAddedAsCoreAddsIt) {
  std::mt19937 random(1);
  Codec codec(kOneMessage);
  int saved = 0, altered = 0;
  for (const std::vector<uint8_t>& message : SavedMessages()) {
    SCOPED_TRACE(testing::Message() << saved << " saved, " << altered << " altered");
    saved += Check(&codec, message);
    if (message.size() < kFixedHeaderBytes) continue;
    saved += Check(&codec, WithChecksum(message));
    for (int i = 0; i < kAlterations && !testing::Test::HasFailure(); ++i) {
      std::vector<uint8_t> other = message;
      for (size_t left = 1 + random() % 3; left > 0; --left) {
        other[random() % other.size()] ^= static_cast<uint8_t>(1u << random() % 8);
      }
      altered += Check(&codec, WithChecksum(other));
    }
  }
  EXPECT_GT(saved, 50);
  EXPECT_GT(altered, 100);
}

}  // namespace
}  // namespace strom::cuda
