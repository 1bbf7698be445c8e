// Flat spaces of 2^33 elements and more: every index on the way is wide enough. The memory is
// reserved, not used; only pages that something is written to exist.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/codec/bitmap.h"
#include "core/codec/bitmap4.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/compression_state.h"
#include "core/step/residual_store.h"
#include "core_dump.h"

namespace strom {
namespace {

constexpr int64_t kElements = int64_t{1} << 33;
constexpr int64_t kMessageBytes = int64_t{1} << 20;

// `elements` floats, all zero, of which only those touched take memory.
class SparseFloats {
 public:
  explicit SparseFloats(int64_t elements) : bytes_(static_cast<size_t>(elements) * sizeof(float)) {
    void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) data_ = static_cast<float*>(mapped);
  }
  ~SparseFloats() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseFloats(const SparseFloats&) = delete;
  SparseFloats& operator=(const SparseFloats&) = delete;

  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_ = nullptr;
};

// One exchange for one sender: what it submits is what the receiver gets.
class Wire final : public Exchange {
 public:
  Status Submit(int64_t, std::vector<std::vector<uint8_t>> parts, UpdateId* last) override {
    for (std::vector<uint8_t>& part : parts) {
      updates.push_back({{1, ++counter_}, MakeBuffer(std::move(part))});
    }
    *last = {1, counter_};
    return {};
  }
  Status TakeReceived(Received* received) override {
    received->updates = std::move(inbox);
    inbox.clear();
    return {};
  }
  void SetApplied(const VersionVector&) override {}
  void AwaitStep(int64_t, int64_t, std::function<void(Status)> done) override { done({}); }
  bool sequenced() const override { return false; }

  std::vector<ReceivedUpdate> updates, inbox;

 private:
  uint64_t counter_ = 0;
};

// A variable at the start and one that ends with the flat space, over a chunk's border.
struct Ends {
  static constexpr int64_t kSmall = 100;
  static constexpr int64_t kLarge = kChunk + 5;

  Ends() : first(kSmall), last(static_cast<size_t>(kLarge)) {}

  std::vector<strom_segment> Segments(Ends* after) {
    return {{0, kSmall, first.data(), after->first.data(), first.data(), nullptr},
            {kElements - kLarge, kLarge, last.data(), after->last.data(), last.data(), nullptr}};
  }

  std::vector<float> first, last;
};

TEST(LargeIndex, StepsReachTheEndOfTwoToThe33Elements) {
  CompressionState sender(kMessageBytes), receiver(kMessageBytes);
  auto wire = std::make_shared<Wire>();
  auto far_end = std::make_shared<Wire>();
  ASSERT_TRUE(sender.Extend(kElements).ok());
  ASSERT_TRUE(receiver.Extend(kElements).ok());
  sender.Bind(wire);
  receiver.Bind(far_end);

  Ends mine, after, theirs;
  after.first[7] = 1.25f;
  after.last.front() = -1.25f;
  after.last[5] = 0.75f;  // stays in the residual; the first element of the last chunk
  after.last.back() = 1.5f;
  strom_step_options options{};
  options.scale = 1;
  options.threshold = 1;
  options.apply_own = 1;
  strom_step_result result;
  ASSERT_TRUE(sender.Step(mine.Segments(&after), options, &result).ok());
  EXPECT_EQ(result.count, 3);
  EXPECT_EQ(mine.first[7], 1);
  EXPECT_EQ(mine.last.front(), -1);
  EXPECT_EQ(mine.last.back(), 1);
  std::vector<float> residual(1);
  ASSERT_TRUE(sender.ReadResidual(kElements - 1, residual).ok());
  EXPECT_EQ(residual[0], 0.5f);
  ASSERT_TRUE(sender.ReadResidual(kElements - Ends::kLarge, residual).ok());
  EXPECT_EQ(residual[0], -0.25f);

  // An optimizer that changes nothing: of the residuals 0.25, -0.25, 0.75 and 0.5 each sends 0.25.
  after = mine;
  options.threshold = 0.25f;
  options.iteration = 1;
  ASSERT_TRUE(sender.Step(mine.Segments(&after), options, &result).ok());
  EXPECT_EQ(result.count, 4);
  EXPECT_EQ(mine.last[5], 0.25f);
  ASSERT_TRUE(sender.ReadResidual(kElements - Ends::kLarge + 5, residual).ok());
  EXPECT_EQ(residual[0], 0.5f);
  for (const ReceivedUpdate& update : wire->updates) {
    ParsedMessage message;
    ASSERT_TRUE(ParseMessage(update.message(), &message).ok());
    EXPECT_EQ(message.elements(), kElements);
  }
  far_end->inbox = wire->updates;
  ASSERT_TRUE(receiver.Apply(theirs.Segments(&after), &result).ok());
  EXPECT_EQ(theirs.first, mine.first);
  EXPECT_EQ(theirs.last, mine.last);
}

TEST(LargeIndex, AMessageAppliesTo32GibibytesOfParameters) {
  const SparseFloats parameters(kElements);
  if (parameters.data() == nullptr) GTEST_SKIP() << "this machine reserves no 32 GiB";
  const std::vector<int64_t> places = {5, (int64_t{1} << 31) - 1, int64_t{1} << 31,
                                       (int64_t{1} << 32) + 9, kElements - 1};
  EntryList entries;
  for (const int64_t place : places) {
    *entries.Reserve(1) = static_cast<uint32_t>(place % kChunk) << 1;
    entries.Append(place / kChunk, 1);
  }
  const auto messages = WriteEntries({0.5f, 0.5f, kElements, 0}, entries, kMessageBytes);
  int64_t skipped = 0;
  for (const std::vector<uint8_t>& bytes : messages) {
    ParsedMessage message;
    ASSERT_TRUE(ParseMessage(bytes, &message).ok());
    skipped += ApplyMessage(message, 0, {parameters.data(), static_cast<size_t>(kElements)});
  }
  EXPECT_EQ(skipped, 0);
  for (const int64_t place : places) EXPECT_EQ(parameters.data()[place], 0.5f) << place;
  EXPECT_EQ(parameters.data()[6], 0);
}

TEST(LargeIndex, ABitmapGoesOnBehindTwoToThe33Elements) {
  const SparseFloats bits(kElements / 32 + 64), signs(64);
  if (bits.data() == nullptr) GTEST_SKIP() << "this machine reserves no 1 GiB";
  Bitmap bitmap{reinterpret_cast<uint8_t*>(bits.data()), reinterpret_cast<uint8_t*>(signs.data())};
  bitmap.elements = kElements - 2;
  bitmap.Append(0b1001, 0b10, 4, 2);
  const BitmapSpan span = MeasureBitmapSpan(bitmap, kElements - 2, 4, 0);
  EXPECT_EQ(span.count, 2);
  EXPECT_EQ(span.run.size, 4);
  EXPECT_EQ(bitmap.elements, kElements + 2);
  EXPECT_EQ(bitmap.bits[(kElements - 2) / 8], 0b01000000);
  EXPECT_EQ(bitmap.bits[kElements / 8], 0b10);
}

TEST(LargeIndex, ABitmapOfFourStatesGoesOnBehindTwoToThe33Elements) {
  const SparseFloats bytes(Bitmap4Bytes(kElements) / 4 + 16);
  if (bytes.data() == nullptr) GTEST_SKIP() << "this machine reserves no 2 GiB";
  Bitmap4 bitmap{reinterpret_cast<uint8_t*>(bytes.data())};
  bitmap.elements = kElements - 64;
  bitmap.Append64(uint64_t{1} << 63, 1);
  bitmap.Append(true, true);
  EXPECT_EQ(bitmap.count, 3);
  EXPECT_EQ(bitmap.bytes[Bitmap4Bytes(kElements - 64) + 1], 0x01);
  EXPECT_EQ(bitmap.bytes[Bitmap4Bytes(kElements) - 2], 0x80);
  EXPECT_EQ(bitmap.bytes[Bitmap4Bytes(kElements)], 0x01);
  EXPECT_EQ(bitmap.bytes[Bitmap4Bytes(kElements) + 1], 0x01);
}

// The VmFlags of the mapping that `address` lies in; empty where there is no such list.
std::string MappingFlags(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t start = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> start >> dash >> end && dash == '-') {
      here = start <= wanted && wanted < end;
    } else if (here && line.rfind("VmFlags:", 0) == 0) {
      return line;
    }
  }
  return "";
}

TEST(ResidualStore, AsksForHugePagesBeforeTheFirstTouch) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  ResidualStore store;
  EXPECT_EQ(store.Find(5000), nullptr);
  float* const chunk = store.Touch(5000);
  EXPECT_EQ(store.Find(5000), chunk);
  EXPECT_EQ(store.Find(4999), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk) % kHugePage, 0u);
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no huge pages to ask for";
  }
  if (!KernelTakesAdvice()) GTEST_SKIP() << "an emulation ignores MADV_HUGEPAGE";
  const std::string flags = MappingFlags(chunk);
  if (flags.empty()) GTEST_SKIP() << "this kernel does not list its mappings' flags";
  EXPECT_NE(flags.find(" hg"), std::string::npos) << flags;
  chunk[0] = 1;
  chunk[kChunk - 1] = 2;
  EXPECT_EQ(chunk[kChunk / 2], 0);
}

}  // namespace
}  // namespace strom
