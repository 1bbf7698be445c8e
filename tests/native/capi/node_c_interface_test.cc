// The C ABI of masters and workers: what it refuses before a socket is opened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "capi/strom.h"

namespace strom {
namespace {

using testing::HasSubstr;

// A beacon every tenth of nothing would keep the I/O thread busy for ever.
TEST(NodeInterface, RefusesAFailureTimeoutThatNoTimerCanKeep) {
  for (const int64_t timeout_ns :
       {int64_t{0}, int64_t{-1}, int64_t{9}, std::numeric_limits<int64_t>::max()}) {
    strom_handle handle = 0;
    strom_master_options master = {};
    master.bind_address = "127.0.0.1";
    master.workers = 1;
    master.failure_timeout_ns = timeout_ns;
    EXPECT_EQ(strom_master_create(&master, &handle), STROM_INVALID_ARGUMENT);
    EXPECT_THAT(strom_last_error(), HasSubstr("failure timeout"));
    strom_worker_options worker = {};
    worker.bind_address = worker.master_host = "127.0.0.1";
    worker.size = 1;
    worker.failure_timeout_ns = timeout_ns;
    EXPECT_EQ(strom_worker_join(&worker, &handle), STROM_INVALID_ARGUMENT);
    EXPECT_THAT(strom_last_error(), HasSubstr("failure timeout"));
  }
}

TEST(NodeInterface, RefusesATreeThatCannotBe) {
  strom_handle handle = 0;
  strom_master_options master = {};
  master.bind_address = "127.0.0.1";
  master.workers = 1;
  master.failure_timeout_ns = 5'000'000'000;
  master.topology = STROM_TOPOLOGY_MESH + 1;
  EXPECT_EQ(strom_master_create(&master, &handle), STROM_INVALID_ARGUMENT);
  EXPECT_THAT(strom_last_error(), HasSubstr("no topology 3"));
  master.topology = STROM_TOPOLOGY_MESH;
  master.max_children = 1;
  EXPECT_EQ(strom_master_create(&master, &handle), STROM_INVALID_ARGUMENT);
  EXPECT_THAT(strom_last_error(), HasSubstr("max_children >= 2"));
}

}  // namespace
}  // namespace strom
