// Steps whose values and residual lie on a device: the bits are those of steps on the host, and the
// residual is where it is needed.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "compressing_worker.h"
#include "core/codec/message.h"
#include "core/step/compression_state.h"

namespace strom {
namespace {

// A device as the core sees one: it has the worker's variables and a residual of its own, which
// other functions of the core, of another state, work on.
class Device {
 public:
  explicit Device(Worker* worker)
      : worker_(*worker), inner_(worker->compression.max_message_bytes() + kUpdateHeaderBytes) {
    EXPECT_TRUE(inner_.Extend(worker->elements).ok());
    inner_.KeepMessages(true);
  }

  strom_step_device functions() {
    strom_step_device device{};
    device.context = this;
    device.hold = [](void* context) { ++Of(context).held; };
    device.release = [](void* context) { --Of(context).held; };
    device.read_residual = [](void* context, int64_t offset, int64_t size, float* out) {
      return Of(context).Code(
          Of(context).inner_.ReadResidual(offset, {out, static_cast<size_t>(size)}));
    };
    device.write_residual = [](void* context, int64_t offset, int64_t size, const float* in) {
      return Of(context).Code(
          Of(context).inner_.WriteResidual(offset, {in, static_cast<size_t>(size)}));
    };
    device.step = [](void* context, int64_t, const strom_step_options* options,
                     strom_step_result* result) { return Of(context).Step(*options, result); };
    device.message = [](void* context, int64_t index, uint8_t* out, int64_t capacity,
                        int64_t* size) {
      return Of(context).Message(static_cast<size_t>(index), out, capacity, size);
    };
    device.take_back = [](void* context) { return Of(context).TakeBack(); };
    device.apply = [](void* context, const uint8_t* message, int64_t bytes, int64_t elements,
                      int64_t* skipped) {
      return Of(context).Apply({message, static_cast<size_t>(bytes)}, elements, skipped);
    };
    device.write_values = [](void* context, int64_t offset, int64_t size, const float* in) {
      return Of(context).WriteValues(offset, {in, static_cast<size_t>(size)});
    };
    device.last_error = [](void* context) { return Of(context).words_.c_str(); };
    return device;
  }

  int held = 0;
  int steps = 0;
  bool lost = false;
  int adds = -1;  // so many more messages can be added; -1 = any

 private:
  static Device& Of(void* context) { return *static_cast<Device*>(context); }

  int Code(Status status) {
    if (lost) status = {strom::Code::kInternal, "the device is lost"};
    words_ = status.message;
    return static_cast<int>(status.code);
  }

  int Step(const strom_step_options& options, strom_step_result* result) {
    EXPECT_EQ(held, 1);
    ++steps;
    before_.resize(static_cast<size_t>(worker_.elements));
    EXPECT_TRUE(inner_.ReadResidual(0, before_).ok());
    strom_step_options alone = options;
    alone.take_received = 0;
    return Code(inner_.Step(worker_.Segments(true), alone, result));
  }

  int Message(size_t index, uint8_t* out, int64_t capacity, int64_t* size) {
    if (index >= inner_.kept_messages().size())
      return static_cast<int>(strom::Code::kInvalidArgument);
    const std::vector<uint8_t>& message = inner_.kept_messages()[index];
    *size = static_cast<int64_t>(message.size());
    if (out != nullptr) {
      EXPECT_EQ(capacity, *size);
      std::copy(message.begin(), message.end(), out);
    }
    return Code({});
  }

  int TakeBack() {
    size_t next = 0;
    for (size_t i = 0; i < worker_.variables.size(); ++i) {
      for (size_t k = 0; k < worker_.variables[i].size(); ++k) {
        before_[next++] += worker_.variables[i][k] - worker_.after[i][k];
      }
    }
    return Code(inner_.WriteResidual(0, before_));
  }

  int Apply(Bytes bytes, int64_t elements, int64_t* skipped) {
    ParsedMessage message;
    Status status = ParseMessage(bytes, &message);
    if (!status.ok()) return Code(std::move(status));
    EXPECT_LE(message.elements(), elements);
    if (adds == 0) return Code({strom::Code::kInternal, "no memory"});
    --adds;
    std::vector<ParameterRange> ranges;
    for (const strom_segment& segment : worker_.Segments(false)) {
      ranges.push_back({segment.offset, {segment.value, static_cast<size_t>(segment.size)}});
    }
    *skipped = ApplyMessage(message, ranges);
    return Code({});
  }

  int WriteValues(int64_t offset, std::span<const float> in) {
    for (const strom_segment& segment : worker_.Segments(false)) {
      if (segment.offset > offset || offset >= segment.offset + segment.size) continue;
      EXPECT_LE(offset + static_cast<int64_t>(in.size()), segment.offset + segment.size);
      std::copy(in.begin(), in.end(), segment.value + (offset - segment.offset));
    }
    return Code({});
  }

  Worker& worker_;
  CompressionState inner_;
  std::vector<float> before_;  // the residual before the last step
  std::string words_;
};

// The worker's segments as a step on a device gets them.
std::vector<strom_segment> Places(Worker* worker) {
  std::vector<strom_segment> places;
  for (const strom_segment& segment : worker->Segments(false)) {
    places.push_back({segment.offset, segment.size, nullptr, nullptr, nullptr, nullptr});
  }
  return places;
}

// A worker whose steps are on a device, and one that does the same on the host.
struct Pair {
  explicit Pair(const std::vector<int64_t>& sizes, bool sequenced = false)
      : there(sizes, 1, sequenced), here(sizes, 1, sequenced), device(&there) {
    there.BeFull();
    here.BeFull();
  }

  Status StepThere(const std::vector<float>& update) {
    there.Optimize(update);
    return there.compression.StepOnDevice(device.functions(), Places(&there), there.options,
                                          &there.result);
  }

  void Step(uint32_t seed) {
    const std::vector<float> update = RandomUpdate(there.elements, seed);
    ASSERT_TRUE(here.Step(update).ok());
    const Status status = StepThere(update);
    ASSERT_TRUE(status.ok()) << status.message;
    ExpectSame();
  }

  void ExpectSame() {
    EXPECT_EQ(there.Values(), here.Values());
    EXPECT_EQ(there.Residual(), here.Residual());
    EXPECT_EQ(there.exchange->applied, here.exchange->applied);
    EXPECT_EQ(there.result.count, here.result.count);
    EXPECT_EQ(there.result.message_bytes, here.result.message_bytes);
    EXPECT_EQ(there.result.received, here.result.received);
    EXPECT_EQ(there.result.staleness, here.result.staleness);
    EXPECT_EQ(there.result.values_written, here.result.values_written);
    ASSERT_EQ(there.exchange->sent.size(), here.exchange->sent.size());
    for (size_t i = 0; i < here.exchange->sent.size(); ++i) {
      EXPECT_EQ(*there.exchange->sent[i].update, *here.exchange->sent[i].update);
    }
  }

  void Receive(const Worker& other) {
    there.exchange->inbox = other.exchange->sent;
    here.exchange->inbox = other.exchange->sent;
  }

  Worker there, here;
  Device device;
};

TEST(StepOnDevice, GivesTheBitsOfStepsOnTheHostWhateverComes) {
  Pair pair({1000, 1, 7000, 333});
  Worker other({8334}, 2);
  for (uint32_t step = 0; step < 4; ++step) {
    other.exchange->sent.clear();
    ASSERT_TRUE(other.Step(RandomUpdate(8334, 100 + step)).ok());
    pair.Receive(other);
    pair.Step(step);
  }
  EXPECT_EQ(pair.device.steps, 4);
  EXPECT_EQ(pair.device.held, 1);
}

TEST(StepOnDevice, ClipsAndScalesThere) {
  Pair pair({5000});
  for (Worker* worker : {&pair.there, &pair.here}) {
    worker->options.scale = 0.5f;
    worker->options.clip_multiple = 1;
  }
  for (uint32_t step = 0; step < 3; ++step) pair.Step(step);
}

TEST(StepOnDevice, TheResidualComesBackForAStepOnTheHostAndGoesThereAgain) {
  Pair pair({3000, 50});
  pair.Step(1);
  EXPECT_EQ(pair.device.held, 1);
  const std::vector<float> update = RandomUpdate(3050, 2);
  ASSERT_TRUE(pair.here.Step(update).ok());
  ASSERT_TRUE(pair.there.Step(update).ok());
  EXPECT_EQ(pair.device.held, 0);
  pair.ExpectSame();
  pair.Step(3);
  EXPECT_EQ(pair.device.held, 1);
}

TEST(StepOnDevice, ReadsTheResidualWhereItIsAndWritesItOnTheHost) {
  Pair pair({3000, 50});
  pair.Step(1);
  std::vector<float> some(100);
  ASSERT_TRUE(pair.there.compression.ReadResidual(2950, some).ok());
  EXPECT_EQ(pair.device.held, 1);
  const std::vector<float> all = pair.here.Residual();
  EXPECT_EQ(some, std::vector<float>(all.begin() + 2950, all.end()));
  EXPECT_EQ(pair.there.Shared(), pair.here.Shared());
  EXPECT_EQ(pair.device.held, 0);
  pair.Step(2);
  const std::vector<float> ones(10, 1);
  ASSERT_TRUE(pair.there.compression.WriteResidual(5, ones).ok());
  ASSERT_TRUE(pair.here.compression.WriteResidual(5, ones).ok());
  EXPECT_EQ(pair.device.held, 0);
  pair.Step(3);
}

TEST(StepOnDevice, LeavesWhatLiesInNoSegmentOnTheHost) {
  Pair pair({100, 20});
  ASSERT_TRUE(pair.there.compression.Extend(200).ok());
  const std::vector<float> ones(80, 1);
  ASSERT_TRUE(pair.there.compression.WriteResidual(120, ones).ok());
  ASSERT_TRUE(pair.StepThere(RandomUpdate(120, 1)).ok());
  std::vector<float> all(200);
  ASSERT_TRUE(pair.there.compression.ReadResidual(0, all).ok());
  EXPECT_EQ(std::vector<float>(all.begin() + 120, all.end()), ones);
  ASSERT_TRUE(pair.here.Step(RandomUpdate(120, 1)).ok());
  EXPECT_EQ(std::vector<float>(all.begin(), all.begin() + 120), pair.here.Residual());
}

TEST(StepOnDevice, AWorkerThatLeavesHandsItOver) {
  Pair pair({3000});
  pair.Step(1);
  strom_residual_result result{};
  ASSERT_TRUE(pair.there.compression.HandOverResidual(2, &result).ok());
  EXPECT_GT(result.elements, 0);
  EXPECT_EQ(pair.device.held, 0);
  ASSERT_TRUE(pair.here.compression.HandOverResidual(2, &result).ok());
  pair.ExpectSame();
}

TEST(StepOnDevice, ASnapshotAndASumComeThereToo) {
  Pair pair({70000, 9});
  pair.Step(1);
  const std::vector<float> parameters = RandomUpdate(70005, 5);  // of before the flat space grew
  for (Worker* worker : {&pair.there, &pair.here}) {
    worker->exchange->snapshot = {std::make_shared<const std::vector<float>>(parameters),
                                  VersionVector{{1, 1}, {2, 4}}};
    worker->exchange->folded = {RandomUpdate(70009, 6), {{2, 5}}, {{2, 7}}, 0, 3};
  }
  pair.Step(2);
  EXPECT_EQ(pair.there.result.received, 3);
}

// Where replicas agree in every bit, what all share is on the host and the own model on the device.
TEST(ApplyOnDevice, GivesTheBitsOfTheHostWhoeverSentIt) {
  const std::vector<int64_t> sizes = {1000, 7000, 20};
  Pair pair(sizes, true);
  pair.Step(1);
  Worker other({8000, 20}, 2, true), third({8000, 20}, 3, true);
  // The last variable is nobody's own model; the others' updates reach it.
  std::vector<float> update = RandomUpdate(8020, 1);
  ASSERT_TRUE(other.Step(update).ok());
  ASSERT_TRUE(third.Step(RandomUpdate(8020, 2)).ok());
  std::vector<std::vector<float>> there, here;
  for (const int64_t size : sizes) here.emplace_back(static_cast<size_t>(size), 0.25f);
  here.back() = pair.here.variables.back();
  there = here;
  std::vector<ReceivedUpdate> all = {other.exchange->sent[0], pair.here.exchange->sent[0],
                                     third.exchange->sent[0]};
  pair.there.exchange->inbox = all;
  pair.here.exchange->inbox = all;
  std::vector<strom_segment> segments = pair.here.Segments(false);
  std::vector<strom_segment> places = Places(&pair.there);
  std::vector<float*> own_models(3);
  for (size_t i = 0; i < 2; ++i) {
    own_models[i] = std::exchange(segments[i].value, here[i].data());
    places[i].value = there[i].data();
  }
  strom_step_result result{};
  ASSERT_TRUE(pair.here.compression.Apply(segments, &result, {}, own_models.data()).ok());
  const Status status =
      pair.there.compression.ApplyOnDevice(pair.device.functions(), places, &pair.there.result);
  ASSERT_TRUE(status.ok()) << status.message;
  pair.here.result = result;
  pair.ExpectSame();
  EXPECT_EQ(result.received, 3);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(there[i], here[i]);
  EXPECT_EQ(pair.device.held, 1);
}

TEST(ApplyOnDevice, NamesWhatNoSegmentHolds) {
  Pair pair({300}, true);
  ASSERT_TRUE(pair.there.compression.Extend(400).ok());
  for (const uint64_t origin : {uint64_t{1}, uint64_t{2}}) {
    Worker wide({400}, origin, true);
    ASSERT_TRUE(wide.Step(std::vector<float>(400, 1)).ok());
    pair.there.exchange->inbox = wide.exchange->sent;
    std::vector<float> shared(300);
    std::vector<strom_segment> places = Places(&pair.there);
    places[0].value = shared.data();
    if (origin == 1) {
      ASSERT_TRUE(pair.StepThere(std::vector<float>(300, 0)).ok());
    }
    const Status status =
        pair.there.compression.ApplyOnDevice(pair.device.functions(), places, &pair.there.result);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find("100 received entries"), std::string::npos) << status.message;
  }
}

// The device's memory runs out for once.
TEST(ApplyOnDevice, WhatCouldNotBeAddedWaitsAndIsSharedNowhere) {
  Pair pair({300}, true);
  pair.Step(1);
  Worker other({300}, 2, true);
  ASSERT_TRUE(other.Step(RandomUpdate(300, 3)).ok());
  ASSERT_TRUE(other.Step(RandomUpdate(300, 4)).ok());
  std::vector<float> there(300), here(300);
  std::vector<strom_segment> segments = pair.here.Segments(false);
  float* const own_models[] = {std::exchange(segments[0].value, here.data())};
  std::vector<strom_segment> places = Places(&pair.there);
  places[0].value = there.data();
  const auto apply_there = [&] {
    return pair.there.compression.ApplyOnDevice(pair.device.functions(), places,
                                                &pair.there.result);
  };
  const auto apply_here = [&](const ReceivedUpdate& update) {
    pair.here.exchange->inbox = {update};
    return pair.here.compression.Apply(segments, &pair.here.result, {}, own_models).ok();
  };
  pair.there.exchange->inbox = other.exchange->sent;
  pair.device.adds = 1;
  EXPECT_EQ(apply_there().message, "no memory");
  ASSERT_TRUE(apply_here(other.exchange->sent[0]));
  pair.ExpectSame();
  EXPECT_EQ(there, here);
  pair.device.adds = -1;
  ASSERT_TRUE(apply_there().ok());
  ASSERT_TRUE(apply_here(other.exchange->sent[1]));
  pair.ExpectSame();
  EXPECT_EQ(there, here);
}

// Where G is kept nothing is computed of the residual, and whoever is shown G may end a training.
TEST(StepOnDevice, TheResidualComesBackWhereGIsShownOfNoSegment) {
  Pair pair({300}, true);
  pair.Step(1);
  EXPECT_EQ(pair.device.held, 1);
  ASSERT_TRUE(pair.there.compression.AddResidual({}, -1, {}).ok());
  EXPECT_EQ(pair.device.held, 0);
  pair.ExpectSame();
}

TEST(ApplyOnDevice, IsForModesInWhichReplicasAgree) {
  Pair pair({300});
  const Status status = pair.there.compression.ApplyOnDevice(
      pair.device.functions(), Places(&pair.there), &pair.there.result);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("asynchronous"), std::string::npos) << status.message;
}

TEST(StepOnDevice, WhatCouldNotBeSentIsTakenBack) {
  Pair pair({300});
  pair.there.exchange->fault = {Code::kBackPressure, "full"};
  EXPECT_EQ(pair.StepThere(std::vector<float>(300, 1)).code, Code::kBackPressure);
  EXPECT_EQ(pair.there.Residual(), std::vector<float>(300, 1));
  EXPECT_EQ(pair.there.Values(), std::vector<float>(300, 1));
}

// One of several received updates does not fit into the device's memory for once.
TEST(StepOnDevice, WhatCouldNotBeAddedWaitsAndNothingIsAddedTwice) {
  Pair pair({3000, 50});
  pair.Step(1);
  Worker other({3050}, 2);
  ASSERT_TRUE(other.Step(RandomUpdate(3050, 100)).ok());
  ASSERT_TRUE(other.Step(RandomUpdate(3050, 101)).ok());
  pair.there.exchange->inbox = other.exchange->sent;
  pair.here.exchange->inbox = {other.exchange->sent[0]};
  const std::vector<float> update = RandomUpdate(3050, 2);
  pair.device.adds = 1;
  EXPECT_EQ(pair.StepThere(update).message, "no memory");
  ASSERT_TRUE(pair.here.Step(update).ok());
  pair.ExpectSame();
  pair.device.adds = -1;
  pair.there.exchange->inbox.clear();
  pair.here.exchange->inbox = {other.exchange->sent[1]};
  pair.Step(3);
}

TEST(StepOnDevice, OfASumTheRestIsAddedLater) {
  constexpr int64_t kElements = (int64_t{256} << 14) + 100;  // a little more than goes at once
  Pair pair({kElements});
  pair.Step(1);
  const VersionVector first{{2, 1}}, last{{2, 3}};
  pair.there.exchange->folded = {std::vector<float>(kElements, 0.25f), first, last, 0, 3};
  const std::vector<float> none(kElements, 0);
  pair.device.adds = 1;
  EXPECT_EQ(pair.StepThere(none).message, "no memory");
  EXPECT_EQ(pair.there.result.received, 0);
  ASSERT_TRUE(pair.here.Step(none).ok());
  EXPECT_EQ(pair.there.exchange->applied, pair.here.exchange->applied);
  pair.device.adds = -1;
  pair.there.exchange->folded = {};
  pair.here.exchange->folded = {std::vector<float>(kElements, 0.25f), first, last, 0, 3};
  ASSERT_TRUE(pair.StepThere(none).ok());
  ASSERT_TRUE(pair.here.Step(none).ok());
  pair.ExpectSame();
}

TEST(StepOnDevice, ADeviceThatIsLostIsToldOf) {
  Pair pair({300});
  pair.Step(1);
  pair.device.lost = true;
  EXPECT_EQ(pair.StepThere(RandomUpdate(300, 2)).message, "the device is lost");
  std::vector<float> out(300);
  EXPECT_EQ(pair.there.compression.ReadResidual(0, out).message, "the device is lost");
  EXPECT_EQ(pair.there.Step(RandomUpdate(300, 3)).message, "the device is lost");
  EXPECT_TRUE(pair.there.exchange->sent.size() == 1);
}

TEST(StepOnDevice, LetsGoOfTheDeviceWhenItEnds) {
  Worker worker({300}, 1);
  worker.BeFull();
  Device device(&worker);
  {
    Worker other({300}, 2);
    other.BeFull();
    worker.Optimize(RandomUpdate(300, 1));
    ASSERT_TRUE(other.compression
                    .StepOnDevice(device.functions(), Places(&worker), other.options, &other.result)
                    .ok());
    EXPECT_EQ(device.held, 1);
  }
  EXPECT_EQ(device.held, 0);
}

TEST(StepOnDevice, RefusesWhatADeviceDoesNotDo) {
  Pair pair({300});
  const auto refuses = [&](const strom_step_options& options) {
    return pair.there.compression
               .StepOnDevice(pair.device.functions(), Places(&pair.there), options,
                             &pair.there.result)
               .code == Code::kInvalidArgument;
  };
  strom_step_options options = pair.there.options;
  options.full = 0;
  EXPECT_TRUE(refuses(options));
  options = pair.there.options;
  options.norm_limit = 1;
  EXPECT_TRUE(refuses(options));
  options = pair.there.options;
  options.send_mean = 1;
  EXPECT_TRUE(refuses(options));
  options = pair.there.options;
  options.threshold = 0;
  EXPECT_TRUE(refuses(options));
  EXPECT_EQ(pair.device.held, 0);
  EXPECT_EQ(pair.device.steps, 0);
}

}  // namespace
}  // namespace strom
