// A host's LinkLayer as its node sees it, with a record of which links stand and to whom, for the
// checks of queues and trees, and of what has happened on them that tests want to have reached. It
// changes nothing.
#ifndef KERAS_STROM_SIM_WATCHED_LINKS_H_
#define KERAS_STROM_SIM_WATCHED_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/base/link_layer.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "sim/forwarded_links.h"

namespace strom {

class WatchedLinks final : public ForwardedLinks {
 public:
  struct Watched {
    Address to;              // of those that this host has started; else all zero
    bool initiated = false;  // by this host
    bool up = false;
  };

  using ForwardedLinks::ForwardedLinks;

  // Every event passes here before the node gets it. True: it is the first part of pieces of values
  // of which more is to come.
  bool Note(const LinkEvent& event) {
    if (event.type == LinkEvent::Type::kDown) Forget(event.link);
    if (event.type == LinkEvent::Type::kUp) open_[event.link].up = true;
    const bool is_chunk =
        event.type == LinkEvent::Type::kMessage && event.channel == Channel::kState;
    return is_chunk && NoteChunk(event);
  }
  // Runs of pieces of which a part has come, and the link has gone before the rest.
  int interrupted_pieces() const { return interrupted_pieces_; }
  // Questions for more pieces of values for which the chief had been asked before.
  int asked_again() const { return asked_again_; }
  // The links that stand or are being made.
  const std::map<LinkId, Watched>& open() const { return open_; }
  // Of the links that others have made to this host: downward.
  int64_t LongestQueueDown() const {
    int64_t longest = 0;
    for (const auto& [link, watched] : open_) {
      if (!watched.initiated) longest = std::max(longest, QueuedBytes(link));
    }
    return longest;
  }

  LinkId Connect(int64_t now_ns, const Address& to, const PublicKeyBytes& key,
                 Buffer hello) override {
    const LinkId link = ForwardedLinks::Connect(now_ns, to, key, std::move(hello));
    open_[link] = {to, true, false};
    return link;
  }
  void Close(int64_t now_ns, LinkId link, const std::string& reason) override {
    Forget(link);
    ForwardedLinks::Close(now_ns, link, reason);
  }
  bool Send(int64_t now_ns, LinkId link, Channel channel, Buffer message) override {
    ControlMessage word;
    if (channel == Channel::kControl && message->front() == AskPieces::kType &&
        ParseControl(*message, &word).ok()) {
      if (!asked_.insert(std::get<AskPieces>(word).number).second) ++asked_again_;
    }
    return ForwardedLinks::Send(now_ns, link, channel, std::move(message));
  }

 private:
  void Forget(LinkId link) {
    open_.erase(link);
    interrupted_pieces_ += static_cast<int>(begun_.erase(link));
  }
  bool NoteChunk(const LinkEvent& event) {
    BlobChunk chunk;
    const bool is_piece =
        ParseChunk(*event.payload, &chunk).ok() && chunk.name.kind == BlobKind::kPieces;
    if (!is_piece) return false;
    if (chunk.offset + chunk.bytes.size() < chunk.total) return begun_.insert(event.link).second;
    begun_.erase(event.link);
    return false;
  }

  std::map<LinkId, Watched> open_;
  std::set<LinkId> begun_;    // on which a part of pieces has come
  std::set<uint64_t> asked_;  // numbers of the chief's announcements
  int interrupted_pieces_ = 0;
  int asked_again_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_WATCHED_LINKS_H_
