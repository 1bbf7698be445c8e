// A worker over scripted links: what its master says over link 1 is at hand, and what it sends is
// recorded.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_WORKER_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/pieces.h"
#include "core/worker/worker_node.h"
#include "link_events.h"
#include "recorded_links.h"
#include "scripted_master.h"

namespace strom {

// It has joined, and announced the first generation with these values.
class ScriptedWorker {
 public:
  ScriptedWorker(const WorkerNodeOptions& options, std::shared_ptr<std::vector<float>> values)
      : node(options, &links) {
    node.Start(kNow);
    node.HandleLinkEvent(kNow, Up(1, EncodeWelcome({Master::Origin(1), 0, 1})));
    node.BeginGeneration(
        kNow, {1, static_cast<int64_t>(kLayout.size), kLayout.hash, "", std::move(values)});
  }

  void Hear(const ControlMessage& message, int64_t now_ns = kNow) {
    node.HandleLinkEvent(now_ns, MessageOn(1, message));
  }
  void HearBlob(const std::vector<Buffer>& chunks) {
    for (const Buffer& chunk : chunks) {
      node.HandleLinkEvent(kNow, MessageOn(1, Channel::kState, chunk));
    }
  }
  // The parameters that come with the event, "" or why it has failed; null = neither.
  std::pair<std::shared_ptr<const std::vector<float>>, std::string> Outcome(
      WorkerEvent::Type type) {
    while (auto event = node.PollEvent()) {
      if (event->type == WorkerEvent::Type::kFailed) return {nullptr, event->status.message};
      if (event->type == type) return {event->parameters, ""};
    }
    return {};
  }

  RecordedLinks links;
  WorkerNode node;
};

// Pieces of these values, behind the hashes of others.
inline std::vector<Buffer> PiecesOf(const std::vector<float>& values,
                                    const std::vector<uint32_t>& indices,
                                    const std::vector<float>& hashed,
                                    int64_t chunk_bytes = kChunkBytes) {
  const PieceGrid grid(values.size());
  const std::vector<uint64_t> hashes = grid.Hashes(hashed);
  std::vector<Bytes> parts = grid.Parts(values, indices);
  parts.insert(parts.begin(), AsBytes(hashes));
  return EncodeParts({BlobKind::kPieces, 1, 0, 0, 0}, std::move(parts), chunk_bytes);
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_SCRIPTED_WORKER_H_
