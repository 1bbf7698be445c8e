// The codec's memory on a device: who lends it, and what happens where it runs out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/codec/message_writer.h"
#include "cuda/codec.h"
#include "cuda/emulation.h"
#include "cuda/memory.h"
#include "cuda/step_kernels.h"
#include "cuda_models.h"

namespace strom::cuda {
namespace {

// Memory that is lent to codecs, of which so many bytes are left.
struct Lender {
  int64_t left;
  std::map<void*, int64_t> taken;
  int64_t calls_left = int64_t{1} << 40;

  strom_cuda_memory functions() {
    return {this,
            [](void* context, int64_t bytes) -> void* {
              auto& self = *static_cast<Lender*>(context);
              if (bytes > self.left || self.calls_left == 0) return nullptr;
              --self.calls_left;
              self.left -= bytes;
              void* const memory = ::operator new(static_cast<size_t>(bytes));
              self.taken[memory] = bytes;
              return memory;
            },
            [](void* context, void* memory) {
              auto& self = *static_cast<Lender*>(context);
              self.left += self.taken.at(memory);
              self.taken.erase(memory);
              ::operator delete(memory);
            }};
  }
};

TEST(CudaCodec, HasItsMemoryFromWhoLendsIt) {
  constexpr int64_t kEnough = 1 << 20;
  Lender lender{kEnough, {}};
  const strom_cuda_memory memory = lender.functions();
  {
    Codec codec(kOneMessage, &memory);
    Model model = RandomModel({9000, 40}, 0.05, 60);
    ASSERT_TRUE(codec.Reserve(SegmentsOf(&model)).ok());
    EXPECT_LT(lender.left, kEnough - 9040 * 2);
    Model expected_model = model;
    const Outcome expected = Expected(&expected_model, {});
    EXPECT_EQ(Actual(&codec, &model, {}).messages, expected.messages);
  }
  EXPECT_EQ(lender.left, kEnough);
}

TEST(CudaCodec, ChangesNothingWhereMemoryIsMissingBeforeItsStep) {
  Lender lender{10000, {}};
  const strom_cuda_memory memory = lender.functions();
  Codec codec(kOneMessage, &memory);
  Model model = RandomModel({9000}, 0.05, 61);
  EXPECT_THROW(static_cast<void>(codec.Reserve(SegmentsOf(&model))), DeviceError);
  const Model before = model;
  EXPECT_THROW(Actual(&codec, &model, {}), DeviceError);
  ExpectSameVariables(model, before);
}

TEST(CudaCodec, ComparesInTheMemoryThatAStepHasReserved) {
  Lender lender{1 << 20, {}};
  const strom_cuda_memory memory = lender.functions();
  Codec codec(kOneMessage, &memory);
  Model model = RandomModel({9000, 40}, 0.05, 68);
  model.variables[1].after = model.variables[1].before;
  const std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
  ASSERT_TRUE(codec.Reserve(segments).ok());
  lender.calls_left = 0;
  std::vector<int32_t> differ(2);
  ASSERT_NO_THROW(ASSERT_TRUE(codec.Compare(segments, nullptr, differ.data()).ok()));
  EXPECT_EQ(differ, (std::vector<int32_t>{1, 0}));
}

// A stream on which nothing is done before somebody waits for it.
struct LateStream {
  int launches_left = 1 << 20;  // before its device is lost
  std::vector<std::pair<void (*)(void*), void*>> queued;

  static emulation::Gpu Gpu() {
    return {[](void* stream, void (*function)(void*), void* argument) {
              auto& self = *static_cast<LateStream*>(stream);
              if (self.launches_left == 0) return 0;
              --self.launches_left;
              self.queued.emplace_back(function, argument);
              return 1;
            },
            [](void* stream) {
              auto& self = *static_cast<LateStream*>(stream);
              for (const auto& [function, argument] : std::exchange(self.queued, {})) {
                function(argument);
              }
              return self.launches_left == 0 ? 0 : 1;
            }};
  }
};

TEST(CudaCodec, NothingIsUnderWayWhenItHasRunOutOfMemory) {
  emulation::UseGpu(LateStream::Gpu());
  Model whole = RandomModel({9000, 40}, 0.05, 63);
  const std::vector<uint8_t> message = Expected(&whole, {}).messages.at(0);
  const auto step = [](Codec& codec, Codec::Segments segments, LateStream* stream) {
    strom_step_result result{};
    ASSERT_TRUE(codec.Step(9043, segments, StepOptions({}), stream, &result).ok());
  };
  const auto apply = [&](Codec& codec, Codec::Segments segments, LateStream* stream) {
    int64_t skipped = 0;
    ASSERT_TRUE(codec.Apply(message, 9043, segments, stream, &skipped).ok());
  };
  const auto compare = [](Codec& codec, Codec::Segments segments, LateStream* stream) {
    std::vector<int32_t> differ(segments.size());
    ASSERT_TRUE(codec.Compare(segments, stream, differ.data()).ok());
  };
  using Call = std::function<void(Codec&, Codec::Segments, LateStream*)>;
  for (const Call& call : {Call(step), Call(apply), Call(compare)}) {
    bool enough = false;
    int64_t calls = 0;
    for (; !enough; ++calls) {
      Lender lender{1 << 20, {}, calls};
      const strom_cuda_memory memory = lender.functions();
      LateStream stream;
      Codec codec(kOneMessage, &memory);
      Model model = RandomModel({9000, 40}, 0.05, 64);
      const std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
      try {
        call(codec, segments, &stream);
        enough = true;
      } catch (const DeviceError&) {
      }
      EXPECT_TRUE(stream.queued.empty()) << calls;
    }
    EXPECT_GT(calls, 2);
  }
  emulation::UseGpu({});
}

TEST(CudaCodec, AStepWithoutMemoryForItsEntriesSendsNothingAndLosesNothing) {
  int64_t calls = 0;
  bool sent = false;
  for (; !sent; ++calls) {
    Lender lender{1 << 20, {}};
    const strom_cuda_memory memory = lender.functions();
    Codec codec(kOneMessage, &memory);
    Model model = RandomModel({9000}, 0.05, 69);
    const Model before = model;
    const std::vector<strom_cuda_segment> segments = SegmentsOf(&model, true);
    ASSERT_TRUE(codec.Reserve(segments).ok());
    lender.calls_left = calls;
    Options options;
    options.full = true;
    options.scale = 1;
    strom_step_result result{};
    ASSERT_TRUE(codec.Step(9000, segments, StepOptions(options), nullptr, &result).ok()) << calls;
    EXPECT_EQ(result.stepped, 1);
    sent = result.count > 0;
    if (sent) continue;
    EXPECT_EQ(codec.messages().size(), 1u);
    EXPECT_EQ(static_cast<size_t>(result.message_bytes), codec.messages().at(0).size());
    double sum = 0;
    for (size_t i = 0; i < 9000; ++i) {
      const Variable& was = before.variables[0];
      const float update = was.after[i] - was.before[i];
      ASSERT_NEAR(model.variables[0].residual[i], was.residual[i] + update, 1e-6);
      sum += std::abs(model.variables[0].residual[i]);
    }
    EXPECT_NEAR(result.sum_residual, sum, 1e-4 * sum);
  }
  EXPECT_GT(calls, 3);
}

TEST(CudaCodec, GivesBackWhatADenseStepTookOnceStepsAreSparse) {
  constexpr int64_t kEnough = 1 << 20;
  Lender lender{kEnough, {}};
  const strom_cuda_memory memory = lender.functions();
  Codec codec(kOneMessage, &memory);
  const auto step = [&](double density) {
    Model model = RandomModel({30'000}, density, 70);
    strom_step_result result{};
    ASSERT_TRUE(codec.Step(30'000, SegmentsOf(&model), StepOptions({}), nullptr, &result).ok());
  };
  step(0.01);
  const int64_t sparse = lender.left;
  step(1.0);
  EXPECT_LT(lender.left, sparse - 30'000 * 6);
  for (int i = 0; i < 16; ++i) step(0.01);
  EXPECT_GT(lender.left, sparse - 30'000);  // payloads have room for a bitmap anyway
}

TEST(CudaApply, NeedsNothingMoreForRawSpansThanTheirBytes) {
  const int64_t elements = 50'000;
  const std::vector<float> values(static_cast<size_t>(elements), 1.0f);
  MessageWriter writer({0, 0, elements, 7}, 15, kOneMessage);
  for (int64_t span = 0; span << 15 < elements; ++span) {
    const auto first = static_cast<size_t>(span) << 15;
    const size_t size = std::min(values.size() - first, size_t{1} << 15);
    writer.AddRawSpan(span, {values.data() + first, size});
  }
  const std::vector<uint8_t> message = writer.Finish().at(0);
  Lender lender{static_cast<int64_t>(message.size()) * 5 / 4, {}};
  const strom_cuda_memory memory = lender.functions();
  Codec codec(kOneMessage, &memory);
  Model model = RandomModel({elements}, 0.05, 71);
  int64_t skipped = 0;
  EXPECT_TRUE(codec.Apply(message, elements, SegmentsOf(&model), nullptr, &skipped).ok());
}

TEST(CudaCodec, SaysThatItsDeviceIsLostWhereverThatHappensInAStep) {
  emulation::UseGpu(LateStream::Gpu());
  bool done = false;
  int launches = 0;
  for (; !done; ++launches) {
    LateStream stream{launches, {}};
    Codec codec(kOneMessage);
    Model model = RandomModel({9000, 40}, 0.05, 67);
    const std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
    strom_step_result result{};
    try {
      done = codec.Step(9043, segments, StepOptions({}), &stream, &result).ok();
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.code(), Code::kDeviceLost) << launches;
    }
    EXPECT_TRUE(stream.queued.empty()) << launches;
  }
  EXPECT_GT(launches, 10);
  emulation::UseGpu({});
}

TEST(CudaCodec, AStepWhoseMemoryMayBeGoneIsNotTakenBack) {
  Codec codec(kOneMessage);
  Model model = RandomModel({9000}, 0.05, 65);
  const std::vector<strom_cuda_segment> segments = SegmentsOf(&model);
  strom_step_result result{};
  ASSERT_TRUE(codec.Step(9000, segments, StepOptions({}), nullptr, &result).ok());
  Model large = RandomModel({90'000}, 0.05, 66);
  ASSERT_TRUE(codec.Reserve(SegmentsOf(&large)).ok());
  const Model before = model;
  EXPECT_EQ(codec.TakeBack(nullptr).code, Code::kInvalidArgument);
  ExpectSameVariables(model, before);
}

TEST(CudaCodec, CountsMoreElementsThanATilesCountsHold) {
  TileStatistics some{1, 2, 3, 4, 0xffffffff, 0xffffffff};
  StepTotals all;
  all.Add(some);
  some.first_nonfinite = 1;
  all.Add(some);
  EXPECT_EQ(all.clipped_count, 2 * int64_t{0xffffffff});
  EXPECT_EQ(all.nonfinite_count, 2 * int64_t{0xffffffff});
  EXPECT_EQ(all.first_nonfinite, 1);
}

}  // namespace
}  // namespace strom::cuda
