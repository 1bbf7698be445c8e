// Memory runs out at every place of an encoding in turn, and nothing is lost: what has not been
// sent is in the residual.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "capi/strom.h"
#include "compressing_worker.h"
#include "core/codec/message.h"
#include "cuda/codec.h"

namespace {
constexpr int64_t kNoLimit = -1;
int64_t allocations_left = kNoLimit;
bool fails_once = false;
}  // namespace

// Not inlined, or GCC 12 takes one of a pair for its own and warns that they do not match.
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (allocations_left == 0) {
    if (fails_once) allocations_left = kNoLimit;
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(std::max<size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace strom {
namespace {

constexpr int64_t kElements = 300'000;  // enough for several threads

// While it lives, so many allocations succeed, and then none, or all but one.
class Allocations {
 public:
  explicit Allocations(int64_t limit, bool once = false) {
    allocations_left = limit;
    fails_once = once;
  }
  ~Allocations() { allocations_left = kNoLimit; }
};

// Refuses an update as a whole when memory runs out, as an exchange has to.
class FullExchange final : public FakeExchange {
 public:
  using FakeExchange::FakeExchange;

  Status Submit(int64_t iteration, std::vector<std::vector<uint8_t>> parts,
                UpdateId* last) override {
    const auto needed = std::make_unique<UpdateId>();
    const int64_t left = std::exchange(allocations_left, kNoLimit);
    Status status = FakeExchange::Submit(iteration, std::move(parts), last);
    allocations_left = left;
    return status;
  }
};

// One after the other, as several threads would.
void RunTasks(void*, int64_t tasks, Parallel::Task task, void* context) {
  for (int64_t i = 0; i < tasks; ++i) task(context, i);
}

std::vector<float> Sent(const Worker& worker) {
  std::vector<float> sent(kElements);
  for (const ReceivedUpdate& update : worker.exchange->sent) {
    ApplyMessage(OpenValidatedMessage(update.message()), 0, sent);
  }
  return sent;
}

std::vector<float> Plus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

std::vector<float> Times(float factor, std::vector<float> a) {
  for (float& x : a) x *= factor;
  return a;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

struct Way {
  const char* name;
  int threads;
  int send_mean;
  bool in_place;      // value = before
  bool full = false;  // values include the residual
  bool each = false;  // a threshold for each segment
};

class OutOfMemory : public testing::TestWithParam<Way> {
 protected:
  OutOfMemory() {
    update_ = RandomUpdate(kElements, 3);
    // The sums are exact then, but for those of a mean.
    for (float& u : update_) u = std::round(u * 0x1p6f) * 0x1p-6f;
  }

  // Runs a step for which so many allocations succeed; false when that was not enough.
  bool Step(Worker* worker, int64_t allocations) {
    if (GetParam().full) worker->BeFull();
    worker->Optimize(update_);
    std::vector<strom_segment> segments = worker->Segments(true);
    std::vector<std::vector<float>> apart = worker->variables;
    for (size_t i = 0; i < apart.size() && !GetParam().in_place; ++i) {
      std::fill(apart[i].begin(), apart[i].end(), 99.0f);
      segments[i].value = apart[i].data();
    }
    bool enough = true;
    try {
      const Allocations limit(allocations);
      EXPECT_TRUE(
          worker->compression.Step(segments, worker->options, &worker->result, worker->parallel)
              .ok());
    } catch (const std::bad_alloc&) {
      enough = false;
    }
    if (!GetParam().in_place) worker->variables = apart;
    return enough;
  }

  // What all workers share: G, or the values themselves.
  static std::vector<float> Shared(Worker* worker) {
    return GetParam().full ? worker->Shared() : worker->Values();
  }

  std::vector<float> update_;
};

TEST_P(OutOfMemory, AStepIsSentOrInTheResidualOrHasNotBeen) {
  const float rounding = GetParam().send_mean != 0 ? 1e-6f : 0;
  bool enough = false;
  int undone = 0, kept = 0;
  for (int64_t allocations = 0; !enough; ++allocations) {
    SCOPED_TRACE(std::to_string(allocations) + " allocations");
    ASSERT_LT(allocations, 1000);
    Worker worker({100'000, 1, 199'999}, 1);
    worker.exchange = std::make_shared<FullExchange>(1);
    worker.compression.Bind(worker.exchange);
    worker.options.threshold = 0x1p-4f;
    const std::vector<float> thresholds = {0x1p-4f, 0x1p-6f, 0x1p-5f};
    worker.options.thresholds = GetParam().each ? thresholds.data() : nullptr;
    worker.options.send_mean = GetParam().send_mean;
    worker.parallel = {GetParam().threads, RunTasks, nullptr};

    enough = Step(&worker, allocations);
    const bool sent = worker.exchange->submits > 0;
    EXPECT_TRUE(sent || !enough);
    const std::vector<float> residual = worker.Residual();
    const bool has_been =
        sent || std::any_of(residual.begin(), residual.end(), [](float r) { return r != 0; });
    ASSERT_LE(LargestDifference(Plus(residual, Sent(worker)), Times(has_been ? 1 : 0, update_)),
              rounding);
    ASSERT_LE(LargestDifference(Shared(&worker), Sent(worker)), rounding);
    undone += has_been ? 0 : 1;
    kept += has_been && !sent ? 1 : 0;

    ASSERT_TRUE(Step(&worker, kNoLimit));  // It goes on as if nothing had been.
    ASSERT_LE(
        LargestDifference(Plus(worker.Residual(), Sent(worker)), Times(has_been ? 2 : 1, update_)),
        2 * rounding);
    ASSERT_LE(LargestDifference(Shared(&worker), Sent(worker)), 2 * rounding);
    EXPECT_EQ(worker.exchange->applied.at(1), worker.exchange->sent.size());
  }
  EXPECT_GT(undone, 0);
  EXPECT_GT(kept, 5);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OutOfMemory,
    testing::Values(Way{"OneThread", 1, 0, true}, Way{"ManyThreads", 3, 0, true},
                    Way{"ValuesApart", 3, 0, false}, Way{"TheMean", 1, 1, true},
                    Way{"TheMeanOnManyThreads", 3, 1, false}, Way{"FullProgress", 3, 0, true, true},
                    Way{"Thresholds", 3, 0, true, false, true},
                    Way{"TheMeanOfEachSegment", 3, 1, true, false, true}),
    [](const auto& info) { return std::string(info.param.name); });

// The codec's door.
class CodecOutOfMemory : public testing::TestWithParam<int32_t> {};

TEST_P(CodecOutOfMemory, TheResidualIsAsItWas) {
  const std::vector<float> update = RandomUpdate(kElements, 5);
  const std::vector<float> before = RandomUpdate(kElements, 6);
  strom_codec_options options{};
  options.threshold = 0.0625f;
  options.coding = GetParam();
  options.kernel = -1;
  std::vector<uint8_t> message(kElements);
  const auto allocate = [](void* context, int64_t) { return static_cast<uint8_t*>(context); };
  for (const int threads : {1, 3}) {
    const strom_thread_pool pool{threads, RunTasks, nullptr};
    int code = STROM_INTERNAL;
    for (int64_t allocations = 0; code != STROM_OK; ++allocations) {
      ASSERT_LT(allocations, 1000);
      std::vector<float> residual = before;
      int64_t count = 0;
      {
        const Allocations limit(allocations);
        code = strom_codec_encode(update.data(), residual.data(), residual.data(), kElements,
                                  &options, &pool, allocate, message.data(), &count);
      }
      if (code == STROM_OK) continue;
      ASSERT_EQ(code, STROM_INTERNAL);
      for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(residual[i], before[i], 1e-6f) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codings, CodecOutOfMemory,
                         testing::Values(STROM_CODING_AUTO, STROM_CODING_BITMAP,
                                         STROM_CODING_BITMAP4));

// The emulated device and its launches need memory of their own, to take back too, so only one
// allocation fails.
TEST(CudaOutOfMemory, AStepIsSentOrInTheResidualOrHasNotBeen) {
  constexpr int64_t kSmall = 9000;
  const std::vector<float> update = RandomUpdate(kSmall, 7);
  strom_step_options options{};
  options.scale = 1;
  options.threshold = 0.0625f;
  options.apply_own = 1;
  bool enough = false;
  int kept = 0;
  // In the first round none fails: the emulation's threads get their stacks.
  for (int64_t allocations = kNoLimit; !enough || allocations == 0; ++allocations) {
    SCOPED_TRACE(std::to_string(allocations) + " allocations");
    ASSERT_LT(allocations, 1000);
    enough = false;
    cuda::Codec codec(kMessageBytes);
    std::vector<float> before(kSmall), residual(kSmall), value(kSmall);
    const strom_cuda_segment segment{
        0, kSmall, before.data(), update.data(), value.data(), residual.data(), nullptr};
    strom_step_result result{};
    try {
      const Allocations limit(allocations, true);
      ASSERT_TRUE(codec.Step(kSmall, {&segment, 1}, options, nullptr, &result).ok());
      enough = true;
    } catch (const std::bad_alloc&) {
    }
    std::vector<float> sent(kSmall);
    for (size_t i = 0; enough && i < codec.messages().size(); ++i) {
      ApplyMessage(OpenValidatedMessage(codec.messages()[i]), 0, sent);
    }
    const bool has_been =
        std::any_of(residual.begin(), residual.end(), [](float r) { return r != 0; });
    EXPECT_TRUE(has_been || !enough);
    ASSERT_LE(LargestDifference(Plus(residual, sent), Times(has_been ? 1 : 0, update)), 1e-7f);
    ASSERT_LE(LargestDifference(value, sent), 0);
    kept += has_been && !enough ? 1 : 0;
  }
  EXPECT_GT(kept, 5);
}

// Whoever is told that it failed applies the message again.
TEST(CudaOutOfMemory, AMessageIsAddedWholeOrNotAtAll) {
  constexpr int64_t kSmall = 9000;
  Worker worker({kSmall}, 1);
  ASSERT_TRUE(worker.Step(RandomUpdate(kSmall, 8)).ok());
  const Bytes message = worker.exchange->sent.at(0).message();
  std::vector<float> expected(kSmall);
  ApplyMessage(OpenValidatedMessage(message), 0, expected);
  bool enough = false;
  int failures = 0;
  for (int64_t allocations = kNoLimit; !enough || allocations == 0; ++allocations) {
    SCOPED_TRACE(std::to_string(allocations) + " allocations");
    ASSERT_LT(allocations, 1000);
    enough = false;
    cuda::Codec codec(kMessageBytes);
    std::vector<float> values(kSmall);
    const strom_cuda_segment segment{0, kSmall, nullptr, nullptr, values.data(), nullptr, nullptr};
    int64_t skipped = 0;
    try {
      const Allocations limit(allocations, true);
      ASSERT_TRUE(codec.Apply(message, kSmall, {&segment, 1}, nullptr, &skipped).ok());
      enough = true;
    } catch (const std::bad_alloc&) {
      ++failures;
      ASSERT_EQ(values, std::vector<float>(kSmall));
      ASSERT_TRUE(codec.Apply(message, kSmall, {&segment, 1}, nullptr, &skipped).ok());
    }
    ASSERT_EQ(values, expected);
  }
  EXPECT_GT(failures, 5);
}

}  // namespace
}  // namespace strom
