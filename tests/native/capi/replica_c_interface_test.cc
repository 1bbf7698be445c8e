// The replica and the codec through capi/strom.h, as the TensorFlow ops and Python use them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "capi/handles.h"
#include "subnormal_mode.h"

namespace strom {
namespace {

constexpr int64_t kMessageBytes = int64_t{1} << 20;

strom_handle NewReplica(int64_t size) {
  strom_handle replica = 0;
  EXPECT_EQ(strom_replica_create(kMessageBytes, &replica), STROM_OK) << strom_last_error();
  EXPECT_EQ(strom_replica_extend(replica, size), STROM_OK);
  return replica;
}

strom_step_options Options() {
  strom_step_options options{};
  options.scale = 1;
  options.threshold = 0.5f;
  options.apply_own = options.take_received = 1;
  options.iteration = 3;
  return options;
}

TEST(ReplicaCInterface, ALoneWorkerSteps) {
  const strom_handle replica = NewReplica(4);
  ASSERT_EQ(strom_replica_keep_messages(replica, 1), STROM_OK);
  std::vector<float> before = {1, 2, 3, 4};
  const std::vector<float> after = {1.75f, 2, 2.5f, 4.25f};
  const strom_segment segment = {0, 4, before.data(), after.data(), before.data(), nullptr};
  const strom_step_options options = Options();
  strom_step_result result;
  ASSERT_EQ(strom_replica_step(replica, &segment, 1, &options, nullptr, &result), STROM_OK);
  EXPECT_EQ(result.count, 2);
  EXPECT_EQ(result.elements, 4);
  EXPECT_EQ(result.threshold, 0.5f);
  EXPECT_EQ(result.max_residual, 0.25f);
  EXPECT_EQ(result.sum_residual, 0.5);
  EXPECT_EQ(before, (std::vector<float>{1.5f, 2, 2.5f, 4}));
  std::vector<float> residual(4);
  ASSERT_EQ(strom_replica_read_residual(replica, 0, 4, residual.data()), STROM_OK);
  EXPECT_EQ(residual, (std::vector<float>{0.25f, 0, 0, 0.25f}));

  // The kept message is what was applied.
  int64_t size = 0;
  ASSERT_EQ(strom_replica_message(replica, 0, nullptr, 0, &size), STROM_OK);
  EXPECT_EQ(size, result.message_bytes);
  std::vector<uint8_t> message(static_cast<size_t>(size));
  EXPECT_EQ(strom_replica_message(replica, 0, message.data(), size - 1, &size),
            STROM_INVALID_ARGUMENT);
  ASSERT_EQ(strom_replica_message(replica, 0, message.data(), size, &size), STROM_OK);
  std::vector<float> sum(4);
  ASSERT_EQ(strom_codec_apply(message.data(), size, sum.data(), 4, nullptr), STROM_OK);
  EXPECT_EQ(sum, (std::vector<float>{0.5f, 0, -0.5f, 0}));
  EXPECT_EQ(strom_replica_message(replica, 1, nullptr, 0, &size), STROM_INVALID_ARGUMENT);

  EXPECT_EQ(strom_replica_close(replica), STROM_OK);
}

TEST(ReplicaCInterface, TasksRunOnTheThreadsThatTheCallerLends) {
  constexpr int64_t kElements = 300'000;
  const strom_handle replica = NewReplica(kElements);
  std::vector<float> before(kElements), after(kElements, 1);
  const strom_segment segment = {0, kElements, before.data(), after.data(), before.data(), "w"};
  int64_t tasks_run = 0;
  const auto run = [](void* pool, int64_t tasks, strom_task task, void* context) {
    *static_cast<int64_t*>(pool) += tasks;
    for (int64_t i = tasks; i-- > 0;) task(context, i);  // in any order
  };
  const strom_thread_pool threads = {2, run, &tasks_run};
  const strom_step_options options = Options();
  strom_step_result result;
  ASSERT_EQ(strom_replica_step(replica, &segment, 1, &options, &threads, &result), STROM_OK);
  EXPECT_GT(tasks_run, 0);
  EXPECT_EQ(result.count, kElements);
  EXPECT_EQ(before, std::vector<float>(kElements, 0.5f));

  after.assign(kElements, std::nanf(""));
  EXPECT_EQ(strom_replica_step(replica, &segment, 1, &options, &threads, &result),
            STROM_NOT_FINITE);
  EXPECT_NE(std::string(strom_last_error()).find("'w' is NaN"), std::string::npos);
  EXPECT_EQ(strom_replica_close(replica), STROM_OK);
}

// TensorFlow sets its threads so, the master's are not: both have to add the same.
TEST(ReplicaCInterface, SubnormalNumbersAreKeptOnEveryThread) {
  constexpr int64_t kElements = 300'000;
  const float tiny = std::numeric_limits<float>::denorm_min();
  const strom_handle replica = NewReplica(kElements);
  std::vector<float> before(kElements, tiny);
  const std::vector<float> after(kElements, 4 * tiny);
  const strom_segment segment = {0, kElements, before.data(), after.data(), before.data(), nullptr};
  const auto run = [](void*, int64_t tasks, strom_task task, void* context) {
    std::thread([=] {
      SetSubnormalMode(kSubnormalsAreZero);
      for (int64_t i = 0; i < tasks; ++i) task(context, i);
    }).join();
  };
  const strom_thread_pool threads = {2, run, nullptr};
  strom_step_options options = Options();
  options.threshold = 2 * tiny;
  strom_step_result result;
  const uint64_t mode = SubnormalMode();
  for (const strom_thread_pool* lent : {static_cast<const strom_thread_pool*>(nullptr), &threads}) {
    SetSubnormalMode(kSubnormalsAreZero);
    const int code = strom_replica_step(replica, &segment, 1, &options, lent, &result);
    SetSubnormalMode(mode);
    ASSERT_EQ(code, STROM_OK);
    EXPECT_EQ(result.count, kElements);
  }
  // Of 3 and then 1 (the update) + 1 (the residual) two left each time.
  EXPECT_EQ(before, std::vector<float>(kElements, 5 * tiny));
  std::vector<float> residual(kElements, 1);
  ASSERT_EQ(strom_replica_read_residual(replica, 0, kElements, residual.data()), STROM_OK);
  EXPECT_EQ(residual, std::vector<float>(kElements));
  EXPECT_EQ(strom_replica_close(replica), STROM_OK);
}

TEST(ReplicaCInterface, AClosedHandleIsRefusedByName) {
  const strom_handle replica = NewReplica(1);
  ASSERT_EQ(strom_replica_close(replica), STROM_OK);
  EXPECT_EQ(strom_replica_close(replica), STROM_CLOSED);
  EXPECT_EQ(strom_replica_extend(replica, 2), STROM_CLOSED);
  const std::string words = strom_last_error();
  EXPECT_NE(words.find("strom_replica_extend"), std::string::npos) << words;
  EXPECT_NE(words.find(std::to_string(replica)), std::string::npos) << words;
}

TEST(ReplicaCInterface, BadArgumentsAreNamed) {
  const strom_handle replica = NewReplica(4);
  const auto says = [](const char* words) {
    return std::string(strom_last_error()).find(words) != std::string::npos;
  };
  strom_handle other = 0;
  EXPECT_EQ(strom_replica_create(100, &other), STROM_INVALID_ARGUMENT);
  EXPECT_TRUE(says("max_message_bytes")) << strom_last_error();
  EXPECT_EQ(strom_replica_bind(replica, 987654321), STROM_CLOSED);
  EXPECT_TRUE(says("worker handle")) << strom_last_error();
  strom_step_result result;
  const strom_step_options options = Options();
  float x = 0;
  const strom_segment no_after = {0, 1, &x, nullptr, &x, nullptr};
  EXPECT_EQ(strom_replica_step(replica, &no_after, 1, &options, nullptr, &result),
            STROM_INVALID_ARGUMENT);
  EXPECT_TRUE(says("after is null")) << strom_last_error();
  EXPECT_EQ(strom_replica_step(replica, nullptr, 1, &options, nullptr, &result),
            STROM_INVALID_ARGUMENT);
  EXPECT_EQ(strom_replica_read_residual(replica, 2, 3, &x), STROM_INVALID_ARGUMENT);
  EXPECT_EQ(strom_replica_await_step(
                replica, 0, 1, [](void*, int, const char*) {}, nullptr),
            STROM_INVALID_ARGUMENT);
  EXPECT_TRUE(says("bound to no worker")) << strom_last_error();
  EXPECT_EQ(strom_replica_close(replica), STROM_OK);
}

TEST(ReplicaCInterface, TheLastErrorBelongsToTheThread) {
  EXPECT_EQ(strom_replica_close(-5), STROM_CLOSED);
  const std::string mine = strom_last_error();
  std::thread([] {
    EXPECT_STREQ(strom_last_error(), "");
    EXPECT_EQ(strom_replica_close(-6), STROM_CLOSED);
  }).join();
  EXPECT_EQ(strom_last_error(), mine);
}

TEST(HandleTable, GivesAnObjectAwayOnceAndNeverReusesAHandle) {
  HandleTable<int> numbers;
  HandleTable<int> others;
  const strom_handle first = numbers.Add(std::make_shared<int>(1));
  const strom_handle second = others.Add(std::make_shared<int>(2));
  EXPECT_NE(first, second);
  EXPECT_EQ(numbers.Find(second), nullptr);
  const std::shared_ptr<int> held = numbers.Find(first);
  EXPECT_EQ(*numbers.Remove(first), 1);
  EXPECT_EQ(numbers.Remove(first), nullptr);
  EXPECT_EQ(numbers.Find(first), nullptr);
  EXPECT_EQ(*held, 1);
  EXPECT_GT(numbers.Add(std::make_shared<int>(3)), second);
}

TEST(Guard, KeepsExceptionsInside) {
  EXPECT_EQ(Guard([]() -> Status { throw std::bad_alloc(); }), STROM_INTERNAL);
  EXPECT_STREQ(strom_last_error(), "out of memory");
  EXPECT_EQ(Guard([]() -> Status { throw std::runtime_error("odd"); }), STROM_INTERNAL);
  EXPECT_STREQ(strom_last_error(), "odd");
  EXPECT_EQ(Guard([]() -> Status { throw 7; }), STROM_INTERNAL);
  EXPECT_EQ(Guard([] { return Status{}; }), STROM_OK);
}

TEST(Hash, NamesBytesAndChains) {
  const std::string text = "the same bytes on every machine";
  const auto hash = [&](size_t from, size_t size, uint64_t previous) {
    return strom_hash(text.data() + from, static_cast<int64_t>(size), previous);
  };
  // Layouts are compared between machines: these numbers never change.
  EXPECT_EQ(hash(0, 31, 0), 0x853aa0818dfa946eu);
  const std::string thrice = text + text + text;
  EXPECT_EQ(strom_hash(thrice.data(), 93, 7), 0xf766d6c301a4b3b8u);
  EXPECT_NE(hash(0, 31, 0), hash(0, 30, 0));
  EXPECT_NE(hash(0, 31, 0), hash(0, 31, 1));
  EXPECT_NE(hash(4, 4, hash(0, 4, 0)), hash(0, 4, hash(4, 4, 0)));
  EXPECT_NE(strom_hash("\0", 1, 0), strom_hash("\0\0", 2, 0));
  EXPECT_EQ(strom_hash(nullptr, 0, 0), strom_hash("", 0, 0));
}

}  // namespace
}  // namespace strom
