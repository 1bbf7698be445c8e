// A thousand nodes with deaths, pauses and a partition; vectors have a thousand origins.
#include <gtest/gtest.h>

#include <vector>

#include "sim/simulation.h"

namespace strom {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int32_t kWorkers = 50;  // a run takes twenty times as long
#else
constexpr int32_t kWorkers = 1000;
#endif
constexpr int64_t kMillisecond = 1'000'000;

class ThousandNodesTest : public testing::TestWithParam<Merging> {};

TEST_P(ThousandNodesTest, Agree) {
  SimulationOptions options;
  options.merging = GetParam();
  options.topology = Topology::kAuto;
  options.max_children = 8;
  options.max_depth = 5;
  options.failure_timeout_ns = 5000 * kMillisecond;
  options.check_every = kWorkers;
  options.plan.faults = {
      {Fault::Kind::kKill, 20 * kMillisecond, 0, {3, 5, 7}},
      {Fault::Kind::kPause, 30 * kMillisecond, 300 * kMillisecond, {11, 13}},
      {Fault::Kind::kPartition, 100 * kMillisecond, 1500 * kMillisecond, {17, 18, 19}},
  };
  Simulation simulation(
      options, std::vector<Script>(kWorkers, {.steps = {1}, .think_ns = 100 * kMillisecond}));
  simulation.Run();
  EXPECT_TRUE(simulation.violations().empty()) << simulation.violations().front();
  const auto count = [&](ApplicationRecord::State state) {
    int workers = 0;
    for (int32_t rank = 0; rank < kWorkers; ++rank) {
      workers += simulation.worker(rank).state == state ? 1 : 0;
    }
    return workers;
  };
  EXPECT_GE(count(ApplicationRecord::State::kFinished), kWorkers - 6);
  EXPECT_EQ(count(ApplicationRecord::State::kDead), 3);
}

INSTANTIATE_TEST_SUITE_P(Merging, ThousandNodesTest, testing::Values(Merging::kOff, Merging::kOn),
                         [](const auto& info) {
                           return info.param == Merging::kOn ? "Merged" : "EachByItself";
                         });

}  // namespace
}  // namespace strom
