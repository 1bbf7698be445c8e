#include "core/codec/bitmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/codec/rice.h"

namespace strom {
namespace {

// A bitmap with streams of its own.
struct Streams {
  explicit Streams(size_t elements)
      : bits(elements / 8 + 1 + kBitmapSlack), signs(bits), bitmap{bits.data(), signs.data()} {}

  std::vector<uint8_t> bits, signs;
  Bitmap bitmap;
};

struct Random {
  explicit Random(uint32_t seed) : engine(seed) {}
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(engine); }
  std::mt19937 engine;
};

// Appends `elements` elements one by one and returns the codes of the entries.
std::vector<uint32_t> Fill(int64_t elements, double density, uint32_t seed, Bitmap* bitmap) {
  Random random(seed);
  std::vector<uint32_t> codes;
  for (int64_t i = 0; i < elements; ++i) {
    const bool entry = random.Chance(density);
    const bool negative = entry && random.Chance(0.4);
    bitmap->Append(entry, negative, 1, entry);
    if (entry) codes.push_back(static_cast<uint32_t>(i) << 1 | (negative ? 1u : 0u));
  }
  return codes;
}

TEST(Bitmap, AppendsWordsOfAnySizeAtAnyBit) {
  Random random(11);
  Streams by_words(4096);
  Streams one_by_one(4096);
  for (int64_t elements = 0; elements < 4000;) {
    const auto size = static_cast<int>(random.engine() % 65);
    uint64_t bits = 0, signs = 0;
    int entries = 0;
    for (int i = 0; i < size; ++i) {
      const bool entry = random.Chance(0.5);
      const bool negative = entry && random.Chance(0.5);
      one_by_one.bitmap.Append(entry, negative, 1, entry);
      bits |= uint64_t{entry} << i;
      signs |= entry ? uint64_t{negative} << entries++ : 0;
    }
    by_words.bitmap.Append(bits, signs, size, entries);
    elements += size;
  }
  ASSERT_EQ(by_words.bitmap.elements, one_by_one.bitmap.elements);
  ASSERT_EQ(by_words.bitmap.count, one_by_one.bitmap.count);
  for (int64_t i = 0; i < by_words.bitmap.elements; ++i) {
    ASSERT_EQ(ReadBits(by_words.bits.data(), i, 1), ReadBits(one_by_one.bits.data(), i, 1)) << i;
  }
  for (int64_t i = 0; i < by_words.bitmap.count; ++i) {
    ASSERT_EQ(ReadBits(by_words.signs.data(), i, 1), ReadBits(one_by_one.signs.data(), i, 1)) << i;
  }
}

TEST(Bitmap, ItsSpansAreSplitRiceWithKOfZero) {
  constexpr int64_t kSpan = 2048;
  for (const double density : {0.0, 0.001, 0.3, 1.0}) {
    Streams streams(3 * kSpan);
    const std::vector<uint32_t> codes = Fill(3 * kSpan - 100, density, 8, &streams.bitmap);
    int64_t done = 0;
    for (int64_t first = 0; first < 3 * kSpan - 100; first += kSpan) {
      const int64_t size = std::min(kSpan, 3 * kSpan - 100 - first);
      const BitmapSpan span = MeasureBitmapSpan(streams.bitmap, first, size, done);
      std::vector<uint32_t> here;
      for (; done < static_cast<int64_t>(codes.size()) &&
             (codes[static_cast<size_t>(done)] >> 1) < first + size;
           ++done) {
        here.push_back(codes[static_cast<size_t>(done)] - (static_cast<uint32_t>(first) << 1));
      }
      ASSERT_EQ(span.count, static_cast<int64_t>(here.size()));
      if (here.empty()) {
        ASSERT_EQ(span.bytes(), 0);
        continue;
      }
      std::vector<uint8_t> payload(static_cast<size_t>(span.bytes()) + kRiceSlack);
      WriteBitmapSpan(span, payload.data());
      const Bytes bytes = Bytes(payload).first(static_cast<size_t>(span.bytes()));
      ASSERT_EQ(Rice().check(bytes, span.count, 0, size), nullptr);
      std::vector<uint32_t> decoded(here.size() + kCodeSlack);
      Rice().decode(bytes, span.count, 0, decoded.data());
      decoded.resize(here.size());
      ASSERT_EQ(decoded, here);
    }
  }
}

TEST(Bitmap, PiecesJoinToWhatOneBitmapWouldBe) {
  constexpr int64_t kSizes[] = {64, 0, 4096, 8, 1000, 133};  // all but the last whole bytes
  for (const double density : {0.0, 0.01, 0.5, 1.0}) {
    std::vector<Streams> streams;
    std::vector<Bitmap> pieces;
    int64_t total = 0;
    for (const int64_t size : kSizes) {
      streams.emplace_back(static_cast<size_t>(size));
      Fill(size, density, static_cast<uint32_t>(pieces.size()), &streams.back().bitmap);
      pieces.push_back(streams.back().bitmap);
      total += size;
    }
    const BitmapMemory memory(total);
    Bitmap whole = memory.bitmap();
    JoinBitmaps(pieces, {}, &whole);
    ASSERT_EQ(whole.elements, total);
    int64_t element = 0, sign = 0;
    for (const Bitmap& piece : pieces) {
      for (int64_t i = 0; i < piece.elements; ++i) {
        ASSERT_EQ(ReadBits(whole.bits, element++, 1), ReadBits(piece.bits, i, 1));
      }
      for (int64_t i = 0; i < piece.count; ++i) {
        ASSERT_EQ(ReadBits(whole.signs, sign++, 1), ReadBits(piece.signs, i, 1));
      }
    }
    ASSERT_EQ(whole.count, sign);
  }
}

}  // namespace
}  // namespace strom
