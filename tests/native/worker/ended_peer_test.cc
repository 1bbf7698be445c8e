// A worker that has ended, and that the others' rounds among themselves name no more.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "scripted_worker.h"

namespace strom {
namespace {

TEST(EndedPeer, KnocksNoMoreAtThoseWhoGoOnWithoutIt) {
  constexpr int64_t kSecond = 1'000'000'000;
  RecordedLinks links;
  WorkerNodeOptions options{.rank = 0, .master = {}};
  WorkerNode node(options, &links);
  const auto hear = [&](int64_t now, const ControlMessage& m) {
    node.HandleLinkEvent(now, MessageOn(1, m));
  };
  node.Start(kNow);
  node.HandleLinkEvent(kNow, Up(1, EncodeWelcome({Master::Origin(1), 0, 1})));
  JointPlan plan;
  plan.method.kind = STROM_SPARKNET;
  plan.method.phases = plan.method.steps = plan.method.gradients = 1;
  plan.ranges = {{0, static_cast<int64_t>(kLayout.size)}};
  node.BeginGeneration(kNow, {1, static_cast<int64_t>(kLayout.size), kLayout.hash, "",
                              std::make_shared<std::vector<float>>(kLayout.size), plan});
  hear(kNow, StartGeneration{1, {}});
  Peers::Peer own, other;
  own.rank = 0;
  own.origin = Master::Origin(1);
  other.rank = 1;
  other.origin = Master::Origin(2);
  hear(kNow, Peers{1, 1, {own, other}});
  ASSERT_EQ(links.connected.size(), 2u);
  node.HandleLinkEvent(kNow, Up(2));
  node.Finish(kNow, false);
  LinkEvent closed = Down(2, Code::kClosed);
  closed.reason = "the master has named others";
  node.HandleLinkEvent(kNow, closed);
  int64_t now = kNow;
  while (now < kNow + 60 * kSecond) {
    now = std::min(node.NextTimeout(), now + kSecond / 4);
    hear(now, Beacon{1, 0, {}, 0});
    const size_t before = links.connected.size();
    node.HandleTimeout(now);
    if (links.connected.size() == before) continue;
    LinkEvent refused = Down(static_cast<LinkId>(links.connected.size()), Code::kRefused);
    refused.reason = "the master has not named this worker";
    node.HandleLinkEvent(now, refused);
  }
  while (auto event = node.PollEvent()) {
    ASSERT_NE(event->type, WorkerEvent::Type::kFailed) << event->status.message;
  }
  EXPECT_LE(links.connected.size(), 2u + 12);  // in a minute
}

}  // namespace
}  // namespace strom
