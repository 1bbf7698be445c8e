// The update header and the one validation that every update passes before it is used.
#include "core/replication/update.h"

#include <gtest/gtest.h>

#include <vector>

namespace strom {
namespace {

class AnythingOfOneByte final : public UpdateCodec {
 public:
  Status Check(Bytes message, uint64_t) const override {
    if (message.size() != 1) return {Code::kCorrupt, "not one byte"};
    return {};
  }
  void Apply(Bytes, std::span<float>) const override {}
};

const AnythingOfOneByte kCodec;
const Layout kLayout{3, 100, 0xabcd};

std::vector<uint8_t> Valid() {
  std::vector<uint8_t> update(kUpdateHeaderBytes + 1);
  WriteUpdateHeader({{7, 9}, 42, kLayout, kLastPartFlag}, update);
  return update;
}

TEST(Update, ReadsWhatItWrote) {
  UpdateHeader header;
  ASSERT_TRUE(ValidateUpdate(Valid(), kLayout, kCodec, &header).ok());
  EXPECT_EQ(header.id, (UpdateId{7, 9}));
  EXPECT_EQ(header.iteration, 42u);
  EXPECT_EQ(header.layout, kLayout);
  EXPECT_TRUE(header.last_part());
}

TEST(Update, IsLittleEndianAtFixedOffsets) {
  const std::vector<uint8_t> update = Valid();
  EXPECT_EQ(update[0], 7);
  EXPECT_EQ(update[8], 9);
  EXPECT_EQ(update[16], 42);
  EXPECT_EQ(update[24], 100);
  EXPECT_EQ(update[32], 0xcd);
  EXPECT_EQ(update[33], 0xab);
  EXPECT_EQ(update[40], 3);
  EXPECT_EQ(update[48], 1);
}

TEST(Update, RefusesEveryTruncation) {
  const std::vector<uint8_t> update = Valid();
  for (size_t size = 0; size < update.size(); ++size) {
    UpdateHeader header;
    EXPECT_FALSE(ValidateUpdate(Bytes(update).first(size), kLayout, kCodec, &header).ok()) << size;
  }
}

TEST(Update, RefusesAnyOtherHeaderButIterationAndId) {
  for (size_t byte = 24; byte < static_cast<size_t>(kUpdateHeaderBytes); ++byte) {
    std::vector<uint8_t> update = Valid();
    update[byte] ^= 0x40;
    UpdateHeader header;
    const Status status = ValidateUpdate(update, kLayout, kCodec, &header);
    EXPECT_EQ(status.code, Code::kCorrupt) << byte;
    EXPECT_FALSE(status.message.empty());
  }
}

TEST(Update, RefusesCounterZero) {
  std::vector<uint8_t> update = Valid();
  update[8] = 0;
  UpdateHeader header;
  EXPECT_EQ(ParseUpdateHeader(update, &header).code, Code::kCorrupt);
}

}  // namespace
}  // namespace strom
