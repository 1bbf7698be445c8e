// The same bits on every kind of processor: digests of what fixed inputs give, written on x86-64,
// for each kernel, each coding, what a message adds, and a worker's steps. The contract suites
// compare the implementations of one processor with its own scalar code; this holds processors of
// different kinds to one another.
//
// Inputs are whole numbers times powers of two, with nothing that a library might round. A change
// of a message's bytes or of a step's arithmetic changes digests: then `kDigests` is what a failure
// on x86-64 prints, and other processors have to agree.
#include <gtest/gtest.h>

#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "capi/strom.h"
#include "core/base/crc32c.h"
#include "core/base/hash.h"
#include "core/step/residual.h"
#include "core/step/update_norm.h"

namespace strom {
namespace {

constexpr size_t kSize = 70'001;  // several spans, chunks of the kernels, and an odd tail

using Floats = std::vector<float>;

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [-1, 1), exact.
  float Unit() {
    return static_cast<float>(static_cast<int32_t>(Next() >> 40) - (1 << 23)) / (1 << 23);
  }

 private:
  uint64_t state_;
};

// Numbers of very different sizes, among them zeros of both signs and subnormal numbers; `share`
// in 256 are of the size of 1, the others far below.
Floats Numbers(uint64_t seed, uint64_t share) {
  Random random(seed);
  Floats numbers(kSize);
  for (float& number : numbers) {
    const uint64_t kind = random.Next();
    const float unit = random.Unit();
    if (kind % 256 < share) {
      number = unit;
    } else if (kind % 61 == 1) {
      number = std::copysign(0.0f, unit);
    } else if (kind % 61 == 2) {
      number = unit * 0x1p-127f;
    } else {
      number = std::ldexp(unit, -4 - static_cast<int>(kind >> 32 & 15));
    }
  }
  return numbers;
}

class Digest {
 public:
  template <typename T>
  Digest& Add(const std::vector<T>& values) {
    static_assert(std::is_arithmetic_v<T>);
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    hash_ = Hash({bytes, sizeof(T) * values.size()}, hash_);
    return *this;
  }
  template <typename T>
  Digest& AddNumber(T number) {
    return Add(std::vector<T>{number});
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

// What is not in the statistics: the sums, which depend on the order of additions.
void AddStatistics(const StepStatistics& statistics, Digest* digest) {
  digest->AddNumber(statistics.max_residual).AddNumber(statistics.clipped_count);
  digest->AddNumber(statistics.nonfinite_count).AddNumber(statistics.first_nonfinite);
}

struct Rules {
  const char* name;
  StepRule rule;
};

const Rules kRules[] = {
    {"plain", {1, 0.125f}},
    {"scaled", {0.7f, 0.09f}},
    {"clipped", {0.9f, 0.05f, 0.2f}},
};

// A kernel's codes, residuals and values, with and without the own model, and its bitmaps.
uint64_t KernelDigest(const StepKernel& kernel, const StepRule& rule, uint64_t share) {
  const Floats before = Numbers(1, 200);
  Floats update = Numbers(2, share);
  Floats after(kSize);
  for (size_t i = 0; i < kSize; ++i) after[i] = before[i] + update[i];
  after[5'003] = std::numeric_limits<float>::infinity();
  const Floats start = Numbers(3, 0);
  std::vector<uint32_t> codes(kSize);
  Digest digest;
  const auto add = [&](int64_t count, const Floats& residual, const StepStatistics& statistics) {
    digest.Add(std::vector<uint32_t>(codes.begin(), codes.begin() + count)).Add(residual);
    AddStatistics(statistics, &digest);
  };
  constexpr auto kCount = static_cast<int64_t>(kSize);
  {
    Floats value(kSize), residual = start;
    StepStatistics statistics;
    const StepRun run{kCount, before.data(), after.data(), value.data(), residual.data(), 7};
    add(kernel.step(run, rule, codes.data(), &statistics), residual, statistics);
    digest.Add(value);
  }
  {
    Floats value = after, residual = start;
    StepStatistics statistics;
    const FullRun run{kCount, before.data(), value.data(), residual.data(), 7};
    add(kernel.step_full(run, rule, codes.data(), &statistics), residual, statistics);
    digest.Add(value);
  }
  {
    Floats residual = start;
    StepStatistics statistics;
    const EncodeRun run{kCount, update.data(), residual.data(), 0};
    Bitmap4Memory memory(kCount);
    Bitmap4 bitmap = memory.bitmap(3);
    kernel.encode_bitmap4(run, rule, &bitmap, &statistics);
    digest.Add(std::vector<uint8_t>(bitmap.bytes, bitmap.bytes + Bitmap4Bytes(kCount)));
    digest.Add(residual).AddNumber(bitmap.count);
    AddStatistics(statistics, &digest);
  }
  return digest.value();
}

uint8_t* IntoVector(void* context, int64_t bytes) {
  auto* message = static_cast<std::vector<uint8_t>*>(context);
  message->resize(static_cast<size_t>(bytes));
  return message->data();
}

// Messages of two updates, the residual that they leave, and what they add.
uint64_t MessageDigest(int32_t kernel, int32_t coding, int32_t prefer, uint64_t share) {
  Floats residual(kSize), parameters = Numbers(4, 128);
  Digest digest;
  for (int64_t step = 0; step < 2; ++step) {
    const Floats update = Numbers(10 + static_cast<uint64_t>(step), share);
    const strom_codec_options options{0.3f, coding, prefer, kernel, step};
    std::vector<uint8_t> message;
    int64_t count = 0;
    EXPECT_EQ(strom_codec_encode(update.data(), residual.data(), residual.data(), kSize, &options,
                                 nullptr, IntoVector, &message, &count),
              STROM_OK)
        << strom_last_error();
    EXPECT_EQ(strom_codec_apply(message.data(), static_cast<int64_t>(message.size()),
                                parameters.data(), kSize, nullptr),
              STROM_OK);
    digest.Add(message).Add(residual).Add(parameters).AddNumber(count);
  }
  return digest.value();
}

// Three steps of a lone worker with two variables.
uint64_t WorkerDigest(strom_step_options options, std::vector<float> thresholds) {
  Digest digest;
  strom_handle replica = 0;
  EXPECT_EQ(strom_replica_create(int64_t{1} << 20, &replica), STROM_OK);
  EXPECT_EQ(strom_replica_extend(replica, kSize), STROM_OK);
  EXPECT_EQ(strom_replica_keep_messages(replica, 1), STROM_OK);
  constexpr int64_t kFirst = 30'000;
  if (!thresholds.empty()) options.thresholds = thresholds.data();
  Floats values = Numbers(5, 128);
  for (uint64_t step = 0; step < 3; ++step) {
    const Floats update = Numbers(20 + step, 20);
    const Floats before = values;
    for (size_t i = 0; i < kSize; ++i) values[i] += update[i];
    Floats after = values;
    float* const value = options.full ? after.data() : values.data();
    strom_segment segments[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t offset = i * kFirst;
      segments[i] = {offset,
                     i == 0 ? kFirst : static_cast<int64_t>(kSize) - kFirst,
                     before.data() + offset,
                     after.data() + offset,
                     value + offset,
                     nullptr};
    }
    options.iteration = static_cast<int64_t>(step);
    strom_step_result result;
    EXPECT_EQ(strom_replica_step(replica, segments, 2, &options, nullptr, &result), STROM_OK)
        << strom_last_error();
    if (options.full) values = after;
    digest.Add(values).AddNumber(result.count).AddNumber(result.max_residual);
    digest.AddNumber(result.value).AddNumber(result.update_norm);
    Floats residual(kSize);
    EXPECT_EQ(strom_replica_read_residual(replica, 0, kSize, residual.data()), STROM_OK);
    digest.Add(residual);
    int64_t size = 0;
    for (int64_t part = 0; strom_replica_message(replica, part, nullptr, 0, &size) == STROM_OK;
         ++part) {
      std::vector<uint8_t> message(static_cast<size_t>(size));
      EXPECT_EQ(strom_replica_message(replica, part, message.data(), size, &size), STROM_OK);
      digest.Add(message);
    }
  }
  EXPECT_EQ(strom_replica_close(replica), STROM_OK);
  return digest.value();
}

// By what was done; of the implementations that this processor has, all must give the same.
const std::map<std::string, uint64_t> kDigests = {
    {"crc32c", 0x00000000773f285c},
    {"message auto 0", 0x23e1d4168676193f},
    {"message auto 250", 0x1755e48ba400028b},
    {"message auto 3", 0xef1b69ca129e2549},
    {"message bitmap 0", 0x23e1d4168676193f},
    {"message bitmap 250", 0x1755e48ba400028b},
    {"message bitmap 3", 0x34bd93457a0883df},
    {"message bitmap4 0", 0x23e1d4168676193f},
    {"message bitmap4 250", 0x50c499dfa8d5015e},
    {"message bitmap4 3", 0x8574e7e59e5d87f5},
    {"message sparse 0", 0x23e1d4168676193f},
    {"message sparse 250", 0x83cb6b4696545e54},
    {"message sparse 3", 0xef1b69ca129e2549},
    {"message speed 0", 0x23e1d4168676193f},
    {"message speed 250", 0x1755e48ba400028b},
    {"message speed 3", 0xef1b69ca129e2549},
    {"norm", 0xe0894e192758d637},
    {"numbers", 0x2ded63fbd5c4a338},
    {"step clipped 0", 0x7b9fa14f31b3dbb6},
    {"step clipped 250", 0x8a4be4529cc51fea},
    {"step clipped 8", 0x0e6ee3bf67f2feff},
    {"step plain 0", 0x2996b53e31d13377},
    {"step plain 250", 0x39fe348ddb8b73d1},
    {"step plain 8", 0x59c9cc07b3b42d62},
    {"step scaled 0", 0x385d3e463dffcc0b},
    {"step scaled 250", 0x56ab34f9560f55de},
    {"step scaled 8", 0xc52f760a25a1347a},
    {"worker encoded", 0x29b6a7d35fffd09a},
    {"worker full", 0x9c0daa7f94b7a2f3},
    {"worker limited", 0x47f959fa86d1e68f},
    {"worker mean", 0x13a8507b5fb6604e},
    {"worker thresholds", 0xc5234bba99acf966},
};

void ExpectDigest(const std::string& name, const std::string& by, uint64_t digest) {
  const auto known = kDigests.find(name);
  char line[128];
  std::snprintf(line, sizeof(line), "    {\"%s\", 0x%016" PRIx64 "},", name.c_str(), digest);
  if (known == kDigests.end()) {
    ADD_FAILURE() << "no digest is known; " << by << " gives\n" << line;
  } else {
    EXPECT_EQ(digest, known->second) << by << " gives\n" << line;
  }
}

TEST(SameBits, OfEveryKernelOnEveryKindOfProcessor) {
  for (const Rules& rules : kRules) {
    for (const uint64_t share : {0, 8, 250}) {
      const std::string name = std::string("step ") + rules.name + " " + std::to_string(share);
      for (const StepKernel& kernel : StepKernels()) {
        ExpectDigest(name, kernel.name, KernelDigest(kernel, rules.rule, share));
      }
    }
  }
}

TEST(SameBits, OfMessagesAndWhatTheyAdd) {
  const std::pair<const char*, std::pair<int32_t, int32_t>> codings[] = {
      {"auto", {STROM_CODING_AUTO, STROM_PREFER_SIZE}},
      {"speed", {STROM_CODING_AUTO, STROM_PREFER_SPEED}},
      {"sparse", {STROM_CODING_SPARSE, STROM_PREFER_SIZE}},
      {"bitmap", {STROM_CODING_BITMAP, STROM_PREFER_SIZE}},
      {"bitmap4", {STROM_CODING_BITMAP4, STROM_PREFER_SIZE}},
  };
  for (const auto& [coding, options] : codings) {
    for (const uint64_t share : {0, 3, 250}) {
      const std::string name = std::string("message ") + coding + " " + std::to_string(share);
      for (int32_t kernel = 0; strom_codec_kernel(kernel) != nullptr; ++kernel) {
        ExpectDigest(name, strom_codec_kernel(kernel),
                     MessageDigest(kernel, options.first, options.second, share));
      }
    }
  }
}

TEST(SameBits, OfAWorkersSteps) {
  strom_step_options options{};
  options.scale = 1;
  options.threshold = 0.3f;
  options.apply_own = options.take_received = 1;
  ExpectDigest("worker encoded", "this worker", WorkerDigest(options, {}));
  options.apply_own = 0;
  options.full = 1;
  ExpectDigest("worker full", "this worker", WorkerDigest(options, {}));
  options.norm_limit = 5;
  options.clip_multiple = 2;
  ExpectDigest("worker limited", "this worker", WorkerDigest(options, {}));
  options.norm_limit = 0;
  options.clip_multiple = 0;
  options.send_mean = 1;
  ExpectDigest("worker mean", "this worker", WorkerDigest(options, {}));
  ExpectDigest("worker thresholds", "this worker", WorkerDigest(options, {0.25f, 0.375f}));
}

TEST(SameBits, OfSumsHashesAndChecksums) {
  const Floats before = Numbers(30, 100), after = Numbers(31, 200);
  const strom_segment segment = {0, kSize, before.data(), after.data(), nullptr, nullptr};
  const UpdateSize size = MeasureUpdate({&segment, 1}, {});
  ExpectDigest("norm", "this processor",
               Digest().AddNumber(size.norm).AddNumber(size.mass).value());
  ExpectDigest("numbers", "this processor", Digest().Add(before).Add(after).value());
  const auto* bytes = reinterpret_cast<const uint8_t*>(before.data());
  ExpectDigest("crc32c", "this processor", Crc32c({bytes, 4 * kSize}));
}

}  // namespace
}  // namespace strom
