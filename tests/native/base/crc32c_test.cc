#include "core/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace strom {
namespace {

Bytes AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(Crc32c, GivesThePublishedCheckValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0)), 0x8a9136aau);     // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43u);  // RFC 3720, B.4
}

TEST(Crc32c, TheInstructionAgreesWithThePortableCodeAtEveryLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(200);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t start = 0; start < 9; ++start) {
    for (size_t size = 0; size + start <= bytes.size(); ++size) {
      const Bytes part = Bytes(bytes).subspan(start, size);
      ASSERT_EQ(Crc32c(part), Crc32cPortable(part)) << start << " " << size;
    }
  }
}

TEST(Crc32c, TheInstructionAgreesOnLongInputs) {
  std::mt19937 random(2);
  std::vector<uint8_t> bytes(20'000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t size = 200; size <= bytes.size(); size += 1 + random() % 97) {
    const Bytes part = Bytes(bytes).first(size);
    ASSERT_EQ(Crc32c(part, 12345), Crc32cPortable(part, 12345)) << size;
  }
}

TEST(Crc32c, ContinuesWhereAnotherEnded) {
  const std::string text = "thresholded, residual-compensated";
  const Bytes all = AsBytes(text);
  for (size_t cut = 0; cut <= 33; ++cut) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all));
    EXPECT_EQ(Crc32cPortable(all.subspan(cut), Crc32cPortable(all.first(cut))), Crc32c(all));
  }
}

}  // namespace
}  // namespace strom
