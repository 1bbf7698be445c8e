// The codec functions of capi/strom.h: threads change nothing, failures change nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "capi/strom.h"
#include "own_threads.h"
#include "subnormal_mode.h"

using strom::OwnThreadPool;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

strom_codec_options Options(float threshold) {
  return {threshold, STROM_CODING_AUTO, STROM_PREFER_SIZE, -1, 5};
}

uint8_t* IntoVector(void* context, int64_t bytes) {
  auto* message = static_cast<std::vector<uint8_t>*>(context);
  message->resize(static_cast<size_t>(bytes));
  return message->data();
}

uint8_t* NoMemory(void*, int64_t) { return nullptr; }

const strom_thread_pool kThree = OwnThreadPool(3);

std::vector<float> Normal(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

struct Encoded {
  std::vector<uint8_t> message;
  std::vector<float> residual;
  int64_t count = 0;
};

// In place on a copy of `residual`.
Encoded Encode(const std::vector<float>& update, std::vector<float> residual,
               const strom_codec_options& options, const strom_thread_pool* threads) {
  Encoded encoded;
  EXPECT_EQ(strom_codec_encode(update.data(), residual.data(), residual.data(),
                               static_cast<int64_t>(update.size()), &options, threads, IntoVector,
                               &encoded.message, &encoded.count),
            STROM_OK)
      << strom_last_error();
  encoded.residual = std::move(residual);
  return encoded;
}

class CodecSizes : public testing::TestWithParam<size_t> {};

TEST_P(CodecSizes, ThreadsChangeNothing) {
  const std::vector<float> update = Normal(GetParam(), 1);
  const std::vector<float> residual = Normal(GetParam(), 2);
  for (const int32_t coding :
       {STROM_CODING_AUTO, STROM_CODING_SPARSE, STROM_CODING_BITMAP, STROM_CODING_BITMAP4}) {
    strom_codec_options options = Options(2.5f);
    options.coding = coding;
    const Encoded alone = Encode(update, residual, options, nullptr);
    const Encoded threaded = Encode(update, residual, options, &kThree);
    EXPECT_EQ(threaded.message, alone.message);
    EXPECT_EQ(threaded.residual, alone.residual);
    EXPECT_EQ(threaded.count, alone.count);
    std::vector<float> parameters = residual;
    std::vector<float> parameters_threaded = residual;
    const auto size = static_cast<int64_t>(GetParam());
    const auto bytes = static_cast<int64_t>(alone.message.size());
    ASSERT_EQ(strom_codec_apply(alone.message.data(), bytes, parameters.data(), size, nullptr),
              STROM_OK);
    ASSERT_EQ(
        strom_codec_apply(alone.message.data(), bytes, parameters_threaded.data(), size, &kThree),
        STROM_OK);
    EXPECT_EQ(parameters_threaded, parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(AroundTasksAndChunks, CodecSizes,
                         testing::Values(1, 1000, (1 << 16) + 1, (1 << 18) - 3, (1 << 21) + 4099));

// The codec finds a forced bitmap in another form than the rest: as bits, not as codes.
TEST(Codec, AForcedBitmapLeavesTheSameResidualAndTheSameUpdate) {
  for (const float threshold : {0.01f, 1.0f, 4.0f, 100.0f}) {
    const std::vector<float> update = Normal(300007, 9);
    const std::vector<float> residual = Normal(300007, 10);
    strom_codec_options options = Options(threshold);
    const Encoded as_codes = Encode(update, residual, options, &kThree);
    options.coding = STROM_CODING_BITMAP;
    const Encoded as_bits = Encode(update, residual, options, &kThree);
    EXPECT_EQ(as_bits.residual, as_codes.residual);
    EXPECT_EQ(as_bits.count, as_codes.count);
    std::vector<float> sums[2];
    for (const Encoded* encoded : {&as_codes, &as_bits}) {
      std::vector<float>& sum = sums[encoded == &as_bits];
      sum.resize(update.size());
      ASSERT_EQ(
          strom_codec_apply(encoded->message.data(), static_cast<int64_t>(encoded->message.size()),
                            sum.data(), static_cast<int64_t>(sum.size()), nullptr),
          STROM_OK);
    }
    EXPECT_EQ(sums[0], sums[1]);
  }
}

TEST(Codec, WritesTheResidualElsewhereWithTheSameBits) {
  const std::vector<float> update = Normal(300000, 3);
  const std::vector<float> residual = Normal(300000, 4);
  const Encoded in_place = Encode(update, residual, Options(2), &kThree);
  std::vector<float> after(update.size(), kNan);
  std::vector<uint8_t> message;
  int64_t count = 0;
  const strom_codec_options options = Options(2);
  ASSERT_EQ(strom_codec_encode(update.data(), residual.data(), after.data(), 300000, &options,
                               &kThree, IntoVector, &message, &count),
            STROM_OK);
  EXPECT_EQ(after, in_place.residual);
  EXPECT_EQ(message, in_place.message);
  EXPECT_EQ(residual, Normal(300000, 4));
}

TEST(Codec, RefusesWhatIsNotFiniteAndLeavesTheResidual) {
  std::vector<float> update = Normal(300000, 5);
  update[299999] = kNan;
  update[150000] = INFINITY;
  const std::vector<float> before = Normal(300000, 6);
  std::vector<float> residual = before;
  std::vector<uint8_t> message;
  int64_t count = 0;
  strom_codec_options options = Options(2);
  for (const int32_t coding : {STROM_CODING_AUTO, STROM_CODING_BITMAP, STROM_CODING_BITMAP4}) {
    options.coding = coding;
    for (const strom_thread_pool* threads :
         {static_cast<const strom_thread_pool*>(nullptr), &kThree}) {
      EXPECT_EQ(strom_codec_encode(update.data(), residual.data(), residual.data(), 300000,
                                   &options, threads, IntoVector, &message, &count),
                STROM_NOT_FINITE);
      EXPECT_NE(
          std::string(strom_last_error()).find("2 of 300000 elements, the first at index 150000"),
          std::string::npos)
          << strom_last_error();
      EXPECT_EQ(residual, before);
      EXPECT_TRUE(message.empty());
    }
  }
}

TEST(Codec, GivesTheResidualBackWithinRoundingWhenMemoryRunsOut) {
  const std::vector<float> update = Normal(300000, 7);
  const std::vector<float> before = Normal(300000, 8);
  int64_t count = 0;
  for (const int32_t coding : {STROM_CODING_AUTO, STROM_CODING_BITMAP, STROM_CODING_BITMAP4}) {
    strom_codec_options options = Options(2);
    options.coding = coding;
    std::vector<float> residual = before;
    EXPECT_EQ(strom_codec_encode(update.data(), residual.data(), residual.data(), 300000, &options,
                                 &kThree, NoMemory, nullptr, &count),
              STROM_INTERNAL);
    for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(residual[i], before[i], 2e-6f) << i;
  }
}

// As TensorFlow sets its threads.
TEST(Codec, KeepsSubnormalNumbersAndTheCallersMode) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const uint64_t before = strom::SubnormalMode();
  strom::SetSubnormalMode(strom::kSubnormalsAreZero);
  const std::vector<float> update(4, tiny);
  const Encoded encoded =
      Encode(update, std::vector<float>(4, 2 * tiny), Options(2 * tiny), nullptr);
  std::vector<float> parameters(4, tiny);
  const int applied =
      strom_codec_apply(encoded.message.data(), static_cast<int64_t>(encoded.message.size()),
                        parameters.data(), 4, nullptr);
  EXPECT_EQ(strom::SubnormalMode(), strom::kSubnormalsAreZero);
  strom::SetSubnormalMode(before);
  EXPECT_EQ(applied, STROM_OK);
  EXPECT_EQ(encoded.count, 4);
  EXPECT_EQ(encoded.residual, std::vector<float>(4, tiny));
  EXPECT_EQ(parameters, std::vector<float>(4, 3 * tiny));
}

TEST(Codec, RefusesOptionsThatAreUnknownOrWithoutEffect) {
  const std::vector<float> update(4, 1);
  std::vector<float> residual(4);
  std::vector<uint8_t> message;
  int64_t count = 0;
  const auto encode = [&](float threshold, int32_t coding, int32_t prefer, int32_t kernel,
                          int64_t iteration = 0) {
    const strom_codec_options options{threshold, coding, prefer, kernel, iteration};
    return strom_codec_encode(update.data(), residual.data(), residual.data(), 4, &options, nullptr,
                              IntoVector, &message, &count);
  };
  EXPECT_EQ(encode(0, 0, 0, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(kNan, 0, 0, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(INFINITY, 0, 0, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, 4, 0, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, 0, 2, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, STROM_CODING_BITMAP, STROM_PREFER_SPEED, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, STROM_CODING_BITMAP4, STROM_PREFER_SPEED, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(0x1.fp-126f, STROM_CODING_BITMAP4, 0, -1), STROM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(strom_last_error()).find("at least 2^-125 (2.35099e-38)"),
            std::string::npos)
      << strom_last_error();
  EXPECT_EQ(encode(1, 0, 0, -1, -1), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, 0, 0, -1, int64_t{1} << 35), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, 0, 0, -2), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(encode(1, 0, 0, 99), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(strom_codec_kernel(99), nullptr);
  EXPECT_STREQ(strom_codec_kernel(0), "scalar");
  EXPECT_EQ(residual, std::vector<float>(4));
}

TEST(Codec, DescribesWhatAMessageHolds) {
  const Encoded encoded = Encode({0, 2, -3, 0.5f}, std::vector<float>(4), Options(1), nullptr);
  strom_message_description found;
  ASSERT_EQ(strom_codec_describe(encoded.message.data(),
                                 static_cast<int64_t>(encoded.message.size()), &found),
            STROM_OK);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.count, 2);
  EXPECT_EQ(found.threshold, 1);
  EXPECT_EQ(found.value, 1);
  EXPECT_EQ(found.iteration, 5);
  EXPECT_EQ(found.sparse_spans + found.bitmap_spans, 1);
  EXPECT_EQ(found.raw_spans, 0);
  EXPECT_EQ(found.bitmap4_spans, 0);
  EXPECT_EQ(strom_codec_describe(encoded.message.data(), 3, &found), STROM_CORRUPT);
}

}  // namespace
