// A master over scripted links: what its members say is at hand, and what it sends is recorded.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_MASTER_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_MASTER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/master/master_node.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/pieces.h"
#include "empty_update.h"
#include "link_events.h"
#include "merged_updates.h"
#include "recorded_links.h"

namespace strom {

inline constexpr int64_t kNow = 1'000'000'000;
inline constexpr Layout kLayout = {.generation = 1, .size = 100, .hash = 5};

// A master whose members are links 1, 2, ... with ranks 0, 1, ...
class Master {
 public:
  explicit Master(int32_t workers, MasterNodeOptions options = {})
      : node(With(options, workers), &links), workers_(workers) {}

  void SayHello(LinkId link, int32_t rank, uint8_t instance, int32_t attempt = 0,
                int32_t max_staleness = -1) {
    Hello hello{.rank = rank, .size = workers_, .attempt = attempt};
    hello.max_staleness = max_staleness;
    hello.instance.fill(instance);
    node.HandleLinkEvent(kNow, HelloOn(link, EncodeHello(hello)));
  }
  void Say(LinkId link, const ControlMessage& message) {
    node.HandleLinkEvent(kNow, MessageOn(link, message));
  }
  void SayBlob(LinkId link, const std::vector<Buffer>& chunks) {
    for (const Buffer& chunk : chunks) {
      node.HandleLinkEvent(kNow, MessageOn(link, Channel::kState, chunk));
    }
  }
  void Update(LinkId link, const UpdateId& id) {
    node.HandleLinkEvent(kNow, MessageOn(link, Channel::kUpdate, EmptyUpdate(id, kLayout)));
  }
  // One update of all these.
  void Merged(LinkId link, const std::vector<UpdateId>& ids) {
    std::vector<Buffer> updates;
    for (const UpdateId& id : ids) updates.push_back(UpdateWith(id, kLayout));
    node.HandleLinkEvent(kNow, MessageOn(link, Channel::kUpdate, MergedOf(updates, kLayout)));
  }
  void Join(int32_t max_staleness = -1) {
    for (int32_t rank = 0; rank < workers_; ++rank) {
      const LinkId link = static_cast<LinkId>(rank + 1);
      SayHello(link, rank, static_cast<uint8_t>(rank + 1), 0, max_staleness);
      node.HandleLinkEvent(kNow, Up(link));
    }
  }
  // All join and start the first generation.
  void Start() {
    Join();
    BeginAsChief(1, {kLayout, 0, ""});
    for (LinkId link = 2; link <= static_cast<LinkId>(workers_); ++link) {
      Say(link, Announce{kLayout, 0, ""});
    }
  }
  // Announces with the hashes of these values (else zeros), and sends what is asked for of them.
  void BeginAsChief(LinkId link, Announce announce, std::vector<float> values = {}) {
    values.resize(announce.layout.size);
    const PieceGrid grid(values.size());
    announce.hashes = grid.Hashes(values);
    Say(link, announce);
    const std::optional<AskPieces> asked = links.Last<AskPieces>(link);
    if (!asked || asked->generation != announce.layout.generation) return;
    const BlobName name{BlobKind::kPieces, asked->generation, 0, asked->number, 0};
    SayBlob(link, EncodeParts(name, grid.Parts(values, asked->indices)));
  }
  // All end the first generation, in which nobody has sent an update.
  void End() {
    const auto all = [&](auto say) {
      for (LinkId link = 1; link <= static_cast<LinkId>(workers_); ++link) say(link);
    };
    all([&](LinkId link) { Say(link, Done{1, 0, 0}); });
    all([&](LinkId link) {
      SayBlob(link, EncodeBlob({BlobKind::kState, 1, 0, 0, 0}, std::vector<double>{}));
    });
    all([&](LinkId link) { Say(link, Verification{1, 0, 0}); });
  }
  // Until the member is asked to say updates again, or for a second; when that is.
  int64_t RunUntilAsked(LinkId link) {
    int64_t now_ns = kNow;
    while (!links.Last<SayAgain>(link) && now_ns < kNow + 1'000'000'000) {
      node.HandleTimeout(now_ns = std::max(now_ns, node.NextTimeout()));
    }
    return now_ns;
  }
  static uint64_t Origin(LinkId link) { return uint64_t{1} << 32 | link; }

  RecordedLinks links;
  MasterNode node;

 private:
  static MasterNodeOptions With(MasterNodeOptions options, int32_t workers) {
    options.workers = workers;
    return options;
  }

  const int32_t workers_;
};

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_MASTER_H_
